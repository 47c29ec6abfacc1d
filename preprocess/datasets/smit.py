"""Spoken Moments in Time (S-MiT, Monfort et al. 2021): 500,000 clips of 3 s, spoken descriptions with automatic
transcripts.

The authors give the files on request. This much is known from public code (google-research/scenic,
projects/densevoc/tools/build_smit_tfrecord.py): ``train_set.txt`` has the name of a clip on each line,
``videos/NAME.mp4`` is the clip, and the first line of ``transcriptions/NAME.txt`` is the transcript. Names begin with
the clip's action as a folder. The rest is assumed by analogy:

- the other lists are ``val_set.txt`` and ``test_set.txt``;
- recordings have the ids ``audio/NAME``, unlike their clips, which have sound of their own. vlalign-extract gives
  these ids to files ``audio/NAME.wav`` (or .mp3, ...) in the folder that it reads.

Protocols: ``full`` has all captions. Papers report means over five random sets of 1,000 test pairs (section 5.1; CMCM,
section 4.1), which are not published. ``test-1k-1`` to ``test-1k-5`` are five such draws, without training captions.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from ...storage.common.files import check_regular
from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, read_lines, text

LISTS = {"train": "train_set.txt", "validation": "val_set.txt", "test": "test_set.txt"}
TRANSCRIPTS = "transcriptions"
FULL, DRAW = "full", "test-1k-"
DRAWN, NUM_DRAWS = 1000, 5


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """Yield the captions of a protocol. A caption without a transcript is skipped, even if its recording is whole.

    A split without a list is one problem, unless no split has one.
    """
    if protocol != FULL:
        list_path, folder = annotations.find(LISTS["test"], TRANSCRIPTS)
        captions = list(_captions(annotations, list_path, folder, "test"))
        if len(captions) < DRAWN:
            annotations.problems.add(f"{list_path}: only {len(captions):,} captions can be used, expected {DRAWN:,}")
        yield from draw(captions, protocol.removeprefix(DRAW))
        return
    if not any(map(annotations.find_optional, LISTS.values())):
        annotations.find(*LISTS.values(), TRANSCRIPTS)
    (folder,) = annotations.find(TRANSCRIPTS)
    for split, name in LISTS.items():
        if list_path := annotations.find_optional(name):
            yield from _captions(annotations, list_path, folder, split)
        else:
            annotations.problems.add(
                f"{annotations.folder}: no {name} ({annotations.published[name]}); no captions for {split}"
            )


def draw(captions: Sequence[Caption], seed: str) -> list[Caption]:
    """Return ``DRAWN`` captions, chosen by a hash of seed and clip, so that the order of the list does not matter."""
    return sorted(captions, key=lambda caption: hashlib.sha256(f"{seed}:{caption.video_id}".encode()).digest())[:DRAWN]


def _captions(annotations: Annotations, list_path: Path, folder: Path, split: str) -> Iterator[Caption]:
    for name in dict.fromkeys(read_lines(list_path)):
        try:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError("leads out of the folder")  # a list must not open other files of this machine
            check_regular(folder / f"{name}.txt")
            with (folder / f"{name}.txt").open(encoding="utf-8-sig") as file:
                transcript = text(file.readline())
            yield Caption(video_id=name, caption=transcript, split=split, recording=f"audio/{name}")
        except FileNotFoundError:
            annotations.drop(list_path, f"clip {name!r}", f"no transcript in {folder}")
        except (ValueError, OSError) as error:
            annotations.drop(list_path, f"clip {name!r}", str(error))


SITE = "http://moments.csail.mit.edu/spoken.html, on request to the authors"
DATASET = Dataset(
    read,
    dict.fromkeys((*LISTS.values(), TRANSCRIPTS), SITE),
    protocols=(FULL, *(f"{DRAW}{number}" for number in range(1, NUM_DRAWS + 1))),
)

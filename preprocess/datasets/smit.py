"""Spoken Moments in Time (S-MiT, Monfort et al. 2021): 500,000 clips of 3 s, described aloud, and transcribed by speech recognition.

The authors give the files to those who ask. What public code shows of them (google-research/scenic, projects/densevoc/tools/
build_smit_tfrecord.py): ``train_set.txt`` has the name of a clip on each line, ``videos/NAME.mp4`` is the clip, and the first line of
``transcriptions/NAME.txt`` the transcript; names have the clip's action for a folder. What it does not show, and stands here by analogy:

- the other lists, here ``val_set.txt`` and ``test_set.txt``;
- where the recordings lie. Their ids here are ``audio/NAME``: not the clip's own, which has a sound, too. vlalign-extract gives them
  these ids where they lie as ``audio/NAME.wav`` (or .mp3, ...) in the folder that it is given.

Protocols: ``full`` has all of it. Results are means over five sets of 1,000 test pairs, drawn at random (the paper's section 5.1; CMCM's
4.1), and which these were is not published: ``test-1k-1`` to ``-5`` are five such draws, with no training captions.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, read_lines, text

LISTS = {"train": "train_set.txt", "validation": "val_set.txt", "test": "test_set.txt"}
TRANSCRIPTS = "transcriptions"
FULL, DRAW = "full", "test-1k-"
DRAWN, NUM_DRAWS = 1000, 5


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """A caption without a transcript is left out, though its recording may be whole; a split without a list is one problem."""
    if protocol != FULL:
        list_path, folder = annotations.find(LISTS["test"], TRANSCRIPTS)
        captions = list(_captions(annotations, list_path, folder, "test"))
        if len(captions) < DRAWN:
            annotations.problems.add(
                f"{list_path}: {len(captions):,} captions are left of it, expected {DRAWN:,} to draw from it"
            )
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
    """``DRAWN`` of them, by a hash of seed and clip: the same whatever the order of the list."""
    return sorted(captions, key=lambda caption: hashlib.sha256(f"{seed}:{caption.video_id}".encode()).digest())[:DRAWN]


def _captions(annotations: Annotations, list_path: Path, folder: Path, split: str) -> Iterator[Caption]:
    for name in dict.fromkeys(read_lines(list_path)):
        try:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError("leads out of the folder")  # a list from elsewhere names no other file of this machine
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

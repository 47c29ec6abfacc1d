"""Spoken Moments in Time (S-MiT, Monfort et al. 2021): 500,000 clips of 3 s with spoken descriptions and automatic
transcripts.

The authors give the files on request. This much is known from public code (google-research/scenic,
projects/densevoc/tools/build_smit_tfrecord.py): ``train_set.txt`` has the name of a clip on each line,
``videos/NAME.mp4`` is the clip, and the first line of ``transcriptions/NAME.txt`` is the transcript. Names begin with
the clip's action as a folder, which becomes the captions' ``task``
(CMCM, section 4.3, counts 332). The rest is assumed by analogy:

- the other lists are ``val_set.txt`` and ``test_set.txt``;
- recordings have the ids ``audio/NAME``, unlike their clips, which have sound of their own. vlalign-extract gives
  these ids to files ``audio/NAME.wav`` (or .mp3, ...) in the folder that it reads.

Papers report means over five random sets of 1,000 test pairs (section 5.1; CMCM, section 4.1), which are not published:
``vlalign-evaluate`` draws them (``--draws``).
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ...storage.common.files import check_regular
from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, read_lines, text

LISTS = {"train": "train_set.txt", "validation": "val_set.txt", "test": "test_set.txt"}
TRANSCRIPTS = "transcriptions"


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """Yield the captions of all splits. A caption without a transcript is skipped, even if it has a recording.

    A split without a list is reported; if no split has a list, it is an error.
    """
    del protocol  # there is only one
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


def _captions(annotations: Annotations, list_path: Path, folder: Path, split: str) -> Iterator[Caption]:
    for name in dict.fromkeys(read_lines(list_path)):
        try:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError("leads out of the folder")  # a list must not open other files of this machine
            check_regular(folder / f"{name}.txt")
            with (folder / f"{name}.txt").open(encoding="utf-8-sig") as file:
                transcript = text(file.readline())
            action = PurePosixPath(name).parts[0] if "/" in name else None
            yield Caption(video_id=name, caption=transcript, split=split, task=action, recording=f"audio/{name}")
        except FileNotFoundError:
            annotations.drop(list_path, f"clip {name!r}", f"no transcript in {folder}")
        except (ValueError, OSError) as error:
            annotations.drop(list_path, f"clip {name!r}", str(error))


SITE = "http://moments.csail.mit.edu/spoken.html, on request to the authors"
DATASET = Dataset(read, dict.fromkeys((*LISTS.values(), TRANSCRIPTS), SITE), protocols=("full",))

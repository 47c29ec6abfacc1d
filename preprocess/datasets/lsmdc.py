"""LSMDC (Rohrbach et al. 2015, 2017): clips of 200 movies, with sentences from their audio descriptions.

There are 101,079 training and 7,408 validation sentences. The test set is the 1,000 clips of the 2016 retrieval
challenge, as in all papers. Each clip is a file of its own, so captions have no times. Several training sentences can
describe the same clip. The files are separated by tabs and have neither header nor quotes: a CSV reader that expects
them loses the first clip, or a sentence in quotes.
"""

from collections.abc import Iterator
from pathlib import Path

from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, as_published, text

FILES = {
    "train": "LSMDC16_annos_training.csv",
    "validation": "LSMDC16_annos_val.csv",
    "test": "LSMDC16_challenge_1000_publictect.csv",
}


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """Yield the captions of all splits, ordered by clip."""
    del protocol  # there is only one
    for split, path in zip(FILES, annotations.find(*FILES.values()), strict=True):
        for clip, line, sentence in sorted(_rows(path)):
            try:
                if not clip:
                    raise ValueError("the clip has no name")
                yield Caption(video_id=clip, caption=text(sentence), split=split)
            except ValueError as error:
                annotations.drop(path, f"line {line}", str(error))


def _rows(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yield (clip, line number, sentence)."""
    with as_published(path), path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                with as_published(path, f"line {number}"):
                    clip, _start_aligned, _end_aligned, _start_extracted, _end_extracted, sentence = line.split("\t")
                yield clip.strip(), number, sentence


DATASET = Dataset(
    read,
    dict.fromkeys(FILES.values(), "https://sites.google.com/site/describingmovies/download, on request to the authors"),
)

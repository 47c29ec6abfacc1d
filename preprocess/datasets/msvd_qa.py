"""MSVD-QA (Xu et al. 2017): questions with one-word answers about the clips of MSVD; 30,933 / 6,415 / 13,157 questions.

The questions refer to clips by number; ``youtube_mapping.txt`` maps the numbers to names. The splits (1,161 / 245 /
504 clips) differ from MSVD's splits: some validation questions are about clips of MSVD's test split.
"""

from collections.abc import Iterator
from typing import Any

from ...storage.records import SPLITS
from .msrvtt_qa import OFFICIAL, json_questions, question_captions
from .sources import Annotations, Dataset, Record, as_published, read_lines

MAPPING = "youtube_mapping.txt"


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """Yield the questions of all splits."""
    del protocol  # there is only one
    mapping, *paths = annotations.find(MAPPING, *OFFICIAL)
    name_of_number: dict[str, str] = {}
    for line in read_lines(mapping):
        with as_published(mapping, repr(line)):
            name, number = line.split()
            name_of_number[number] = name

    def video_of(number: Any) -> str:
        if f"vid{number}" not in name_of_number:
            raise ValueError(f"video {number!r} is not in {mapping}")
        return name_of_number[f"vid{number}"]

    for split, path in zip(SPLITS, paths, strict=True):
        yield from question_captions(annotations, path, split, json_questions(annotations, path), video_of)


DATASET = Dataset(
    read,
    {
        MAPPING: "https://www.cs.utexas.edu/~ml/clamp/videoDescription/",
        **dict.fromkeys(
            OFFICIAL,
            "https://data.mendeley.com/datasets/h5j7cpwnvn, by https://github.com/xudejing/video-question-answering",
        ),
    },
    task="vqa",
)

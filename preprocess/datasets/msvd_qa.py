"""MSVD-QA (Xu et al. 2017): questions with one word for an answer, on the clips of MSVD; 30,933 / 6,415 / 13,157.

The questions number the clips; ``youtube_mapping.txt`` has their names. The splits (1,161 / 245 / 504 clips) are not those of MSVD:
questions for validation are on clips of its test, too.
"""

from collections.abc import Iterator
from typing import Any

from .msrvtt_qa import OFFICIAL, SPLITS, json_questions, question_captions
from .sources import Annotations, Dataset, Record, as_published, read_lines

MAPPING = "youtube_mapping.txt"


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    del protocol
    mapping, *paths = annotations.find(MAPPING, *OFFICIAL)
    names: dict[str, str] = {}
    for line in read_lines(mapping):
        with as_published(mapping, repr(line)):
            name, number = line.split()
            names[number] = name

    def video_of(number: Any) -> str:
        if f"vid{number}" not in names:
            raise ValueError(f"video {number!r} is not in {mapping}")
        return names[f"vid{number}"]

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

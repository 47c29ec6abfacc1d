"""MSRVTT-QA (Xu et al. 2017): questions with one word for an answer, on the clips and authors' splits of MSR-VTT.

158,581 / 12,278 / 72,821 questions, made by a program from the captions. Besides the authors' files those of ClipBERT (``train.jsonl``)
and HQGA (``hqga_train.csv``) are read; of the kinds there, the one with the most splits. HQGA's questions have no question mark.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ...storage.files import numbered_jsonl
from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, as_published, read_rows, text

SPLITS = ("train", "validation", "test")
OFFICIAL = ("train_qa.json", "val_qa.json", "test_qa.json")
KINDS = (OFFICIAL, ("train.jsonl", "val.jsonl", "test.jsonl"), ("hqga_train.csv", "hqga_val.csv", "hqga_test.csv"))
TYPES = ("what", "who", "how", "when", "where")
"""As the benchmark groups them: by the first word, "how many" with "how"."""

Question = tuple[str, Any, Any, Any]
"""(row, video, question, answer)"""


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """A split without a file is one problem, unless all are."""
    del protocol
    kinds = sorted(KINDS, key=lambda names: sum(annotations.find_optional(name) is None for name in names))
    paths = [next(filter(None, map(annotations.find_optional, names)), None) for names in zip(*kinds, strict=True)]
    if not any(paths):
        annotations.find(*OFFICIAL)
    for split, path, name in zip(SPLITS, paths, OFFICIAL, strict=True):
        if path is None:
            annotations.problems.add(
                f"{annotations.folder}: no {name} ({annotations.published[name]}); no questions for {split}"
            )
        else:
            yield from question_captions(annotations, path, split, _questions(annotations, path), _video)


def question_captions(
    annotations: Annotations, path: Path, split: str, questions: Iterable[Question], video_of: Callable[[Any], str]
) -> Iterator[Caption]:
    """Those of a video together. ``video_of`` gives its id, or raises ``ValueError``."""
    for row, video, question, answer in sorted(questions, key=lambda item: str(item[1]).removeprefix("video")):
        try:
            words = text(question)
            kind = words.split()[0].lower()
            if not isinstance(answer, str) or not answer.strip():
                raise ValueError(f"the answer is {answer!r}, expected a word")
            yield Caption(
                video_id=video_of(video),
                caption=words,
                split=split,
                answer=text(answer),
                question_type=kind if kind in TYPES else None,
            )
        except ValueError as error:
            annotations.drop(path, row, str(error))


def json_questions(annotations: Annotations, path: Path) -> Iterator[Question]:
    seen = set()
    for place, row in enumerate(annotations.read_json(path, list), start=1):
        with as_published(path, f"question {place} of the file"):
            if row["id"] in seen:
                annotations.drop(path, f"question {place} of the file", f"the second with the id {row['id']!r}")
                continue
            seen.add(row["id"])
            yield f"question {row['id']}", row["video_id"], row["question"], row["answer"]


def _questions(annotations: Annotations, path: Path) -> Iterator[Question]:
    if path.suffix == ".json":
        yield from json_questions(annotations, path)
    elif path.suffix == ".jsonl":
        for line, row in numbered_jsonl(path):
            with as_published(path, f"line {line}"):
                yield f"line {line}", row["video_id"], row["question"], row["answer"]
    else:
        for line, row in read_rows(path, ("video", "question", "answer")):
            yield f"line {line}", row["video"], row["question"], row["answer"]


def _video(number: Any) -> str:
    digits = str(number).removeprefix("video")
    if not digits.isdecimal():
        raise ValueError(f"the video is {number!r}, expected a number")
    return f"video{digits}"


DATASET = Dataset(
    read,
    dict.fromkeys(
        OFFICIAL,
        "https://data.mendeley.com/datasets/bvxhs33bw6, by https://github.com/xudejing/video-question-answering",
    ),
    task="vqa",
)

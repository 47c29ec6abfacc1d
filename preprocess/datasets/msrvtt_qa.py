"""MSRVTT-QA (Xu et al. 2017): questions with one-word answers about the clips of MSR-VTT, in its official splits.

A program made the 158,581 / 12,278 / 72,821 questions from the captions. Besides the authors' files, the files of
ClipBERT (``train.jsonl``) and HQGA (``hqga_train.csv``) can be read. If several kinds exist, the kind with the most
splits is preferred. HQGA's questions have no question mark.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...storage.common.files import numbered_jsonl
from ...storage.records import SPLITS, Caption
from .sources import Annotations, Dataset, Record, as_published, read_rows, text

OFFICIAL = ("train_qa.json", "val_qa.json", "test_qa.json")
KINDS = (OFFICIAL, ("train.jsonl", "val.jsonl", "test.jsonl"), ("hqga_train.csv", "hqga_val.csv", "hqga_test.csv"))
TYPES = ("what", "who", "how", "when", "where")
"""Question types of the benchmark: the first word of a question. "how many" belongs to "how"."""


class AnsweredQuestion(NamedTuple):
    """A question as read from a file, unchecked."""

    row: str
    """Place in the file, for messages."""
    video: Any
    question: Any
    answer: Any


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """Yield the questions of all splits. A split without a file is reported; if no split has a file, it is an error."""
    del protocol  # there is only one
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
            yield from question_captions(annotations, path, split, _questions(annotations, path), _video_id)


def question_captions(
    annotations: Annotations,
    path: Path,
    split: str,
    questions: Iterable[AnsweredQuestion],
    video_of: Callable[[Any], str],
) -> Iterator[Caption]:
    """Yield the questions as captions, ordered by video. Report and skip unusable ones.

    Args:
        annotations: Receives the problems.
        path: File of the questions, for messages.
        split: Split of all questions.
        questions: Questions as read from the file.
        video_of: Returns the id of a question's video; raises ``ValueError`` if it cannot.
    """
    for question in sorted(questions, key=lambda question: str(question.video).removeprefix("video")):
        try:
            words = text(question.question)
            kind = words.split()[0].lower()
            if not isinstance(question.answer, str) or not question.answer.strip():
                raise ValueError(f"the answer is {question.answer!r}, expected a word")
            yield Caption(
                video_id=video_of(question.video),
                caption=words,
                split=split,
                answer=text(question.answer),
                question_type=kind if kind in TYPES else None,
            )
        except ValueError as error:
            annotations.drop(path, question.row, str(error))


def json_questions(annotations: Annotations, path: Path) -> Iterator[AnsweredQuestion]:
    """Yield the questions in an official file. Report and skip questions with duplicate ids."""
    seen = set()
    for position, row in enumerate(annotations.read_json(path, list), start=1):
        with as_published(path, f"question {position} of the file"):
            if row["id"] in seen:
                annotations.drop(
                    path, f"question {position} of the file", f"a second question with the id {row['id']!r}"
                )
                continue
            seen.add(row["id"])
            yield AnsweredQuestion(f"question {row['id']}", row["video_id"], row["question"], row["answer"])


def _questions(annotations: Annotations, path: Path) -> Iterator[AnsweredQuestion]:
    if path.suffix == ".json":
        yield from json_questions(annotations, path)
    elif path.suffix == ".jsonl":
        for line, row in numbered_jsonl(path):
            with as_published(path, f"line {line}"):
                yield AnsweredQuestion(f"line {line}", row["video_id"], row["question"], row["answer"])
    else:
        for line, row in read_rows(path, ("video", "question", "answer")):
            yield AnsweredQuestion(f"line {line}", row["video"], row["question"], row["answer"])


def _video_id(number: Any) -> str:
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

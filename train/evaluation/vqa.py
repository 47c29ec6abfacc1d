"""Questions about videos (SSML section 5.2), answered by the nearest answer of the training questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from ...storage.captions.files import read_captions
from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.common.progress import progress
from ...storage.records import Caption
from ..data.clips import evenly
from .task import EvaluationRequest, Metrics, NoSettings, Task, TaskResult, counted

if TYPE_CHECKING:
    from torch import Tensor

    from ..data.pairs import Pairs
    from ..runs.load import Run
    from ..scoring.scorer import Scorer

ROWS = {
    "accuracy": "accuracy",
    "question_only": "question alone",
    "most_frequent_answer": "usual answer",
    "answerable": "answerable",
}
"""Rows of the table: {field of the metrics: label}."""


OTHER = "other"
"""Type of questions without a known type."""
SHOWN_QUESTIONS, SHOWN_ANSWERS = 12, 3
"""Number of questions in the report, and of answers for each."""


@dataclass(frozen=True)
class AnswerScores:
    """float32 [num_questions, num_answers]: cosine similarities."""

    with_video: np.ndarray
    """Scores by question and video together."""
    blind: np.ndarray
    """Scores by the question alone."""


class VqaMetrics(TypedDict):
    """Fields of ``metrics.json``. Accuracies are in percent, for "all" questions and for each type."""

    num_questions: int
    num_videos: int
    num_answers: int
    split_checksum: str
    accuracy: dict[str, float]
    most_frequent_answer: dict[str, str | float]
    """Accuracy of always giving the most frequent training answer, and that "answer"."""
    question_only: dict[str, float]
    """Accuracy without the video."""
    answerable: dict[str, float]
    """Share of the questions whose answer is among the candidates."""
    num_of_type: dict[str, int]


class QuestionRow(TypedDict):
    """A line of ``queries.jsonl``."""

    video_id: str
    question: str
    type: str | None
    answer: str | None
    given: str
    without_video: str


class ShownAnswer(TypedDict):
    """An answer in the report."""

    answer: str
    score: float
    right: bool


class ShownQuestion(TypedDict):
    """A question in the report."""

    video_id: str
    start_seconds: float | None
    end_seconds: float | None
    question: str
    answer: str | None
    answerable: bool
    given: list[ShownAnswer]


class Vqa(Task[NoSettings]):
    """Video question answering, compared with answers without the video.

    ``metrics.json`` has, in percent of "all" questions and of those of each type: ``accuracy`` with the video,
    ``question_only`` without it, ``most_frequent_answer`` (with the ``answer``) for always giving the most frequent
    training answer, and ``answerable``, the questions whose answer is among those to choose from. ``num_of_type``
    counts the questions.
    """

    name = "vqa"
    description = "questions about videos (MSRVTT-QA, MSVD-QA), for a run with --objective vqa"
    caption_name = "questions"
    item_name = "videos"
    main_metrics = ("accuracy", "question alone")

    def evaluate(self, run: Run, request: EvaluationRequest[NoSettings], problems: Problems) -> TaskResult:
        """Answer the questions of a split. A question whose answer is not among the candidates counts as wrong.

        Raises:
            UserError: The split has no questions with answers.
        """
        from ..data.pairs import read_pairs
        from ..data.usable_captions import captions_of_split, why_split_is_unusable
        from .coverage import split_coverage

        pairs = read_pairs(run.dataset, run.features, problems)[request.split]
        if not pairs.clips:
            why = why_split_is_unusable(run.dataset, run.features, request.split)
            raise UserError(f"{run.dataset.captions}: {why}; pass another split")
        captions = pairs.captions
        if not any(c.answer for c in captions):
            raise UserError(
                f"{run.dataset.captions}: the {request.split} split has no questions with answers; "
                "the task vqa needs captions such as those of msvd_qa"
            )
        scores = answer_scores(run.scorer, pairs, run.labels, show_progress=True)
        given = [run.labels[index] for index in scores.with_video.argmax(axis=1)]
        blind = [run.labels[index] for index in scores.blind.argmax(axis=1)]
        listed = captions_of_split(read_captions(run.dataset.captions), request.split)
        chosen = evenly(len(captions), SHOWN_QUESTIONS).tolist()
        shown = [_shown(captions[index], scores.with_video[index], run.labels) for index in chosen]
        return TaskResult(
            coverage=split_coverage(listed, captions, run.features),
            metrics=_metrics(pairs, run.labels, given, blind),
            rows=_rows(captions, given, blind),
            page={"questions": shown},
        )

    def count(self, metrics: Metrics) -> str:
        """Return how many questions about how many videos were answered."""
        return f"{counted(metrics, 'captions', 'questions')} about {counted(metrics, 'videos')}"

    def heading(self, metrics: Metrics) -> str:
        """Return the heading, with the number of answers."""
        return f"{super().heading(metrics)}; {metrics['num_answers']:,} answers to choose from"

    def table_metrics(self, metrics: Metrics) -> Mapping[str, float]:
        """Return the accuracies over all questions, in percent."""
        return {label: metrics[name]["all"] for name, label in ROWS.items()}

    def summary(self, metrics: Metrics) -> Iterator[str]:
        """Yield the table of accuracies."""
        yield answers_table(metrics)
        usual = metrics["most_frequent_answer"]["answer"]
        yield (
            f"question alone: the same model without the video; usual answer: always {usual!r}; "
            "answerable: the right answer is among those to choose from"
        )
        yield f"checksum of the split's questions and answers: {metrics['split_checksum']}"


def answers_table(metrics: Metrics) -> str:
    """Return a table of accuracies, with a column for each type of question."""
    types = ["all", *metrics["num_of_type"]]
    lines = [f"{'percent':<16}" + "".join(f"{name:>9}" for name in types)]
    for name, label in ROWS.items():
        lines.append(f"{label:<16}" + "".join(f"{metrics[name][kind]:>9.2f}" for kind in types))
    counts = [metrics["num_questions"], *metrics["num_of_type"].values()]
    lines.append(f"{'questions':<16}" + "".join(f"{count:>9,}" for count in counts))
    return "\n".join(lines)


def answer_scores(scorer: Scorer, pairs: Pairs, answers: Sequence[str], *, show_progress: bool = False) -> AnswerScores:
    """Score every answer for every question. Each video is encoded once.

    Args:
        scorer: A model with a head for answers.
        pairs: Questions (as captions) and videos (as clips).
        answers: The possible answers.
        show_progress: Report progress.
    """
    import torch

    from ..models.gated import AnswerHead
    from ..scoring.scorer import CLIP_CHUNK, TEXT_CHUNK

    head = scorer.model.eval().head
    if not isinstance(head, AnswerHead):
        raise ValueError(f"a model of the objective {scorer.config.objective.name} has no head for answers")
    texts = [scorer.weights.tag_query(answer) for answer in answers]
    shape = len(pairs.captions), len(answers)
    with_video, blind = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    captions_of = pairs.captions_of_clips
    chunks = range(0, len(pairs.clips), CLIP_CHUNK)
    steps = (
        progress(chunks, total=len(pairs.clips), what="answers", unit="videos", size=lambda _: CLIP_CHUNK)
        if show_progress
        else chunks
    )
    with torch.inference_mode():
        vectors_AD = torch.cat(
            [scorer.encode_texts(texts[i : i + TEXT_CHUNK]).sentence_BD for i in range(0, len(texts), TEXT_CHUNK)]
        )
        answer_AD, blind_answer_AD = head.answers(vectors_AD), head.blind_answers(vectors_AD)
        for first in steps:
            video_BD = scorer.encode_videos(pairs.clips[first : first + CLIP_CHUNK]).mean_BD
            questions = [
                (caption, row)
                for row, captions in enumerate(captions_of[first : first + CLIP_CHUNK])
                for caption in captions
            ]
            for start in range(0, len(questions), TEXT_CHUNK):
                indices, rows = map(list, zip(*questions[start : start + TEXT_CHUNK], strict=True))
                text_BD = scorer.encode_texts([pairs.captions[index] for index in indices]).sentence_BD
                with_video[indices] = _similarities(head.questions(text_BD, video_BD[rows]), answer_AD)
                blind[indices] = _similarities(head.blind_questions(text_BD), blind_answer_AD)
    return AnswerScores(with_video, blind)


def _similarities(question_BD: Tensor, answer_AD: Tensor) -> np.ndarray:
    return (question_BD @ answer_AD.T).float().cpu().numpy()


def accuracies(right: Sequence[bool], types: Sequence[str]) -> dict[str, float]:
    """Return the percentage of right answers, for "all" questions and for each type.

    Args:
        right: For each question, whether its answer was right.
        types: Type of each question.
    """
    of_type: dict[str, list[bool]] = {}
    for is_right, kind in zip(right, types, strict=True):
        of_type.setdefault(kind, []).append(bool(is_right))
    percent = {kind: 100 * float(np.mean(rights)) for kind, rights in sorted(of_type.items())}
    return {"all": 100 * float(np.mean(right))} | percent


def _metrics(pairs: Pairs, labels: Sequence[str], given: Sequence[str], blind: Sequence[str]) -> VqaMetrics:
    from .coverage import split_checksum

    captions, known = list(pairs.captions), frozenset(labels)
    types = [c.question_type or OTHER for c in captions]

    def accuracy(answers: Sequence[str]) -> dict[str, float]:
        return accuracies([a == c.answer for a, c in zip(answers, captions, strict=True)], types)

    return {
        "num_questions": len(captions),
        "num_videos": len(pairs.clips),
        "num_answers": len(labels),
        "split_checksum": split_checksum(captions),
        "accuracy": accuracy(given),
        "most_frequent_answer": {"answer": labels[0], **accuracy([labels[0]] * len(captions))},
        "question_only": accuracy(blind),
        "answerable": accuracies([c.answer in known for c in captions], types),
        "num_of_type": dict(sorted(Counter(types).items())),
    }


def _rows(captions: Sequence[Caption], given: Sequence[str], blind: Sequence[str]) -> Iterator[QuestionRow]:
    for caption, answer_given, answer_without_video in zip(captions, given, blind, strict=True):
        yield {
            "video_id": caption.video_id,
            "question": caption.caption,
            "type": caption.question_type,
            "answer": caption.answer,
            "given": answer_given,
            "without_video": answer_without_video,
        }


def _shown(caption: Caption, scores_A: np.ndarray, answers: Sequence[str]) -> ShownQuestion:
    best: list[int] = np.argsort(-scores_A, kind="stable")[:SHOWN_ANSWERS].tolist()
    return {
        "video_id": caption.video_id,
        "start_seconds": caption.start_seconds,
        "end_seconds": caption.end_seconds,
        "question": caption.caption,
        "answer": caption.answer,
        "answerable": caption.answer in answers,
        "given": [
            {"answer": answers[index], "score": float(scores_A[index]), "right": answers[index] == caption.answer}
            for index in best
        ],
    }

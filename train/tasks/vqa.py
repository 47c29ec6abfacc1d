"""Questions about videos: the nearest answer among those that the training questions have (SSML section 5.2), beside what one gets right
without looking."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...storage.captions import read_captions
from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.common.progress import progress
from ...storage.records import Caption
from ..checkpoint import Run
from ..data.coverage import measure
from ..data.pairs import Pairs, evenly, of_split, read_pairs, why_none
from ..scoring import CLIPS, TEXTS, Scorer
from .question import Answers, Question, split_checksum

OTHER = "other"
"""Questions whose type is not known."""
SHOWN_QUESTIONS, SHOWN_ANSWERS = 12, 3


@dataclass(frozen=True)
class AnswerScores:
    """float32 [num_questions, num_answers]: cosine similarities."""

    asked: np.ndarray
    blind: np.ndarray
    """Of the question alone."""


@torch.inference_mode()
def answer_scores(scorer: Scorer, pairs: Pairs, answers: Sequence[str], *, show: bool = False) -> AnswerScores:
    """Each video is encoded once, whatever is asked about it. ``show``: with progress."""
    head = scorer.model.eval().head
    texts = [scorer.weights.tag_query(answer) for answer in answers]
    vectors = torch.cat(
        [scorer.encode_texts(texts[first : first + TEXTS]).sentence_BD for first in range(0, len(texts), TEXTS)]
    )
    answer_AD, blind_answer_AD = head.answers(vectors), head.blind_answers(vectors)
    asked, blind = (np.zeros((len(pairs.captions), len(answers)), dtype=np.float32) for _ in range(2))
    captions_of = pairs.captions_of_clips()
    chunks = range(0, len(pairs.clips), CLIPS)
    if show:
        chunks = progress(chunks, total=len(pairs.clips), what="answers", unit="videos", size=lambda _: CLIPS)
    for first in chunks:
        video_BD = scorer.encode_videos(pairs.clips[first : first + CLIPS]).mean_BD
        of_chunk = [
            (caption, row) for row, captions in enumerate(captions_of[first : first + CLIPS]) for caption in captions
        ]
        for start in range(0, len(of_chunk), TEXTS):
            numbers, rows = map(list, zip(*of_chunk[start : start + TEXTS], strict=True))
            text_BD = scorer.encode_texts([pairs.captions[n] for n in numbers]).sentence_BD
            asked[numbers] = (head.questions(text_BD, video_BD[rows]) @ answer_AD.T).float().cpu().numpy()
            blind[numbers] = (head.blind_questions(text_BD) @ blind_answer_AD.T).float().cpu().numpy()
    return AnswerScores(asked, blind)


def accuracies(right: Sequence[bool], types: Sequence[str]) -> dict[str, float]:
    """In percent, of all questions and of those of each type."""
    of_type: dict[str, list[bool]] = {}
    for is_right, kind in zip(right, types, strict=True):
        of_type.setdefault(kind, []).append(bool(is_right))
    return {"all": 100 * float(np.mean(right))} | {
        kind: 100 * float(np.mean(rights)) for kind, rights in sorted(of_type.items())
    }


def answer(run: Run, question: Question, problems: Problems) -> Answers:
    """Accuracy on the questions of a split. A question whose answer cannot be given counts as answered wrongly."""
    pairs = read_pairs(run.dataset, run.features, problems)[question.split]
    if not pairs.clips:
        raise UserError(
            f"{run.dataset.captions}: {why_none(run.dataset, run.features, question.split)}; pass another --split"
        )
    if not any(c.answer for c in pairs.captions):
        raise UserError(
            f"{run.dataset.captions}: no question with an answer has split {question.split!r}; --task vqa expects those of msvd_qa"
        )
    captions = pairs.captions
    scores = answer_scores(run.scorer, pairs, run.labels, show=True)
    types = [c.question_type or OTHER for c in captions]

    def of(given: Sequence[str]) -> dict[str, float]:
        return accuracies([a == c.answer for a, c in zip(given, captions, strict=True)], types)

    given = [run.labels[place] for place in scores.asked.argmax(axis=1)]
    blind = [run.labels[place] for place in scores.blind.argmax(axis=1)]
    known = frozenset(run.labels)
    result = measure(of_split(read_captions(run.dataset.captions), question.split), captions, run.features).result(
        caption="questions", item="videos"
    ) | {
        "num_questions": len(captions),
        "num_videos": len(pairs.clips),
        "num_answers": len(run.labels),
        "split_checksum": split_checksum(captions),
        "accuracy": of(given),
        "most_frequent_answer": {"answer": run.labels[0]} | of([run.labels[0]] * len(captions)),
        "question_only": of(blind),
        "answerable": accuracies([c.answer in known for c in captions], types),
        "num_of_type": dict(sorted(Counter(types).items())),
    }
    chosen = evenly(len(captions), SHOWN_QUESTIONS)
    shown = [_shown(captions[n], scores.asked[n], run.labels) for n in chosen]
    return Answers(result, _lines(captions, given, blind), {"questions": shown})


def _lines(captions: Sequence[Caption], given: Sequence[str], blind: Sequence[str]) -> Iterator[dict[str, Any]]:
    for caption, own, without in zip(captions, given, blind, strict=True):
        asked = {
            "video_id": caption.video_id,
            "question": caption.caption,
            "type": caption.question_type,
            "answer": caption.answer,
        }
        yield asked | {"given": own, "without_video": without}


def _shown(caption: Caption, scores_A: np.ndarray, answers: Sequence[str]) -> dict[str, Any]:
    best = np.argsort(-scores_A, kind="stable")[:SHOWN_ANSWERS]
    given = [{"answer": answers[n], "score": float(scores_A[n]), "right": answers[n] == caption.answer} for n in best]
    clip = {"video_id": caption.video_id, "start_seconds": caption.start_seconds, "end_seconds": caption.end_seconds}
    return clip | {
        "question": caption.caption,
        "answer": caption.answer,
        "answerable": caption.answer in answers,
        "given": given,
    }

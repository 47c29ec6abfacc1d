"""Validation of a run while it trains, by the task that it is for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import numpy as np

from ...storage.common.terminal import number_of, say
from ..data.clips import evenly
from ..data.examples import Examples, PairExamples, SegmentExamples
from ..data.pairs import Pairs, make_pairs
from ..data.segments import label_frames
from ..evaluation.segmentation import frame_scores
from ..evaluation.vqa import answer_scores
from ..metrics import retrieval_metrics, right_ranks
from ..scoring.query_biases import fit_biases
from ..scoring.scorer import Scorer, stage_scores
from ..scoring.scores import StageScores

MAX_PAIRS = 20_000
"""Upper limit of the pairs that the fusion layers see in a validation."""
RERANK = 20
TRIED_WEIGHTS = (0.0, 0.25, 0.5, 1.0)
"""The weights that a stage can be given by validation."""
MAX_QUESTIONS, MAX_VIDEOS = 2000, 50


@dataclass(frozen=True)
class Validation:
    """The validation of runs of one task."""

    metric: str
    """Name of the metric that chooses the best model; less is better."""
    compute: Callable[[Scorer, Examples], dict[str, float]]
    """Returns the metrics by name; empty if there is no validation split."""


def validate_retrieval(scorer: Scorer, examples: Examples) -> dict[str, float]:
    """Rank the validation clips for one caption of each, or of as many as the fusion layers should see."""
    assert isinstance(examples, PairExamples)
    valid = examples.pairs["validation"]
    captions_of = valid.captions_of_clips
    chosen = [captions_of[clip][0] for clip in evenly(len(valid.clips), _most_captions(scorer))]
    if not chosen:
        return {}
    pairs, scores = _score_validation(scorer, valid, chosen)
    by_caption = scores.fused(scorer.config.score_weights).by_caption
    objective, queries = scorer.config.objective, scores.queries
    if objective.normalization != "none" and queries is not None and queries.num_queries:  # as evaluation does
        by_caption = by_caption + fit_biases(queries.texts, objective.temperature).bias_N
    metrics = retrieval_metrics(by_caption, pairs.clip_of_caption)["text_to_video"]
    return {"validation_mean_rank": metrics["mean_rank"], "validation_R@1": metrics["R@1"]}


def _most_captions(scorer: Scorer) -> int:
    return MAX_PAIRS // RERANK if scorer.has_early else int(MAX_PAIRS**0.5)


def _score_validation(scorer: Scorer, valid: Pairs, chosen: Sequence[int] | np.ndarray) -> tuple[Pairs, StageScores]:
    """Score chosen captions with all clips that one of them is about."""
    pairs = make_pairs(valid.captions.take(chosen))
    rerank = RERANK if scorer.has_early else None
    return pairs, stage_scores(scorer, pairs.captions, pairs.clips, rerank=rerank)


class TriedWeights(TypedDict):
    """Weights of stages, and how they rank the validation split."""

    weights: dict[str, float]
    recall: float
    """R@1, in percent."""
    mean_reciprocal_rank: float


class ChosenWeights(NamedTuple):
    """Weights of stages that were chosen, and all that were tried."""

    weights: dict[str, float]
    tried: list[TriedWeights]


def choose_stage_weights(scorer: Scorer, examples: Examples) -> ChosenWeights | None:
    """Choose the weights of the stages that rank the validation split best; a line says which, and why.

    Weights 0, 1/4, 1/2 and 1 are tried in all combinations whose R@1 is at least that of each stage alone. The one
    with the highest mean reciprocal rank is chosen; the settings' weights, if others are not better.

    Args:
        scorer: The model to choose for.
        examples: Have the validation split.

    Returns:
        None if there is nothing to choose or no validation split.
    """
    given = scorer.config.score_weights
    if len(given) < 2 or not isinstance(examples, PairExamples):
        return None
    valid = examples.pairs["validation"]
    if not valid.clips:
        return None
    # With several captions of each clip: in a small split, one caption decides more by chance.
    pairs, scores = _score_validation(scorer, valid, evenly(len(valid.captions), _most_captions(scorer)))

    def judged(weights: dict[str, float]) -> tuple[float, float]:
        ranks = right_ranks(scores.fused(weights).by_caption, pairs.clip_of_caption)
        return 100 * float((ranks < 2).mean()), float((1 / ranks).mean())

    alone = {stage: judged({name: float(name == stage) for name in given}) for stage in given}
    min_recall = max(recall for recall, _ in alone.values())
    best, best_recall, best_rank = given, *judged(given)
    best_rank = best_rank if best_recall >= min_recall else -1.0
    tried: list[TriedWeights] = []
    for values in itertools.product(TRIED_WEIGHTS, repeat=len(given)):
        if max(values) == 1:
            weights = dict(zip(given, values, strict=True))
            recall, rank = judged(weights)
            tried.append({"weights": weights, "recall": recall, "mean_reciprocal_rank": rank})
            if recall >= min_recall and rank > best_rank:
                best, best_recall, best_rank = weights, recall, rank
    shown = ", ".join(f"{stage} {weight:g}" for stage, weight in best.items())
    others = ", ".join(f"{stage} alone {recall:.1f}" for stage, (recall, _) in alone.items())
    asked = number_of(len(pairs.captions), "validation captions")
    say(f"stage weights {shown}: R@1 {best_recall:.1f} of {asked} ({others})")
    return ChosenWeights(best, tried)


def validate_answers(scorer: Scorer, examples: Examples) -> dict[str, float]:
    """Return the share of validation questions that are answered wrongly, in percent."""
    assert isinstance(examples, PairExamples)
    valid = examples.pairs["validation"]
    pairs = make_pairs(valid.captions.take(evenly(len(valid.captions), MAX_QUESTIONS)))
    if not pairs.captions:
        return {}
    best = answer_scores(scorer, pairs, examples.labels).with_video.argmax(axis=1)
    right = np.mean([examples.labels[i] == c.answer for i, c in zip(best, pairs.captions, strict=True)])
    return {"validation_error": 100 * (1 - float(right))}


def validate_segments(scorer: Scorer, examples: Examples) -> dict[str, float]:
    """Return the share of the validation videos' seconds that get a wrong label, in percent."""
    assert isinstance(examples, SegmentExamples)
    videos = examples.videos["validation"]
    num_wrong = num_frames = 0
    for index in evenly(len(videos), MAX_VIDEOS):
        labels_T = frame_scores(scorer, videos[index]).argmax(axis=1)
        num_wrong += int((labels_T != label_frames(videos[index], examples.index_of)).sum())
        num_frames += len(labels_T)
    return {"validation_error": 100 * num_wrong / num_frames} if num_frames else {}


VALIDATIONS = {
    "retrieval": Validation("validation_mean_rank", validate_retrieval),
    "vqa": Validation("validation_error", validate_answers),
    "segmentation": Validation("validation_error", validate_segments),
}
"""{task: validation of its runs}; other runs are validated by retrieval."""

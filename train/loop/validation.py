"""Validation of a run while it trains, for each task."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import numpy as np

from ...storage.common.terminal import number_of, say
from ..data.clips import evenly
from ..data.examples import Examples, PairExamples, SegmentExamples
from ..data.pairs import Pairs, make_pairs
from ..data.segments import label_frames
from ..data.text_inputs import WordIdInputs
from ..evaluation.segmentation import frame_scores
from ..evaluation.vqa import answer_scores
from ..intervals import share_interval
from ..metrics import retrieval_metrics, right_ranks
from ..scoring.query_biases import fit_biases
from ..scoring.scorer import Scorer, stage_scores
from ..scoring.scores import StageScores
from .likelihood import log_likelihood

MAX_PAIRS = 20_000
"""Upper limit of the pairs that the fusion layers see in a validation."""
RERANK = 20
MAX_SHOWN_STEPS = 8
"""Maximum number of validations in the printed line."""
MAX_QUESTIONS, MAX_VIDEOS = 2000, 50


@dataclass(frozen=True)
class Validation:
    """The validation of runs of one task."""

    metric: str
    """Name of the metric that chooses the best model; less is better."""
    compute: Callable[[Scorer, Examples], dict[str, float]]
    """Returns the metrics by name; empty if there is no validation split."""


class Ranked(NamedTuple):
    """Final scores of validation captions with validation clips."""

    pairs: Pairs
    by_caption: np.ndarray
    """float32 [num_captions, num_clips]"""
    chosen: ChosenWeights | None
    """The weights of stages, if they were chosen."""


def _rank_validation(scorer: Scorer, valid: Pairs) -> Ranked:
    """Rank validation clips for one caption of each, and so few that fusion layers see at most ``MAX_PAIRS`` pairs.

    If stage weights are chosen on the validation split, they are first chosen for this model, on several captions of
    each clip, and clips are ranked for the same captions: in a small split, one caption per clip is more random.
    """
    weights, chosen = scorer.config.score_weights, None
    if scorer.config.validation.stage_weights == "validation" and len(weights) > 1:
        pairs, scores = _score_validation(scorer, valid, evenly(len(valid.captions), _most_captions(scorer)))
        chosen = _choose_weights(pairs, scores)
        weights = chosen.weights
    else:
        captions_of = valid.captions_of_clips
        firsts = [captions_of[clip][0] for clip in evenly(len(valid.clips), _most_captions(scorer))]
        pairs, scores = _score_validation(scorer, valid, firsts)
    by_caption = scores.fused(weights).by_caption
    objective, queries = scorer.config.objective, scores.queries
    if objective.normalization != "none" and queries is not None and queries.num_queries:  # as evaluation does
        by_caption = by_caption + fit_biases(queries.texts, objective.temperature_of(scorer.model)).bias_N
    return Ranked(pairs, by_caption, chosen)


def validate_retrieval(scorer: Scorer, examples: Examples) -> dict[str, float]:
    """Rank the validation clips for captions; return the metrics of the final score."""
    assert isinstance(examples, PairExamples)
    valid = examples.pairs["validation"]
    if not valid.clips:
        return {}
    ranked = _rank_validation(scorer, valid)
    metrics = retrieval_metrics(ranked.by_caption, ranked.pairs.clip_of_caption)["text_to_video"]
    return {"validation_mean_rank": metrics["mean_rank"], "validation_R@1": metrics["R@1"]}


def report_kept(scorer: Scorer, examples: Examples, step: int, curve: Mapping[int, float]) -> ChosenWeights | None:
    """Report the saved model's metrics on the validation split; return its chosen stage weights.

    Args:
        scorer: The model.
        examples: Have the validation split.
        step: The step of the model.
        curve: {step: validation R@1, in percent}

    Returns:
        None if no weights were chosen.
    """
    if not isinstance(examples, PairExamples) or not curve or not examples.pairs["validation"].clips:
        return None
    pairs, by_caption, chosen = _rank_validation(scorer, examples.pairs["validation"])
    ranks = right_ranks(by_caption, pairs.clip_of_caption)
    is_first = ranks < 2
    low, high = share_interval(is_first, pairs.clips.video[pairs.clip_of_caption])
    of = f"{number_of(len(pairs.captions), 'captions')} of {number_of(len(pairs.clips), 'clips')}"
    shown = [list(curve)[index] for index in evenly(len(curve), MAX_SHOWN_STEPS)]
    say(
        f"kept: step {step:,} of {max(curve):,}, which has the lowest mean rank ({ranks.mean():.1f}) on {of}: "
        f"R@1 {100 * is_first.mean():.1f}, 95 % interval {100 * low:.1f} to {100 * high:.1f}"
    )
    say(f"R@1 after steps {', '.join(f'{s:,}: {curve[s]:.1f}' for s in shown)}")
    texts = scorer.text_inputs
    if isinstance(texts, WordIdInputs):
        num_unknown = sum(bool(texts.unknown_words(text)) for text in pairs.captions.texts())
        if num_unknown:
            say(f"note: {num_unknown:,} of these captions have a word that is in no training caption; it is ignored")
    if chosen is not None:
        recalls = {tuple(trial["weights"].values()): trial["recall"] for trial in chosen.tried}
        alone = {stage: tuple(float(other == stage) for other in chosen.weights) for stage in chosen.weights}
        shares = ", ".join(f"{stage} {share:.0%}" for stage, share in chosen.shares.items())
        others = ", ".join(
            f"{stage} alone {recalls[weights]:.1f}" for stage, weights in alone.items() if weights in recalls
        )
        weights = ", ".join(f"{weight:g}" for weight in chosen.weights.values())
        alone_too = f"; R@1 of {others}" if others else ""
        say(f"stages: {shares} of the score's spread (weights {weights}{alone_too})")
    return chosen


def _most_captions(scorer: Scorer) -> int:
    return MAX_PAIRS // RERANK if scorer.has_early else int(MAX_PAIRS**0.5)


def _score_validation(scorer: Scorer, valid: Pairs, chosen: Sequence[int] | np.ndarray) -> tuple[Pairs, StageScores]:
    """Score each chosen caption with the clips of all chosen captions."""
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
    shares: dict[str, float]
    """Each stage's weight times the spread of its scores, scaled to sum to 1."""
    tried: list[TriedWeights]


def _choose_weights(pairs: Pairs, scores: StageScores) -> ChosenWeights:
    """Choose each stage's share of the score's spread, in tenths, by the likelihood of the validation split."""
    spreads = np.array([_spread(scores, stage) for stage in scores.stage_names])
    has_spread = spreads > 0
    best, best_likelihood = np.ones(len(spreads)), -np.inf
    chosen = _named(scores, best)  # stays if no stage tells clips apart
    tried: list[TriedWeights] = []
    for shares in _tenths(len(spreads)):
        if not (shares * has_spread).any():
            continue
        weights = np.divide(shares, spreads, out=np.zeros_like(spreads), where=has_spread)
        by_caption = scores.fused(_named(scores, weights)).by_caption
        ranks = right_ranks(by_caption, pairs.clip_of_caption)
        recall, rank = 100 * float((ranks < 2).mean()), float((1 / ranks).mean())
        tried.append({"weights": _named(scores, weights), "recall": recall, "mean_reciprocal_rank": rank})
        likelihood = log_likelihood(by_caption, pairs.clip_of_caption)
        if likelihood > best_likelihood:
            best, best_likelihood, chosen = shares, likelihood, _named(scores, weights)
    return ChosenWeights(chosen, dict(zip(scores.stage_names, (best / best.sum()).tolist(), strict=True)), tried)


def _tenths(num_stages: int) -> list[np.ndarray]:
    """Return all combinations of stages' shares, in tenths, that sum to 1."""
    firsts = itertools.product(range(11), repeat=num_stages - 1)
    return [np.array([*of, 10 - sum(of)]) / 10 for of in firsts if sum(of) <= 10]


def _spread(scores: StageScores, stage: str) -> float:
    """Return the standard deviation of a stage's scores within a caption, over the pairs that were scored."""
    values = scores.stages[stage]
    is_scored = np.ones(values.shape, dtype=bool)
    if scores.shortlist is not None and stage.startswith("fusion"):
        is_scored = scores.shortlist.pairs
    mean = values.mean(axis=1, keepdims=True, where=is_scored)
    return float((values - mean).std(where=is_scored))


def _named(scores: StageScores, weights: np.ndarray) -> dict[str, float]:
    """Return {stage: weight}, scaled so that the largest weight is 1."""
    return {
        stage: float(f"{weight:.4g}") for stage, weight in zip(scores.stage_names, weights / weights.max(), strict=True)
    }


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

"""Rank a split in both directions, part by part: metrics, and data for the report."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..data.clips import Groups
from ..data.pairs import Pairs
from ..intervals import Interval
from ..metrics import (
    RankCounts,
    Ranking,
    RetrievalMetrics,
    mean_ranks,
    text_intervals,
    text_metrics,
    video_intervals,
    video_metrics,
)
from ..scoring.scores import Scores, StageScores, parts_of
from .normalization import Biases, Normalized, SummedProbabilities
from .query_list import Found
from .representation import Retrieved, RetrievedCounts
from .retrieval_figures import Overview, OverviewCounts


@dataclass(frozen=True)
class Weightings:
    """The weighted sums of stages that rank a split."""

    total: Mapping[str, float]
    """{stage: weight} of the run."""
    without: list[str]
    """Stages that are also left out of the sum, one at a time."""
    normalized: Normalized | Biases | None = None
    """Normalises the total."""

    def is_total(self, weights: Mapping[str, float]) -> bool:
        """Return whether a weighted sum is the run's own, as it is for a run's only stage."""
        return self.normalized is None and dict(weights) == dict(self.total)


@dataclass(frozen=True)
class RankedQueries:
    """The queries of one direction."""

    ranks: np.ndarray
    """[Q]: rank of each right candidate; a tie counts half."""
    right_scores: np.ndarray
    """[Q]: score of each right candidate."""
    found: Found


@dataclass(frozen=True)
class SplitRanking:
    """The metrics of a ranked split, and the results of its captions and clips."""

    metrics: RetrievalMetrics
    intervals: dict[str, dict[str, Interval]]
    """{direction: {metric: its 95 % interval}}"""
    stages: dict[str, RetrievalMetrics]
    """{stage: metrics of its score alone}"""
    without: dict[str, float]
    """{stage: R@1, text to video, of the sum of the others}"""
    error: dict[str, float]
    """The normalisation error (NCL, Eq. 5) of both directions."""
    error_before: dict[str, float]
    """The same error for the original scores."""
    retrieved: Retrieved
    """Clips retrieved by the captions."""
    retrieved_before: Retrieved
    """The same for the original scores."""
    captions: RankedQueries
    clips: RankedQueries
    stage_ranks: dict[str, np.ndarray]
    """{stage: [num_captions], rank of each right clip by its score alone}"""
    overview: Overview


def rank_split(scores: Scores, pairs: Pairs, weightings: Weightings, ties: str, temperature: float) -> SplitRanking:
    """Rank the clips for each caption, and the captions for each clip.

    Args:
        scores: Of all captions with all clips.
        pairs: Captions and clips.
        weightings: The weighted sums that rank them.
        ties: A key of ``metrics.TIES``.
        temperature: Turns scores into probabilities, for the normalisation error.

    Raises:
        ValueError: A score is NaN.
    """
    ranking = Ranking(pairs.clip_of_caption, len(pairs.clips), ties)
    is_normalized = weightings.normalized is not None
    captions = _Captions(pairs, temperature, ranking, is_normalized=is_normalized)
    for part in parts_of(len(pairs.captions), "ranking clips", "captions"):
        captions.add(part, scores.rows(part), weightings)
    clips = _Clips(pairs, temperature, ranking, is_normalized=is_normalized)
    for part in parts_of(len(pairs.clips), "ranking captions", "clips"):
        clips.add(part, scores.columns(part), weightings)

    def metrics(name: str) -> RetrievalMetrics:
        return {
            "text_to_video": text_metrics(ranking, RankCounts.join(captions.counts[name])),
            "video_to_text": video_metrics(ranking, RankCounts.join(clips.counts[name])),
        }

    of_captions, of_clips = RankCounts.join(captions.counts[TOTAL]), RankCounts.join(clips.counts[TOTAL])
    return SplitRanking(
        metrics=metrics(TOTAL),
        intervals={
            "text_to_video": text_intervals(ranking, of_captions, pairs.clips.video),
            "video_to_text": video_intervals(ranking, of_clips, pairs.clips.video),
        },
        stages={stage: metrics(stage) for stage in scores.stage_names},
        without={
            stage: text_metrics(ranking, RankCounts.join(captions.counts[_without(stage)]))["R@1"]
            for stage in weightings.without
        },
        error=_errors(captions.counted.probabilities, clips.error),
        error_before=_errors(captions.counted_before.probabilities, clips.error_before),
        retrieved=captions.counted.retrieved(),
        retrieved_before=captions.counted_before.retrieved(),
        captions=RankedQueries(mean_ranks(of_captions), captions.right_scores, captions.found),
        clips=RankedQueries(mean_ranks(of_clips), clips.right_scores, clips.found),
        stage_ranks={stage: mean_ranks(RankCounts.join(captions.counts[stage])) for stage in scores.stage_names},
        overview=captions.overview.overview(),
    )


def _errors(of_captions: SummedProbabilities, of_clips: SummedProbabilities) -> dict[str, float]:
    return {"text_to_video": of_captions.mean_difference(), "video_to_text": of_clips.mean_difference()}


TOTAL = ""
"""The name of the run's own sum of stages among the weightings."""


def _without(stage: str) -> str:
    return f"without {stage}"


class _Captions:
    """Ranks clips by caption."""

    def __init__(self, pairs: Pairs, temperature: float, ranking: Ranking, *, is_normalized: bool) -> None:
        num_captions = len(pairs.captions)
        self._ranking = ranking
        self.counts: dict[str, list[RankCounts]] = defaultdict(list)
        counted = pairs.clip_of_caption, ranking.num_captions, temperature
        self.counted_before = RetrievedCounts(*counted)
        self.counted = RetrievedCounts(*counted) if is_normalized else self.counted_before
        self.right_scores = np.empty(num_captions, np.float32)
        self.found, self.overview = Found(num_captions, len(pairs.clips)), OverviewCounts(pairs)

    def add(self, part: slice, scores: StageScores, weightings: Weightings) -> None:
        """Rank all clips for the captions of ``part``, whose scores are the rows of ``scores``."""
        before, normalized = scores.by_caption(weightings.total), weightings.normalized
        of_before = self._ranking.of_texts(part.start, before)
        self.counted_before.add(part, before, of_before)
        total, of_total = before, of_before
        if normalized is not None:
            total = normalized.rows(part, before)
            of_total = self._ranking.of_texts(part.start, total)
            self.counted.add(part, total, of_total)
        self.counts[TOTAL].append(of_total)
        self.right_scores[part] = total[np.arange(len(total)), self._ranking.video_of_text[part]]
        self.found.add(part.start, total)
        self.overview.add(part.start, total)
        others = {stage: {stage: 1.0} for stage in scores.stage_names}
        others |= {_without(stage): {**weightings.total, stage: 0.0} for stage in weightings.without}
        for name, weights in others.items():
            is_total = weightings.is_total(weights)
            counts = of_total if is_total else self._ranking.of_texts(part.start, scores.by_caption(weights))
            self.counts[name].append(counts)


class _Clips:
    """Ranks captions by clip."""

    def __init__(self, pairs: Pairs, temperature: float, ranking: Ranking, *, is_normalized: bool) -> None:
        self._ranking = ranking
        self.counts: dict[str, list[RankCounts]] = defaultdict(list)
        num_captions = len(pairs.captions)
        self._captions_of_clip = Groups.of(pairs.clip_of_caption, len(pairs.clips))
        self.right_scores = np.empty(len(pairs.clips), np.float32)
        self.found = Found(len(pairs.clips), num_captions)
        self.error_before = SummedProbabilities(temperature, np.ones(num_captions))
        self.error = SummedProbabilities(temperature, np.ones(num_captions)) if is_normalized else self.error_before

    def add(self, part: slice, scores: StageScores, weightings: Weightings) -> None:
        """Rank all captions for the clips of ``part``, whose scores are the columns of ``scores``."""
        before, normalized = scores.by_clip(weightings.total), weightings.normalized
        self.error_before.add(before.T, self._ranking.num_captions[part])
        total = before
        if normalized is not None:
            total = normalized.columns(part, before)
            self.error.add(total.T, self._ranking.num_captions[part])
        of_total = self._ranking.of_videos(part.start, total)
        self.counts[TOTAL].append(of_total)
        self.found.add(part.start, total.T)
        for column, captions in enumerate(self._captions_of_clip[part]):
            self.right_scores[part.start + column] = total[captions, column].max()
        for stage in scores.stage_names:
            weights = {stage: 1.0}
            is_total = weightings.is_total(weights)
            counts = of_total if is_total else self._ranking.of_videos(part.start, scores.by_clip(weights))
            self.counts[stage].append(counts)

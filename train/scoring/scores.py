"""Scores of captions and clips, by stage of the score, and their combination into one ranking."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from ...storage.common.progress import progress

PART_SIZE = 1024
"""Number of captions, or of clips, that are ranked together."""


def parts_of(count: int, what: str, unit: str) -> Iterator[slice]:
    """Yield captions, or clips, in parts, and report progress if there are several.

    Args:
        count: Number of captions or clips.
        what: Name of the work.
        unit: "captions" or "clips".
    """
    parts = [slice(first, min(first + PART_SIZE, count)) for first in range(0, count, PART_SIZE)]
    if len(parts) == 1:
        return iter(parts)
    return progress(parts, total=count, what=what, unit=unit, size=lambda part: part.stop - part.start)


class QueryRows(Protocol):
    """Similarities of queries to candidates, float32 [K, N], read some rows at a time. An array can be used as such."""

    @property
    def shape(self) -> tuple[int, ...]:
        """K and N."""
        ...

    def __getitem__(self, queries: slice, /) -> np.ndarray:
        """Return the similarities of some queries, float32 [k, N]."""
        ...


@dataclass(frozen=True)
class QuerySimilarities:
    """Similarities of training queries to the candidates; they replace test queries, which are not known in advance."""

    texts: QueryRows
    """[num_queries, num_clips]: training texts and the clips that are searched."""
    videos: QueryRows
    """[num_queries, num_captions]: training videos and the captions that are searched."""

    @property
    def num_queries(self) -> int:
        """Number of training texts, and of training videos."""
        return self.texts.shape[0]


class Vectors(NamedTuple):
    """The vectors whose dot products are the early score ``vector_score``."""

    texts_MD: np.ndarray
    """float32 [num_captions, D]"""
    clips_ND: np.ndarray
    """float32 [num_clips, D]"""


class Shortlist(NamedTuple):
    """The pairs that the fusion layers scored, where they did not score all."""

    clips_of_captions: np.ndarray
    """bool [num_captions, num_clips]: the clip is among the best of the caption."""
    captions_of_clips: np.ndarray
    """bool [num_captions, num_clips]: the caption is among the best of the clip."""

    @property
    def pairs(self) -> np.ndarray:
        """bool [num_captions, num_clips]: the pair is scored."""
        return self.clips_of_captions | self.captions_of_clips

    def part(self, captions: slice, clips: slice) -> "Shortlist":
        """Return the pairs of some captions and clips."""
        return Shortlist(self.clips_of_captions[captions, clips], self.captions_of_clips[captions, clips])


class TotalScores(NamedTuple):
    """Weighted sums of the stages. With a shortlist, the two directions differ for pairs outside it."""

    by_caption: np.ndarray
    """float32 [num_captions, num_clips], for ranking clips by caption."""
    by_clip: np.ndarray
    """float32 [num_captions, num_clips], for ranking captions by clip."""


class Scores(Protocol):
    """Scores of all captions with all clips, held in memory or computed when they are requested."""

    @property
    def queries(self) -> QuerySimilarities | None:
        """Similarities of the training queries in the model's queue; None if it has no queue."""
        ...

    @property
    def vectors(self) -> Vectors | None:
        """Vectors of all captions and clips; None if only scores are known."""
        ...

    @property
    def stage_names(self) -> list[str]:
        """The stages that the model was trained with."""
        ...

    def rows(self, captions: slice) -> "StageScores":
        """Return the scores of some captions with all clips, for ranking clips by caption."""
        ...

    def columns(self, clips: slice) -> "StageScores":
        """Return the scores of all captions with some clips, for ranking captions by clip."""
        ...


@dataclass(frozen=True)
class StageScores:
    """Scores of each stage that the model was trained with."""

    stages: dict[str, np.ndarray]
    """{stage: float32 [num_captions, num_clips]}"""
    shortlist: Shortlist | None
    """None if fusion layers scored all pairs, or if there are none. Late scores of pairs outside it are 0."""
    queries: QuerySimilarities | None = None
    """None: the model has no queue of training queries."""
    vectors: Vectors | None = None
    """None: only scores are known."""

    @property
    def stage_names(self) -> list[str]:
        """The stages."""
        return list(self.stages)

    def rows(self, captions: slice) -> "StageScores":
        """Return the scores of some captions with all clips."""
        return self._part(captions, slice(None))

    def columns(self, clips: slice) -> "StageScores":
        """Return the scores of all captions with some clips."""
        return self._part(slice(None), clips)

    def _part(self, captions: slice, clips: slice) -> "StageScores":
        stages = {stage: scores[captions, clips] for stage, scores in self.stages.items()}
        return StageScores(stages, self.shortlist and self.shortlist.part(captions, clips))

    def fused(self, weights: Mapping[str, float]) -> TotalScores:
        """Return the weighted sum of the stages, for both directions.

        Pairs outside the shortlist come behind it, in the order of the early stages.

        Args:
            weights: {stage: weight}; a stage that is missing weighs 0.
        """
        by_caption = self.by_caption(weights)
        return TotalScores(by_caption, self.by_clip(weights) if self._is_cut(weights) else by_caption)

    def by_caption(self, weights: Mapping[str, float]) -> np.ndarray:
        """Return the weighted sum of the stages, for ranking clips by caption. It needs the scores of all clips."""
        total = _weighted_sum(self.stages, weights)
        if self.shortlist is None or not self._is_cut(weights):
            return total
        return _behind(total, self.guidance(weights), self.shortlist.clips_of_captions)

    def by_clip(self, weights: Mapping[str, float]) -> np.ndarray:
        """Return the weighted sum of the stages, for ranking captions by clip. It needs the scores of all captions."""
        total = _weighted_sum(self.stages, weights)
        if self.shortlist is None or not self._is_cut(weights):
            return total
        return _behind(total.T, self.guidance(weights).T, self.shortlist.captions_of_clips.T).T

    def _is_cut(self, weights: Mapping[str, float]) -> bool:
        """Return whether some pairs lack a part of the score."""
        has_late = any(weights.get(stage) for stage in self.stages if stage.startswith("fusion"))
        return self.shortlist is not None and has_late

    def guidance(self, weights: Mapping[str, float]) -> np.ndarray:
        """Return the weighted sum of the early stages, or their plain sum if all of them weigh 0 (ToCo)."""
        early = {stage: scores for stage, scores in self.stages.items() if not stage.startswith("fusion")}
        has_weight = any(weights.get(stage) for stage in early)
        return _weighted_sum(early, weights if has_weight else dict.fromkeys(early, 1.0))


def _weighted_sum(stages: Mapping[str, np.ndarray], weights: Mapping[str, float]) -> np.ndarray:
    total = np.zeros_like(next(iter(stages.values())))
    for stage, scores in stages.items():
        total += np.float32(weights.get(stage, 0.0)) * scores
    return total


def _behind(scores: np.ndarray, early: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return ``scores`` where ``chosen``; the others are below these in each row, in the order of ``early``."""
    lowest = np.where(chosen, scores, np.inf).min(axis=1, keepdims=True)
    highest = np.where(chosen, -np.inf, early).max(axis=1, keepdims=True, initial=-np.inf)
    return np.where(chosen, scores, early - highest + lowest - 1).astype(np.float32)

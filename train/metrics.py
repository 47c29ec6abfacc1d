"""Retrieval metrics: recall and ranks of the right candidates among all, and what scores drawn at random would give.

``retrieval_metrics`` takes scores that are in memory. For scores that come in parts, ``Ranking`` counts the candidates
before each right one, and ``text_metrics`` and ``video_metrics`` turn the counts into metrics.

Several candidates may have the same score as the right one (two clips with the same caption always tie). How such ties
are counted moves published metrics by half a point. ``TIES`` names the ways: three policies, and three published
evaluators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypedDict

import numpy as np

RECALL_AT = (1, 5, 10, 50)
TIES = {
    "average": "a tied candidate counts half (the mean rank over all orders of the tied ones)",
    "optimistic": "the right candidate comes first among the tied ones",
    "pessimistic": "the right candidate comes last among the tied ones",
    "ce": "as CE, MMT and Frozen: a tie counts half, but R@1 requires that nothing ties; from video to text, a video's "
    "other captions are wrong candidates",
    "clip4clip": "as CLIP4Clip, HowTo100M, MIL-NCE and UniVL: one query for each tied rank; with several captions for "
    "a video: ties in order of index, the lower median, and video to text among videos, each by its best caption",
    "coot": "as COOT: ties in the order that numpy.argsort leaves, the median rounded down; one caption for each video "
    "only",
}
"""Ways to count ties: {name: description}."""
QUERY_CHUNK = 256
"""Number of queries that are compared with all candidates at once."""


Chance = TypedDict(
    "Chance",
    {"R@1": float, "R@5": float, "R@10": float, "R@50": float, "median_rank": float, "mean_rank": float},
)
"""The average metrics of random scores. Recalls are in percent, rank 1 is the best."""


DirectionMetrics = TypedDict(
    "DirectionMetrics",
    {
        "R@1": float,
        "R@5": float,
        "R@10": float,
        "R@50": float,
        "median_rank": float,
        "mean_rank": float,
        "num_queries": int,
        "num_candidates": int,
        "num_tied": int,
        "chance": Chance,
    },
)
"""Metrics of one direction.

R@k is the percentage of queries whose right candidate is among the first k. Rank 1 is the best. ``num_tied`` is the
number of queries where another candidate ties with the right one.
"""


class RetrievalMetrics(TypedDict):
    """Metrics of both directions."""

    text_to_video: DirectionMetrics
    video_to_text: DirectionMetrics


def retrieval_metrics(
    similarity: np.ndarray, text_to_video: Sequence[int] | np.ndarray | None = None, ties: str = "average"
) -> RetrievalMetrics:
    """Rank the right candidate of each query in both directions.

    From text to video, every text is a query. From video to text, every video that has a text is a query; its rank is
    that of its best text among the texts of other videos.

    Args:
        similarity: [num_texts, num_videos]; higher is more similar.
        text_to_video: [num_texts], index of the right video of each text. By default text i belongs to video i.
        ties: How tied scores are counted; a key of ``TIES``.

    Returns:
        Recalls, ranks and counts of "text_to_video" and "video_to_text", each with what chance gives.

    Raises:
        ValueError: The similarities contain NaN, shapes do not fit, or ``ties`` is unknown or cannot be used here.
    """
    similarity, video_of_text = _checked(similarity, text_to_video, ties)
    ranking = Ranking(video_of_text, similarity.shape[1], ties)
    if ties == "coot" and ranking.is_ragged:
        raise ValueError(
            "ties 'coot': needs exactly one caption for each video; pass another policy, such as 'average'"
        )
    return {
        "text_to_video": text_metrics(ranking, ranking.of_texts(0, similarity)),
        "video_to_text": video_metrics(ranking, ranking.of_videos(0, similarity)),
    }


def _checked(
    similarity: np.ndarray, text_to_video: Sequence[int] | np.ndarray | None, ties: str
) -> tuple[np.ndarray, np.ndarray]:
    similarity = np.asarray(similarity, dtype=np.float32)
    if ties not in TIES:
        raise ValueError(f"ties {ties!r}: expected one of {', '.join(TIES)}")
    if similarity.ndim != 2 or similarity.size == 0:
        raise ValueError(f"similarity: expected [num_texts, num_videos], not empty; got shape {similarity.shape}")
    num_texts, num_videos = similarity.shape
    if text_to_video is None and num_texts != num_videos:
        raise ValueError(
            f"{num_texts} texts and {num_videos} videos: pass text_to_video, the index of each text's video"
        )
    video_of_text = np.arange(num_texts) if text_to_video is None else np.asarray(text_to_video)
    if video_of_text.shape != (num_texts,) or video_of_text.min() < 0 or video_of_text.max() >= num_videos:
        raise ValueError(f"text_to_video: expected {num_texts} indices in 0..{num_videos - 1}")
    return similarity, video_of_text


def text_metrics(ranking: Ranking, counts: RankCounts) -> DirectionMetrics:
    """Return the metrics from text to video.

    Args:
        ranking: What was ranked.
        counts: Of all texts.
    """
    num_right = np.ones(len(ranking.video_of_text), dtype=int)
    return _direction_metrics(counts, ranking.ties, ranking.num_videos, num_right, ragged=ranking.is_ragged)


def video_metrics(ranking: Ranking, counts: RankCounts) -> DirectionMetrics:
    """Return the metrics from video to text.

    Args:
        ranking: What was ranked.
        counts: Of all videos that have a text.
    """
    num_captions = ranking.num_captions[ranking.num_captions > 0]
    if ranking.ranks_by_best_caption:
        return _direction_metrics(counts, ranking.ties, len(num_captions), np.ones_like(num_captions), ragged=False)
    return _direction_metrics(counts, ranking.ties, len(ranking.video_of_text), num_captions, ragged=False)


def _direction_metrics(
    counts: RankCounts, ties: str, num_candidates: int, num_right: np.ndarray, *, ragged: bool
) -> DirectionMetrics:
    ranks = _ranks(counts, ties, ragged=ragged)
    median = float(np.median(ranks))
    if ties == "coot":
        median = float(math.floor(median))
    elif ties == "clip4clip" and ragged:
        median = float(np.sort(ranks)[(len(ranks) - 1) // 2])

    def percent(right: np.ndarray) -> float:
        return float(100 * np.mean(right))

    return {
        "R@1": percent(ranks == 1 if ties == "ce" else ranks < 2),
        "R@5": percent(ranks < 6),
        "R@10": percent(ranks < 11),
        "R@50": percent(ranks < 51),
        "median_rank": median,
        "mean_rank": float(ranks.mean()),
        "num_queries": len(counts.above),
        "num_candidates": num_candidates,
        "num_tied": int((counts.tied > 0).sum()),
        "chance": chance(num_candidates, num_right),
    }


def chance(num_candidates: int, num_right: np.ndarray) -> Chance:
    """Return what scores drawn at random give on average.

    The best of m right candidates among n is within the first k with probability 1 - C(n-m, k) / C(n, k). With 100
    candidates and one right one: R@1 is 1.0, R@10 10.0 and the median rank 50.5.

    Args:
        num_candidates: Number of candidates of each query.
        num_right: [Q], number of right candidates of each query.
    """
    distinct, num_queries = np.unique(num_right, return_counts=True)

    def within(k: int) -> float:
        n, k = num_candidates, min(k, num_candidates)
        misses = [math.comb(n - int(m), k) / math.comb(n, k) for m in distinct]
        return 1 - float(np.average(misses, weights=num_queries))

    low, high = 0, num_candidates  # find the first rank that at least half of the queries reach
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if within(middle) >= 0.5 else (middle, high)
    return {
        "R@1": 100 * within(1),
        "R@5": 100 * within(5),
        "R@10": 100 * within(10),
        "R@50": 100 * within(50),
        "median_rank": high + 0.5 if math.isclose(within(high), 0.5) else float(high),
        "mean_rank": float(np.average((num_candidates + 1) / (distinct + 1), weights=num_queries)),
    }


class RankCounts(NamedTuple):
    """Numbers of wrong candidates before the right one of each query, or tied with it. Each array is [Q]."""

    above: np.ndarray
    """Candidates with a higher score."""
    tied_before: np.ndarray
    """Tied candidates with a lower index. For the policy "coot": those that numpy.argsort puts first."""
    tied_after: np.ndarray
    """All other tied candidates."""

    @property
    def tied(self) -> np.ndarray:
        """Number of tied candidates [Q]."""
        return self.tied_before + self.tied_after

    @classmethod
    def join(cls, parts: Iterable[RankCounts]) -> RankCounts:
        """Return the counts of all queries, from those of consecutive ones."""
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))


class Ranking:
    """Counts the candidates before each right one, in parts.

    From text to video, every text is a query. From video to text, every video that has a text is a query; its right
    candidate is its best text, and its other texts are not counted.
    """

    def __init__(self, video_of_text: np.ndarray, num_videos: int, ties: str) -> None:
        """Prepare a ranking.

        Args:
            video_of_text: [num_texts], index of the right video of each text.
            num_videos: Number of videos.
            ties: A key of ``TIES``.
        """
        self.video_of_text, self.num_videos, self.ties = video_of_text, num_videos, ties
        self.num_captions = np.bincount(video_of_text, minlength=num_videos)
        """[num_videos]"""
        self._texts_by_video = np.argsort(video_of_text, kind="stable")
        self._starts = np.concatenate([[0], np.cumsum(self.num_captions)])

    @property
    def is_ragged(self) -> bool:
        """True if some video has no text, or several."""
        return bool((self.num_captions != 1).any())

    @property
    def ranks_by_best_caption(self) -> bool:
        """True if videos rank videos, each by its best caption, instead of texts (CLIP4Clip with several captions)."""
        return self.ties == "clip4clip" and self.is_ragged

    def of_texts(self, first: int, scores: np.ndarray) -> RankCounts:
        """Count the videos before the right one of consecutive texts.

        Args:
            first: Index of the first text.
            scores: [R, num_videos], of texts ``first`` to ``first + R - 1`` with all videos.

        Raises:
            ValueError: A score is NaN.
        """
        _check_numbers(scores)
        right = self.video_of_text[first : first + len(scores)]
        own = scores[np.arange(len(scores)), right]
        return count_ranks(lambda rows: scores[rows], own, right, self.ties)

    def of_videos(self, first: int, scores: np.ndarray) -> RankCounts:
        """Count the texts before the right one of consecutive videos. Videos without a text are skipped.

        Args:
            first: Index of the first video.
            scores: [num_texts, C], of all texts with videos ``first`` to ``first + C - 1``.

        Raises:
            ValueError: A score is NaN.
        """
        _check_numbers(scores)
        last = first + scores.shape[1]
        texts = np.sort(self._texts_by_video[self._starts[first] : self._starts[last]])
        videos = self.video_of_text[texts] - first
        own = scores[texts, videos]
        best = np.full(scores.shape[1], -np.inf, dtype=np.float32)
        np.maximum.at(best, videos, own)
        queries = np.flatnonzero(self.num_captions[first:last])
        if self.ranks_by_best_caption:
            of_videos = np.full((self.num_videos, scores.shape[1]), -np.inf, dtype=np.float32)
            np.maximum.at(of_videos, self.video_of_text, scores)
            return count_ranks(lambda rows: of_videos[:, queries[rows]].T, best[queries], first + queries, self.ties)
        is_best = own == best[videos]
        best_text = np.zeros(scores.shape[1], dtype=int)
        best_text[videos[is_best][::-1]] = texts[is_best][::-1]  # of tied texts, the one with the lowest index
        counts = count_ranks(lambda rows: scores[:, queries[rows]].T, best[queries], best_text[queries], self.ties)
        if self.ties == "ce":
            return counts
        # A video's other captions are not counted. None has a higher score than the best; those that tie follow it.
        tied_captions = np.bincount(videos[is_best], minlength=scores.shape[1])[queries] - 1
        return counts._replace(tied_after=counts.tied_after - tied_captions)


def _check_numbers(scores: np.ndarray) -> None:
    if scores.size and np.isnan(scores.min()):
        raise ValueError(f"similarity: {int(np.isnan(scores).sum())} values are NaN")


def count_ranks(
    scores_of: Callable[[slice], np.ndarray], right_scores: np.ndarray, right_index: np.ndarray, ties: str
) -> RankCounts:
    """Count the candidates that come before the right one, or tie with it.

    Args:
        scores_of: Returns the scores [q, num_candidates] of a slice of the queries.
        right_scores: [Q], score of each query's right candidate.
        right_index: [Q], index of each query's right candidate.
        ties: A key of ``TIES``; "coot" orders tied candidates in its own way.
    """
    parts = [RankCounts(*np.zeros((3, 0), dtype=int))]
    for first in range(0, len(right_scores), QUERY_CHUNK):
        rows = slice(first, first + QUERY_CHUNK)
        scores, right, index = scores_of(rows), right_scores[rows, None], right_index[rows, None]
        above, equal = (scores > right).sum(axis=1), scores == right
        if ties == "coot":
            before = np.argmax(np.argsort(scores, axis=1)[:, ::-1] == index, axis=1) - above
        else:
            before = (equal & (np.arange(scores.shape[1]) < index)).sum(axis=1)
        parts.append(RankCounts(above, before, equal.sum(axis=1) - before - 1))
    return RankCounts.join(parts)


def _ranks(counts: RankCounts, ties: str, *, ragged: bool) -> np.ndarray:
    """Return the rank of each query, from 1. "clip4clip" returns several for a query with ties."""
    first = 1 + counts.above
    if ties in ("average", "ce"):
        return mean_ranks(counts)
    if ties == "pessimistic":
        return first + counts.tied
    if ties == "coot" or (ties == "clip4clip" and ragged):
        return first + counts.tied_before
    if ties == "clip4clip":
        num_ranks = counts.tied + 1
        starts = np.cumsum(num_ranks) - num_ranks
        return np.repeat(first, num_ranks) + np.arange(num_ranks.sum()) - np.repeat(starts, num_ranks)
    return first


def mean_ranks(counts: RankCounts) -> np.ndarray:
    """Return the rank [Q] of each right candidate, from 1; a tie counts half."""
    return 1 + counts.above + counts.tied / 2


def right_ranks(scores: np.ndarray, right_index: np.ndarray) -> np.ndarray:
    """Return the rank [Q] of each query's right candidate, from 1; a tie counts half.

    Args:
        scores: [Q, num_candidates]
        right_index: [Q]
    """
    own = scores[np.arange(len(right_index)), right_index]
    return mean_ranks(count_ranks(lambda rows: scores[rows], own, right_index, "average"))

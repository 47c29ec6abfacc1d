"""Retrieval metrics, and what scores drawn at random would give.

Several candidates may have the same score as the right one (two clips with the same caption always tie). How such ties
are counted moves published figures by half a point. ``TIES`` names the ways: three policies, and three published
evaluators.
"""

import math
from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from .ranking import Ranking, Rivals, mean_ranks

RECALL_AT = (1, 5, 10, 50)
TIES = {
    "average": "a tied candidate counts half (the mean rank over all orders of the tied ones)",
    "optimistic": "the right candidate comes first among the tied ones",
    "pessimistic": "the right candidate comes last among the tied ones",
    "ce": "as CE, MMT and Frozen: a tie counts half, but R@1 requires that nothing ties; from video to text, a video's "
    "other captions count as rivals too",
    "clip4clip": "as CLIP4Clip, HowTo100M, MIL-NCE and UniVL: one query for each tied rank; with several captions for "
    "a video: ties in order of index, the lower median, and video to text among videos, each by its best caption",
    "coot": "as COOT: ties in the order that numpy.argsort leaves, the median rounded down; one caption for each video "
    "only",
}
"""How ties are counted: {name: description}."""

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


def text_metrics(ranking: Ranking, rivals: Rivals) -> DirectionMetrics:
    """Return the metrics from text to video.

    Args:
        ranking: What was ranked.
        rivals: Of all texts.
    """
    num_right = np.ones(len(ranking.video_of_text), dtype=int)
    return _summary(rivals, ranking.ties, ranking.num_videos, num_right, ragged=ranking.is_ragged)


def video_metrics(ranking: Ranking, rivals: Rivals) -> DirectionMetrics:
    """Return the metrics from video to text.

    Args:
        ranking: What was ranked.
        rivals: Of all videos that have a text.
    """
    num_captions = ranking.num_captions[ranking.num_captions > 0]
    if ranking.ranks_by_best_caption:
        return _summary(rivals, ranking.ties, len(num_captions), np.ones_like(num_captions), ragged=False)
    return _summary(rivals, ranking.ties, len(ranking.video_of_text), num_captions, ragged=False)


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


def _ranks(rivals: Rivals, ties: str, *, ragged: bool) -> np.ndarray:
    """Return the rank of each query, from 1. "clip4clip" returns several for a query with ties."""
    first = 1 + rivals.above
    if ties in ("average", "ce"):
        return mean_ranks(rivals)
    if ties == "pessimistic":
        return first + rivals.tied
    if ties == "coot" or (ties == "clip4clip" and ragged):
        return first + rivals.before
    if ties == "clip4clip":
        num_ranks = rivals.tied + 1
        starts = np.cumsum(num_ranks) - num_ranks
        return np.repeat(first, num_ranks) + np.arange(num_ranks.sum()) - np.repeat(starts, num_ranks)
    return first


def _summary(
    rivals: Rivals, ties: str, num_candidates: int, num_right: np.ndarray, *, ragged: bool
) -> DirectionMetrics:
    ranks = _ranks(rivals, ties, ragged=ragged)
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
        "num_queries": len(rivals.above),
        "num_candidates": num_candidates,
        "num_tied": int((rivals.tied > 0).sum()),
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

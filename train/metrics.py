"""Retrieval metrics, and what scores drawn at random would give.

Several candidates may have the same score as the right one (two clips with the same caption always tie). How such ties
are counted moves published figures by half a point. ``TIES`` names the ways: three policies, and three published
evaluators.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypedDict

import numpy as np

RECALL_AT = (1, 5, 10, 50)
CHUNK = 256
"""Number of queries that are compared with all candidates at once."""
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


class Rivals(NamedTuple):
    """For each query, the number of wrong candidates before the right one, or tied with it. Each array is [Q]."""

    above: np.ndarray
    """Candidates with a higher score."""
    before: np.ndarray
    """Tied candidates with a lower index. For the policy "coot": those that numpy.argsort puts first."""
    behind: np.ndarray
    """All other tied candidates."""

    @property
    def tied(self) -> np.ndarray:
        """Number of tied candidates [Q]."""
        return self.before + self.behind


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
    num_texts, num_videos = similarity.shape
    num_captions = np.bincount(video_of_text, minlength=num_videos)
    ragged = bool((num_captions != 1).any())
    if ties == "coot" and ragged:
        raise ValueError(
            "ties 'coot': needs exactly one caption for each video; pass another policy, such as 'average'"
        )
    right_scores = similarity[np.arange(num_texts), video_of_text]
    texts = count_rivals(lambda rows: similarity[rows], right_scores, video_of_text, ties)
    return {
        "text_to_video": _summary(texts, ties, num_videos, np.ones(num_texts, dtype=int), ragged=ragged),
        "video_to_text": _video_to_text(similarity, video_of_text, right_scores, num_captions, ties),
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
    if np.isnan(similarity.min()):
        raise ValueError(f"similarity: {int(np.isnan(similarity).sum())} values are NaN")
    return similarity, video_of_text


def _video_to_text(
    similarity: np.ndarray, video_of_text: np.ndarray, right_scores: np.ndarray, num_captions: np.ndarray, ties: str
) -> DirectionMetrics:
    num_texts, num_videos = similarity.shape
    best_scores = np.full(num_videos, -np.inf, dtype=np.float32)
    np.maximum.at(best_scores, video_of_text, right_scores)
    queries = np.flatnonzero(num_captions)
    if ties == "clip4clip" and (num_captions != 1).any():
        best_of_videos = np.full((num_videos, num_videos), -np.inf, dtype=np.float32)  # [video of the texts, query]
        np.maximum.at(best_of_videos, video_of_text, similarity)
        rivals = count_rivals(lambda rows: best_of_videos[:, queries[rows]].T, best_scores[queries], queries, ties)
        return _summary(rivals, ties, len(queries), np.ones(len(queries), dtype=int), ragged=False)
    is_best = np.flatnonzero(right_scores == best_scores[video_of_text])
    best_text = np.zeros(num_videos, dtype=int)
    best_text[video_of_text[is_best[::-1]]] = is_best[::-1]  # of tied texts, the one with the lowest index
    rivals = count_rivals(lambda rows: similarity[:, queries[rows]].T, best_scores[queries], best_text[queries], ties)
    if ties != "ce":
        # A video's other captions are no rivals. None has a higher score than the best; those that tie come behind it.
        tied_captions = np.bincount(video_of_text[is_best], minlength=num_videos)[queries] - 1
        rivals = rivals._replace(behind=rivals.behind - tied_captions)
    return _summary(rivals, ties, num_texts, num_captions[queries], ragged=False)


def count_rivals(
    scores_of: Callable[[slice], np.ndarray], right_scores: np.ndarray, right_index: np.ndarray, ties: str
) -> Rivals:
    """Count the candidates that come before the right one, or tie with it.

    Args:
        scores_of: Returns the scores [q, num_candidates] of a slice of the queries.
        right_scores: [Q], score of each query's right candidate.
        right_index: [Q], index of each query's right candidate.
        ties: A key of ``TIES``; "coot" orders tied candidates in its own way.
    """
    counts = []
    for first in range(0, len(right_scores), CHUNK):
        rows = slice(first, first + CHUNK)
        scores, right, index = scores_of(rows), right_scores[rows, None], right_index[rows, None]
        above, equal = (scores > right).sum(axis=1), scores == right
        if ties == "coot":
            before = np.argmax(np.argsort(scores, axis=1)[:, ::-1] == index, axis=1) - above
        else:
            before = (equal & (np.arange(scores.shape[1]) < index)).sum(axis=1)
        counts.append((above, before, equal.sum(axis=1) - before - 1))
    above, before, behind = (np.concatenate(column) for column in zip(*counts, strict=True))
    return Rivals(above, before, behind)


def right_ranks(scores: np.ndarray, right_index: np.ndarray) -> np.ndarray:
    """Return the rank [Q] of each query's right candidate, from 1; a tie counts half.

    Args:
        scores: [Q, num_candidates]
        right_index: [Q]
    """
    own = scores[np.arange(len(right_index)), right_index]
    return _ranks(count_rivals(lambda rows: scores[rows], own, right_index, "average"), "average", ragged=False)


def _ranks(rivals: Rivals, ties: str, *, ragged: bool) -> np.ndarray:
    """Return the rank of each query, from 1. "clip4clip" returns several for a query with ties."""
    first = 1 + rivals.above
    if ties in ("average", "ce"):
        return first + rivals.tied / 2
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

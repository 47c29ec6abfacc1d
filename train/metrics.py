"""Retrieval metrics, and what chance would give."""

import math
from collections.abc import Sequence

import numpy as np

RECALL_AT = (1, 5, 10, 50)


def retrieval_metrics(similarity: np.ndarray, text_to_video: Sequence[int] | None = None) -> dict[str, dict[str, float]]:
    """Ranks of the right answers in ``similarity`` [num_texts, num_videos], both ways.

    ``text_to_video``: the right video of each text; by default text i belongs to video i. Text to video, every text is a query.
    Video to text, every video is one, and the rank is that of its best caption among all captions; a video without a caption
    is no query. Scores equal to the right one's count as half before it. Returns, for "text_to_video" and "video_to_text":
    R@1, R@5, R@10, R@50 in percent, median_rank and mean_rank (1 is best), num_queries, num_candidates and, under "chance",
    what scores drawn at random give on average. Raises ``ValueError`` for NaN and for shapes that do not fit.
    """
    similarity = np.asarray(similarity, dtype=np.float32)
    if similarity.ndim != 2 or similarity.size == 0:
        raise ValueError(f"similarity must be [num_texts, num_videos] and not empty, got {similarity.shape}")
    num_texts, num_videos = similarity.shape
    if text_to_video is None and num_texts != num_videos:
        raise ValueError(f"{num_texts} texts and {num_videos} videos: text_to_video must say which video each text belongs to")
    right = np.arange(num_texts) if text_to_video is None else np.asarray(text_to_video)
    if right.shape != (num_texts,) or right.min() < 0 or right.max() >= num_videos:
        raise ValueError(f"text_to_video must hold {num_texts} numbers in 0..{num_videos - 1}")
    if np.isnan(similarity).any():
        raise ValueError(f"{int(np.isnan(similarity).sum())} of the similarities are NaN")

    own = similarity[np.arange(num_texts), right]
    text_ranks = _ranks(similarity, own[:, None], axis=1)
    best_own = np.full(num_videos, -np.inf, dtype=np.float32)
    np.maximum.at(best_own, right, own)
    is_query = np.bincount(right, minlength=num_videos) > 0
    num_captions = np.bincount(right, minlength=num_videos)[is_query]
    # A video's other captions score no higher than its best one; those that tie with it are no rivals.
    tied_own = np.bincount(right, weights=own == best_own[right], minlength=num_videos)
    video_ranks = (_ranks(similarity, best_own[None], axis=0) - (tied_own - 1) / 2)[is_query]
    return {
        "text_to_video": _summary(text_ranks, num_videos, np.ones(num_texts, dtype=int)),
        "video_to_text": _summary(video_ranks, num_texts, num_captions),
    }


def _ranks(similarity: np.ndarray, own: np.ndarray, axis: int) -> np.ndarray:
    """1 + those above + half of those level (``own`` itself among them, not counted)."""
    return 1 + (similarity > own).sum(axis) + ((similarity == own).sum(axis) - 1) / 2


def _summary(ranks: np.ndarray, num_candidates: int, num_right: np.ndarray) -> dict[str, float]:
    return {
        **{f"R@{k}": float(100 * np.mean(ranks < k + 1)) for k in RECALL_AT},
        "median_rank": float(np.median(ranks)),
        "mean_rank": float(ranks.mean()),
        "num_queries": len(ranks),
        "num_candidates": num_candidates,
        "chance": chance(num_candidates, num_right),
    }


def chance(num_candidates: int, num_right: np.ndarray) -> dict[str, float]:
    """Metrics of scores drawn at random, where query i has ``num_right[i]`` right answers among the candidates.

    The best of m right ones among n is within the first k with probability 1 - C(n-m, k) / C(n, k).

    n 100, m 1  ->  R@1 1.0, R@10 10.0, median rank 50.5
    """
    kinds, counts = np.unique(num_right, return_counts=True)

    def within(k: int) -> float:
        n, k = num_candidates, min(k, num_candidates)
        misses = [math.comb(n - int(m), k) / math.comb(n, k) for m in kinds]
        return 1 - float(np.average(misses, weights=counts))

    low, high = 0, num_candidates  # the first rank that at least half of the queries reach
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if within(middle) >= 0.5 else (middle, high)
    median = high + 0.5 if math.isclose(within(high), 0.5) else float(high)
    mean = float(np.average((num_candidates + 1) / (kinds + 1), weights=counts))
    return {**{f"R@{k}": 100 * within(k) for k in RECALL_AT}, "median_rank": median, "mean_rank": mean}


def format_metrics(metrics: dict[str, dict]) -> str:
    """A table for people: each direction, with chance under it."""
    names = ["R@1", "R@5", "R@10", "median_rank"]
    lines = [f"{'':<16}" + "".join(f"{name.replace('_', ' '):>13}" for name in names)]
    for direction in ("text_to_video", "video_to_text"):
        row = metrics[direction]
        lines.append(f"{direction.replace('_', ' '):<16}" + "".join(f"{row[name]:>13.1f}" for name in names))
        lines.append(f"{'  chance':<16}" + "".join(f"{row['chance'][name]:>13.1f}" for name in names))
    return "\n".join(lines)

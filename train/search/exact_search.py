"""Exact search: a query is compared with the vectors of all windows, one block after the other."""

import warnings
from collections.abc import Collection

import numpy as np

from .index import WindowIndex
from .query_checks import check_time
from .window_biases import WindowBiases

WINDOWS_SCORED_AT_ONCE = 1 << 12
"""Windows that are scored at once: their vectors stay in the processor's cache."""


class ExactSearch:
    """Candidates for a query, by the scores of all windows."""

    def __init__(self, index: WindowIndex, query_D: np.ndarray, biases: WindowBiases | None = None) -> None:
        """Score all windows.

        Args:
            index: The windows.
            query_D: The query's vector.
            biases: NCL's biases of the windows, which are added to a text's scores.
        """
        self.index, self.query_D, self.biases = index, query_D, biases
        scores = np.empty(len(index.video), dtype=np.float32)
        for first, block in index.blocks(WINDOWS_SCORED_AT_ONCE):
            check_time()
            scores[first : first + len(block)] = half_products(block, query_D)
        self.scores = finite(scores if biases is None else (scores + biases.bias_W).astype(np.float32))
        """float32 [W]; -inf for scores that are not finite."""
        self._sorted = np.sort(self.scores[index.is_live])

    def best(self, count: int, videos: Collection[str] | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of the windows with the highest scores, the best first, and the scores.

        Args:
            count: Most rows to return.
            videos: Ids of the videos to search; None for all.
        """
        rows = np.flatnonzero(self.index.is_live) if videos is None else self.index.rows_of_all(videos)
        return best_of(rows, self.scores[rows], count)

    def scores_of(self, vectors: np.ndarray) -> np.ndarray:
        """Return the scores [N] of vectors [N, D] that are no windows."""
        scores = vectors @ self.query_D
        return scores if self.biases is None else (scores + self.biases.of_vectors(vectors)).astype(np.float32)

    def percentiles(self, scores: np.ndarray) -> np.ndarray:
        """Return for each score how many percent of all windows have a lower one."""
        return percentiles(self._sorted, scores)


def best_of(rows: np.ndarray, scores: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return up to ``count`` rows with the highest scores, the best first, and the scores; ties are in order of rows.

    Args:
        rows: Ascending.
        scores: Score of each row, without NaN.
        count: Most rows to return.
    """
    if count < len(rows):
        least = np.partition(scores, -count)[-count]
        above = np.flatnonzero(scores > least)
        top = np.concatenate([above, np.flatnonzero(scores == least)[: count - len(above)]])
        rows, scores = rows[top], scores[top]
    order = np.lexsort((rows, -scores))
    return rows[order], scores[order]


def percentiles(sorted_scores: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return for each score the percentage of the sorted scores that are lower; 100 for the highest of them."""
    below = np.searchsorted(sorted_scores, scores, side="left") / max(len(sorted_scores) - 1, 1) * 100
    return np.minimum(below, 100)


def finite(scores: np.ndarray) -> np.ndarray:
    """Replace NaN and infinite scores by -inf."""
    return np.nan_to_num(scores, nan=-np.inf, neginf=-np.inf, posinf=-np.inf)


def exact_scores(index: WindowIndex, rows: np.ndarray, query_D: np.ndarray) -> np.ndarray:
    """Return the scores [N] of some windows; rows are ascending."""
    scores = [np.zeros(0, np.float32)]
    for low in range(0, len(rows), WINDOWS_SCORED_AT_ONCE):
        check_time()
        scores.append(half_products(index.halves_of(rows[low : low + WINDOWS_SCORED_AT_ONCE]), query_D))
    return finite(np.concatenate(scores))


def half_products(block: np.ndarray, query_D: np.ndarray) -> np.ndarray:
    """Return the dot products [N] of float16 vectors [N, D] and a query, in float32.

    torch converts float16 ten times faster than numpy (``tests/benchmarks/search.py``).
    """
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        half = torch.from_numpy(block)
    return (half.float() @ torch.from_numpy(np.ascontiguousarray(query_D, dtype=np.float32))).numpy()

"""Comparison of a query with the vectors of all windows, one block after the other."""

import warnings
from collections.abc import Collection

import numpy as np

from .index import WindowIndex
from .limits import check_time

BLOCK_WINDOWS = 1 << 12
"""Windows that are scored at once: their vectors stay in the processor's cache."""


class Scan:
    """The scores of all windows for a query."""

    def __init__(self, index: WindowIndex, query_D: np.ndarray) -> None:
        self.index, self.query_D = index, query_D
        scores = np.empty(len(index.video), dtype=np.float32)
        for first, block in index.blocks(BLOCK_WINDOWS):
            check_time()
            scores[first : first + len(block)] = half_product(block, query_D)
        self.scores = np.nan_to_num(scores, nan=-np.inf, neginf=-np.inf, posinf=-np.inf)
        """float32 [W]; -inf for one that is not finite."""
        self._sorted = np.sort(self.scores[index.is_live])

    def best(self, count: int, videos: Collection[str] | None) -> np.ndarray:
        """Return the rows of the windows with the highest scores, the best first.

        Args:
            count: Most rows to return.
            videos: Ids of the videos to search; None for all.
        """
        allowed = self.index.is_live
        if videos is not None:
            chosen = np.array([video_id in videos for video_id in self.index.video_ids], dtype=bool)
            allowed = allowed & chosen[self.index.video]
        rows = np.flatnonzero(allowed)
        if count < len(rows):
            rows = rows[np.argpartition(-self.scores[rows], count - 1)[:count]]
        return rows[np.lexsort((rows, -self.scores[rows]))]

    def percent_below(self, scores: np.ndarray) -> np.ndarray:
        """Return for each score how many percent of all windows have a lower one."""
        return np.searchsorted(self._sorted, scores, side="left") / max(len(self._sorted) - 1, 1) * 100


def half_product(block: np.ndarray, query_D: np.ndarray) -> np.ndarray:
    """Return the dot products [N] of float16 vectors [N, D] and a query, in float32.

    torch converts float16 ten times faster than numpy (``tests/benchmarks/search.py``).
    """
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        half = torch.from_numpy(block)
    return (half.float() @ torch.from_numpy(np.ascontiguousarray(query_D, dtype=np.float32))).numpy()

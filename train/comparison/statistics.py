"""A paired bootstrap over queries: do two runs differ by more than chance?"""

from dataclasses import dataclass

import numpy as np

MOST_DRAWS = 1 << 20
"""Random indices that are in memory at once."""


@dataclass(frozen=True)
class Interval:
    """A difference of two means over the same queries, and what it may be."""

    difference: float
    low: float
    high: float

    @property
    def has_zero(self) -> bool:
        """Return whether the difference may be none."""
        return self.low <= 0 <= self.high


def paired_bootstrap(
    first_N: np.ndarray, second_N: np.ndarray, *, seed: int = 0, num_resamples: int = 10_000, level: float = 0.95
) -> Interval:
    """Return mean(second - first) with its percentile interval.

    Queries are drawn with replacement, each with its values for both runs. Queries about the same clip count as
    independent, so with several captions a clip the interval is somewhat too narrow.

    Args:
        first_N: [N], one value for each query.
        second_N: [N], the same queries' values for the other run.
        seed: Of the draws.
        num_resamples: How often N queries are drawn.
        level: Share of the resampled differences that the interval holds.

    Source: Efron and Tibshirani 1993, chapter 13.
    """
    difference_N = np.asarray(second_N, dtype=np.float64) - np.asarray(first_N, dtype=np.float64)
    num_queries, rng = len(difference_N), np.random.default_rng(seed)
    at_once = max(MOST_DRAWS // num_queries, 1)
    means = np.concatenate(
        [
            difference_N[rng.integers(num_queries, size=(min(at_once, num_resamples - start), num_queries))].mean(
                axis=1
            )
            for start in range(0, num_resamples, at_once)
        ]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(difference_N.mean()), float(low), float(high))

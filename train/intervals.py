"""Confidence intervals of metrics over queries, as if other test videos of the same kind were drawn.

The candidates stay the same. Queries about the same video are alike, so videos are drawn, not queries. The confidence
level is 95 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

LEVEL = 0.95
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
MAX_DRAWS = 1 << 20
"""Random indices that are in memory at once."""


class Interval(NamedTuple):
    """The ends of an interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A difference of two means over the same queries, with its interval.

    Example:
        >>> from vlalign.train import Difference
        >>> Difference(1.5, low=-0.2, high=3.2).has_zero
        True
    """

    difference: float
    """Mean of the second side minus the mean of the first."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""

    @property
    def has_zero(self) -> bool:
        """Return whether the interval contains 0: there may be no difference."""
        return self.low <= 0 <= self.high


def share_interval(hits_Q: np.ndarray, video_of_Q: np.ndarray) -> Interval:
    """Return the interval of a share of queries, such as R@1.

    It is Wilson's interval for the number of independent queries that would have the same standard error: queries about
    the same video are not independent.

    Example::

        share_interval(np.array([True, False, True, True]), np.arange(4))  # Interval(low=0.3, high=0.95)

    Args:
        hits_Q: [Q], True for each query in the share.
        video_of_Q: [Q], index of each query's video.

    Returns:
        Two shares, from 0 to 1.

    Source: Wilson 1927; Korn and Graubard 1998 for the number of independent queries.
    """
    num_videos, share = len(np.unique(video_of_Q)), float(np.mean(hits_Q))
    if num_videos < 2:
        return Interval(0.0, 1.0)
    error = _standard_error(hits_Q.astype(np.float64) - share, video_of_Q)
    # Without any variation (all hits or none), each video counts as one query.
    num_independent = min(share * (1 - share) / error**2, len(hits_Q)) if error > 0 else num_videos
    middle = (share + Z**2 / (2 * num_independent)) / (1 + Z**2 / num_independent)
    spread = math.sqrt(share * (1 - share) / num_independent + (Z / (2 * num_independent)) ** 2)
    half = Z * spread / (1 + Z**2 / num_independent)
    return Interval(max(middle - half, 0.0), min(middle + half, 1.0))


def mean_interval(values_Q: np.ndarray, video_of_Q: np.ndarray) -> Interval:
    """Return the interval of the mean of one value per query, such as its rank.

    Args:
        values_Q: [Q], one value per query.
        video_of_Q: [Q], index of each query's video.

    Returns:
        Both ends; infinite if all queries are about one video.
    """
    mean = float(np.mean(values_Q))
    if len(np.unique(video_of_Q)) < 2:
        return Interval(-math.inf, math.inf)
    half = Z * _standard_error(np.asarray(values_Q, dtype=np.float64) - mean, video_of_Q)
    return Interval(mean - half, mean + half)


def median_interval(values_Q: np.ndarray, video_of_Q: np.ndarray) -> Interval:
    """Return the interval of the median of one value per query.

    Its ends are the values at the ends of the interval of the share of queries up to the median.

    Args:
        values_Q: [Q], one value per query.
        video_of_Q: [Q], index of each query's video.

    Source: Woodruff 1952.
    """
    ordered = np.sort(values_Q)
    is_low_Q = values_Q <= np.median(ordered)
    (low, high), middle = share_interval(is_low_Q, video_of_Q), float(np.mean(is_low_Q))
    first = math.floor((0.5 - (middle - low)) * len(ordered)) - 1
    last = math.ceil((0.5 + (high - middle)) * len(ordered)) - 1
    return Interval(float(ordered[max(first, 0)]), float(ordered[min(last, len(ordered) - 1)]))


def _standard_error(residuals_Q: np.ndarray, video_of_Q: np.ndarray) -> float:
    """Return the standard error of a mean over queries, from the residuals' sums over videos."""
    _, index_Q = np.unique(video_of_Q, return_inverse=True)
    sums_V = np.bincount(index_Q, weights=residuals_Q)
    return math.sqrt(len(sums_V) / (len(sums_V) - 1) * float((sums_V**2).sum())) / len(residuals_Q)


def paired_bootstrap(
    first_Q: np.ndarray,
    second_Q: np.ndarray,
    video_of_Q: np.ndarray | None = None,
    *,
    seed: int = 0,
    num_resamples: int = 10_000,
) -> Difference:
    """Return mean(second - first) with its percentile interval.

    Videos are drawn with replacement, each with all its queries and their values for both sides.

    Args:
        first_Q: [Q], one value per query, for the first side.
        second_Q: [Q], the same queries' values for the second side.
        video_of_Q: [Q], index of each query's video; None: each query has a video of its own.
        seed: Seed of the draws.
        num_resamples: How often videos are drawn.

    Source: Efron and Tibshirani 1993, chapter 13; Davison and Hinkley 1997, section 3.8, for drawing videos.
    """
    difference_Q = np.asarray(second_Q, dtype=np.float64) - np.asarray(first_Q, dtype=np.float64)
    videos_Q = np.arange(len(difference_Q)) if video_of_Q is None else np.unique(video_of_Q, return_inverse=True)[1]
    sums_V, numbers_V = np.bincount(videos_Q, weights=difference_Q), np.bincount(videos_Q)
    rng, num_videos = np.random.default_rng(seed), len(sums_V)
    at_once = max(MAX_DRAWS // num_videos, 1)
    means = []
    for start in range(0, num_resamples, at_once):
        drawn = rng.integers(num_videos, size=(min(at_once, num_resamples - start), num_videos))
        means.append(sums_V[drawn].sum(axis=1) / numbers_V[drawn].sum(axis=1))
    low, high = np.quantile(np.concatenate(means), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(float(difference_Q.mean()), float(low), float(high))

"""Intervals of metrics, against the textbook's numbers, a bootstrap over videos, and draws of other test sets."""

import numpy as np
import pytest
from vlalign.train.intervals import mean_interval, median_interval, paired_bootstrap, share_interval

pytestmark = pytest.mark.portable


def test_a_share_of_separate_queries_has_wilsons_interval():
    """10 of 40: 0.1419 to 0.4019 (Wilson's score interval, as statsmodels' proportion_confint computes it), a little
    wider here, since the variance of a sample is divided by n - 1."""
    hits = np.arange(40) < 10
    low, high = share_interval(hits, np.arange(40))
    assert low == pytest.approx(0.1419, abs=0.003) and high == pytest.approx(0.4019, abs=0.003)
    assert low < 0.1419 and high > 0.4019


@pytest.mark.parametrize(("hits", "low", "high"), [(0, 0.0, 0.0713), (50, 0.9287, 1.0)])
def test_a_share_of_none_or_all_is_not_certain(hits, low, high):
    found = share_interval(np.arange(50) < hits, np.arange(50))
    assert found == pytest.approx((low, high), abs=1e-4)


def test_queries_about_one_video_count_once():
    hits = np.arange(40) < 10
    assert share_interval(np.repeat(hits, 5), np.repeat(np.arange(40), 5)) == pytest.approx(
        share_interval(hits, np.arange(40))
    )
    assert share_interval(hits, np.zeros(40, dtype=int)) == (0, 1), "a single video says nothing about others"


@pytest.mark.parametrize("captions", [1, 4])
def test_the_interval_of_a_mean_is_that_of_a_bootstrap_over_videos(captions):
    rng = np.random.default_rng(0)
    video = np.repeat(np.arange(80), captions)
    values = rng.normal(size=80)[video] + rng.normal(size=len(video))
    draws = [values.reshape(80, captions)[rng.integers(80, size=80)].mean() for _ in range(4000)]
    assert mean_interval(values, video) == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=0.03)
    difference = paired_bootstrap(np.zeros(len(video)), values, video)
    assert (difference.low, difference.high) == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=0.03)


def test_the_interval_of_a_median_is_that_of_a_bootstrap_over_videos():
    rng = np.random.default_rng(0)
    values = rng.exponential(size=301)
    draws = [np.median(values[rng.integers(301, size=301)]) for _ in range(4000)]
    assert median_interval(values, np.arange(301)) == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=0.05)


def test_videos_of_unequal_numbers_of_queries_are_drawn_whole():
    """Against a bootstrap that draws videos one by one."""
    rng = np.random.default_rng(1)
    video = np.repeat(np.arange(30), rng.integers(1, 8, size=30))
    first, second = rng.normal(size=(2, len(video))) + rng.normal(size=(2, 30))[:, video]
    found = paired_bootstrap(first, second, video, seed=2, num_resamples=4000)
    draws = []
    for _ in range(4000):
        rows = np.concatenate([np.flatnonzero(video == v) for v in rng.integers(30, size=30)])
        draws.append((second - first)[rows].mean())
    assert [found.low, found.high] == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=0.05)
    alone = paired_bootstrap(first, second, seed=2, num_resamples=4000)
    assert alone.high - alone.low < found.high - found.low, "queries of a video are alike"


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_95_of_100_intervals_hold_the_share(share):
    """Test sets are drawn from a known population of videos, whose queries are alike."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        of_video = rng.beta(8 * share, 8 * (1 - share), size=60)
        video = np.repeat(np.arange(60), 5)
        low, high = share_interval(rng.random(300) < of_video[video], video)
        held += low <= share <= high
    assert 0.915 <= held / 400 <= 0.985

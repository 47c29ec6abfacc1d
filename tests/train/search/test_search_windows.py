"""Which windows a video has."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vlalign.train.search.index import plan_search_windows


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (3.0, [(0, 3)]),
        (4.0, [(0, 4)]),
        (5.0, [(0, 5), (0, 4), (1, 5)]),
        (6.0, [(0, 6), (0, 4), (2, 6)]),
        (9.0, [(0, 9), (0, 4), (2, 6), (4, 8), (5, 9), (0, 8), (1, 9)]),
    ],
)
def test_windows_of_short_videos(seconds, expected):
    assert plan_search_windows(seconds).tolist() == [list(map(float, window)) for window in expected]


@given(st.floats(0.04, 7200))
def test_every_instant_lies_in_a_window_of_each_length(seconds):
    windows = plan_search_windows(seconds)
    assert windows[0].tolist() == [0.0, seconds]
    assert (windows[:, 0] >= 0).all() and (windows[:, 1] <= seconds + 1e-6).all()
    lengths = (windows[1:, 1] - windows[1:, 0]).round(6)
    assert set(lengths.tolist()) == {length for length in (4.0, 8.0, 16.0) if length < seconds - 1e-6}
    for length in set(lengths.tolist()):
        starts = windows[1:, 0][lengths == length]
        assert (np.diff(starts) > 0).all() and (np.diff(starts) <= length / 2 + 1e-6).all()
        assert starts[0] == 0 and starts[-1] + length == pytest.approx(seconds, abs=1e-5)

"""Hits become moments, which do not overlap."""

import threading
from dataclasses import replace
from itertools import combinations, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vlalign.train.search.moments import Hit, Moment, ScoreCurve, merge_hits
from vlalign.train.search.query_checks import SearchTimeout, time_limit


def hits_of(scores: np.ndarray) -> list[Hit]:
    """Return windows of 4 s, half overlapping, the best first."""
    order = np.argsort(-scores, kind="stable")
    return [
        Hit(video_id="v", start_seconds=2.0 * n, end_seconds=2.0 * n + 4, score=float(scores[n]), percentile=50.0)
        for n in order.tolist()
    ]


def curve_of(scores: np.ndarray) -> ScoreCurve:
    starts = 2.0 * np.arange(len(scores))
    return ScoreCurve(starts, starts + 4, scores)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1, width=32), min_size=3, max_size=60))
def test_moments_of_one_video_do_not_overlap(values):
    scores = np.array(values, np.float32)
    moments = list(merge_hits(hits_of(scores), lambda _: curve_of(scores)))
    for a, b in combinations(moments, 2):
        assert a.end_seconds <= b.start_seconds or b.end_seconds <= a.start_seconds
    assert all(m.start_seconds < m.end_seconds for m in moments)


def test_a_moment_begins_where_a_better_one_ends():
    scores = np.full(40, 0.2, np.float32)
    scores[20:30] = 0.5
    scores[[20, 29]] = 1.0, 0.7  # what lies between belongs to the second: only there it is above half the height
    first, second = islice(merge_hits(hits_of(scores), lambda _: curve_of(scores)), 2)
    assert (first.start_seconds, first.end_seconds) == (40.0, 44.0)
    assert (second.start_seconds, second.end_seconds, second.window) == (44.0, 62.0, (58.0, 62.0))


def test_the_best_second_is_the_middle_of_the_highest_window():
    curve = ScoreCurve(np.array([0.0, 2, 4, 6]), np.array([4.0, 6, 8, 10]), np.array([0.1, 0.3, 0.3, 0.9]))
    of = {"video_id": "v", "score": 1.0, "percentile": None, "window": (2.0, 6.0)}
    whole = Moment(start_seconds=0.0, end_seconds=10.0, curve=curve, **of)
    assert whole.best_seconds == 8.0
    assert Moment(start_seconds=1.0, end_seconds=7.0, curve=curve.part(1.0, 7.0), **of).best_seconds == 4.0, "the first"
    nothing = curve.part(20, 30)
    assert Moment(start_seconds=0.0, end_seconds=10.0, curve=nothing, **of).best_seconds == 4.0
    assert Moment(start_seconds=5.0, end_seconds=6.0, curve=nothing, **of).best_seconds == 5.0, "within the moment"


def test_the_time_is_looked_at_for_each_window():
    """Also for those that belong to a moment that was found."""
    cancelled = threading.Event()

    def hits():
        first, *others = hits_of(np.array([3.0, 2.0, 1.0]))
        yield first
        cancelled.set()
        yield from (replace(hit, start_seconds=first.start_seconds, end_seconds=first.end_seconds) for hit in others)

    with time_limit(60, cancelled):
        moments = merge_hits(hits(), lambda _: curve_of(np.array([3.0, 2.0, 1.0])))
        next(moments)
        with pytest.raises(SearchTimeout):
            next(moments)

"""Metrics of moments: hand-computed, by a second implementation, and as the published program computes them."""

import json

import numpy as np
import pytest
from helpers.golden import GOLDEN_FOLDER
from hypothesis import given, settings
from hypothesis import strategies as st
from vlalign.train.benchmarks.moment_metrics import (
    LocatedQuery,
    average_precision,
    clip_ratings,
    highlight_metrics,
    highlight_precision,
    moment_metrics,
    recall,
    temporal_iou,
)

SPANS = st.tuples(st.integers(0, 40), st.integers(1, 40)).map(lambda span: (float(span[0]), float(span[0] + span[1])))


def located(found, right) -> LocatedQuery:
    return LocatedQuery(np.array(found, float).reshape(-1, 2), np.array(right, float))


def iou_by_seconds(first, second) -> float:
    """Count the seconds that spans of whole seconds share, and those that one has."""
    one, other = (set(range(int(start), int(end))) for start, end in (first, second))
    return len(one & other) / len(one | other)


@given(SPANS, SPANS)
def test_overlap_is_that_of_sets_of_seconds(first, second):
    [[iou]] = temporal_iou(np.array([first]), np.array([second]))
    assert iou == pytest.approx(iou_by_seconds(first, second))


@settings(deadline=None)
@given(
    st.lists(SPANS, max_size=12),
    st.lists(SPANS, min_size=1, max_size=4, unique=True),
    st.sampled_from([0.3, 0.5, 0.95]),
)
def test_average_precision_by_loops(found, right, iou):
    """For each right moment that is taken, the best precision at its rank or behind."""
    left, is_right = list(right), []
    for span in found[:10]:
        best = max(left, key=lambda other: iou_by_seconds(span, other), default=None)
        is_right.append(best is not None and iou_by_seconds(span, best) >= iou)
        if is_right[-1]:
            left.remove(best)
    precision = [sum(is_right[:n]) / n for n in range(1, len(is_right) + 1)]
    expected = sum(max(precision[n:]) for n, taken in enumerate(is_right) if taken) / len(right)
    assert average_precision(located(found, right), iou) == pytest.approx(expected)


def test_metrics_by_hand():
    right = [(0, 10), (20, 60)]
    query = located([(0, 6), (20, 60), (0, 10)], right)  # the first has an overlap of 0.6
    assert recall(query, 1, 0.5) and not recall(query, 1, 0.7) and recall(query, 5, 0.7)
    assert average_precision(query, 0.5) == 1.0, "the third finds what the first has taken"
    assert average_precision(query, 0.75) == pytest.approx((2 / 3 + 2 / 3) / 2)
    metrics = moment_metrics([query, located([], right)])
    assert metrics["R@1, IoU 0.5"] == 50 and metrics["R@1, IoU 0.7"] == 0 and metrics["R@5, IoU 0.7"] == 50
    assert metrics["short mAP"] == pytest.approx(50 * (3 * 1 + 7 / 3) / 10), "0.5, 0.55, 0.6: the first; then the third"
    assert metrics["long mAP"] == pytest.approx(50 / 2) and "middle mAP" not in metrics


def test_perfect_moments_get_all():
    right = [[(0, 8)], [(4, 30), (40, 60)]]
    assert set(moment_metrics([located(spans, spans) for spans in right]).values()) == {100}


def golden() -> dict:
    return json.loads((GOLDEN_FOLDER / "reference" / "benchmarks.json").read_text(encoding="utf-8"))["qvhighlights"]


def test_moments_as_the_published_program():
    made = golden()
    queries = [
        located([window[:2] for window in found["pred_relevant_windows"]], right["relevant_windows"])
        for found, right in zip(made["submission"], made["ground_truth"], strict=True)
    ]
    metrics, expected = moment_metrics(queries), made["metrics"]
    for name, value in {
        "mAP": expected["full"]["mAP"]["average"],
        "mAP@0.5": expected["full"]["mAP"]["0.5"],
        "mAP@0.75": expected["full"]["mAP"]["0.75"],
        "R@1, IoU 0.5": expected["full"]["R1"]["0.5"],
        "R@1, IoU 0.7": expected["full"]["R1"]["0.7"],
        **{f"{length} mAP": expected[length]["mAP"]["average"] for length in ("short", "middle", "long")},
    }.items():
        assert metrics[name] == pytest.approx(value, abs=0.0051), name  # it rounds to two digits


def test_highlights_as_the_published_program():
    made = golden()
    rated = []
    for found, right in zip(made["submission"], made["ground_truth"], strict=True):
        of_clip = dict(zip(right["relevant_clip_ids"], right["saliency_scores"], strict=True))
        spans = right["relevant_windows"]
        saliency = [[score for clip in range(start // 2, end // 2) for score in of_clip[clip]] for start, end in spans]
        ratings_TA = clip_ratings(spans, saliency, right["duration"] // 2)
        rated.append((np.array(found["pred_saliency_scores"]), ratings_TA))
    metrics = highlight_metrics(rated)
    for name in ("HIT@1", "highlight mAP"):
        assert metrics[name] == pytest.approx(made["metrics"][name], abs=0.0051)


def test_highlights_by_hand():
    right = np.array([True, False, True, False])
    assert highlight_precision(np.array([4.0, 3, 2, 1]), right) == pytest.approx((1 + 2 / 3) / 2)
    assert highlight_precision(np.array([1.0, 1, 1, 1]), right) == 0.5, "equal scores are one step"
    assert highlight_precision(np.array([1.0, 2, 3, 4]), ~right & right) == 0
    assert highlight_precision(np.array([1.0, 2, 3, 4]), right | ~right) == 1


def test_ratings_of_a_moment_that_ends_after_the_video_are_cut():
    ratings = clip_ratings([(2.0, 8.0)], [[4, 0, 0, 3, 3, 3, 1, 1, 1]], 3)
    assert ratings.tolist() == [[0, 0, 0], [4, 0, 0], [3, 3, 3]]
    assert clip_ratings([(8.0, 10.0)], [[4, 4, 4]], 3).tolist() == [[0, 0, 0]] * 3

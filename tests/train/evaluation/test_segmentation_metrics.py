"""Segmentation metrics against plain loops, by hand, and on COIN's real annotations."""

import itertools
import json

import numpy as np
import pytest
from helpers.needs import shared
from hypothesis import given
from hypothesis import strategies as st
from vlalign.preprocess.datasets import coin
from vlalign.preprocess.datasets.sources import Annotations
from vlalign.storage.common.problems import Problems
from vlalign.train.data.segments import LabelledVideo, label_frames, segments_of
from vlalign.train.evaluation.segmentation import edit_score, match_segments, segmentation_metrics, stretches_of

LABELS = st.lists(st.integers(0, 3), min_size=1, max_size=12)


def edit_distance(a: list[int], b: list[int]) -> int:
    if not a or not b:
        return len(a) + len(b)
    return min(edit_distance(a[1:], b) + 1, edit_distance(a, b[1:]) + 1, edit_distance(a[1:], b[1:]) + (a[0] != b[0]))


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(*2 * [st.lists(st.integers(0, 3), min_size=n, max_size=n)])))
def test_edit_score_and_segments_are_those_of_plain_loops(both):
    found, true = map(np.array, both)
    orders = [[label for label, _ in itertools.groupby(labels) if label] for labels in both]
    longest = max(map(len, orders))
    assert edit_score(found, true) == pytest.approx(100 * (1 - edit_distance(*orders) / longest) if longest else 100)

    def stretches(labels: list[int]) -> list[tuple[int, set[int]]]:
        made, place = [], 0
        for label, group in itertools.groupby(labels):
            length = len(list(group))
            if label:
                made.append((label, set(range(place, place + length))))
            place += length
        return made

    assert [(label, set(range(start, end))) for label, start, end in stretches_of(true)] == stretches(both[1])
    for overlap in (0.1, 0.25, 0.5):
        right, taken = 0, []
        for label, frames in stretches(both[0]):
            best, which = 0.0, None
            for number, (other, others) in enumerate(stretches(both[1])):
                share = len(frames & others) / len(frames | others) if other == label else 0.0
                if share > best:
                    best, which = share, number
            if best >= overlap and which not in taken:
                taken.append(which)
                right += 1
        assert match_segments(found, true, overlap) == (
            right,
            len(stretches(both[0])) - right,
            len(stretches(both[1])) - right,
        )


def test_metrics_are_counted_as_by_hand():
    true, found = [np.array([0, 1, 1, 2]), np.array([0, 0])], [np.array([0, 1, 2, 2]), np.array([0, 3])]
    metrics = segmentation_metrics(found, true)
    assert metrics["accuracy"] == pytest.approx(100 * 4 / 6) and metrics["steps_accuracy"] == pytest.approx(100 * 2 / 3)
    assert metrics["macro_accuracy"] == pytest.approx(100 * (2 / 3 + 1 / 2 + 1) / 3)
    assert metrics["edit"] == pytest.approx((100 + 0) / 2)
    assert metrics["F1@50"] == pytest.approx(100 * 4 / (4 + 1)) and metrics["F1@25"] == metrics["F1@50"]


def test_the_background_of_the_real_coin_is_as_published():
    folder = shared("data/coin")
    database = json.loads((folder / "COIN_assembled.json").read_text())["database"]
    annotations = Annotations(folder, {"COIN.json": ""}, Problems(quiet=True))
    true = []
    for video_id, video in database.items():
        if video["subset"] == "testing":
            segments = segments_of(coin._captions(annotations, folder, video_id, video))
            true.append(
                label_frames(
                    LabelledVideo(video_id, int(video["duration"]), segments), {c.step: c.step for c in segments}
                )
            )
    metrics = segmentation_metrics([np.zeros_like(labels) for labels in true], true)
    assert len(true) == 2797 and metrics["accuracy"] == pytest.approx(58.53, abs=0.005)
    assert (
        metrics["steps_accuracy"] == 0
        and metrics["macro_accuracy"] == pytest.approx(100 / 779)
        and metrics["F1@10"] == 0
    )

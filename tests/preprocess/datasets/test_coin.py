"""The reader of COIN."""

import json
import math

import numpy as np
import pytest
from helpers.annotation_files import ODD_TEXT, ODD_TEXT_READ, coin_file, coin_video
from helpers.needs import shared
from helpers.readers import (
    annotations_of,
    brief,
    captions_of,
    counts,
    left_out,
    refused,
)
from hypothesis import given
from hypothesis import strategies as st
from vlalign.preprocess.datasets import coin


def test_coin_segments(tmp_path):
    videos = {
        "a": coin_video("training", [("12", [1.5, 3.0], "boil water"), ("13", [5, 6], ODD_TEXT)]),
        "b": coin_video("testing", [("12", [0, 30.0], "boil water")], task="MakeSoup"),
        "none": coin_video("testing", []),
    }
    coin_file(tmp_path, videos)
    captions, problems = captions_of(coin, tmp_path)
    assert [(*row, c.task, c.step) for row, c in zip(brief(captions), captions, strict=True)] == [
        ("a", "train", "boil water", 1.5, 3, "MakeTea", 12),
        ("a", "train", ODD_TEXT_READ, 5, 6, "MakeTea", 13),
        ("b", "test", "boil water", 0, 30, "MakeSoup", 12),
    ]
    assert problems.count == 0


def test_coin_bad_segments_are_left_out(tmp_path):
    segments = [
        ("1", [5, 1], "backwards"),
        ("1", [1], "half"),
        ("x", [1, 2], "no id"),
        ("1", [1, 2], " "),
        ("1", ["a", 2], "no time"),
        ("1", [1, 2], "good"),
    ]
    coin_file(tmp_path, {"a": coin_video("training", segments)})
    captions, problems = captions_of(coin, tmp_path)
    assert brief(captions) == [("a", "train", "good", 1, 2)]
    at = "COIN.json, video 'a', segment {}:"
    left_out(
        problems,
        (at.format(1), "5.0", "1.0"),
        (at.format(2), "2", "1"),
        (at.format(3), "'x'"),
        (at.format(4), "' '"),
        (at.format(5), "'a'"),
    )


def test_coin_rejects_unknown_subsets(tmp_path):
    coin_file(tmp_path, {"a": coin_video("validation", [])})
    assert "video 'a': no 'validation'" in refused(coin, tmp_path)


def test_coin_background_share_by_hand(tmp_path):
    videos = {
        "a": coin_video(
            "testing", [("1", [1.5, 3.2], "x"), ("2", [3.9, 4.0], "y"), ("1", [9.5, 12], "z")], duration=10.9
        ),
        # frames 0 to 9; 1, 2, 3 and 9 are covered
        "b": coin_video("testing", [("1", [0, 1], "x")], duration=5),
        "c": coin_video("training", [("1", [0, 30], "x")]),
    }
    assert coin.background_share(annotations_of(coin, coin_file(tmp_path, videos).parent)) == pytest.approx(
        (6 + 4) / 15
    )


@given(
    st.lists(
        st.tuples(st.floats(0.5, 40), st.lists(st.tuples(st.floats(0, 40), st.floats(0, 10)), max_size=5)),
        min_size=1,
        max_size=4,
    )
)
def test_coin_background_share_equals_a_count_of_frames(tmp_path_factory, drawn):
    videos = {
        f"v{n}": coin_video("testing", [("4", [s, s + d], "x") for s, d in segments], T)
        for n, (T, segments) in enumerate(drawn)
    }
    frames = []
    for video in videos.values():
        labels = np.zeros(int(video["duration"]), int)
        for segment in video["annotation"]:
            labels[math.floor(segment["segment"][0]) : math.ceil(segment["segment"][1])] = int(segment["id"])
        frames += labels.tolist()
    share = coin.background_share(annotations_of(coin, coin_file(tmp_path_factory.mktemp("coin"), videos).parent))
    assert share == pytest.approx(frames.count(0) / len(frames)) if frames else math.isnan(share)


def test_coin_real(tmp_path):
    path = tmp_path / "COIN.json"
    path.symlink_to(shared("data/coin/COIN_assembled.json"))  # the training split is incomplete
    captions, problems = captions_of(coin, tmp_path)
    assert counts(captions)["test"][0] == 2797 and problems.count == 0
    assert len({c.step for c in captions}) == 778 and len({c.task for c in captions}) == 180
    assert round(100 * coin.background_share(annotations_of(coin, tmp_path)), 2) == 58.53
    durations = [
        video["duration"] for video in json.loads(path.read_text())["database"].values() if video["subset"] == "testing"
    ]
    assert sum(map(int, durations)) == 394_030

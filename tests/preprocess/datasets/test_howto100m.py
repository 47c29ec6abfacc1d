"""The reader of HowTo100M: clips that are extended or merged, and a file that is read in chunks."""

import json
import math

import pytest
from helpers.annotation_files import ODD_TEXT, ODD_TEXT_READ, howto_video
from helpers.readers import (
    brief,
    captions_of,
    left_out,
    refused,
    write,
)
from hypothesis import given
from hypothesis import strategies as st
from vlalign.preprocess.datasets import howto100m
from vlalign.preprocess.datasets.howto100m import TimedText, extend, merge


def clip_lists(**more):
    starts = st.integers(0, 100_000).map(lambda ms: ms / 1000)
    lengths = st.integers(0, 9000).map(lambda ms: ms / 1000)
    texts = st.lists(st.sampled_from(["a", "cut", "the", "onion"]), min_size=1, max_size=14).map(" ".join)
    clip = st.builds(lambda start, length, text: TimedText(start, start + length, text), starts, lengths, texts)
    return st.lists(clip, **more)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        pytest.param(10, 12, (8.5, 13.5), id="alike at both ends"),
        pytest.param(10, 15, (10, 15), id="long enough"),
        pytest.param(10, 30, (10, 30), id="longer"),
        pytest.param(1, 2, (0, 5), id="at the beginning"),
        pytest.param(0, 4, (0, 5), id="from 0"),
        pytest.param(7, 7, (4.5, 9.5), id="no length"),
    ],
)
def test_extend_by_hand(start, end, expected):
    assert extend([TimedText(start, end, "a")]) == [(*expected, "a")]


@given(clip_lists(max_size=6))
def test_extended_clips(clips):
    extended = extend(clips)
    assert [clip.text for clip in extended] == [clip.text for clip in clips]
    for (start, end, _), (new_start, new_end, _) in zip(clips, extended, strict=True):
        assert 0 <= new_start <= start and new_end >= end - 1e-9
        assert new_end - new_start == pytest.approx(max(5, end - start))
        middle = (start + end) / 2
        if end - start < 5 and middle >= 2.5:
            assert (new_start + new_end) / 2 == pytest.approx(middle)
        elif end - start < 5:
            assert new_start == pytest.approx(0)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        pytest.param([10, 9, 1, 25], [10, 10, 25], id="enough"),
        pytest.param([4, 4, 4, 4, 4, 4], [12, 12], id="until enough"),
        pytest.param([9, 9, 9], [27], id="the rest joins the one before"),
        pytest.param([30, 9], [39], id="however long that is"),
        pytest.param([3, 3], [6], id="too few in all"),
        pytest.param([], [], id="none"),
    ],
)
def test_merge_by_hand(lengths, expected):
    merged = merge([TimedText(float(n), n + 3.0, " ".join(["w"] * length)) for n, length in enumerate(lengths)])
    assert [len(clip.text.split()) for clip in merged] == expected


def test_merged_clips_have_the_times_of_all():
    """The clips are out of order in the file, and the first one ends last."""
    clips = [TimedText(2, 4, "b b b b b"), TimedText(0, 9, "a a a a a"), TimedText(30, 31, "d d d d d d d d d d")]
    assert merge(clips) == [TimedText(0, 9, "a a a a a b b b b b"), TimedText(30, 31, "d d d d d d d d d d")]


def obvious_merge(clips, least_words):
    """Merge by counting words: the clip of each word, cut when a count is full."""
    clips = sorted(clips, key=lambda clip: clip.start_seconds)
    ends, count = [], 0
    for number, clip in enumerate(clips, start=1):
        count += clip.text.count(" ") + 1
        if count >= least_words:
            ends.append(number)
            count = 0
    if clips and not ends:
        ends = [len(clips)]
    if ends:
        ends[-1] = len(clips)
    parts = [clips[first:end] for first, end in zip([0, *ends], ends, strict=False)]
    return [
        (min(c.start_seconds for c in p), max(c.end_seconds for c in p), " ".join(c.text for c in p)) for p in parts
    ]


@given(clip_lists(max_size=25), st.integers(1, 15))
def test_merged_clips(clips, least_words):
    merged = merge(clips, least_words)
    assert merged == obvious_merge(clips, least_words)
    in_order = sorted(clips, key=lambda clip: clip.start_seconds)
    assert " ".join(clip.text for clip in merged) == " ".join(clip.text for clip in in_order)  # no word is lost
    assert [clip.start_seconds for clip in merged] == sorted(clip.start_seconds for clip in merged)
    assert all(len(clip.text.split()) >= least_words for clip in merged) or len(merged) == 1


def test_howto100m_protocols(tmp_path):
    without = {
        "a": howto_video((0.0, 2.5, "cut onion"), (10.0, 20.0, ODD_TEXT), (12, 13, "one two three four five")),
        "b": howto_video((3.0, 3.0, "no length")),
        "c": howto_video(),
    }
    raw = {"z": howto_video((0.0, 9.0, "now I cut\nthe onion"), (6.5, 12.25, "the onion and then I fry it"))}
    folder = write(tmp_path, {"caption.json": without, "raw_caption.json": raw})
    captions, problems = captions_of(howto100m, folder)
    assert brief(captions) == [
        ("a", "train", "cut onion", 0, 5),
        ("a", "train", ODD_TEXT_READ, 10, 20),
        ("a", "train", "one two three four five", 10, 15),
        ("b", "train", "no length", 0.5, 5.5),
    ]
    assert problems.count == 0
    captions, problems = captions_of(howto100m, folder, "merged")
    assert brief(captions) == [("a", "train", f"cut onion {ODD_TEXT_READ} one two three four five", 0, 20)]
    left_out(problems, ("caption.json, video 'b'", "3.0"))  # nothing to merge it with
    captions, _ = captions_of(howto100m, folder, "raw-captions")
    assert brief(captions) == [
        ("z", "train", "now I cut the onion", 0, 9),
        ("z", "train", "the onion and then I fry it", 6.5, 12.25),
    ]
    captions, _ = captions_of(howto100m, folder, "raw-merged")
    assert brief(captions) == [("z", "train", "now I cut the onion the onion and then I fry it", 0, 12.25)]


def test_howto100m_does_not_read_raw_captions_instead(tmp_path):
    write(tmp_path, {"raw_caption.json": {"a": howto_video((0, 9, "x"))}})
    assert (
        " caption.json (" in refused(howto100m, tmp_path)
        and len(captions_of(howto100m, tmp_path, "raw-captions")[0]) == 1
    )


@pytest.mark.parametrize("protocol", ["captions", "merged"])
def test_howto100m_bad_captions_are_left_out(tmp_path, protocol):
    video = howto_video(
        (1, 2, math.nan),
        (1, 2, ""),
        (1, 2, None),
        (2, 1, "backwards"),
        (math.nan, 2, "no start"),
        (-1, 2, "below 0"),
        (1, "2s", "no end"),
        (1, 2, "half a \ud83d pair"),
        (10, 16, "good"),
    )
    write(tmp_path, {"caption.json": {"a": video, "b": howto_video((0, 6, "good"))}})
    assert "NaN" in (tmp_path / "caption.json").read_text()
    captions, problems = captions_of(howto100m, tmp_path, protocol)
    assert brief(captions) == [("a", "train", "good", 10, 16), ("b", "train", "good", 0, 6)]
    values = (
        "nan",
        "''",
        "None",
        "2 to 1 ",
        "nan",
        "-1 to 2 ",
        "'2s'",
        "surrogate",
    )
    left_out(problems, *((f"caption.json, video 'a', caption {n}:", value) for n, value in enumerate(values, start=1)))


def test_howto100m_duplicate_videos_are_left_out(tmp_path):
    one, two = (json.dumps(howto_video((0, 9, word))) for word in ("first", "second"))
    write(tmp_path, {"caption.json": f'{{"a": {one}, "b": {one}, "a": {two}}}'})
    captions, problems = captions_of(howto100m, tmp_path)
    assert brief(captions) == [("a", "train", "first", 0, 9), ("b", "train", "first", 0, 9)]
    left_out(problems, ("caption.json, video 'a': ",))


@pytest.mark.parametrize(
    "video",
    [
        {"start": [1], "end": [2]},
        {"start": [1], "end": [2], "text": ["a", "b"]},
        ["a"],
        "a",
        5,
        None,
        {"start": 1, "end": 2, "text": 3},
    ],
)
def test_howto100m_rejects_other_structures(tmp_path, video):
    write(tmp_path, {"caption.json": {"good": howto_video((0, 9, "x")), "bad one": video}})
    message = refused(howto100m, tmp_path)
    assert "caption.json, video 'bad one'" in message or "after 'good'" in message

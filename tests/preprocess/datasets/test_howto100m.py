"""The reader of HowTo100M: clips that are extended or merged, and a file that is read in pieces."""

import json
import math
import os
import tracemalloc

import pytest
from helpers.readers import (
    annotations_of,
    brief,
    captions_of,
    left_out,
    refused,
    write,
)
from hypothesis import given
from hypothesis import strategies as st
from vlalign.preprocess.datasets import howto100m
from vlalign.preprocess.datasets.howto100m import Clip, extend, merge, stream_object
from vlalign.storage.common.errors import UserError

ODD_TEXT = " مرحبا \u200f\u05e9\u05dc\u05d5\u05dd 😀👩\u200d🍳 naïve\n“quoted”, "


ODD_TEXT_READ = "مرحبا \u200f\u05e9\u05dc\u05d5\u05dd 😀👩\u200d🍳 naïve “quoted”,"


LONG_TEXT = "word " * 200_000 + "end"


def clip_lists(**more):
    starts = st.integers(0, 100_000).map(lambda ms: ms / 1000)
    lengths = st.integers(0, 9000).map(lambda ms: ms / 1000)
    texts = st.lists(st.sampled_from(["a", "cut", "the", "onion"]), min_size=1, max_size=14).map(" ".join)
    clip = st.builds(lambda start, length, text: Clip(start, start + length, text), starts, lengths, texts)
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
    assert extend([Clip(start, end, "a")]) == [(*expected, "a")]


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
    merged = merge([Clip(float(n), n + 3.0, " ".join(["w"] * length)) for n, length in enumerate(lengths)])
    assert [len(clip.text.split()) for clip in merged] == expected


def test_merged_clips_have_the_times_of_all():
    """The clips are out of order in the file, and the first one ends last."""
    clips = [Clip(2, 4, "b b b b b"), Clip(0, 9, "a a a a a"), Clip(30, 31, "d d d d d d d d d d")]
    assert merge(clips) == [Clip(0, 9, "a a a a a b b b b b"), Clip(30, 31, "d d d d d d d d d d")]


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


def howto_video(*rows):
    """Return rows (start, end, text) as columns."""
    return {"start": [row[0] for row in rows], "end": [row[1] for row in rows], "text": [row[2] for row in rows]}


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
    left_out(problems, ("caption.json, video 'b'", "0 <= start < end"))  # nothing to merge it with
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
    said = (
        "nan",
        "''",
        "None",
        "0 <= start <= end",
        "nan is not a time",
        "0 <= start <= end",
        "'2s' is not a time",
        "surrogate",
    )
    left_out(problems, *((f"caption.json, video 'a', caption {n}:", words) for n, words in enumerate(said, start=1)))


def test_howto100m_duplicate_videos_are_left_out(tmp_path):
    one, two = (json.dumps(howto_video((0, 9, word))) for word in ("first", "second"))
    write(tmp_path, {"caption.json": f'{{"a": {one}, "b": {one}, "a": {two}}}'})
    captions, problems = captions_of(howto100m, tmp_path)
    assert brief(captions) == [("a", "train", "first", 0, 9), ("b", "train", "first", 0, 9)]
    left_out(problems, ("video 'a'", "second entry"))


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


@pytest.fixture
def small_chunks(monkeypatch):
    def read_by(size, longest=howto100m.LONGEST):
        monkeypatch.setattr(howto100m, "CHUNK", size)
        monkeypatch.setattr(howto100m, "LONGEST", longest)

    return read_by


values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
).map(lambda value: {"of": value})


@given(
    entries=st.dictionaries(st.text(), values, min_size=1, max_size=5),
    chunk=st.integers(1, 40),
    indent=st.sampled_from([None, 1]),
    escaped=st.booleans(),
)
def test_streamed_objects_are_what_json_reads(tmp_path_factory, entries, chunk, indent, escaped):
    text = json.dumps(entries, indent=indent, ensure_ascii=escaped)
    path = tmp_path_factory.mktemp("json") / "x.json"
    path.write_bytes(text.encode(errors="surrogatepass"))
    try:
        expected = list(json.loads(path.read_text(encoding="utf-8")).items())
    except UnicodeDecodeError:
        return  # half of a surrogate pair cannot be written as UTF-8
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(howto100m, "CHUNK", chunk)
        assert list(stream_object(path)) == expected


def test_streamed_objects_may_be_empty(tmp_path):
    for text in ("{}", " \n{ \n} \n"):
        assert list(stream_object(write(tmp_path, {"x.json": text}) / "x.json")) == []


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("text", "where"),
    [
        pytest.param("", "at its start", id="empty"),
        pytest.param("[]", "at its start", id="an array"),
        pytest.param("null", "at its start", id="null"),
        pytest.param('{"a": {}', "after 'a'", id="not closed"),
        pytest.param('{"a": {}, ', "after 'a'", id="cut off after a comma"),
        pytest.param('{"a": {}, "b', "after 'a'", id="cut off in a name"),
        pytest.param('{"a": {}, "b": {"text": ["x", "y', "after 'a'", id="cut off in a text"),
        pytest.param('{"a": {} "b": {}}', "after 'a'", id="no comma"),
        pytest.param('{"a" {}}', "at its start", id="no colon"),
        pytest.param('{"a": {}, 5: {}}', "after 'a'", id="a number for a name"),
        pytest.param('{"a": {},, "b": {}}', "after 'a'", id="a comma too many"),
        pytest.param('{"a": {"b": [1, x]}, "c": {}}', "at its start", id="a bare word"),
        pytest.param('{"a": {}}{"b": {}}', "text after the end", id="two objects"),
        pytest.param('{"a": {}}]', "text after the end", id="a bracket too many"),
        pytest.param('{"a": ' + "[" * 200_000, "at its start", id="deep"),
        pytest.param(b'{"a": {"b": "caf\xe9"}}', "UTF-8", id="Latin-1"),
        pytest.param('{"a": {}}'.encode("utf-16"), "UTF-8", id="UTF-16"),
    ],
)
def test_files_that_are_not_a_json_object_are_rejected(tmp_path, small_chunks, chunk, text, where):
    if isinstance(text, str) and len(text) > 1000 and chunk < 100:
        chunk = 1000  # reading single characters would take too long
    small_chunks(chunk)
    path = write(tmp_path, {"x.json": text}) / "x.json"
    with pytest.raises(UserError) as raised:
        list(stream_object(path))
    message = str(raised.value)
    assert str(path) in message and where in message and "\n" not in message and len(message) < 500


def test_an_endless_entry_is_not_read_to_its_end(tmp_path, small_chunks):
    small_chunks(100, longest=1000)
    path = write(tmp_path, {"x.json": '{"a": {"b": "' + "x" * 100_000 + '"}}'}) / "x.json"
    with pytest.raises(UserError, match="not valid JSON at its start"):
        list(stream_object(path))
    small_chunks(100, longest=200_000)
    assert len(dict(stream_object(path))["a"]["b"]) == 100_000


def test_memory_depends_on_a_video_and_not_on_the_file(tmp_path):
    """Of 42 MB with 4,000 videos, only the longest caption (1 MB) and one chunk are in memory."""
    path = tmp_path / "caption.json"
    video = json.dumps(howto_video(*((n, n + 2, "cut the onion and fry it " * 20) for n in range(20))))
    with path.open("w") as file:
        file.write('{"long": ' + json.dumps(howto_video((0, 9, LONG_TEXT))))
        for number in range(4000):
            file.write(f', "v{number}": {video}')
        file.write("}")
    assert os.path.getsize(path) > 40_000_000
    tracemalloc.start()
    try:
        captions = howto100m.DATASET.read(annotations_of(howto100m, tmp_path), "merged")
        assert len(next(captions).caption) == len(LONG_TEXT)
        assert sum(1 for _ in stream_object(path)) == 4001
        assert sum(1 for caption, _ in zip(captions, range(3000), strict=False)) == 3000
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()

"""What every store promises, whether it lies on disk or in memory; and that no sequence of clips and records breaks
it."""

import numpy as np
import pytest
from helpers.stores import DIMENSION, PROFILE, WEIGHTS, video
from hypothesis import given, settings
from hypothesis import strategies as st
from vlalign.storage import FeatureStore, MemoryStore, VideoFeatures, write_shard


def make_video(video_id, num_rows, **more) -> VideoFeatures:
    more = {
        "valid_frames": np.full(num_rows, 2, np.int32),
        "partial": "a bit is missing" if num_rows == 1 else "",
    } | more
    return video(video_id, num_rows, **more)


def same(a: VideoFeatures, b: VideoFeatures) -> bool:
    arrays = ("features", "start_seconds", "end_seconds", "valid_frames")
    texts = ("video_id", "duration_seconds", "source", "decoder", "partial")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in arrays) and all(
        getattr(a, name) == getattr(b, name) for name in texts
    )


class StoreContract:
    """A store is made by ``make(folder, videos)``."""

    @pytest.fixture
    def store(self, tmp_path):
        videos = [
            make_video("a", 5),
            make_video("no rows", 0),
            make_video("ümläut 日本/v.1", 1, base=50),
            make_video("late", 7, first_start=2.0, duration_seconds=9.0),
        ]
        return self.make(tmp_path, videos)

    def test_says_what_it_is(self, store):
        assert (store.profile, store.weights, store.origin) == (PROFILE, WEIGHTS, "extracted")

    def test_lists_its_videos(self, store):
        assert store.video_ids() == ["a", "no rows", "ümläut 日本/v.1", "late"]
        assert len(store) == 4 and "a" in store and "b" not in store

    def test_tells_about_a_video_without_its_rows(self, store):
        assert store.source("late") == "source of late"
        assert store.duration_seconds("late") == 9.0
        assert store.partial("late") == "" and store.partial("ümläut 日本/v.1") == "a bit is missing"

        assert store.about("late") == store.get("late").about

    def test_tells_when_the_rows_of_videos_begin_and_end(self, store):
        ids = ["late", "no rows", "a", "late", "ümläut 日本/v.1"]
        spans = store.spans(ids)
        assert spans.dtype == np.float64 and store.spans([]).shape == (0, 2)
        for (first, last), of_video in zip(spans.tolist(), map(store.get, ids), strict=True):
            if len(of_video.features):
                assert (first, last) == (of_video.start_seconds[0], of_video.end_seconds[-1])
            else:
                assert np.isnan([first, last]).all()

    @pytest.mark.parametrize(
        "call",
        ["about", "get", "get_clips", "get_rows", "source", "duration_seconds", "partial", "row_ranges", "spans"],
    )
    def test_an_unknown_video_is_a_key_error(self, store, call):
        argument = {"get_clips": [("nobody", None, None)], "row_ranges": [("nobody", None, None)], "spans": ["nobody"]}
        with pytest.raises(KeyError, match="nobody"):
            getattr(store, call)(argument.get(call, [("nobody", 0, 1)] if call == "get_rows" else "nobody"))

    def test_gives_the_rows_of_windows_as_they_are_stored(self, store):
        clips = [("late", 3.0, 4.0), ("a", None, None), ("no rows", None, None), ("a", 50.0, None)]
        windows = store.row_ranges(clips)
        assert windows == [("late", 1, 4), ("a", 0, 5), ("no rows", 0, 0), ("a", 5, 5)]
        for clip, rows in zip(store.get_clips(clips, dtype=None), store.get_rows(windows), strict=True):
            assert rows.dtype == clip.features.dtype and np.array_equal(rows, clip.features)
        assert store.get_rows([]) == [] and store.row_ranges([]) == []

    def test_stored_rows_cannot_be_changed(self, store):
        for rows in (store.get_rows([("a", 0, 2)])[0], store.get("a", dtype=None).features):
            with pytest.raises(ValueError, match="read-only"):
                rows[:] = -1

    def test_the_checksum_tells_stores_with_other_rows_apart(self, tmp_path, store):
        same_videos = [store.get(video_id, dtype=None) for video_id in reversed(store.video_ids())]
        assert MemoryStore(PROFILE, WEIGHTS, same_videos).rows_checksum() == store.rows_checksum()
        changed = [make_video("a", 5, base=1), *same_videos[:-1]]
        assert MemoryStore(PROFILE, WEIGHTS, changed).rows_checksum() != store.rows_checksum()

    @pytest.mark.parametrize("num_rows", [0, 1, 5])
    def test_gives_back_what_it_was_given(self, tmp_path, num_rows):
        given = make_video("v", num_rows)
        assert same(self.make(tmp_path, [given]).get("v"), given)

    @pytest.mark.parametrize(
        ("start", "end", "rows"),
        [
            (None, None, [0, 1, 2, 3, 4]),
            (0.0, 0.0, [0]),
            (0.7, 1.3, [1]),
            (0.7, 1.4, [1, 2]),
            (2.0, None, [3, 4]),
            (None, 0.5, [0]),
            (3.3, 90.0, [4]),
            (3.34, 90.0, []),
            (3.0, 1.0, []),
            (50.0, None, []),
        ],
    )
    def test_gives_the_rows_of_a_clip(self, store, start, end, rows):
        clip = store.get("a", start_seconds=start, end_seconds=end)
        assert clip.features[:, 0].tolist() == rows and clip.features.shape == (len(rows), DIMENSION)
        assert clip.start_seconds.tolist() == [row / 1.5 for row in rows]
        assert len(clip.end_seconds) == len(clip.valid_frames) == len(rows)
        assert clip.duration_seconds == pytest.approx(10 / 3), "the video's, not the clip's"

    def test_a_clip_before_the_first_row_has_none(self, store):
        assert store.get("late", start_seconds=0.0, end_seconds=1.9).features.shape == (0, DIMENSION)

    def test_many_clips_come_in_the_order_asked_for(self, store):
        clips = [
            ("late", 3.0, 4.0),
            ("a", None, None),
            ("no rows", None, None),
            ("late", None, 2.5),
            ("a", 0.7, 1.3),
            ("a", 0.7, 1.3),
        ]
        for (video_id, start, end), found in zip(clips, store.get_clips(clips), strict=True):
            assert same(found, store.get(video_id, start_seconds=start, end_seconds=end))
        assert store.get_clips([]) == []

    def test_features_come_as_float32_or_as_asked(self, store):
        assert store.get("a").features.dtype == np.float32
        assert store.get("a", dtype=np.float64).features.dtype == np.float64
        stored = store.get("a", dtype=None).features
        np.testing.assert_array_equal(stored.astype(np.float32), store.get("a").features)

    def test_what_is_done_to_what_it_gave_changes_nothing_in_it(self, store):
        store.get("a").features[:] = -1
        assert store.get("a").features[:, 0].tolist() == [0, 1, 2, 3, 4]

    def test_of_two_records_of_a_video_the_later_counts(self, tmp_path):
        store = self.make(tmp_path, [make_video("a", 5), make_video("b", 2), make_video("a", 2, base=70)])
        assert store.video_ids() == ["a", "b"] and store.get("a").features[:, 0].tolist() == [70, 71]

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_rows_that_are_not_finite_are_refused(self, tmp_path, bad):
        wrong = make_video("a", 3)
        wrong.features[1, 2] = bad
        with pytest.raises(ValueError, match=r"^a: .*(nan|inf)"):
            self.make(tmp_path, [wrong])

    def test_rows_of_another_width_are_refused(self, tmp_path):
        with pytest.raises(ValueError, match="features of 5 values, the profile has 4"):
            self.make(tmp_path, [make_video("a", 2, features=np.zeros((2, 5), np.float32))])


class TestFeatureStore(StoreContract):
    def make(self, folder, videos):
        write_shard(folder, PROFILE, WEIGHTS, videos, made_with={})
        return FeatureStore(folder)


class TestFeatureStoreOfManyShards(StoreContract):
    def make(self, folder, videos):
        for one in videos:
            write_shard(folder, PROFILE, WEIGHTS, [one], made_with={}, dtype="float32")
        return FeatureStore(folder)


class TestFeatureStoreThatChecksRows(StoreContract):
    def make(self, folder, videos):
        write_shard(folder, PROFILE, WEIGHTS, videos, made_with={})
        return FeatureStore(folder, check_rows=True)


class TestMemoryStore(StoreContract):
    def make(self, folder, videos):
        return MemoryStore(PROFILE, WEIGHTS, videos)


# Any records, any clips

IDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
SECONDS = st.one_of(st.none(), st.floats(0, 40, allow_nan=False))


@st.composite
def records(draw):
    num_rows = draw(st.integers(0, 12))
    lengths = draw(st.lists(st.floats(0.01, 4), min_size=num_rows, max_size=num_rows))
    ends = draw(st.floats(0, 5)) + np.cumsum(lengths)
    values = st.floats(-60000, 60000, width=16)
    return make_video(
        draw(IDS),
        num_rows,
        features=np.array(draw(st.lists(values, min_size=4 * num_rows, max_size=4 * num_rows)), np.float32).reshape(
            num_rows, 4
        ),
        start_seconds=ends - lengths,
        end_seconds=ends,
        valid_frames=np.array(
            draw(st.lists(st.integers(0, 2**31 - 1), min_size=num_rows, max_size=num_rows)), np.int32
        ),
        duration_seconds=draw(st.floats(0, 1e6)),
        source=draw(IDS),
        decoder=draw(IDS),
        partial=draw(st.one_of(st.just(""), IDS)),
    )


@settings(max_examples=40, deadline=None)
@given(
    videos=st.lists(records(), min_size=1, max_size=6),
    clips=st.lists(st.tuples(st.integers(0, 5), SECONDS, SECONDS), max_size=8),
)
def test_any_clips_of_any_records_are_the_same_from_disk_and_memory(tmp_path_factory, videos, clips):
    folder = tmp_path_factory.mktemp("any")
    for part in (videos[:3], videos[3:]):
        if part:
            write_shard(folder, PROFILE, WEIGHTS, part, made_with={})
    on_disk, in_memory = FeatureStore(folder), MemoryStore(PROFILE, WEIGHTS, videos)
    assert on_disk.video_ids() == in_memory.video_ids()
    wanted = [(video_id, None, None) for video_id in on_disk.video_ids()]
    wanted += [(videos[number % len(videos)].video_id, start, end) for number, start, end in clips]
    for a, b in zip(on_disk.get_clips(wanted), in_memory.get_clips(wanted), strict=True):
        assert same(a, b)


@settings(max_examples=200, deadline=None)
@given(
    rate=st.sampled_from([0.5, 1.0, 1.5, 24 / 16]),
    num_rows=st.integers(0, 60),
    start=st.floats(0, 80),
    length=st.floats(0, 30),
)
def test_at_a_constant_rate_a_clip_is_a_slice_from_int_to_int(rate, num_rows, start, length):
    store = MemoryStore(PROFILE, WEIGHTS, [make_video("v", num_rows, rate=rate)])
    starts = np.arange(num_rows) / rate
    low, high = (
        np.searchsorted(starts, [start, start + length], side="right") - 1
    )  # int(start * rate), but for rounding at a border
    expected = list(range(num_rows))[low : high + 1] if num_rows and start < num_rows / rate else []
    assert store.get("v", start_seconds=start, end_seconds=start + length).features[:, 0].tolist() == expected

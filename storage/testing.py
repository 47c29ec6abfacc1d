"""Tests that every store must pass, for custom stores: plain classes for pytest, as in ``zarr.testing``.

    from vlalign.storage.testing import StoreTests, StoreWriterTests, example_provenance

    class TestMyStore(StoreTests, StoreWriterTests):
        def make_store(self, folder, videos):  # a store that has these videos
            store = MyStore(folder)
            store.write(videos, example_provenance())
            return store

        def make_writer(self, folder):  # a writer of an empty store
            return MyStore(folder)

        def reopen(self, folder, writer):  # the store that it wrote
            return MyStore(folder)

Only this module imports pytest.
"""

import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .common.errors import UserError
from .records import Profile, VideoFeatures, Weights
from .shards.format import EXTRACTED, Provenance
from .stores.checked_store import CheckedStore
from .stores.memory_store import MemoryStore
from .stores.store import Store, StoreWriter

DIMENSION = 4
PROFILE = Profile(
    name="example",
    model="example",
    weights="example.pth",
    fps=24,
    window=16,
    stride=16,
    short_side_px=224,
    crop_px=224,
    resize="bilinear",
    value_range="0..1",
    mean=(0.0, 0.0, 0.0),
    std=(1.0, 1.0, 1.0),
    tail="black frames",
    layer="last",
    dimension=DIMENSION,
)
WEIGHTS = Weights(name="example.pth", sha256="ab" * 32)
ODD_ID = "ümläut 日本/../v.1 #?*"


def example_provenance(**others: Any) -> Provenance:
    """Return the provenance of the videos of these tests, with the fields in ``others`` replaced."""
    return Provenance(**{"profile": PROFILE, "weights": WEIGHTS, "made_with": {"vlalign": "1.0.0"}} | others)


def example_video(
    video_id: str, num_rows: int, *, base: float = 0.0, rate: float = 1.5, **others: Any
) -> VideoFeatures:
    """Return a video at a constant rate. Every column of a row is ``base`` plus the row's number."""
    rows = np.arange(num_rows)
    values = {
        "video_id": video_id,
        "features": np.repeat((base + rows).astype(np.float32)[:, None], DIMENSION, axis=1),
        "start_seconds": rows / rate,
        "end_seconds": (rows + 1) / rate,
        "valid_frames": np.full(num_rows, 2, np.int32),
        "duration_seconds": num_rows / rate,
        "source": f"source of {video_id}",
        "decoder": "PyAV 1.2",
        "partial": "a bit is missing" if num_rows == 1 else "",
    }
    return VideoFeatures(**values | others)


def is_same(a: VideoFeatures, b: VideoFeatures) -> bool:
    """Return whether two records have equal values."""
    return all(np.array_equal(getattr(a, field.name), getattr(b, field.name)) for field in fields(VideoFeatures))


def example_videos() -> list[VideoFeatures]:
    """Return four videos: one without rows, one with an odd id, one whose rows begin late."""
    late = example_video("late", 7)
    return [
        example_video("a", 5),
        example_video("no rows", 0),
        example_video(ODD_ID, 1, base=50),
        replace(late, start_seconds=late.start_seconds + 2, end_seconds=late.end_seconds + 2, duration_seconds=9.0),
    ]


class StoreTests:
    """Tests of the promises of every ``Store``. A subclass defines ``make_store``."""

    def make_store(self, folder: Path, videos: Sequence[VideoFeatures]) -> Store:
        """Return a store of ``example_provenance`` that has these videos, written in this order.

        Args:
            folder: An empty folder, for stores that need one.
            videos: Their features fit into float16; the store may keep them in any type that holds them.
        """
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        """The store of ``example_videos``."""
        return self.make_store(tmp_path, example_videos())

    def test_says_what_it_is(self, store: Store) -> None:
        assert (store.profile, store.weights, store.origin) == (PROFILE, WEIGHTS, EXTRACTED)
        assert store.name and store.where
        assert all(not isinstance(values, str) for values in store.made_with.values()), "a collection of texts each"

    def test_the_commands_accept_what_it_returns(self, store: Store) -> None:
        """Commands check each returned value (``CheckedStore``); a wrong one ends them with the message shown here."""
        checked = CheckedStore(store)
        ids = checked.video_ids()
        for video_id in ids:
            about, times = checked.about(video_id), checked.row_times(video_id)
            [rows] = checked.get_rows([(video_id, 0, about.num_rows)])
            assert len(rows) == len(times.start_seconds) == about.num_rows
            assert is_same(checked.get(video_id), store.get(video_id))
            assert checked.source(video_id) == about.source and checked.partial(video_id) == about.partial
            assert checked.duration_seconds(video_id) == about.duration_seconds
            assert checked.written_at_ns(video_id) == store.written_at_ns(video_id)
            assert checked.checksum(video_id) == store.checksum(video_id)
        assert np.array_equal(checked.spans(ids), store.spans(ids), equal_nan=True)
        assert np.array_equal(checked.shard_of(ids), store.shard_of(ids))
        assert checked.rows_checksum() == store.rows_checksum()
        assert (checked.name, checked.where, checked.made_with) == (store.name, store.where, store.made_with)

    def test_lists_its_videos(self, store: Store) -> None:
        assert sorted(store.video_ids()) == sorted(["a", "no rows", ODD_ID, "late"])
        assert len(store) == 4 and "a" in store and ODD_ID in store and "b" not in store and "" not in store

    def test_tells_about_a_video_without_its_rows(self, store: Store) -> None:
        assert store.source("late") == "source of late"
        assert store.duration_seconds("late") == 9.0
        assert store.partial("late") == "" and store.partial(ODD_ID) == "a bit is missing"
        assert store.about("late") == store.get("late").about
        assert store.written_at_ns("late") >= 0
        times, late = store.row_times("late"), store.get("late")
        for name in times._fields:
            assert np.array_equal(getattr(times, name), getattr(late, name)), name

    def test_tells_when_the_rows_of_videos_begin_and_end(self, store: Store) -> None:
        ids = ["late", "no rows", "a", "late", ODD_ID]
        spans = store.spans(ids)
        assert spans.dtype == np.float64 and store.spans([]).shape == (0, 2)
        for (first, last), video in zip(spans.tolist(), map(store.get, ids), strict=True):
            if len(video.features):
                assert (first, last) == (video.start_seconds[0], video.end_seconds[-1])
            else:
                assert np.isnan([first, last]).all()

    def test_numbers_its_shards(self, store: Store) -> None:
        numbers = store.shard_of(["late", "a", "late"])
        assert numbers.dtype == np.int64 and numbers.shape == (3,) and numbers[0] == numbers[2]

    @pytest.mark.parametrize(
        ("method", "argument"),
        [
            *((name, "nobody") for name in ("about", "row_times", "get", "source", "duration_seconds", "partial")),
            *((name, "nobody") for name in ("checksum",)),
            *((name, [("nobody", None, None)]) for name in ("get_clips", "row_ranges")),
            ("get_rows", [("nobody", 0, 1)]),
            ("spans", ["nobody"]),
        ],
    )
    def test_an_unknown_video_is_a_key_error(self, store: Store, method: str, argument: object) -> None:
        with pytest.raises(KeyError):
            getattr(store, method)(argument)

    def test_gives_the_rows_of_clips_as_they_are_stored(self, store: Store) -> None:
        clips = [("late", 3.0, 4.0), ("a", None, None), ("no rows", None, None), ("a", 50.0, None)]
        ranges = store.row_ranges(clips)
        assert ranges == [("late", 1, 4), ("a", 0, 5), ("no rows", 0, 0), ("a", 5, 5)]
        for clip, rows in zip(store.get_clips(clips, dtype=None), store.get_rows(ranges), strict=True):
            assert rows.dtype == clip.features.dtype and np.array_equal(rows, clip.features)
        assert store.get_rows([]) == [] and store.row_ranges([]) == []

    def test_stored_rows_cannot_be_changed(self, store: Store) -> None:
        for rows in (store.get_rows([("a", 0, 2)])[0], store.get("a", dtype=None).features):
            with pytest.raises(ValueError, match="read-only"):
                rows[:] = -1

    def test_what_is_done_to_what_it_gave_changes_nothing_in_it(self, store: Store) -> None:
        store.get("a").features[:] = -1
        assert store.get("a").features[:, 0].tolist() == [0, 1, 2, 3, 4]

    def test_a_checksum_is_of_the_rows_in_whatever_store(self, store: Store) -> None:
        videos = [store.get(video_id, dtype=None) for video_id in reversed(store.video_ids())]
        other = MemoryStore(PROFILE, WEIGHTS, videos)
        for video in videos:
            checksum = store.checksum(video.video_id)
            assert type(checksum) is int and 0 <= checksum < 2**32
            assert checksum == other.checksum(video.video_id), video.video_id
        assert store.checksum("a") != store.checksum("late")
        assert store.rows_checksum() == other.rows_checksum()
        changed = MemoryStore(PROFILE, WEIGHTS, [*videos, example_video("a", 5, base=1)])
        assert store.rows_checksum() != changed.rows_checksum()

    @pytest.mark.parametrize("num_rows", [0, 1, 5])
    def test_gives_back_what_it_was_given(self, tmp_path: Path, num_rows: int) -> None:
        given = example_video("v", num_rows)
        assert is_same(self.make_store(tmp_path, [given]).get("v"), given)

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
    def test_gives_the_rows_of_a_clip(
        self, store: Store, start: float | None, end: float | None, rows: list[int]
    ) -> None:
        clip = store.get("a", start_seconds=start, end_seconds=end)
        assert clip.features[:, 0].tolist() == rows and clip.features.shape == (len(rows), DIMENSION)
        assert clip.start_seconds.tolist() == [row / 1.5 for row in rows]
        assert len(clip.end_seconds) == len(clip.valid_frames) == len(rows)
        assert clip.duration_seconds == pytest.approx(10 / 3), "the video's, not the clip's"

    def test_a_clip_before_the_first_row_has_none(self, store: Store) -> None:
        assert store.get("late", start_seconds=0.0, end_seconds=1.9).features.shape == (0, DIMENSION)

    def test_many_clips_come_in_the_order_asked_for(self, store: Store) -> None:
        clips = [("late", 3.0, 4.0), ("a", None, None), ("late", None, 2.5), ("a", 0.7, 1.3), ("a", 0.7, 1.3)]
        for (video_id, start, end), found in zip(clips, store.get_clips(clips), strict=True):
            assert is_same(found, store.get(video_id, start_seconds=start, end_seconds=end))
        assert store.get_clips([]) == []

    def test_features_come_as_float32_or_as_asked(self, store: Store) -> None:
        assert store.get("a").features.dtype == np.float32
        assert store.get("a", dtype=np.float64).features.dtype == np.float64
        stored = store.get("a", dtype=None).features
        assert stored.dtype in (np.float16, np.float32)
        np.testing.assert_array_equal(stored.astype(np.float32), store.get("a").features)

    def test_of_two_records_of_a_video_the_later_counts(self, tmp_path: Path) -> None:
        videos = [example_video("a", 5), example_video("b", 2), example_video("a", 2, base=70)]
        store = self.make_store(tmp_path, videos)
        assert sorted(store.video_ids()) == ["a", "b"] and store.get("a").features[:, 0].tolist() == [70, 71]

    def test_another_process_gets_a_copy_that_reads_the_same(self, store: Store) -> None:
        first = store.get("late")
        copy = pickle.loads(pickle.dumps(store))
        assert is_same(copy.get("late"), first) and copy.rows_checksum() == store.rows_checksum()

    def test_threads_may_read_at_the_same_time(self, store: Store) -> None:
        with ThreadPoolExecutor(4) as pool:
            for video_id, found in zip(["a", "late"] * 20, pool.map(store.get, ["a", "late"] * 20), strict=True):
                assert is_same(found, store.get(video_id))


class StoreWriterTests:
    """Tests of the promises of every ``StoreWriter``. A subclass defines ``make_writer`` and ``reopen``."""

    def make_writer(self, folder: Path) -> StoreWriter:
        """Return a writer of an empty store of ``example_provenance``.

        Args:
            folder: An empty folder, for stores that need one.
        """
        raise NotImplementedError

    def reopen(self, folder: Path, writer: StoreWriter) -> Store:
        """Return the store that ``writer`` wrote; open it again if readers see new rows only then."""
        raise NotImplementedError

    @pytest.fixture
    def writer(self, tmp_path: Path) -> StoreWriter:
        """A writer of an empty store."""
        return self.make_writer(tmp_path)

    def _stored(self, folder: Path, writer: StoreWriter) -> Store:
        writer.flush()
        return self.reopen(folder, writer)

    def test_what_was_written_is_read(self, tmp_path: Path, writer: StoreWriter) -> None:
        videos = example_videos()
        writer.write(videos[:2], example_provenance())
        writer.write(videos[2:], example_provenance(made_with={"vlalign": "1.1.0", "av": "17"}))
        store = self._stored(tmp_path, writer)
        assert sorted(store.video_ids()) == sorted(video.video_id for video in videos)
        assert all(is_same(store.get(video.video_id), video) for video in videos)
        assert (store.profile, store.weights, store.origin) == (PROFILE, WEIGHTS, EXTRACTED)
        made_with = {name: sorted(values) for name, values in store.made_with.items()}
        assert made_with == {"vlalign": ["1.0.0", "1.1.0"], "av": ["17"]}

    def test_says_how_its_features_were_made(self, writer: StoreWriter) -> None:
        writer.write([example_video("a", 2)], example_provenance())
        writer.flush()
        provenance = writer.provenance()
        assert provenance is not None and provenance.key == example_provenance().key

    def test_no_videos_are_nothing(self, tmp_path: Path, writer: StoreWriter) -> None:
        writer.write([example_video("a", 2)], example_provenance())
        writer.write([], example_provenance())
        assert self._stored(tmp_path, writer).video_ids() == ["a"]

    def test_a_video_that_is_written_again_is_replaced(self, tmp_path: Path, writer: StoreWriter) -> None:
        writer.write([example_video("a", 5), example_video("b", 2)], example_provenance())
        writer.write([example_video("a", 3, base=9), example_video("a", 2, base=70)], example_provenance())
        store = self._stored(tmp_path, writer)
        assert len(store) == 2 and store.get("a").features[:, 0].tolist() == [70, 71]
        assert is_same(store.get("b"), example_video("b", 2))

    @pytest.mark.parametrize(("dtype", "expected"), [("float16", 0.0999755859375), ("float32", np.float32(0.1))])
    def test_features_are_stored_in_the_type_that_was_asked_for(
        self, tmp_path: Path, writer: StoreWriter, dtype: str, expected: float
    ) -> None:
        features = np.full((3, DIMENSION), 0.1, np.float32)
        writer.write([example_video("a", 3, features=features)], example_provenance(), dtype=dtype)
        features[:] = -1  # later changes of the array have no effect
        stored = self._stored(tmp_path, writer).get("a", dtype=None).features
        assert stored.dtype == dtype and (stored == expected).all()

    @pytest.mark.parametrize(
        "other",
        [
            {"profile": replace(PROFILE, fps=12)},
            {"weights": Weights(name="example.pth", sha256="cd" * 32)},
            {"origin": "somebody"},
        ],
        ids=["profile", "weights", "origin"],
    )
    def test_features_that_were_made_otherwise_are_refused(
        self, tmp_path: Path, writer: StoreWriter, other: dict[str, Any]
    ) -> None:
        writer.write([example_video("a", 2)], example_provenance())
        writer.flush()
        with pytest.raises(UserError):
            writer.write([example_video("b", 2)], example_provenance(**other))
        assert self._stored(tmp_path, writer).video_ids() == ["a"]

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e6], ids=str)
    def test_values_that_cannot_be_stored_are_refused_with_all_of_the_call(
        self, tmp_path: Path, writer: StoreWriter, bad: float
    ) -> None:
        writer.write([example_video("a", 2)], example_provenance())
        wrong = example_video("c", 3)
        wrong.features[1, 2] = bad
        with pytest.raises(ValueError, match=r"^c: "):
            writer.write([example_video("b", 2), wrong], example_provenance())
        assert self._stored(tmp_path, writer).video_ids() == ["a"]

    def test_rows_of_another_width_are_refused(self, writer: StoreWriter) -> None:
        with pytest.raises(ValueError, match=r"^a: "):
            writer.write([example_video("a", 2, features=np.zeros((2, 5), np.float32))], example_provenance())

    def test_videos_are_removed(self, tmp_path: Path, writer: StoreWriter) -> None:
        videos = example_videos()
        writer.write(videos, example_provenance())
        writer.flush()
        assert writer.remove([ODD_ID, "nobody", "a"]) == ["nobody"]
        store = self._stored(tmp_path, writer)
        assert sorted(store.video_ids()) == ["late", "no rows"] and ODD_ID not in store
        assert is_same(store.get("late"), videos[3])

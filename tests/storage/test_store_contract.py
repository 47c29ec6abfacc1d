"""What every store promises, whether it lies on disk or in memory; and that no sequence of clips and records breaks
it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vlalign.storage import (
    FeatureStore,
    MemoryStore,
    RowTimes,
    Store,
    UserError,
    open_store,
    open_writer,
    write_shard,
)
from vlalign.storage.testing import (
    PROFILE,
    WEIGHTS,
    StoreTests,
    StoreWriterTests,
    example_provenance,
    example_video,
    is_same,
)


def write(folder, videos, **options):
    """Write a shard with videos of the public tests."""
    return write_shard(folder, PROFILE, WEIGHTS, videos, made_with={}, **options)


class TestFeatureStore(StoreTests, StoreWriterTests):
    def make_store(self, folder, videos):
        write(folder, videos)
        return open_store(folder)

    def make_writer(self, folder):
        return open_writer(folder / "new")

    def reopen(self, folder, writer):
        return open_store(folder / "new")


class TestFeatureStoreOfManyShards(StoreTests):
    def make_store(self, folder, videos):
        for one in videos:
            write(folder, [one], dtype="float32")
        return FeatureStore(folder)


class TestFeatureStoreThatChecksRows(StoreTests):
    def make_store(self, folder, videos):
        write(folder, videos)
        return FeatureStore(folder, check_rows=True)


class TestRemoteStore(StoreTests, StoreWriterTests):
    """A store at an address; shards come into the folder of downloads."""

    @pytest.fixture(autouse=True)
    def _own_caches(self, tmp_path_factory, monkeypatch):
        for name in ("VLALIGN_CACHE", "XDG_STATE_HOME"):
            monkeypatch.setenv(name, str(tmp_path_factory.mktemp("cache")))
        monkeypatch.setattr("vlalign.storage.remote.store.FREE_SHARE", 0.0)  # however full this disk is

    def make_store(self, folder, videos):
        for first in range(0, len(videos), 3):
            write(folder / "s3d", videos[first : first + 3])
        return open_store(f"file://{folder}/s3d")

    def make_writer(self, folder):
        (folder / "s3d").mkdir()
        return open_writer(f"file://{folder}/s3d")

    def reopen(self, folder, writer):
        assert len(open_store(folder / "s3d")) == len(open_store(f"file://{folder}/s3d")), "what is there is all"
        return open_store(f"file://{folder}/s3d")

    def test_videos_are_removed(self, tmp_path, writer):
        """Only where its shards lie: others that stand for it would not notice."""
        writer.write([example_video("a", 2)], example_provenance())
        writer.flush()
        with pytest.raises(UserError):
            writer.remove(["a"])
        assert "a" in open_store(tmp_path / "s3d")


class TestMemoryStore(StoreTests, StoreWriterTests):
    def make_store(self, folder, videos):
        return MemoryStore(PROFILE, WEIGHTS, videos)

    def make_writer(self, folder):
        return MemoryStore(PROFILE, WEIGHTS)

    def reopen(self, folder, writer):
        return writer

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_rows_that_are_not_finite_are_refused(self, bad):
        wrong = example_video("a", 3)
        wrong.features[1, 2] = bad
        with pytest.raises(ValueError, match=r"^a: .*(nan|inf)"):
            MemoryStore(PROFILE, WEIGHTS, [wrong])


class MinimalStore(Store):
    """A store that has what it must have, and no more: all else is ``Store``'s own."""

    profile, weights, origin = PROFILE, WEIGHTS, "extracted"

    def __init__(self, videos):
        self.videos = {one.video_id: one for one in videos}

    def video_ids(self):
        return [*self.videos]

    def about(self, video_id):
        return self.videos[video_id].about

    def row_times(self, video_id):
        return RowTimes(*(getattr(self.videos[video_id], name) for name in RowTimes._fields))

    def get_rows(self, ranges):
        parts = [self.videos[video_id].features[low:high].view() for video_id, low, high in ranges]
        for part in parts:
            part.flags.writeable = False
        return parts


class TestMinimalStore(StoreTests):
    def make_store(self, folder, videos):
        return MinimalStore(videos)


def test_a_store_that_lacks_a_method_cannot_be_made():
    class Lacking(Store):
        profile, weights, origin = PROFILE, WEIGHTS, "extracted"

    with pytest.raises(TypeError, match="row_times"):
        Lacking()


# Any records, any clips

IDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
SECONDS = st.one_of(st.none(), st.floats(0, 40, allow_nan=False))


@st.composite
def records(draw):
    num_rows = draw(st.integers(0, 12))
    lengths = draw(st.lists(st.floats(0.01, 4), min_size=num_rows, max_size=num_rows))
    ends = draw(st.floats(0, 5)) + np.cumsum(lengths)
    values = st.floats(-60000, 60000, width=16)
    return example_video(
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
        assert is_same(a, b)


@settings(max_examples=200, deadline=None)
@given(
    rate=st.sampled_from([0.5, 1.0, 1.5, 24 / 16]),
    num_rows=st.integers(0, 60),
    start=st.floats(0, 80),
    length=st.floats(0, 30),
)
def test_at_a_constant_rate_a_clip_is_a_slice_from_int_to_int(rate, num_rows, start, length):
    store = MemoryStore(PROFILE, WEIGHTS, [example_video("v", num_rows, rate=rate)])
    starts = np.arange(num_rows) / rate
    low, high = (
        np.searchsorted(starts, [start, start + length], side="right") - 1
    )  # int(start * rate), but for rounding at a border
    expected = list(range(num_rows))[low : high + 1] if num_rows and start < num_rows / rate else []
    assert store.get("v", start_seconds=start, end_seconds=start + length).features[:, 0].tolist() == expected

"""A store of one's own that breaks a promise is refused in one line: its class, the video, what came, what was due."""

import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
from vlalign.storage import FeatureStore, MemoryStore, RowTimes, Store, StoredVideo, UserError, Weights, write_shard
from vlalign.storage.stores.checked_store import CheckedStore, CheckedWriter, checked_store
from vlalign.storage.testing import (
    PROFILE,
    WEIGHTS,
    StoreTests,
    example_provenance,
    example_video,
    example_videos,
    is_same,
)

ROWS = np.zeros((5, 4), np.float32)
TIMES = [np.arange(5.0), np.arange(1.0, 6.0), np.ones(5, np.int32)]
ABOUT = {"video_id": "v", "num_rows": 5, "duration_seconds": 5.0, "source": "s"}


class Own(Store):
    """One video of five rows; a test replaces what a method returns."""

    profile, weights, origin = PROFILE, WEIGHTS, "extracted"

    def video_ids(self):
        return ["v"]

    def about(self, video_id):
        return StoredVideo(**ABOUT)

    def row_times(self, video_id):
        return RowTimes(*TIMES)

    def get_rows(self, ranges):
        return [ROWS[low:high].copy() for _, low, high in ranges]


def read_all(store):
    """Ask a store for everything."""
    store = checked_store(store, "s3d")
    for video_id in store.video_ids():
        assert store.about(video_id), store.row_times(video_id)
        assert store.get_rows([(video_id, 0, 5)]) and store.get(video_id) and store.checksum(video_id)
        assert store.spans([video_id]).shape == (1, 2) and store.shard_of([video_id]).shape == (1,)
        assert store.row_ranges([(video_id, None, None)]) == [(video_id, 0, 5)]
        assert store.duration_seconds(video_id) == 5
        assert {store.source(video_id), store.partial(video_id)} and store.written_at_ns(video_id) >= 0
    assert store.rows_checksum() and store.name and store.where and store.made_with == {}


def test_a_store_that_keeps_its_promises_is_read():
    read_all(Own())


class Masked:
    ndim, shape, dtype = 2, (5, 4), np.dtype("float32")

    def __len__(self):
        return 5


def raises(error):
    def method(*_, **__):
        raise error

    return method


def gives(value):
    return lambda *_, **__: value


def times(**others):
    return RowTimes(*TIMES)._replace(**others)


def with_a(value, dtype=np.float32):
    rows = ROWS.astype(dtype)
    rows[3, 1] = value
    return gives([rows])


WRONG_ROWS = {
    "width": np.zeros((5, 3), np.float32),
    "dimensions": np.zeros(20, np.float32),
    "few": np.zeros((4, 4), np.float32),
    "many": np.zeros((6, 4), np.float32),
    "float64": np.zeros((5, 4)),
    "int": np.zeros((5, 4), int),
    "object": np.zeros((5, 4), object),
    "complex": np.zeros((5, 4), np.complex64),
    "swapped": np.zeros((5, 4), ">f4"),
    "masked": np.ma.masked_invalid(ROWS),
    "list": ROWS.tolist(),
    "str": "rows",
    "None": None,
    "tensor": Masked(),
}
BROKEN = {
    **{f"rows {name}": ("get_rows", gives([rows]), "'v'") for name, rows in WRONG_ROWS.items()},
    **{f"rows {bad} {kind.__name__}": ("get_rows", with_a(bad, kind), "'v'")
       for bad in (np.nan, np.inf) for kind in (np.float16, np.float32)},
    "no arrays": ("get_rows", gives([]), "'v'"),
    "two arrays": ("get_rows", gives([ROWS, ROWS]), "'v'"),
    "one array": ("get_rows", gives(ROWS), "'v'"),
    "rows are None": ("get_rows", gives(None), "'v'"),
    **{f"ids {value!r}": ("video_ids", gives(value), "video_ids")
       for value in (None, "abc", 3, [3], ["\ud800"], ["v", "v"], ["v\nw"], ["v\0"], [""], [None])},
    **{f"about {value!r}": ("about", gives(value), "'v'") for value in (None, {"video_id": "v"}, "v")},
    **{f"about {key} {value!r}": ("about", gives(StoredVideo(**ABOUT | {key: value})), "'v'")
       for key, value in (("video_id", "w"), ("num_rows", -1), ("num_rows", 10**12), ("num_rows", 5.0),
                          ("num_rows", None), ("duration_seconds", float("nan")), ("duration_seconds", -1.0),
                          ("duration_seconds", "5"), ("source", None), ("decoder", b""), ("partial", "\ud800"))},
    **{f"times {value!r}": ("row_times", gives(value), "'v'") for value in (None, TIMES, "t")},
    "times descend": ("row_times", gives(times(start_seconds=TIMES[0][::-1])), "'v'"),
    "times end before they start": ("row_times", gives(times(end_seconds=TIMES[0] - 1)), "'v'"),
    "times are negative": ("row_times", gives(times(start_seconds=TIMES[0] - 1)), "'v'"),
    "times are NaN": ("row_times", gives(times(start_seconds=TIMES[0] * np.nan)), "'v'"),
    "times are infinite": ("row_times", gives(times(end_seconds=TIMES[1] * np.inf)), "'v'"),
    "times are few": ("row_times", gives(times(start_seconds=TIMES[0][:4])), "'v'"),
    "times of two axes": ("row_times", gives(times(start_seconds=TIMES[0][:, None])), "'v'"),
    "times are a list": ("row_times", gives(times(start_seconds=TIMES[0].tolist())), "'v'"),
    "frames are no integers": ("row_times", gives(times(valid_frames=TIMES[0])), "'v'"),
    "no profile": ("profile", None, "profile"),
    "a profile's name": ("profile", "s3d", "profile"),
    "no weights": ("weights", None, "weights"),
    "weights without text": ("weights", Weights(name=None, sha256=""), "weights"),
    "no origin": ("origin", None, "origin"),
    "made_with": ("made_with", {"vlalign": "1.0"}, "made_with"),
    "where": ("where", None, "where"),
    "spans": ("spans", gives(np.zeros((2, 2))), "spans"),
    "spans backwards": ("spans", gives(np.array([[2.0, 1.0]])), "'v'"),
    "spans float32": ("spans", gives(np.zeros((1, 2), np.float32)), "'v'"),
    "shard_of": ("shard_of", gives([0]), "'v'"),
    "checksum": ("checksum", gives(2**32), "'v'"),
    "rows_checksum": ("rows_checksum", gives(None), "rows_checksum"),
    "row_ranges": ("row_ranges", gives([("v", 0, 6)]), "'v'"),
    "row_ranges of another": ("row_ranges", gives([("w", 0, 5)]), "'v'"),
    "get_clips": ("get_clips", gives([None]), "'v'"),
    "clips of another type": ("get_clips", gives([example_video("v", 5, features=np.zeros((5, 4)))]), "'v'"),
    "clips of another": ("get_clips", gives([example_video("w", 5)]), "'v'"),
    "no clips": ("get_clips", gives([]), "'v'"),
    "written_at_ns": ("written_at_ns", gives(None), "'v'"),
    "source": ("source", gives(None), "'v'"),
    "partial": ("partial", gives(None), "'v'"),
    "duration_seconds": ("duration_seconds", gives(np.nan), "'v'"),
    **{f"{method} raises {error!r}": (method, raises(error), method)
       for method in ("video_ids", "about", "row_times", "get_rows", "spans", "get_clips", "checksum")
       for error in (KeyError("x"), RuntimeError("two\nlines"), SystemExit(0), AssertionError(), OSError(5, "disk"))},
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_a_store_may_not_return_is_one_line_that_says_what_and_where(case):
    method, value, where = BROKEN[case]
    with pytest.raises(UserError) as raised:
        read_all(type("Bad", (Own,), {method: value, "__module__": "my_store"})())
    message = str(raised.value)
    assert message.startswith("store my_store:Bad of s3d: ") and where in message and message.isprintable(), message
    assert not re.match(r"store my_store:Bad of s3d: \S+ ?(of video 'v')?:? *$", message)


def test_an_error_of_the_store_has_its_place_and_its_cause(tmp_path, monkeypatch):
    code = "from tests_own import Own\nclass Bad(Own):\n    def about(self, video_id):\n        return {}['index']\n"
    (tmp_path / "placed_store.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "tests_own", __import__("sys").modules[__name__])
    import placed_store

    with pytest.raises(UserError, match=r"KeyError 'index' \(.*placed_store.py, line 4\)") as raised:
        read_all(placed_store.Bad())
    assert isinstance(raised.value.__cause__, KeyError)


def test_no_memory_and_the_users_own_messages_pass_as_they_are():
    for error in (MemoryError(), UserError("the disk with the features is not there"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as raised:
            read_all(type("Bad", (Own,), {"get_rows": raises(error)})())
        assert raised.value is error


def test_numbers_of_numpy_are_numbers_and_become_those_of_python():
    about = StoredVideo(**ABOUT | {"num_rows": np.int64(5), "duration_seconds": np.float32(2.5)})
    found = CheckedStore(type("Other", (Own,), {"about": gives(about)})()).about("v")
    assert type(found.num_rows) is int and type(found.duration_seconds) is float


def test_rows_come_read_only_and_float16_stays():
    store = CheckedStore(type("Half", (Own,), {"get_rows": gives([ROWS.astype(np.float16)])})())
    [rows] = store.get_rows([("v", 0, 5)])
    assert rows.dtype == np.float16 and not rows.flags.writeable


def test_methods_that_a_store_replaced_are_used_and_others_are_not():
    calls = []

    class Fast(Own):
        def spans(self, video_ids):
            calls.append("spans")
            return np.array([[0.0, 5.0]] * len(video_ids))

        def rows_checksum(self):
            calls.append("rows_checksum")
            return 7

        def get_rows(self, ranges):
            calls.append("get_rows")
            return super().get_rows(ranges)

    store = CheckedStore(Fast())
    assert store.spans(["v"]).tolist() == [[0, 5]] and store.rows_checksum() == 7
    assert calls == ["spans", "rows_checksum"]


def test_a_folder_of_shards_is_not_checked_again_and_one_in_memory_is(tmp_path):
    write_shard(tmp_path, PROFILE, WEIGHTS, example_videos(), made_with={})
    folder = FeatureStore(tmp_path)
    assert checked_store(folder) is folder
    video = example_video("v", 5)
    memory = MemoryStore(PROFILE, WEIGHTS, [video])
    assert is_same(checked_store(memory).get("v"), video)
    video.features[2, 2] = np.nan  # the promise was that it stays as it is
    with pytest.raises(UserError, match=r"MemoryStore.*'v'.*NaN"):
        checked_store(memory).get("v")
    wide = MemoryStore(PROFILE, WEIGHTS, [replace(video, features=np.zeros((5, 4)))])
    with pytest.raises(UserError, match=r"MemoryStore.*'v'.*float64 \[5, 4\]; expected float16 or float32 \[5, 4\]"):
        checked_store(wide).get("v")


def test_an_empty_store_need_not_say_how_it_is_made():
    class Empty(Own):
        profile = weights = None

        def video_ids(self):
            return []

    assert len(CheckedStore(Empty())) == 0


class TestCheckedStore(StoreTests):
    def make_store(self, folder, videos):
        return CheckedStore(MemoryStore(PROFILE, WEIGHTS, videos))


@pytest.mark.parametrize("error", [RuntimeError("why"), KeyError("why"), ValueError("why"), SystemExit("why")])
@pytest.mark.parametrize("method", ["write", "flush", "provenance"])
def test_what_a_writer_raises_is_one_line(method, error):
    bad = type("Bad", (MemoryStore,), {method: raises(error), "__module__": "my_store"})(PROFILE, WEIGHTS)
    writer = CheckedWriter(bad, "s3d")
    with pytest.raises(UserError, match=f"^store my_store:Bad of s3d: {method}.*why"):
        writer.provenance()
        writer.write([example_video("v", 5)], example_provenance())
        writer.flush()


def test_a_full_disk_stays_one():
    bad = type("Bad", (MemoryStore,), {"write": raises(OSError(28, "full"))})(PROFILE, WEIGHTS)
    with pytest.raises(OSError, match="full"):
        CheckedWriter(bad).write([], example_provenance())


def test_it_travels_to_another_process():
    store = CheckedStore(MemoryStore(PROFILE, WEIGHTS, example_videos()))
    assert pickle.loads(pickle.dumps(store)).rows_checksum() == store.rows_checksum()

"""Feature stores on disk: round trip, the rows of clips, several shards, worker processes."""

import multiprocessing
import pickle
import zlib
from dataclasses import replace

import h5py
import numpy as np
import pytest
from helpers.stores import DIMENSION, PROFILE, WEIGHTS, in_forked_child, video, write
from vlalign.storage import FeatureStore, Profile, Weights, write_shard
from vlalign.storage.common.errors import UserError
from vlalign.storage.shards.read import ShardRows

pytestmark = pytest.mark.portable


def random_videos(rng):
    lengths = {"a": 5, "no rows": 0, "ümläut 日本": 1, "long": 40}
    return [
        video(
            name,
            n,
            features=rng.normal(size=(n, DIMENSION)).astype(np.float32) * 10,
            valid_frames=rng.integers(1, 17, n),
        )
        for name, n in lengths.items()
    ]


# Round trip


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_features_are_read_as_written(tmp_path, dtype):
    videos = random_videos(np.random.default_rng(0))
    write(tmp_path, *videos, dtype=dtype)
    store = FeatureStore(tmp_path)
    assert store.video_ids() == [v.video_id for v in videos]
    assert len(store) == 4
    assert store.profile == PROFILE and store.weights == WEIGHTS
    for wrote in videos:
        read = store.get(wrote.video_id)
        assert read.features.dtype == np.float32
        np.testing.assert_array_equal(read.features, wrote.features.astype(dtype).astype(np.float32))
        for name in ("start_seconds", "end_seconds", "valid_frames"):
            np.testing.assert_array_equal(getattr(read, name), getattr(wrote, name))
        for name in ("video_id", "duration_seconds", "source", "decoder"):
            assert getattr(read, name) == getattr(wrote, name)
        assert store.source(wrote.video_id) == wrote.source
        assert store.duration_seconds(wrote.video_id) == wrote.duration_seconds


def test_half_precision_is_the_default_and_costs_at_most_a_thousandth(tmp_path):
    [*_, wrote] = random_videos(np.random.default_rng(1))
    write_shard(tmp_path, PROFILE, WEIGHTS, [wrote], made_with={})
    read = FeatureStore(tmp_path).get("long").features
    assert not np.array_equal(read, wrote.features)
    np.testing.assert_allclose(read, wrote.features, rtol=1e-3)


def test_a_shard_can_be_read_with_h5py_alone(tmp_path):
    wrote = [video("b", 3, base=100), video("a", 2, base=200)]
    with h5py.File(write(tmp_path, *wrote), "r") as file:
        assert set(file) == {"features", "start_seconds", "end_seconds", "valid_frames", "videos"}
        features = file["features"]
        assert features.shape == (5, DIMENSION) and features.dtype == np.float16
        assert features[:, 0].tolist() == [100, 101, 102, 200, 201]
        for name in ("features", "start_seconds", "end_seconds", "valid_frames"):
            assert file[name].id.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
            assert file[name].chunks is None and file[name].compression is None
        at = features.id.get_offset()  # flat on disk: a plain read of the file's bytes gives the rows
        size = features.size * 2
        with open(file.filename, "rb") as raw:
            raw.seek(at)
            assert raw.read(size) == features[:].tobytes()
        assert file["start_seconds"][:].tolist() == pytest.approx([0, 2 / 3, 4 / 3, 0, 2 / 3])
        assert file["end_seconds"][:].tolist() == pytest.approx([2 / 3, 4 / 3, 2, 2 / 3, 4 / 3])
        assert file["valid_frames"][:].tolist() == [16] * 5
        table = file["videos"][:]
        assert [row["video_id"].decode() for row in table] == ["b", "a"]
        assert table["first_row"].tolist() == [0, 3]
        assert table["num_rows"].tolist() == [3, 2]
        assert table["duration_seconds"].tolist() == pytest.approx([2.0, 4 / 3])
        assert [row["source"].decode() for row in table] == ["source of b", "source of a"]
        assert [row["decoder"].decode() for row in table] == ["PyAV 1.2"] * 2
        columns = [file[name][:3] for name in ("features", "start_seconds", "end_seconds", "valid_frames")]
        assert table["checksum"][0] == zlib.crc32(b"".join(column.tobytes() for column in columns))
        attrs = dict(file.attrs)
        assert attrs["schema"] == 1
        assert Profile.from_json(attrs["profile"]) == PROFILE
        assert attrs["profile_hash"] == PROFILE.hash
        assert (attrs["weights"], attrs["weights_sha256"]) == (WEIGHTS.name, WEIGHTS.sha256)
        assert (attrs["vlalign"], attrs["av"]) == ("0.1.0", "1.2")


# The rows of a clip


@pytest.mark.parametrize("rate", [1.5, 1.0, 25 / 16, 0.5], ids=lambda rate: f"{rate} rows a second")
def test_clips_follow_the_rule_of_howto100m_at_a_constant_rate(tmp_path, rate):
    """``youtube_dataloader.py``: rows int(s*f) to int(e*f), both included, as a plain slice of the list of rows."""
    num_rows = 60
    write(tmp_path, video("before", 7, base=1000), video("v", num_rows, rate=rate), video("after", 7, base=1100))
    store = FeatureStore(tmp_path)
    rng = np.random.default_rng(0)
    num_empty = 0
    for _ in range(400):
        start = rng.uniform(0, 1.2 * num_rows / rate)
        end = start + rng.exponential(0.2 * num_rows / rate)
        expected = list(range(num_rows))[int(start * rate) : int(end * rate) + 1]
        clip = store.get("v", start_seconds=start, end_seconds=end)
        assert clip.features[:, 0].tolist() == expected, (start, end)
        assert clip.start_seconds.tolist() == [row / rate for row in expected]
        assert clip.end_seconds.tolist() == [(row + 1) / rate for row in expected]
        assert len(clip.valid_frames) == len(expected)
        num_empty += not expected
    assert 20 < num_empty < 200  # the draws reach past the end, and not only there


@pytest.mark.parametrize(
    ("start", "end", "rows"),
    [
        pytest.param(None, None, [0, 1, 2, 3], id="the whole video"),
        pytest.param(0.0, 7.3, [0, 1, 2, 3], id="from start to end"),
        pytest.param(2.5, 3.5, [1], id="inside a row"),
        pytest.param(1.9, 4.1, [0, 1, 2], id="across borders"),
        pytest.param(2.0, 3.0, [1], id="start on a border"),
        pytest.param(0.0, 2.0, [0, 1], id="end on a border touches the next row"),
        pytest.param(2.0, 2.0, [1], id="an instant on a border"),
        pytest.param(0.0, 0.0, [0], id="the first instant"),
        pytest.param(5.0, 100.0, [2, 3], id="end past the end"),
        pytest.param(7.2, 100.0, [3], id="start in the short last row"),
        pytest.param(7.3, 9.0, [], id="start at the end"),
        pytest.param(50.0, 60.0, [], id="start past the end"),
        pytest.param(4.0, None, [2, 3], id="only a start"),
        pytest.param(None, 3.0, [0, 1], id="only an end"),
        pytest.param(50.0, None, [], id="only a start, past the end"),
        pytest.param(5.0, 1.0, [], id="end before start"),
    ],
)
def test_rows_of_a_clip(tmp_path, start, end, rows):
    """Rows of two seconds, [0, 2), [2, 4), [4, 6), and a last one that the video's end cuts to [6, 7.3)."""
    wrote = video("v", 4, rate=0.5, end_seconds=np.array([2, 4, 6, 7.3]), valid_frames=np.array([16, 15, 14, 3]))
    write(tmp_path, video("before", 3, base=50), wrote, video("after", 3, base=60))
    clip = FeatureStore(tmp_path).get("v", start_seconds=start, end_seconds=end)
    assert clip.features.shape == (len(rows), DIMENSION)
    assert clip.features[:, 0].tolist() == rows
    assert clip.start_seconds.tolist() == [2.0 * row for row in rows]
    assert clip.end_seconds.tolist() == [[2.0, 4.0, 6.0, 7.3][row] for row in rows]
    assert clip.valid_frames.tolist() == [[16, 15, 14, 3][row] for row in rows]


@pytest.mark.parametrize(
    ("start", "end", "rows"),
    [(0.0, 0.9, []), (0.0, 1.0, [0]), (0.5, 3.5, [0, 1]), (1.0, 1.5, [0])],
    ids=["before", "to", "over", "in"],
)
def test_a_video_that_starts_late_has_no_rows_before_its_start(tmp_path, start, end, rows):
    write(tmp_path, video("v", 2, rate=0.5, first_start=1.0))
    assert FeatureStore(tmp_path).get("v", start_seconds=start, end_seconds=end).features[:, 0].tolist() == rows


@pytest.mark.parametrize(
    "clip", [{}, {"start_seconds": 0.0, "end_seconds": 5.0}, {"start_seconds": 3.0}], ids=["whole", "clip", "from"]
)
def test_a_video_without_rows_gives_none(tmp_path, clip):
    write(tmp_path, video("none", 0), video("v", 3))
    assert FeatureStore(tmp_path).get("none", **clip).features.shape == (0, DIMENSION)


# Several shards


def test_the_latest_shard_with_a_video_is_used(tmp_path):
    write(tmp_path, video("a", 3), video("b", 3, base=10))
    write(tmp_path, video("a", 5, base=100, source="changed file"), video("c", 1))
    store = FeatureStore(tmp_path)
    assert store.video_ids() == ["a", "b", "c"]
    assert store.get("a").features[:, 0].tolist() == [100, 101, 102, 103, 104]
    assert store.source("a") == "changed file"
    assert store.duration_seconds("a") == pytest.approx(5 / 1.5)
    assert store.get("b").features[:, 0].tolist() == [10, 11, 12]


def test_shards_of_either_precision_share_a_store(tmp_path):
    value = np.full((1, DIMENSION), 1 + 2**-13, np.float32)
    write(tmp_path, video("half", 1, features=value), dtype="float16")
    write(tmp_path, video("single", 1, features=value), dtype="float32")
    store = FeatureStore(tmp_path)
    assert store.get("half").features[0, 0] == 1.0
    assert store.get("single").features[0, 0] == np.float32(1 + 2**-13)


def test_more_shards_than_may_be_open_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(FeatureStore, "MAX_OPEN_SHARDS", 2)
    for number in range(5):
        write(tmp_path, video(f"v{number}", 2, base=10 * number))
    store = FeatureStore(tmp_path)
    for number in np.random.default_rng(0).integers(5, size=40):
        assert store.get(f"v{number}").features[:, 0].tolist() == [10 * number, 10 * number + 1]
        assert len(store._snapshot._open) <= 2


def test_each_row_is_read_from_disk_once(tmp_path, monkeypatch):
    asked = []
    prefetch = ShardRows.prefetch
    monkeypatch.setattr(
        ShardRows, "prefetch", lambda rows, first, last: asked.extend(range(first, last)) or prefetch(rows, first, last)
    )
    write(tmp_path, video("a", 30), video("b", 30, base=100))
    store = FeatureStore(tmp_path)
    wanted = [("b", 5, 10), ("a", 20, 25), ("b", 8, 14), ("b", 2, 16), ("a", 22, 24), ("a", 20, 20), ("b", 5, 10)]
    for window, rows in zip(wanted, store.get_rows(wanted), strict=True):
        assert rows[:, 0].tolist() == [100 * (window[0] == "b") + row for row in range(*window[1:])]
    for window in wanted:
        assert store.get_rows([window])[0][:, 0].tolist() == [
            100 * (window[0] == "b") + row for row in range(*window[1:])
        ]
    assert sorted(asked) == [*range(20, 25), *range(32, 46)]


def test_a_store_lists_its_videos(tmp_path):
    write(tmp_path, video("a", 1), video("b", 1))
    store = FeatureStore(str(tmp_path))
    assert "a" in store and "b" in store and "c" not in store
    assert len(store) == 2
    for unknown in (lambda: store.get("c"), lambda: store.source("c"), lambda: store.duration_seconds("c")):
        with pytest.raises(KeyError, match="c"):
            unknown()


# What is refused


@pytest.mark.parametrize(
    ("other", "named"),
    [
        pytest.param(
            {"profile": replace(PROFILE, fps=16)}, [PROFILE.hash, replace(PROFILE, fps=16).hash], id="profile"
        ),
        pytest.param(
            {"weights": Weights(name="random (seed 0)", sha256="cd" * 32)},
            ["tiny.pth", "random (seed 0)"],
            id="weights",
        ),
        pytest.param(
            {"weights": Weights(name="tiny.pth", sha256="cd" * 32)}, ["tiny.pth"], id="weights of the same name"
        ),
    ],
)
def test_mixed_features_are_refused_with_both_named(tmp_path, other, named):
    write(tmp_path, video("a", 2))
    later = write(tmp_path, video("b", 2), **other)
    with pytest.raises(UserError) as refused:
        FeatureStore(tmp_path)
    message = str(refused.value)
    assert all(name in message for name in [*named, later.name, str(tmp_path)])
    assert "\n" not in message
    later.unlink()
    assert FeatureStore(tmp_path).video_ids() == ["a"]


@pytest.mark.parametrize("made", [False, True], ids=["no folder", "an empty folder"])
def test_a_missing_store_error_names_the_command_that_makes_one(tmp_path, made):
    folder = tmp_path / "s3d"
    if made:
        folder.mkdir()
    with pytest.raises(UserError, match="vlalign-extract --features s3d"):
        FeatureStore(folder)


# Workers


def test_a_store_is_read_after_fork_in_both_processes(tmp_path):
    write(tmp_path, *(video(f"v{n}", 50, base=100 * n) for n in range(4)))
    store = FeatureStore(tmp_path)
    store.get("v0")
    expected = {f"v{n}": [100 * n + row for row in range(50)] for n in range(4)}

    def read_all():
        return {video_id: store.get(video_id).features[:, 0].tolist() for video_id in store.video_ids()}

    assert in_forked_child(read_all) == expected
    assert read_all() == expected
    assert in_forked_child(read_all) == expected


def test_a_store_can_be_pickled_to_a_spawned_process(tmp_path):
    """As a DataLoader with spawned workers sends it: pickled, after files of it were opened."""
    write(tmp_path, video("a", 3, base=7))
    store = FeatureStore(tmp_path)
    store.get("a")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        read = pool.apply(FeatureStore.get, (store, "a"), {"start_seconds": 0.7, "end_seconds": 0.8})
    assert read.features[:, 0].tolist() == [8]
    copy = pickle.loads(pickle.dumps(store))
    assert copy.video_ids() == ["a"] and copy.profile == PROFILE and copy.weights == WEIGHTS
    assert copy.get("a").features[:, 0].tolist() == store.get("a").features[:, 0].tolist() == [7, 8, 9]

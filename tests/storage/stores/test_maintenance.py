"""Compaction, merging and removal lose no video, whenever they are stopped."""

import pickle
import shutil
import threading
import time
from dataclasses import replace
from functools import partial

import h5py
import numpy as np
import pytest
from helpers.store_life import (
    contents,
    copies,
    ended,
    findings,
    flip,
    history,
    killed,
    leftovers,
    make,
    offset_of,
    plain,
    read,
    seconds_of,
    start,
)
from helpers.stores import PROFILE, WEIGHTS, write
from vlalign.storage import FeatureStore, Weights, write_shard
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.progress import Progress
from vlalign.storage.shards.read import read_shard
from vlalign.storage.stores import maintenance
from vlalign.storage.stores.feature_store import shard_files


@pytest.mark.parametrize(("shard_bytes", "most_shards"), [(1, 8), (50_000, 6), (maintenance.COMPACT_BYTES, 2)])
def test_compaction_changes_no_video(tmp_path, shard_bytes, most_shards):
    latest = history(tmp_path)
    opened, used = FeatureStore(tmp_path), FeatureStore(tmp_path)
    used.get("v3")
    unpickled = pickle.loads(pickle.dumps(used))
    maintenance.compact(tmp_path, shard_bytes=shard_bytes)
    assert read(tmp_path) == latest and not findings(tmp_path) and not leftovers(tmp_path)
    assert set(copies(tmp_path).values()) == {1}
    assert len(shard_files(tmp_path)) <= most_shards
    for store in (opened, used, unpickled):  # from before
        assert contents(store.get(video_id) for video_id in latest) == latest
    while maintenance.compact(tmp_path, shard_bytes=shard_bytes):  # it comes to an end
        assert read(tmp_path) == latest
    names = shard_files(tmp_path)
    assert maintenance.compact(tmp_path, shard_bytes=shard_bytes) == [] and shard_files(tmp_path) == names


def test_a_shard_written_during_compaction_wins(tmp_path):
    latest = history(tmp_path)

    def write_more(state: Progress) -> None:
        nonlocal latest
        assert read(tmp_path) == latest
        newer = [make(f"v{n}", generation=100 + state.done) for n in range(16)]
        write(tmp_path, *newer)
        latest = contents(newer)

    assert len(maintenance.compact(tmp_path, shard_bytes=50_000, on_progress=write_more)) > 1
    assert read(tmp_path) == latest
    maintenance.compact(tmp_path)
    assert read(tmp_path) == latest and set(copies(tmp_path).values()) == {1}


def test_a_store_is_opened_and_read_while_it_is_compacted(tmp_path):
    for number in range(40):
        write(tmp_path, *(make(f"v{number}-{n}") for n in range(3)))
    latest = read(tmp_path)
    opened = FeatureStore(tmp_path)
    child = start(lambda: [maintenance.compact(tmp_path, shard_bytes=size) for size in (40_000, 80_000, 10**9)])
    while ended(child, wait=False) is None:
        assert read(tmp_path) == latest
        assert contents(opened.get(video_id) for video_id in latest) == latest
    assert len(shard_files(tmp_path)) == 1


def test_compaction_keeps_how_features_were_made(tmp_path):
    kinds = [(dtype, made_with) for dtype in ("float16", "float32") for made_with in ({"av": "1"}, {"av": "2"}, {})]
    for number in range(18):
        dtype, made_with = kinds[number % 6]
        write_shard(
            tmp_path, PROFILE, WEIGHTS, [make(f"v{number}")], made_with=made_with, origin="imported", dtype=dtype
        )
    before = read(tmp_path)
    maintenance.compact(tmp_path)
    store = FeatureStore(tmp_path)
    assert (
        len(store.shards) == 6 and read(tmp_path) == before and store.origin == "imported" and store.weights == WEIGHTS
    )
    for number in range(18):
        shard, _ = store.locate(f"v{number}")
        assert (shard.dtype.name, shard.made_with) == kinds[number % 6]
        assert dict(h5py.File(shard.path).attrs).get("av") == shard.made_with.get("av")


def test_compaction_of_a_damaged_store_is_refused_and_loses_nothing(tmp_path):
    latest = history(tmp_path)
    path = shard_files(tmp_path)[-1]
    some = read_shard(path).videos["video_id"][0].decode()
    flip(path, offset_of(path, some))
    with pytest.raises(UserError, match="vlalign-store repair"):
        maintenance.compact(tmp_path)
    damaged = read(tmp_path, check_rows=False)
    assert {v for v in latest if damaged[v] != latest[v]} == {some} and len(findings(tmp_path)) == 1


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("target_is_there", [False, True])
def test_a_merge_keeps_the_later_rows_of_videos_in_both_stores(tmp_path, order, target_is_there):
    into, sources = tmp_path / "into", [tmp_path / name for name in "abc"]
    latest = history(into, shards=4) if target_is_there else {}
    for number, source in enumerate(sources):
        latest |= history(source, shards=3, first=10 * (number + 1))
    befores = [read(source) for source in sources]
    copied = maintenance.merge(sources[::order], into)
    assert sorted(path.name for path in copied) == sorted(
        path.name for source in sources for path in shard_files(source)
    )
    assert read(into) == latest and not findings(into) and not leftovers(into)
    assert [read(source) for source in sources] == befores
    assert maintenance.merge([*sources, into], into) == [] and read(into) == latest


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"profile": replace(PROFILE, fps=16)}, [PROFILE.hash, replace(PROFILE, fps=16).hash]),
        ({"weights": Weights(name="tiny.pth", sha256="cd" * 32)}, ["ab" * 6, "cd" * 6]),
    ],
    ids=["profile", "weights"],
)
def test_stores_with_different_profiles_or_weights_are_not_merged(tmp_path, other, named):
    write(tmp_path / "a", make("a"))
    write(tmp_path / "b", make("b"), **other)
    for into in ("a", "new"):
        with pytest.raises(UserError) as refused:
            maintenance.merge([tmp_path / "a", tmp_path / "b"], tmp_path / into)
        assert all(text in str(refused.value) for text in [*named, str(tmp_path / "a"), str(tmp_path / "b")])
    assert read(tmp_path / "a") == contents([make("a")]) and not (tmp_path / "new").exists()


def test_a_damaged_shard_is_not_merged(tmp_path):
    good, bad = write(tmp_path / "a", make("a")), write(tmp_path / "b", make("b"))
    flip(bad, offset_of(bad, "b"))
    with pytest.raises(UserError, match=f"repair {tmp_path / 'b'}"):
        maintenance.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "into")
    assert [path.name for path in (tmp_path / "into").iterdir()] == [good.name]


def test_removal_also_removes_older_copies(tmp_path):
    latest = history(tmp_path)
    gone = [video_id for video_id, count in copies(tmp_path).items() if count > 1][:3]
    maintenance.remove(tmp_path, gone)
    assert read(tmp_path) == {v: made for v, made in latest.items() if v not in gone} and not findings(tmp_path)
    assert not copies(tmp_path).keys() & set(gone)


def test_interrupted_removal_is_completed_by_the_same_call(tmp_path):
    """It says which were not there: removed before, or never."""
    latest = history(tmp_path)
    assert maintenance.remove(tmp_path, ["v1"]) == []
    assert maintenance.remove(tmp_path, ["v1", "unknown", "v2"]) == ["v1", "unknown"]
    assert read(tmp_path) == {v: made for v, made in latest.items() if v not in ("v1", "v2")} and not findings(tmp_path)


def damaged_history(folder):
    history(folder)
    for path in shard_files(folder)[::2]:
        flip(path, offset_of(path, read_shard(path).videos["video_id"][0].decode()))


CARE = {
    "compact": (history, lambda folder: maintenance.compact(folder)),
    "remove": (history, lambda folder: maintenance.remove(folder, ["v1", "v2", "v5", "v7"])),
    "merge": (history, lambda folder: maintenance.merge([folder.parent / "other"], folder)),
    "repair": (damaged_history, lambda folder: maintenance.repair(folder)),
}
"""What makes a store, and what is done to it until it is killed."""


@pytest.mark.parametrize("num_kills", [6, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", CARE)
def test_maintenance_killed_many_times_loses_nothing_and_continues(tmp_path, what, num_kills):
    """At any moment each video is as it was or as it shall be; never as an older copy, never gone but where it shall
    be."""
    rng, (prepare, act) = np.random.default_rng(0), CARE[what]
    prepare(tmp_path / "before")
    for number in range(4):
        write(tmp_path / "other", *(make(f"v{n}", generation=50) for n in range(4 * number, 4 * number + 4)))
    before = read(tmp_path / "before", check_rows=False)
    copied = [shutil.copytree(tmp_path / "before", tmp_path / name) for name in ("after", "again", "once more")]
    longest = min(seconds_of(partial(act, folder)) for folder in copied)
    after = read(tmp_path / "after")
    kills = hits = run = 0
    while kills < num_kills:
        folder, run = tmp_path / f"run{run}", run + 1
        shutil.copytree(tmp_path / "before", folder)
        for _ in range(3):
            if not killed(partial(act, folder), rng.uniform(0.1, 0.8) * longest):
                break
            kills += 1
            now = read(folder, check_rows=False)
            assert all(now.get(v) in (before.get(v), after.get(v)) for v in before.keys() | after.keys())
            assert what == "repair" or not findings(folder)
        hits += len(leftovers(folder))
        act(folder)
        assert read(folder) == after and not findings(folder)
    print(f"{kills} kills in {run} runs, {hits} while a shard was written")
    assert hits or num_kills < 40


@pytest.mark.parametrize("seed", range(10))
def test_any_sequence_of_changes_equals_a_dictionary(tmp_path, seed):
    rng, folder, model, steps = np.random.default_rng(seed), tmp_path / "s3d", {}, []
    for step in range(14):
        videos = [make(f"v{n}", generation=step) for n in rng.choice(12, rng.integers(0, 6), replace=False)]
        what = rng.choice(["write", "write", "merge", "compact", "remove"]) if model else "write"
        steps.append((str(what), [v.video_id for v in videos]))
        if what == "write":
            write(folder, *videos, dtype=str(rng.choice(["float16", "float32"])))
            model |= contents(videos)
        elif what == "merge":
            write(tmp_path / f"other{step}", *videos)
            maintenance.merge([tmp_path / f"other{step}"], folder)
            model |= contents(videos)
        elif what == "compact":
            maintenance.compact(folder, shard_bytes=int(rng.choice([1, 30_000, 10**9])))
        else:
            gone = [v.video_id for v in videos if v.video_id in model]
            maintenance.remove(folder, gone)
            model = {v: made for v, made in model.items() if v not in gone}
        assert read(folder) == model and not findings(folder) and not leftovers(folder), steps


def test_threads_read_on_while_the_store_is_compacted(tmp_path, monkeypatch):
    monkeypatch.setattr(FeatureStore, "MAX_OPEN_SHARDS", 4)
    for number in range(40):
        write(tmp_path, *(make(f"v{number}-{n}") for n in range(3)))
    store, latest, wrong, done = FeatureStore(tmp_path), read(tmp_path), [], threading.Event()

    def read_on(seed):
        rng, ids = np.random.default_rng(seed), list(latest)
        while not done.is_set():
            video_id = ids[rng.integers(len(ids))]
            try:
                if plain(store.get(video_id)) != latest[video_id]:
                    wrong.append(f"other rows for {video_id}")
            except Exception as error:
                wrong.append(repr(error))

    threads = [threading.Thread(target=read_on, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for _ in maintenance.compact(tmp_path, shard_bytes=60_000):
        time.sleep(0.02)
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong, (len(wrong), wrong[:5])


def test_strings_are_utf8_for_h5py_after_compaction(tmp_path):
    write(tmp_path, make("ümläut"))
    write(tmp_path, make("b"))
    maintenance.compact(tmp_path)
    [path] = shard_files(tmp_path)
    with h5py.File(path) as file:
        assert h5py.check_string_dtype(file["videos"].dtype["video_id"]).encoding == "utf-8"


def test_a_clock_that_was_set_back_does_not_revive_old_rows(tmp_path, monkeypatch):
    write(tmp_path, make("a"))
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now - 3600 * 10**9)
    write(tmp_path, make("a", generation=1))
    assert read(tmp_path) == contents([make("a", generation=1)])

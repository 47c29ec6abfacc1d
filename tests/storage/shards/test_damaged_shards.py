"""Damaged shards: all damage is found, and repair drops nothing else."""

import contextlib
import os
import signal
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from helpers.store_life import (
    PAGE,
    contents,
    copies,
    ended,
    extract,
    findings,
    flip,
    leftovers,
    logged,
    make,
    offset_of,
    plain,
    put,
    read,
    start,
    through_h5py,
)
from helpers.stores import PROFILE, in_forked_child, write
from vlalign.storage import FeatureStore
from vlalign.storage.common.errors import UserError
from vlalign.storage.shards.format import COLUMNS
from vlalign.storage.shards.names import shard_path
from vlalign.storage.shards.read import read_shard
from vlalign.storage.stores import maintenance
from vlalign.storage.stores.feature_store import shard_files


def flipped(content, elsewhere, rng):
    """One byte; of every other file one that is in no row."""
    offset = rng.choice(elsewhere) if rng.random() < 0.5 else rng.integers(len(content))
    content[offset] ^= rng.integers(1, 256)
    return content, offset


def cut(content, _, rng):
    length = rng.integers(len(content))
    return content[:length], length


def overwritten(content, _, rng):
    first, length = rng.integers(len(content)), rng.integers(1, 5001)
    content[first : first + length] ^= rng.integers(1, 256, len(content[first : first + length]), dtype=np.uint8)
    return content, (first, length)


@pytest.mark.parametrize(
    ("damage", "times"), [(flipped, 500), (cut, 100), (overwritten, 100)], ids=["flipped", "cut", "overwritten"]
)
def test_all_damage_is_found_and_no_damaged_row_is_returned(tmp_path, damage, times):
    rng = np.random.default_rng(times)
    wrote = [make(f"v{n}", 300) for n in range(8)]
    path = write(tmp_path, *wrote)
    whole, expected = np.fromfile(path, np.uint8), contents(wrote)
    assert 40_000 < len(whole) < 100_000
    shard, in_rows = read_shard(path), np.zeros(len(whole), bool)
    for name, offset in shard.offsets.items():
        dtype, shape = shard.row_type(name)
        in_rows[offset:][: 2400 * dtype.itemsize * (*shape, 1)[0]] = True
    refused = Counter()
    for _ in range(times):
        content, where = damage(whole.copy(), np.flatnonzero(~in_rows), rng)
        put(path, content.tobytes())
        assert findings(tmp_path), where
        for check_rows in (False, True):
            try:
                store = FeatureStore(tmp_path, check_rows=check_rows)
            except UserError:
                refused["as a whole"] += 1
                continue
            for video_id in expected:
                try:
                    found = plain(store.get(video_id))
                except UserError:
                    assert check_rows
                    refused["a video"] += 1
                else:
                    assert not check_rows or found == expected[video_id], where
    print(dict(refused))
    assert refused["as a whole"] and (damage is cut or refused["a video"])


@pytest.mark.parametrize("size", [0, 100, -1, 1], ids=["empty", "100 bytes", "a byte less", "a byte more"])
def test_a_shard_that_changes_under_an_open_store(tmp_path, size):
    path = write(tmp_path, make("a", 300), make("b", 300))
    store, reading = FeatureStore(tmp_path), FeatureStore(tmp_path)
    reading.get("b")
    content = path.read_bytes()
    put(path, content[:size] if size < 1 or size == 100 else content + b"x")
    with pytest.raises(UserError, match="vlalign-store verify") as refused:
        store.get("a")
    assert str(path) in str(refused.value)
    assert contents([reading.get("a")]) == contents([make("a", 300)])  # it has the file that was there


@pytest.mark.parametrize("column", COLUMNS)
def test_repair_drops_only_the_damaged_video_and_extraction_restores_it(tmp_path, column):
    folder, log, videos = tmp_path / "s3d", tmp_path / "log", [make(f"v{n}") for n in range(10)]
    extract(folder, videos, log)
    damaged = shard_files(folder)[1]
    flip(damaged, offset_of(damaged, "v6", column))
    [message] = findings(folder)
    assert message.startswith(f"{damaged}: ") and "1 of its 4 videos" in message and message.endswith(": v6")
    [repaired] = maintenance.repair(folder)
    assert repaired.path == damaged and "3 videos kept, 1 dropped" in repaired.message
    assert read(folder) == contents(v for v in videos if v.video_id != "v6") and not findings(folder)
    log.unlink()
    extract(folder, videos, log)
    assert logged(log, "made") == ["v6"]
    assert read(folder) == contents(videos) and not findings(folder) and set(copies(folder).values()) == {1}


@pytest.mark.parametrize("where", ["first line", "block", "index"])
def test_repair_drops_a_shard_whose_index_is_unreadable(tmp_path, where):
    good = [make("a"), make("b")]
    write(tmp_path, good[0])
    path = write(tmp_path, make("lost"))
    write(tmp_path, good[1])
    content = path.read_bytes()
    flip(path, {"first line": 3, "block": 300, "index": content.index(b"lost", PAGE)}[where])
    assert len(findings(tmp_path)) == 1
    [repaired] = maintenance.repair(tmp_path)
    assert repaired.path == path and repaired.message.startswith(f"{path}: ") and not path.exists()
    assert read(tmp_path) == contents(good) and not findings(tmp_path)


def test_damage_to_hdf5_metadata_is_repaired_without_loss(tmp_path):
    videos = [make(f"v{n}") for n in range(4)]
    path = write(tmp_path, *videos)
    flip(path, read_shard(path).first_byte + 10)
    [message] = findings(tmp_path)
    assert "HDF5's own records" in message and read(tmp_path) == contents(videos)
    maintenance.repair(tmp_path)
    assert not findings(tmp_path) and read(tmp_path) == contents(videos) and not path.exists()
    [path] = shard_files(tmp_path)
    assert through_h5py(path)["videos"][1] == (4,)


def test_repair_ignores_files_that_are_not_of_the_store(tmp_path):
    mine = make("mine")
    write(tmp_path, mine)
    foreign = tmp_path / "notes.h5"
    foreign.write_bytes(b"somebody's")
    other_schema = write(tmp_path, make("b"))
    put(other_schema, other_schema.read_bytes().replace(b"schema 1,", b"schema 3,", 1))
    other_profile = write(tmp_path, make("c"), profile=replace(PROFILE, fps=16))
    others = {path: path.read_bytes() for path in (foreign, other_schema, other_profile)}
    done = {repaired.path: repaired.message for repaired in maintenance.repair(tmp_path)}
    assert done.keys() == others.keys() and all("not changed" in what for what in done.values())
    assert {path: path.read_bytes() for path in others} == others
    for path in others:
        path.unlink()
    assert read(tmp_path) == contents([mine])


def test_repair_removes_unfinished_files_older_than_an_hour(tmp_path):
    write(tmp_path, make("a"))
    for seconds in (3500, 3700):
        path = tmp_path / f".{seconds}.h5.1-abc.partial"
        path.write_bytes(b"half")
        os.utime(path, (time.time() - seconds,) * 2)
    assert maintenance.unfinished(tmp_path) == [path]
    maintenance.repair(tmp_path)
    assert [p.name for p in leftovers(tmp_path)] == [".3500.h5.1-abc.partial"]
    assert read(tmp_path) == contents([make("a")])


def test_files_being_written_are_not_called_unfinished(tmp_path):
    child = start(lambda: [write(tmp_path, make(f"v{n}")) for n in range(150)])
    while (at_its_end := ended(child, wait=False)) is None:
        assert maintenance.unfinished(tmp_path) == [], "they are being written"
    assert at_its_end and len(read(tmp_path)) == 150


def test_a_broken_symlink_is_refused(tmp_path):
    write(tmp_path, make("a"))
    (tmp_path / "x.h5").symlink_to(tmp_path / "nowhere")

    def look():
        signal.alarm(3)
        FeatureStore(tmp_path)

    assert isinstance(in_forked_child(look), UserError)


def test_verify_reports_a_broken_symlink(tmp_path):
    write(tmp_path, make("a"))
    (tmp_path / "x.h5").symlink_to(tmp_path / "nowhere")
    assert len(findings(tmp_path)) == 1


@pytest.mark.parametrize("where", ["a link that leads nowhere", "an input/output error"])
def test_repair_keeps_shards_with_temporary_read_errors(tmp_path, where):
    write(tmp_path, make("a"))
    path = shard_path(tmp_path)
    path.symlink_to("/nowhere" if "link" in where else "/proc/self/mem")  # reading that gives EIO
    with contextlib.suppress(OSError, UserError):
        maintenance.repair(tmp_path)
    assert path.is_symlink()

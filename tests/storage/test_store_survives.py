"""What feature stores live through: killed writers, many writers at once, full disks, power cuts, damage; and care that loses no row.

All of it is real: processes that get a SIGKILL, file systems that fill up or lose their power, bytes that change.
"""

import contextlib
import errno
import fcntl
import os
import pickle
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
import zlib
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.stores import DIMENSION, PROFILE, WEIGHTS, in_forked_child, video, write
from vlalign.storage import FeatureStore, Weights, care, write_shard
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.progress import Progress
from vlalign.storage.records import StoredVideo
from vlalign.storage.shard_names import shard_path
from vlalign.storage.shards.format import COLUMNS, Provenance, checksum
from vlalign.storage.shards.read import read_shard
from vlalign.storage.shards.write import VideoRows, make_index, stored_columns, write_rows
from vlalign.storage.store_folder import shard_files

SHARD_VIDEOS = 4
PAGE = 4096


def make(video_id, num_rows=None, *, generation=0, **more):
    """A video whose rows nobody else has: of its id and its generation, the same each time."""
    rng = np.random.default_rng([zlib.crc32(video_id.encode()), generation])
    num_rows = int(rng.integers(1, 12)) if num_rows is None else num_rows
    values = dict(
        features=rng.normal(size=(num_rows, DIMENSION)).astype(np.float16).astype(np.float32),
        valid_frames=rng.integers(1, 17, num_rows),
        first_start=rng.random(),
        source=f"file {generation} of {video_id}",
        decoder=f"decoder {rng.integers(3)}",
        partial=["", "the last 2.5 s are missing"][rng.integers(2)],
    )
    return video(video_id, num_rows, **values | more)


def plain(v):
    """All there is of a video, to be compared."""
    arrays = (v.features.astype(np.float32), v.start_seconds, v.end_seconds, v.valid_frames.astype(np.int32))
    return (*(a.tobytes() for a in arrays), v.features.shape, v.duration_seconds, v.source, v.decoder, v.partial)


def contents(videos):
    return {v.video_id: plain(v) for v in videos}


def read(folder, **how):
    """All there is in a store; nothing where there is none."""
    if not shard_files(folder):
        return {}
    store = FeatureStore(folder, **{"check_rows": True} | how)
    return contents(store.get_clips([(video_id, None, None) for video_id in store.video_ids()]))


def findings(folder):
    return [finding.message for finding in care.verify(folder)]


def copies(folder):
    """How many shards have each video."""
    return Counter(
        video_id.decode() for path in shard_files(folder) for video_id in read_shard(path).videos["video_id"].tolist()
    )


def leftovers(folder):
    return sorted(folder.glob(".*"))


def extract(folder, videos, log, *, seconds=0.0, at=0.0):
    """As extraction does it: what the store has of the same file is not made again, and a shard is written for every few videos.

    ``log`` gets a line for each video made, before it is written, and one when it is said to be safe.
    """
    time.sleep(max(at - time.monotonic(), 0))
    store = FeatureStore(folder) if shard_files(folder) else None
    todo = [v for v in videos if store is None or v.video_id not in store or store.source(v.video_id) != v.source]
    for first in range(0, len(todo), SHARD_VIDEOS):
        batch = todo[first : first + SHARD_VIDEOS]
        for v in batch:
            time.sleep(seconds)
            with log.open("a") as file:
                file.write(f"made {v.video_id}\n")
        write(folder, *batch)
        with log.open("a") as file:
            file.writelines(f"safe {v.video_id}\n" for v in batch)


def logged(log, what):
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.removeprefix(f"{what} ") for line in lines if line.startswith(f"{what} ")]


def start(function):
    """The id of a forked process that does it."""
    child = os.fork()
    if child == 0:
        try:
            function()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return child


def ended(child, *, wait=True):
    """Whether it came to its own end rather than being killed; None while it runs. It may not fail."""
    waited, status = os.waitpid(child, 0 if wait else os.WNOHANG)
    if not waited:
        return None
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFEXITED(status)


def killed(function, seconds):
    """Whether ``function()`` was still going on after so long, and was killed."""
    child = start(function)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return not ended(child)


def seconds_of(function):
    """How long it takes in a forked process."""
    began = time.monotonic()
    assert ended(start(function))
    return time.monotonic() - began


def put(path, content):
    """Another file of that name; who has the old one mapped keeps it."""
    new = path.with_name("new")
    new.write_bytes(content)
    new.replace(path)


def flip(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x5A
    put(path, content)


def offset_of(path, video_id, column="features"):
    shard = read_shard(path)
    [row] = shard.videos[shard.videos["video_id"] == video_id.encode()]
    dtype, shape = shard.row_type(column)
    return shard.offsets[column] + int(row["first_row"]) * dtype.itemsize * (shape[0] if shape else 1)


# Writers that are killed, and many at once


def test_a_writer_killed_200_times_loses_nothing_and_makes_nothing_twice(tmp_path):
    rng, videos = np.random.default_rng(0), [make(f"v{n}") for n in range(72)]
    two_shards = min(
        seconds_of(partial(extract, tmp_path / f"pace{n}", videos[: 2 * SHARD_VIDEOS], tmp_path / "pace"))
        for n in range(3)
    )
    kills = hits = runs = 0
    while kills < 200:
        folder, log = tmp_path / f"run{runs}", tmp_path / f"log{runs}"
        run, before, kills_here = partial(extract, folder, videos, log, seconds=0.0005), {}, 0
        while kills + kills_here < 200 and killed(run, rng.uniform(0, 1.1) * two_shards):
            kills_here += 1
            after = read(folder)
            assert not findings(folder)
            assert before.items() <= after.items()
            assert set(logged(log, "safe")) <= set(after)
            before = after
        run()  # what is left, if anything is
        assert read(folder) == contents(videos) and not findings(folder)
        assert set(copies(folder).values()) == {1}
        assert len(logged(log, "made")) <= len(videos) + kills_here * SHARD_VIDEOS
        kills, hits, runs = kills + kills_here, hits + len(leftovers(folder)), runs + 1
    print(f"{kills} kills in {runs} runs, {hits} while a shard was written")
    assert hits > 2


@pytest.mark.parametrize("writers", [2, 8])
def test_writers_at_once_of_which_one_is_killed(tmp_path, writers):
    """Each has videos of its own, and all have some in common."""
    rng, folder, log = np.random.default_rng(writers), tmp_path / "s3d", tmp_path / "log"
    common, at = [make(f"common{n}") for n in range(16)], time.monotonic() + 0.1 * writers
    own = [[make(f"of{w}-{n}") for n in range(24)] for w in range(writers)]
    whole = contents(v for videos in [common, *own] for v in videos)
    runs = [
        partial(extract, folder, rng.permutation([*common, *videos]).tolist(), log, seconds=0.001, at=at)
        for videos in own
    ]
    children = [start(run) for run in runs]
    time.sleep(max(at + 0.05 - time.monotonic(), 0))
    os.kill(children[0], signal.SIGKILL)
    assert ended(children[0]) is False
    children[0] = start(runs[0])
    while children:
        assert read(folder).items() <= whole.items()  # while they write
        children = [child for child in children if ended(child, wait=False) is None]
    assert read(folder) == whole and not findings(folder)
    video_ids = FeatureStore(folder).video_ids()
    assert len(video_ids) == len(set(video_ids)) == len(whole)
    found = copies(folder)
    assert {found[v.video_id] for videos in own for v in videos} == {1}
    care.compact(folder)
    assert read(folder) == whole and set(copies(folder).values()) == {1}


# Disks


@contextlib.contextmanager
def mounted(folder, *options):
    folder.mkdir(exist_ok=True)
    if os.geteuid() or subprocess.run(["mount", *options, folder], capture_output=True).returncode:
        pytest.skip("needs root to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def disk(tmp_path):
    """3 MB in memory."""
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=3m", "tmpfs") as folder:
        yield folder


def leave(disk, num_bytes):
    """Fills a small disk but for so many bytes."""
    (disk / "fill").unlink(missing_ok=True)
    free = shutil.disk_usage(disk).free
    assert disk.is_mount() and free <= 3 << 20
    (disk / "fill").write_bytes(bytes(free - num_bytes))


def says_what_is_needed(error, folder):
    """Megabytes needed and free, of the message."""
    assert isinstance(error, OSError), repr(error)
    says = re.match(rf"{re.escape(str(folder))}: .* needs ([\d.]+) MB, ([\d.]+) MB are free", str(error))
    assert says and "\n" not in str(error), str(error)
    return float(says[1]), float(says[2])


def test_a_full_disk_says_so_and_the_run_goes_on_once_there_is_room(disk, tmp_path):
    folder, log, videos = disk / "s3d", tmp_path / "log", [make(f"v{n}", 2000) for n in range(80)]
    run = partial(extract, folder, videos, log)
    needed, free = says_what_is_needed(in_forked_child(run), folder)
    assert needed == pytest.approx(SHARD_VIDEOS * 2000 * (DIMENSION * 2 + 20) / 1e6, rel=0.3) and free <= needed
    done = read(folder)
    assert 0 < len(done) < 80 and done.items() <= contents(videos).items()
    assert set(done) == set(logged(log, "safe"))
    assert not findings(folder) and not leftovers(folder)
    subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
    assert in_forked_child(run) is None
    assert read(folder) == contents(videos) and not findings(folder)
    assert len(logged(log, "made")) == 80 + SHARD_VIDEOS


@pytest.mark.parametrize("left", [0, 3 * PAGE], ids=["nothing left", "a little left"])
@pytest.mark.parametrize("after", [0, 1, 7])
def test_a_disk_that_fills_while_a_shard_is_written(disk, after, left):
    folder, videos = disk / "s3d", [make(f"v{n}", 5000) for n in range(8)]
    earlier = [make(f"earlier{n}") for n in range(3)]
    write(folder, *earlier)
    stored = [stored_columns(video, "<f2") for video in videos]
    table = make_index([video.about for video in videos])

    def write_them(*, another_writer):
        def rows_of(number):
            if another_writer and number == after:
                leave(disk, left)
            return VideoRows(stored[number], checksum(stored[number]))

        write_rows(shard_path(folder), Provenance(profile=PROFILE, weights=WEIGHTS), "float16", table, rows_of)

    needed, _ = says_what_is_needed(in_forked_child(partial(write_them, another_writer=True)), folder)
    assert needed == pytest.approx(8 * 5000 * 28 / 1e6, abs=0.1)
    assert read(folder) == contents(earlier) and not findings(folder) and not leftovers(folder)
    (disk / "fill").unlink()
    write_them(another_writer=False)
    assert read(folder) == contents([*earlier, *videos]) and not findings(folder)


def test_rows_that_end_early_get_no_name(tmp_path):
    v = make("v", 300)
    columns = stored_columns(v, "<f2")
    table = make_index([StoredVideo(video_id=name, num_rows=300, duration_seconds=1.0) for name in "ab"])

    def rows_of(number):
        return VideoRows([column[: 300 - number] for column in columns], 0)

    with pytest.raises(ValueError, match="299 rows of 'b', expected 300"):
        write_rows(shard_path(tmp_path), Provenance(profile=PROFILE, weights=WEIGHTS), "float16", table, rows_of)
    assert not list(tmp_path.iterdir())


def through_h5py(path):
    with h5py.File(path, "r") as file:
        return {name: (file[name].dtype, file[name].shape, file[name][:].tobytes()) for name in file} | dict(file.attrs)


@pytest.mark.parametrize(
    ("limit", "num_rows"), [("disk", 1), ("disk", 120), ("disk", 1000), ("file", 1), ("file", 120)]
)
def test_whatever_part_of_a_shard_does_not_fit(disk, tmp_path, limit, num_rows):
    """HDF5's own records among them, page by page of the disk, and byte by byte with a limit on files' sizes."""
    folder, wrote = disk / "s3d", make("v", num_rows)
    good = write(tmp_path / "elsewhere", wrote)
    size, expected, outcomes = good.stat().st_size, through_h5py(good), Counter()
    rooms = range(max(size - 12 * PAGE, 0) // PAGE * PAGE, size + PAGE, PAGE if limit == "disk" else 599)

    def write_with(room):
        if limit == "file":
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # h5py's remarks
        return write(folder, wrote)

    folder.mkdir()
    for room in rooms:
        if limit == "disk":
            leave(disk, room)
        made = in_forked_child(partial(write_with, room))
        if isinstance(made, Path):
            assert shard_files(folder) == [made] and not findings(folder), room
            assert read(folder) == contents([wrote]) and through_h5py(made) == expected, room
            made.unlink()
        else:
            assert isinstance(made, OSError) and str(folder) in str(made), (room, made)
        assert not list(folder.iterdir()), room
        outcomes[isinstance(made, Path)] += 1
    assert min(outcomes[True], outcomes[False]) > 0, outcomes


@pytest.mark.parametrize("what", ["compact", "merge", "remove"])
def test_care_on_a_full_disk_loses_nothing(disk, tmp_path, what):
    folder = disk / "s3d"
    for number in range(3):
        write(folder, make(f"v{number}", 2000), make(f"w{number}", 2000))
    write(tmp_path / "other", make("new", 3000))
    latest = read(folder)
    calls = {
        "compact": lambda: care.compact(folder),
        "merge": lambda: care.merge([tmp_path / "other"], folder),
        "remove": lambda: care.remove(folder, ["v1"]),
    }
    leave(disk, 0)
    failed = in_forked_child(calls[what])
    assert isinstance(failed, OSError) and str(folder) in str(failed)
    assert read(folder) == latest and not findings(folder) and not leftovers(folder)
    (disk / "fill").unlink()
    calls[what]()
    changed = {"compact": {}, "merge": contents([make("new", 3000)]), "remove": {"v1": None}}[what]
    assert read(folder) == {v: made for v, made in (latest | changed).items() if made} and not findings(folder)


def test_a_folder_that_cannot_be_written(disk):
    folder = disk / "s3d"
    write(folder, make("a"), make("b"))
    write(folder, make("a", generation=1))
    before, names = read(folder), shard_files(folder)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    calls = [
        partial(write, folder, make("c")),
        partial(write, disk / "new", make("c")),
        partial(care.remove, folder, ["b"]),
    ]
    for call in [*calls, lambda: care.compact(folder)]:
        with pytest.raises(OSError) as refused:
            call()
        assert str(disk) in str(refused.value) and refused.value.errno in (None, errno.EROFS)
        assert read(folder) == before and shard_files(folder) == names and not findings(folder)


def test_what_is_said_to_be_safe_survives_a_power_cut(tmp_path):
    """ext4 in a file, which forgets at a random moment what it has not put there: its own way to try a power cut. Of two writers
    each has the journal written while the other is in the middle of something."""
    rng, videos, image, disk = (
        np.random.default_rng(0),
        [make(f"v{n}") for n in range(400)],
        tmp_path / "image",
        tmp_path / "ext4",
    )
    folder, log = disk / "s3d", tmp_path / "log"
    runs = [partial(extract, folder, videos[first::2], log) for first in (0, 1)]
    with image.open("wb") as file:
        file.truncate(16 << 20)
    if (
        not shutil.which("mkfs.ext4")
        or subprocess.run(["mkfs.ext4", "-q", "-F", image], capture_output=True).returncode
    ):
        pytest.skip("needs mkfs.ext4")
    before = {}
    for _ in range(8):
        with mounted(disk, "-o", "loop", image):
            children = [start(run) for run in runs]
            time.sleep(rng.uniform(0.03, 0.1))
            at = os.open(disk, os.O_RDONLY)
            try:
                fcntl.ioctl(at, 0x8004587D, struct.pack("I", 2))  # EXT4_IOC_SHUTDOWN, without the journal's last part
            except OSError:
                pytest.skip("this ext4 cannot be shut down")
            finally:
                os.close(at)
                for child in children:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
        with mounted(disk, "-o", "loop", image):
            assert not in_forked_child(partial(findings, folder))
            after = in_forked_child(partial(read, folder))
            assert (
                set(logged(log, "safe")) <= set(after) and before.items() <= after.items() <= contents(videos).items()
            )
            before = after
    assert before
    with mounted(disk, "-o", "loop", image):
        assert [in_forked_child(run) for run in runs] == [None, None]
        assert in_forked_child(partial(read, folder)) == contents(videos)


# Damage


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
def test_all_damage_is_found_and_no_damaged_row_is_taken_for_whole(tmp_path, damage, times):
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
def test_repair_drops_the_damaged_video_and_the_next_run_makes_just_that(tmp_path, column):
    folder, log, videos = tmp_path / "s3d", tmp_path / "log", [make(f"v{n}") for n in range(10)]
    extract(folder, videos, log)
    damaged = shard_files(folder)[1]
    flip(damaged, offset_of(damaged, "v6", column))
    [message] = findings(folder)
    assert message == f"{damaged}: the rows of 1 of its 4 videos are damaged: v6"
    [repaired] = care.repair(folder)
    assert repaired.path == damaged and "3 videos were kept, 1 dropped" in repaired.message
    assert read(folder) == contents(v for v in videos if v.video_id != "v6") and not findings(folder)
    log.unlink()
    extract(folder, videos, log)
    assert logged(log, "made") == ["v6"]
    assert read(folder) == contents(videos) and not findings(folder) and set(copies(folder).values()) == {1}


@pytest.mark.parametrize("where", ["first line", "block", "index"])
def test_repair_drops_a_shard_that_does_not_say_what_is_in_it(tmp_path, where):
    good = [make("a"), make("b")]
    write(tmp_path, good[0])
    path = write(tmp_path, make("lost"))
    write(tmp_path, good[1])
    content = path.read_bytes()
    flip(path, {"first line": 3, "block": 300, "index": content.index(b"lost", PAGE)}[where])
    assert len(findings(tmp_path)) == 1
    assert [repaired.message for repaired in care.repair(tmp_path)] == [f"{path}: not readable, dropped as a whole"]
    assert read(tmp_path) == contents(good) and not findings(tmp_path)


def test_repair_of_hdf5s_own_records_loses_nothing(tmp_path):
    videos = [make(f"v{n}") for n in range(4)]
    path = write(tmp_path, *videos)
    flip(path, read_shard(path).first_byte + 10)
    [message] = findings(tmp_path)
    assert "HDF5's own records" in message and read(tmp_path) == contents(videos)
    care.repair(tmp_path)
    assert not findings(tmp_path) and read(tmp_path) == contents(videos) and not path.exists()
    [path] = shard_files(tmp_path)
    assert through_h5py(path)["videos"][1] == (4,)


def test_repair_leaves_alone_what_is_not_of_this_store(tmp_path):
    mine = make("mine")
    write(tmp_path, mine)
    foreign = tmp_path / "notes.h5"
    foreign.write_bytes(b"somebody's")
    other_schema = write(tmp_path, make("b"))
    put(other_schema, other_schema.read_bytes().replace(b"schema 1,", b"schema 2,", 1))
    other_profile = write(tmp_path, make("c"), profile=replace(PROFILE, fps=16))
    others = {path: path.read_bytes() for path in (foreign, other_schema, other_profile)}
    done = {repaired.path: repaired.message for repaired in care.repair(tmp_path)}
    assert done.keys() == others.keys() and all("left alone" in what for what in done.values())
    assert {path: path.read_bytes() for path in others} == others
    for path in others:
        path.unlink()
    assert read(tmp_path) == contents([mine])


def test_repair_removes_what_killed_writers_left_an_hour_ago(tmp_path):
    write(tmp_path, make("a"))
    for seconds in (3500, 3700):
        path = tmp_path / f".{seconds}.h5.1-abc.partial"
        path.write_bytes(b"half")
        os.utime(path, (time.time() - seconds,) * 2)
    assert care.unfinished(tmp_path) == [path]
    care.repair(tmp_path)
    assert [p.name for p in leftovers(tmp_path)] == [".3500.h5.1-abc.partial"]
    assert read(tmp_path) == contents([make("a")])


# Compaction, merging, removal


def history(folder, *, shards=8, first=0):
    """Shards with 16 videos of which some were replaced once or more; what counts in the end."""
    rng, latest = np.random.default_rng([shards, first]), {}
    for number in range(first, first + shards):
        videos = [make(f"v{n}", generation=number) for n in rng.choice(16, 5, replace=False)]
        write(folder, *videos, dtype=["float16", "float32"][number % 2])
        latest |= contents(videos)
    assert max(copies(folder).values()) > 1
    return latest


@pytest.mark.parametrize(("shard_bytes", "most_shards"), [(1, 8), (50_000, 6), (care.COMPACT_BYTES, 2)])
def test_compaction_changes_no_video(tmp_path, shard_bytes, most_shards):
    latest = history(tmp_path)
    opened, used = FeatureStore(tmp_path), FeatureStore(tmp_path)
    used.get("v3")
    unpickled = pickle.loads(pickle.dumps(used))
    care.compact(tmp_path, shard_bytes=shard_bytes)
    assert read(tmp_path) == latest and not findings(tmp_path) and not leftovers(tmp_path)
    assert set(copies(tmp_path).values()) == {1}
    assert len(shard_files(tmp_path)) <= most_shards
    for store in (opened, used, unpickled):  # from before
        assert contents(store.get(video_id) for video_id in latest) == latest
    while care.compact(tmp_path, shard_bytes=shard_bytes):  # it comes to an end
        assert read(tmp_path) == latest
    names = shard_files(tmp_path)
    assert care.compact(tmp_path, shard_bytes=shard_bytes) == [] and shard_files(tmp_path) == names


def test_what_is_written_during_a_compaction_counts_more(tmp_path):
    latest = history(tmp_path)

    def write_more(state: Progress) -> None:
        nonlocal latest
        assert read(tmp_path) == latest
        newer = [make(f"v{n}", generation=100 + state.done) for n in range(16)]
        write(tmp_path, *newer)
        latest = contents(newer)

    assert len(care.compact(tmp_path, shard_bytes=50_000, on_progress=write_more)) > 1
    assert read(tmp_path) == latest
    care.compact(tmp_path)
    assert read(tmp_path) == latest and set(copies(tmp_path).values()) == {1}


def test_a_store_is_opened_and_read_while_it_is_compacted(tmp_path):
    for number in range(40):
        write(tmp_path, *(make(f"v{number}-{n}") for n in range(3)))
    latest = read(tmp_path)
    opened = FeatureStore(tmp_path)
    child = start(lambda: [care.compact(tmp_path, shard_bytes=size) for size in (40_000, 80_000, 10**9)])
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
    care.compact(tmp_path)
    store = FeatureStore(tmp_path)
    assert (
        len(store.shards) == 6 and read(tmp_path) == before and store.origin == "imported" and store.weights == WEIGHTS
    )
    for number in range(18):
        shard, _ = store.place(f"v{number}")
        assert (shard.dtype.name, shard.made_with) == kinds[number % 6]
        assert dict(h5py.File(shard.path).attrs).get("av") == shard.made_with.get("av")


def test_compaction_of_a_damaged_store_is_refused_and_loses_nothing(tmp_path):
    latest = history(tmp_path)
    path = shard_files(tmp_path)[-1]
    some = read_shard(path).videos["video_id"][0].decode()
    flip(path, offset_of(path, some))
    with pytest.raises(UserError, match="vlalign-store repair"):
        care.compact(tmp_path)
    damaged = read(tmp_path, check_rows=False)
    assert {v for v in latest if damaged[v] != latest[v]} == {some} and len(findings(tmp_path)) == 1


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("target_is_there", [False, True])
def test_merged_stores_have_the_later_of_what_both_have(tmp_path, order, target_is_there):
    into, sources = tmp_path / "into", [tmp_path / name for name in "abc"]
    latest = history(into, shards=4) if target_is_there else {}
    for number, source in enumerate(sources):
        latest |= history(source, shards=3, first=10 * (number + 1))
    befores = [read(source) for source in sources]
    copied = care.merge(sources[::order], into)
    assert sorted(path.name for path in copied) == sorted(
        path.name for source in sources for path in shard_files(source)
    )
    assert read(into) == latest and not findings(into) and not leftovers(into)
    assert [read(source) for source in sources] == befores
    assert care.merge([*sources, into], into) == [] and read(into) == latest


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"profile": replace(PROFILE, fps=16)}, [PROFILE.hash, replace(PROFILE, fps=16).hash]),
        ({"weights": Weights(name="tiny.pth", sha256="cd" * 32)}, ["ab" * 6, "cd" * 6]),
    ],
    ids=["profile", "weights"],
)
def test_stores_of_different_making_are_not_merged(tmp_path, other, named):
    write(tmp_path / "a", make("a"))
    write(tmp_path / "b", make("b"), **other)
    for into in ("a", "new"):
        with pytest.raises(UserError) as refused:
            care.merge([tmp_path / "a", tmp_path / "b"], tmp_path / into)
        assert all(text in str(refused.value) for text in [*named, str(tmp_path / "a"), str(tmp_path / "b")])
    assert read(tmp_path / "a") == contents([make("a")]) and not (tmp_path / "new").exists()


def test_a_damaged_shard_is_not_merged(tmp_path):
    good, bad = write(tmp_path / "a", make("a")), write(tmp_path / "b", make("b"))
    flip(bad, offset_of(bad, "b"))
    with pytest.raises(UserError, match=f"repair {tmp_path / 'b'}"):
        care.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "into")
    assert [path.name for path in (tmp_path / "into").iterdir()] == [good.name]


def test_removed_videos_and_their_older_copies_are_gone(tmp_path):
    latest = history(tmp_path)
    gone = [video_id for video_id, count in copies(tmp_path).items() if count > 1][:3]
    care.remove(tmp_path, gone)
    assert read(tmp_path) == {v: made for v, made in latest.items() if v not in gone} and not findings(tmp_path)
    assert not copies(tmp_path).keys() & set(gone)


def test_removal_that_was_ended_goes_on_with_the_same_call(tmp_path):
    """It says which were not there: removed before, or never."""
    latest = history(tmp_path)
    assert care.remove(tmp_path, ["v1"]) == []
    assert care.remove(tmp_path, ["v1", "unknown", "v2"]) == ["v1", "unknown"]
    assert read(tmp_path) == {v: made for v, made in latest.items() if v not in ("v1", "v2")} and not findings(tmp_path)


def damaged_history(folder):
    history(folder)
    for path in shard_files(folder)[::2]:
        flip(path, offset_of(path, read_shard(path).videos["video_id"][0].decode()))


CARE = {
    "compact": (history, lambda folder: care.compact(folder)),
    "remove": (history, lambda folder: care.remove(folder, ["v1", "v2", "v5", "v7"])),
    "merge": (history, lambda folder: care.merge([folder.parent / "other"], folder)),
    "repair": (damaged_history, lambda folder: care.repair(folder)),
}
"""What makes a store, and what is done to it until it is killed."""


@pytest.mark.parametrize("what", CARE)
def test_care_killed_40_times_loses_nothing_and_goes_on(tmp_path, what):
    """At any moment each video is as it was or as it shall be; never as an older copy, never gone but where it shall be."""
    rng, (prepare, act) = np.random.default_rng(0), CARE[what]
    prepare(tmp_path / "before")
    for number in range(4):
        write(tmp_path / "other", *(make(f"v{n}", generation=50) for n in range(4 * number, 4 * number + 4)))
    before = read(tmp_path / "before", check_rows=False)
    copied = [shutil.copytree(tmp_path / "before", tmp_path / name) for name in ("after", "again", "once more")]
    longest = min(seconds_of(partial(act, folder)) for folder in copied)
    after = read(tmp_path / "after")
    kills = hits = run = 0
    while kills < 40:
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
    assert hits


@pytest.mark.parametrize("seed", range(10))
def test_any_sequence_of_changes_is_as_in_a_dictionary(tmp_path, seed):
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
            care.merge([tmp_path / f"other{step}"], folder)
            model |= contents(videos)
        elif what == "compact":
            care.compact(folder, shard_bytes=int(rng.choice([1, 30_000, 10**9])))
        else:
            gone = [v.video_id for v in videos if v.video_id in model]
            care.remove(folder, gone)
            model = {v: made for v, made in model.items() if v not in gone}
        assert read(folder) == model and not findings(folder) and not leftovers(folder), steps


# Found by looking for trouble


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
    for _ in care.compact(tmp_path, shard_bytes=60_000):
        time.sleep(0.02)
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong, (len(wrong), wrong[:5])


def test_writers_go_on_while_unfinished_files_are_looked_for(tmp_path):
    child = start(lambda: [write(tmp_path, make(f"v{n}")) for n in range(150)])
    while (at_its_end := ended(child, wait=False)) is None:
        assert care.unfinished(tmp_path) == [], "they are being written"
    assert at_its_end and len(read(tmp_path)) == 150


def test_a_link_that_leads_nowhere_is_refused(tmp_path):
    write(tmp_path, make("a"))
    (tmp_path / "x.h5").symlink_to(tmp_path / "nowhere")

    def look():
        signal.alarm(3)
        FeatureStore(tmp_path)

    assert isinstance(in_forked_child(look), UserError)


def test_verify_of_a_link_that_leads_nowhere(tmp_path):
    write(tmp_path, make("a"))
    (tmp_path / "x.h5").symlink_to(tmp_path / "nowhere")
    assert len(findings(tmp_path)) == 1


@pytest.mark.parametrize("where", ["a link that leads nowhere", "an input/output error"])
def test_repair_does_not_drop_what_cannot_be_read_now(tmp_path, where):
    write(tmp_path, make("a"))
    path = shard_path(tmp_path)
    path.symlink_to("/nowhere" if "link" in where else "/proc/self/mem")  # reading that gives EIO
    with contextlib.suppress(OSError, UserError):
        care.repair(tmp_path)
    assert path.is_symlink()


def test_texts_stay_utf8_for_h5py(tmp_path):
    write(tmp_path, make("ümläut"))
    write(tmp_path, make("b"))
    care.compact(tmp_path)
    [path] = shard_files(tmp_path)
    with h5py.File(path) as file:
        assert h5py.check_string_dtype(file["videos"].dtype["video_id"]).encoding == "utf-8"


@pytest.mark.parametrize("num_rows", [1, 10, 100, 120, 1000])
def test_hdf5s_part_that_does_not_fit(disk, num_rows):
    """Says what is needed and free, gives the room back, and the process ends as it should."""
    folder = disk / "s3d"
    folder.mkdir()
    bad = []
    for page in range(4):
        leave(disk, page * PAGE + num_rows * 28 // PAGE * PAGE)
        free = shutil.disk_usage(disk).free
        code = f"""
import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})
from pathlib import Path; import shutil
from helpers.stores import write, video
try: write(Path({str(folder)!r}), video('x', {num_rows}, base=-500))
except OSError as e: print(e)
print('FREE', shutil.disk_usage({str(disk)!r}).free)
sys.exit(3)"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        if done.returncode != 3:
            bad.append((page, "status", done.returncode))
        if "MB are free" not in done.stdout:
            bad.append((page, "message", done.stdout[:130]))
        if f"FREE {free}" not in done.stdout:
            bad.append((page, "room not given back", free, done.stdout[-10:]))
        if done.stderr:
            bad.append((page, "noise on stderr", len(done.stderr)))
    assert not bad, "\n".join(map(str, bad))


def test_needed_is_more_than_free(disk):
    folder = disk / "s3d"
    folder.mkdir()
    for pages in (0, 1, 2, 3, 4):
        leave(disk, 100 * 28 * 100 // PAGE * PAGE + pages * PAGE)
        failed = in_forked_child(partial(write, folder, make("v", 10000)))
        if isinstance(failed, OSError):
            needed, free = says_what_is_needed(failed, folder)
            assert needed > free, str(failed)
        else:
            failed.unlink()


def test_a_read_only_folder_is_named_not_a_temporary_file(disk):
    write(disk / "s3d", make("a"))
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with pytest.raises(OSError) as refused:
        write(disk / "s3d", make("b"))
    assert ".partial" not in str(refused.value) and "full" not in str(refused.value)


def test_a_merge_on_a_full_disk_says_what_is_needed(disk, tmp_path):
    write(disk / "s3d", make("a"))
    write(tmp_path / "other", make("b", 3000))
    leave(disk, PAGE)
    says_what_is_needed(in_forked_child(lambda: care.merge([tmp_path / "other"], disk / "s3d")), disk / "s3d")


def test_a_clock_set_back_does_not_make_old_rows_count(tmp_path, monkeypatch):
    write(tmp_path, make("a"))
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now - 3600 * 10**9)
    write(tmp_path, make("a", generation=1))
    assert read(tmp_path) == contents([make("a", generation=1)])

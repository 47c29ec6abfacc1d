"""Full and read-only disks, and power cuts: real file systems that fill up or lose their power."""

import errno
import fcntl
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.disks import mounted
from helpers.needs import PROGRAM, SYSTEM, missing_programs, need
from helpers.store_life import (
    PAGE,
    SHARD_VIDEOS,
    contents,
    extract,
    findings,
    leftovers,
    logged,
    make,
    read,
    start,
    through_h5py,
)
from helpers.stores import DIMENSION, PROFILE, WEIGHTS, in_forked_child, write
from vlalign.storage.records import StoredVideo
from vlalign.storage.shards.format import Provenance, checksum
from vlalign.storage.shards.names import shard_path
from vlalign.storage.shards.write import VideoRows, make_index, stored_columns, write_rows
from vlalign.storage.stores import maintenance
from vlalign.storage.stores.feature_store import shard_files


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


def needed_and_free(error, folder):
    """Megabytes needed and free, of the message."""
    assert isinstance(error, OSError), repr(error)
    figures = re.match(rf"{re.escape(str(folder))}: .* ([\d.]+) MB, ([\d.]+) MB ", str(error))
    assert figures and "\n" not in str(error), str(error)
    return float(figures[1]), float(figures[2])


def test_a_full_disk_is_reported_and_writing_continues_once_there_is_room(disk, tmp_path):
    folder, log, videos = disk / "s3d", tmp_path / "log", [make(f"v{n}", 2000) for n in range(80)]
    run = partial(extract, folder, videos, log)
    needed, free = needed_and_free(in_forked_child(run), folder)
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

    needed, _ = needed_and_free(in_forked_child(partial(write_them, another_writer=True)), folder)
    assert needed == pytest.approx(8 * 5000 * 28 / 1e6, abs=0.1)
    assert read(folder) == contents(earlier) and not findings(folder) and not leftovers(folder)
    (disk / "fill").unlink()
    write_them(another_writer=False)
    assert read(folder) == contents([*earlier, *videos]) and not findings(folder)


def test_a_shard_with_too_few_rows_is_not_put_in_place(tmp_path):
    v = make("v", 300)
    columns = stored_columns(v, "<f2")
    table = make_index([StoredVideo(video_id=name, num_rows=300, duration_seconds=1.0) for name in "ab"])

    def rows_of(number):
        return VideoRows([column[: 300 - number] for column in columns], 0)

    with pytest.raises(ValueError, match=r"299 .*'b'.* 300"):
        write_rows(shard_path(tmp_path), Provenance(profile=PROFILE, weights=WEIGHTS), "float16", table, rows_of)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("limit", "num_rows"),
    [("disk", 1), ("disk", 120), ("disk", 1000), *(pytest.param("file", n, marks=pytest.mark.slow) for n in (1, 120))],
)
def test_any_part_of_a_shard_may_not_fit_on_the_disk(disk, tmp_path, limit, num_rows):
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
def test_maintenance_on_a_full_disk_loses_nothing(disk, tmp_path, what):
    folder = disk / "s3d"
    for number in range(3):
        write(folder, make(f"v{number}", 2000), make(f"w{number}", 2000))
    write(tmp_path / "other", make("new", 3000))
    latest = read(folder)
    calls = {
        "compact": lambda: maintenance.compact(folder),
        "merge": lambda: maintenance.merge([tmp_path / "other"], folder),
        "remove": lambda: maintenance.remove(folder, ["v1"]),
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
        partial(maintenance.remove, folder, ["b"]),
    ]
    for call in [*calls, lambda: maintenance.compact(folder)]:
        with pytest.raises(OSError) as refused:
            call()
        assert str(disk) in str(refused.value) and refused.value.errno in (None, errno.EROFS)
        assert read(folder) == before and shard_files(folder) == names and not findings(folder)


def test_reported_writes_survive_a_power_cut(tmp_path):
    """On an ext4 file system in a file, which is shut down at a random moment and loses what it has not written.

    Each of two writers makes it write its journal while the other one is in the middle of something.
    """
    rng, videos = np.random.default_rng(0), [make(f"v{n}") for n in range(400)]
    image, disk, log = tmp_path / "image", tmp_path / "ext4", tmp_path / "log"
    folder = disk / "s3d"
    runs = [partial(extract, folder, videos[first::2], log) for first in (0, 1)]
    with image.open("wb") as file:
        file.truncate(16 << 20)
    need(PROGRAM, missing_programs("mkfs.ext4"))
    subprocess.run(["mkfs.ext4", "-q", "-F", image], capture_output=True, check=True)
    before = {}
    for _ in range(8):
        with mounted(disk, "-o", "loop", image):
            children = [start(run) for run in runs]
            time.sleep(rng.uniform(0.03, 0.1))
            at = os.open(disk, os.O_RDONLY)
            try:
                fcntl.ioctl(at, 0x8004587D, struct.pack("I", 2))  # EXT4_IOC_SHUTDOWN, without the journal's last part
            except OSError:
                need(SYSTEM, ["an ext4 that can be shut down"])
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


@pytest.mark.parametrize("num_rows", [1, 120, *(pytest.param(n, marks=pytest.mark.slow) for n in (10, 100, 1000))])
def test_a_full_disk_inside_hdf5_is_reported_and_the_process_ends_cleanly(disk, num_rows):
    """Says what is needed and free, gives the room back, and the process ends as it should."""
    folder = disk / "s3d"
    folder.mkdir()
    bad = []
    for page in range(4):
        leave(disk, page * PAGE + num_rows * 28 // PAGE * PAGE)
        free = shutil.disk_usage(disk).free
        code = f"""
import shutil, sys
from pathlib import Path
from helpers.stores import write, video
try: write(Path({str(folder)!r}), video('x', {num_rows}, base=-500))
except OSError as e: print(e)
print('FREE', shutil.disk_usage({str(disk)!r}).free)
sys.exit(3)"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        if done.returncode != 3:
            bad.append((page, "status", done.returncode))
        if done.stdout.count(" MB") < 2:
            bad.append((page, "message", done.stdout[:130]))
        if f"FREE {free}" not in done.stdout:
            bad.append((page, "room not given back", free, done.stdout[-10:]))
        if done.stderr:
            bad.append((page, "noise on stderr", len(done.stderr)))
    assert not bad, "\n".join(map(str, bad))


def test_the_error_names_more_bytes_needed_than_free(disk):
    folder = disk / "s3d"
    folder.mkdir()
    for pages in (0, 1, 2, 3, 4):
        leave(disk, 100 * 28 * 100 // PAGE * PAGE + pages * PAGE)
        failed = in_forked_child(partial(write, folder, make("v", 10000)))
        if isinstance(failed, OSError):
            needed, free = needed_and_free(failed, folder)
            assert needed > free, str(failed)
        else:
            failed.unlink()


def test_the_error_names_the_read_only_folder(disk):
    write(disk / "s3d", make("a"))
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with pytest.raises(OSError) as refused:
        write(disk / "s3d", make("b"))
    assert ".partial" not in str(refused.value) and "full" not in str(refused.value)


def test_a_merge_on_a_full_disk_names_the_bytes_needed(disk, tmp_path):
    write(disk / "s3d", make("a"))
    write(tmp_path / "other", make("b", 3000))
    leave(disk, PAGE)
    needed_and_free(in_forked_child(lambda: maintenance.merge([tmp_path / "other"], disk / "s3d")), disk / "s3d")

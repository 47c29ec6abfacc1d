"""Stores whose life tests follow: videos, what is in a store, processes that are killed, damage."""

import os
import signal
import time
import traceback
import zlib
from collections import Counter

import h5py
import numpy as np
from vlalign.storage import FeatureStore
from vlalign.storage.shards.read import read_shard
from vlalign.storage.stores import maintenance
from vlalign.storage.stores.feature_store import shard_files

from helpers.stores import DIMENSION, video, write

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
    return [finding.message for finding in maintenance.verify(folder)]


def copies(folder):
    """How many shards have each video."""
    return Counter(
        video_id.decode() for path in shard_files(folder) for video_id in read_shard(path).videos["video_id"].tolist()
    )


def leftovers(folder):
    return sorted(folder.glob(".*"))


def extract(folder, videos, log, *, seconds=0.0, at=0.0):
    """As extraction does it: what the store has of the same file is not made again, and a shard is written for every
    few videos.

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


def through_h5py(path):
    with h5py.File(path, "r") as file:
        return {name: (file[name].dtype, file[name].shape, file[name][:].tobytes()) for name in file} | dict(file.attrs)


def history(folder, *, shards=8, first=0):
    """Shards with 16 videos of which some were replaced once or more; what counts in the end."""
    rng, latest = np.random.default_rng([shards, first]), {}
    for number in range(first, first + shards):
        videos = [make(f"v{n}", generation=number) for n in rng.choice(16, 5, replace=False)]
        write(folder, *videos, dtype=["float16", "float32"][number % 2])
        latest |= contents(videos)
    assert max(copies(folder).values()) > 1
    return latest

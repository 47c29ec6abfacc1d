"""Writing of feature shards."""

import contextlib
import errno
import math
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from ..common.system import write_at
from ..common.writing import make_folder, written_whole
from ..records import Profile, StoredVideo, VideoFeatures, Weights
from .format import EXTRACTED, INDEX_TYPES, ROW_TYPES, TEXT, Provenance, checksum, rest_crc32
from .names import shard_path
from .plan import Plan, block_of, lay_out
from .read import read_shard

GROUP_BYTES = 1 << 23
"""Features that a thread writes at once."""
MAX_PARTS = 1024
"""Buffers that one system call takes (IOV_MAX of Linux)."""


@dataclass(frozen=True, eq=False)
class VideoRows:
    """The rows of one video, ready to be written."""

    columns: Sequence[np.ndarray]
    """One array for each of ``COLUMNS``, in the types of the file."""
    checksum: int


def check_storable(video: VideoFeatures, profile: Profile, dtype: DTypeLike = "float16") -> None:
    """Raise ``ValueError`` for features of another dimension than the profile's, and values that ``dtype`` cannot
    hold.
    """
    if video.features.shape[1] != profile.dimension:
        raise ValueError(
            f"{video.video_id}: features of {video.features.shape[1]:,} values, the profile has {profile.dimension:,}"
        )
    if video.features.dtype == np.float16:
        # NumPy is slow with halves, so their bits are compared: non-finite values come last among those of each sign.
        # Most features have no negative values, and need only the first test.
        bits = np.ascontiguousarray(video.features)
        highest = bits.view(np.uint16).max(initial=0)
        fits = highest < 0x7C00 or (0x8000 <= highest < 0xFC00 and bits.view(np.int16).max() < 0x7C00)
        peak = np.abs(video.features).max() if not fits else 0
    else:
        peak = np.maximum(video.features.max(initial=0.0), -video.features.min(initial=0.0))
        fits = peak <= np.finfo(str(np.dtype(dtype))).max
    if not fits:
        raise ValueError(f"{video.video_id}: the features reach {peak}, which {np.dtype(dtype)} does not hold")


def write_shard(
    folder: Path | str,
    profile: Profile,
    weights: Weights,
    videos: Sequence[VideoFeatures],
    *,
    made_with: dict[str, str],
    origin: str = EXTRACTED,
    dtype: str = "float16",
) -> Path:
    """Write one shard that holds ``videos``: under a temporary name first, then flushed, checked and renamed.

    Args:
        folder: Folder of the store; created if missing.
        profile: How the features were made.
        weights: The weights that the model ran with.
        videos: Features [T, D] and times of each video.
        made_with: Versions of the programs that made the features, and what else ``Provenance.made_with`` has.
        origin: ``EXTRACTED``, or who stated the profile.
        dtype: Type that the features are stored in, float16 or float32.

    Returns:
        The path of the shard. Its name begins with the time, because of two shards with the same video the later one
        counts.

    Raises:
        ValueError: The features cannot be stored (``check_storable``).
        OSError: The disk is full, or cannot be written.
    """

    def rows_of(index: int) -> VideoRows:
        video = videos[index]
        check_storable(video, profile, dtype)
        columns = stored_columns(video, dtype)
        return VideoRows(columns, checksum(columns))

    provenance = Provenance(profile=profile, weights=weights, origin=origin, made_with=made_with)
    return write_rows(
        shard_path(Path(folder)), provenance, dtype, make_index([video.about for video in videos]), rows_of
    )


def stored_columns(video: VideoFeatures, dtype: DTypeLike) -> list[np.ndarray]:
    """Return the rows of a video in the types of the file, one array for each of ``COLUMNS``."""
    others = [getattr(video, name).astype(kind) for name, kind in ROW_TYPES.items()]
    return [video.features.astype(dtype, copy=False), *others]


def make_index(videos: Sequence[StoredVideo]) -> np.ndarray:
    """Return the ``videos`` table, without checksums yet.

    Raises ``ValueError`` for a text that contains a zero byte.
    """
    texts = {
        name: [getattr(video, name).encode() for video in videos] for name, kind in INDEX_TYPES.items() if kind == TEXT
    }
    for text in (text for column in texts.values() for text in column if b"\0" in text):
        raise ValueError(f"{text!r}: contains a zero byte, which a store cannot hold")
    widths = {name: f"S{max(map(len, [b' ', *column]))}" for name, column in texts.items()}
    table = np.zeros(len(videos), np.dtype([(name, widths.get(name, kind)) for name, kind in INDEX_TYPES.items()]))
    for name, column in texts.items():
        table[name] = column
    for name in ("num_rows", "duration_seconds"):
        table[name] = [getattr(video, name) for video in videos]
    table["first_row"] = np.cumsum(table["num_rows"]) - table["num_rows"]
    return table


def write_rows(
    path: Path, provenance: Provenance, dtype: str, table: np.ndarray, rows_of: Callable[[int], VideoRows]
) -> Path:
    """Write a shard with the videos of ``table`` (``make_index``).

    HDF5 lays the file out in memory. Its records and the rows then go to disk by plain writes, which report when they
    fail.

    Args:
        path: Final path of the shard.
        provenance: How the features were made.
        dtype: Type of the features.
        table: The index, without checksums.
        rows_of: Returns the rows of the video in row i of ``table``. Two threads call it, and each writes what it got
            while that is still in the processor's cache.
    """
    plan = lay_out(provenance, dtype, table)
    with room_for(plan.hdf5.size, path.parent), written_whole(path) as partial:
        with partial.open("x+b", buffering=0) as file:
            fd = file.fileno()
            file.truncate(plan.hdf5.size)
            for offset, part in plan.hdf5.parts.items():
                _write_all(fd, [part], offset)
            table = table.copy()
            table["checksum"] = _write_columns(fd, plan, table, rows_of)
            _write_all(fd, [table], plan.offsets["videos"])
            _write_all(fd, [block_of(plan, table, rest_crc32(partial, plan.first_byte, plan.column_ranges()))], 0)
        if not np.array_equal(read_shard(partial).videos, table):
            raise OSError("the data read back differ from what was written; check the disk")
    return path


def _write_columns(fd: int, plan: Plan, table: np.ndarray, rows_of: Callable[[int], VideoRows]) -> list[int]:
    """Write the rows of all videos; return their checksums.

    Features are written at once. The other columns, about 20 bytes a row, are collected and written together at the
    end.
    """

    def write_features(indices: range) -> list[VideoRows]:
        features, others = [], []
        for index in indices:
            rows = rows_of(index)
            if len(rows.columns[0]) != table["num_rows"][index]:
                video_id, expected = table["video_id"][index].decode(), table["num_rows"][index]
                raise ValueError(f"{len(rows.columns[0]):,} rows of {video_id!r}, expected {expected:,}")
            features.append(rows.columns[0])
            others.append(VideoRows(rows.columns[1:], rows.checksum))
        if indices:
            first_row = int(table["first_row"][indices[0]])
            _write_all(fd, features, plan.offsets["features"] + first_row * plan.row_bytes("features"))
        return others

    pool, written = ThreadPoolExecutor(2), []
    try:
        for others in pool.map(write_features, _groups(table["num_rows"] * plan.row_bytes("features"))):
            written += others
            os.fsync(fd)  # the disk works while more rows are prepared
    finally:
        pool.shutdown(cancel_futures=True)
    for position, name in enumerate(ROW_TYPES):
        _write_all(fd, [rows.columns[position] for rows in written], plan.offsets[name])
    return [rows.checksum for rows in written]


def _groups(num_bytes: np.ndarray) -> list[range]:
    """Return ranges of neighbouring videos that have about ``GROUP_BYTES`` together."""
    group = np.cumsum(num_bytes) // GROUP_BYTES
    borders = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(group)]
    return [range(low, high) for low, high in pairwise(borders)]


def _write_all(fd: int, parts: Sequence[np.ndarray | bytes], offset: int) -> None:
    """Write buffers one after the other, in few system calls: each call waits for the file, and then for Python's
    lock.
    """
    arrays = (np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else part for part in parts if len(part))
    left = deque(memoryview(array).cast("B") for array in arrays)
    while left:
        done = write_at(fd, list(islice(left, MAX_PARTS)), offset)
        offset += done
        while left and done >= left[0].nbytes:
            done -= left.popleft().nbytes
        if done:
            left[0] = left[0][done:]


@contextlib.contextmanager
def room_for(num_bytes: int, folder: Path) -> Iterator[None]:
    """Write a shard of ``num_bytes`` in the block; an ``OSError`` names the folder and says what to do."""
    make_folder(folder)
    try:
        if shutil.disk_usage(folder).free < num_bytes:
            raise OSError(errno.ENOSPC, "not enough")
        yield
    except OSError as error:
        if error.errno == errno.EROFS:
            raise OSError(f"{folder}: read-only file system, a shard cannot be written; pass another --root") from None
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(f"{folder}: a shard could not be written there ({error.strerror or error})") from error
        needed, free = math.ceil(num_bytes / 1e4) / 100, math.floor(shutil.disk_usage(folder).free / 1e4) / 100
        raise OSError(
            f"{folder}: disk full: a shard needs {needed:,.2f} MB, {free:,.2f} MB are free; make room, or pass another "
            "--root; finished work is kept"
        ) from None

"""Writing of feature shards: HDF5 lays the file out in memory, and plain writes fill it."""

import contextlib
import errno
import json
import math
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import DTypeLike

from ..common.system import write_at
from ..common.writing import NO_ROOM, atomic_write, make_folder
from ..records import Profile, StoredVideo, VideoFeatures, Weights
from ..untrusted.hdf5 import MemoryFile
from .format import (
    BLOCK_BYTES,
    COLUMNS,
    EXTRACTED,
    INDEX_TYPES,
    ROW_TYPES,
    TEXT,
    Provenance,
    checksum,
    crc32,
    rest_crc32,
    row_types,
    schema_of,
)
from .names import NewShardNames
from .read import read_shard

ALIGNMENT = 4096
"""Data sets begin at multiples of this, the size of a memory page."""
GROUP_BYTES = 1 << 23
"""Size of the features that a thread writes at once."""
MAX_PARTS = 1024
"""Buffers that one system call takes (IOV_MAX of Linux)."""


@dataclass(frozen=True, eq=False)
class VideoRows:
    """The rows of one video, ready to be written."""

    columns: Sequence[np.ndarray]
    """One array for each of ``COLUMNS``, in the types of the file."""
    checksum: int


def check_storable(video: VideoFeatures, profile: Profile, dtype: DTypeLike = "float16") -> None:
    """Check that the features of a video can be stored.

    Args:
        video: Features [T, D] of the video.
        profile: Profile of the store.
        dtype: Type that the features will be stored in.

    Raises:
        ValueError: The features have another dimension than the profile's or values that ``dtype`` cannot hold, or are
            frames that are not uint8.

    Example:
        >>> from dataclasses import replace
        >>> from vlalign.storage import check_storable, open_store
        >>> store = open_store("vlalign_data/demo/features/s3d")
        >>> video = store.get("demo0000")
        >>> check_storable(video, store.profile)
        >>> check_storable(replace(video, features=video.features[:, :8]), store.profile)
        Traceback (most recent call last):
            ...
        ValueError: demo0000: features of 8 values, the profile has 1,024
    """
    if video.features.shape[1] != profile.dimension:
        raise ValueError(
            f"{video.video_id}: features of {video.features.shape[1]:,} values, the profile has {profile.dimension:,}"
        )
    if (np.dtype(dtype) == np.uint8) != profile.is_frames:
        allowed = " or ".join(row_types(profile))
        raise ValueError(f"{video.video_id}: {profile.name} is stored as {allowed}, not as {np.dtype(dtype)}")
    if profile.is_frames:
        if video.features.dtype != np.uint8:
            raise ValueError(f"{video.video_id}: frames must be uint8, got {video.features.dtype}")
        return
    if video.features.dtype == np.float16:
        # NumPy is slow with float16, so bits are compared: for each sign, non-finite values have the highest bits. Most
        # features have no negative values, and need only the first test.
        bits = np.ascontiguousarray(video.features)
        highest = bits.view(np.uint16).max(initial=0)
        fits = highest < 0x7C00 or (0x8000 <= highest < 0xFC00 and bits.view(np.int16).max() < 0x7C00)
        peak = np.abs(video.features).max() if not fits else 0
    else:
        peak = np.maximum(video.features.max(initial=0.0), -video.features.min(initial=0.0))
        fits = peak <= np.finfo(str(np.dtype(dtype))).max
    if not fits and not np.isfinite(peak):  # the only fault that float16 input can have
        raise ValueError(f"{video.video_id}: the features contain {peak}; expected finite values")
    if not fits:
        raise ValueError(f"{video.video_id}: the features reach {peak}, out of range for {np.dtype(dtype)}")


def write_shard(
    folder: Path | str,
    profile: Profile,
    weights: Weights,
    videos: Sequence[VideoFeatures],
    *,
    made_with: dict[str, str],
    origin: str = EXTRACTED,
    dtype: str = "float16",
    names: NewShardNames | None = None,
) -> Path:
    """Write one shard that holds ``videos``: under a temporary name first, then flushed, checked and renamed.

    Args:
        folder: Folder of the store; created if missing.
        profile: How the features were made.
        weights: The weights that the model ran with.
        videos: Features [T, D] and times of each video.
        made_with: Versions of the programs that made the features, and other facts (``Provenance.made_with``).
        origin: ``EXTRACTED``, or who stated the profile.
        dtype: Type that the features are stored in, float16 or float32; uint8 for frames.
        names: Names for the new shards of one writer in ``folder``; None to list the folder for this shard.

    Returns:
        The path of the shard. Its name begins with the time of writing: if two shards have the same video, the later
        one is used.

    Raises:
        ValueError: The features cannot be stored (``check_storable``).
        OSError: The disk is full, or cannot be written.

    Example:
        >>> from vlalign.storage import open_store, write_shard
        >>> store = open_store("vlalign_data/demo/features/s3d")
        >>> path = write_shard("one-shard/s3d", store.profile, store.weights, [store.get("demo0000")], made_with={})
        >>> open_store("one-shard/s3d").video_ids()
        ['demo0000']
    """

    def rows_of(index: int) -> VideoRows:
        video = videos[index]
        check_storable(video, profile, dtype)
        columns = stored_columns(video, dtype)
        return VideoRows(columns, checksum(columns))

    provenance = Provenance(profile=profile, weights=weights, origin=origin, made_with=made_with)
    path = (names or NewShardNames(Path(folder))).next()
    return write_rows(path, provenance, dtype, make_index([video.about for video in videos]), rows_of)


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
        rows_of: Returns the rows of the video in row i of ``table``. Two threads call it; each writes the rows at once,
            while they are still in the processor's cache.
    """
    plan = lay_out(provenance, dtype, table)
    with require_disk_space(plan.hdf5.size, path.parent), atomic_write(path) as partial:
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


@dataclass(frozen=True, eq=False)
class Plan:
    """A shard before its rows are written."""

    provenance: Provenance
    dtype: np.dtype
    num_rows: int
    first_byte: int
    """Offset of the HDF5 part."""
    hdf5: MemoryFile
    """Everything that HDF5 itself writes."""
    offsets: dict[str, int]
    """Offset of each data set."""

    def row_bytes(self, column: str) -> int:
        """Return the size of one row of a column."""
        if column == "features":
            return self.provenance.profile.dimension * self.dtype.itemsize
        return np.dtype(ROW_TYPES[column]).itemsize

    def column_ranges(self) -> list[tuple[int, int]]:
        """Return the bytes [first, last) of each column, in the order of the file."""
        return sorted((self.offsets[c], self.offsets[c] + self.num_rows * self.row_bytes(c)) for c in COLUMNS)


def lay_out(provenance: Provenance, dtype: str, table: np.ndarray) -> Plan:
    """Let HDF5 write the file without its rows."""
    attributes, num_rows = provenance.attributes(), int(table["num_rows"].sum())
    first_byte, memory = _block_bytes(provenance), MemoryFile()
    with h5py.File(
        memory, "w", userblock_size=first_byte, alignment_threshold=ALIGNMENT, alignment_interval=ALIGNMENT
    ) as file:
        for name in COLUMNS:
            kind = np.dtype(ROW_TYPES.get(name, dtype)).newbyteorder("<")
            creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            shape = (num_rows, provenance.profile.dimension) if name == "features" else (num_rows,)
            space = h5py.h5s.create_simple(shape)
            h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(kind, logical=True), space, creation)
        kinds = {name: table.dtype[name] for name in INDEX_TYPES}
        texts = {name: h5py.string_dtype("utf-8", kind.itemsize) for name, kind in kinds.items() if kind.kind == "S"}
        file.create_dataset("videos", data=table.astype(np.dtype(list((kinds | texts).items()))))
        file.attrs.update({k: v for k, v in attributes.items() if k != "made_with"} | provenance.made_with)
        offsets = {name: _offset_of(file, name, first_byte) for name in (*COLUMNS, "videos")}
    return Plan(provenance, np.dtype(dtype), num_rows, first_byte, memory, offsets)


def _offset_of(file: h5py.File, name: str, empty: int) -> int:
    """Return the offset of a data set in the file; ``empty`` if it has no values."""
    dataset = file[name]
    assert isinstance(dataset, h5py.Dataset)
    return dataset.id.get_offset() if dataset.size else empty


def _block_bytes(provenance: Provenance) -> int:
    needed = 2048 + len(json.dumps(provenance.attributes()))
    return max(BLOCK_BYTES, 1 << (needed - 1).bit_length())


def block_of(plan: Plan, table: np.ndarray, rest: int) -> bytes:
    """Return the first block of a shard.

    Args:
        plan: The layout of the shard.
        table: The index, with checksums.
        rest: Checksum of the HDF5 part except the rows (``rest_crc32``).
    """
    about = {
        "attributes": plan.provenance.attributes(),
        "dtype": plan.dtype.newbyteorder("<").str,
        "num_rows": plan.num_rows,
        "num_bytes": plan.hdf5.size,
        "offsets": {name: plan.offsets[name] for name in COLUMNS},
        "rest_crc32": rest,
        "videos": {
            "offset": plan.offsets["videos"],
            "count": len(table),
            "crc32": crc32(table.tobytes()),
            "dtype": [[name, table.dtype[name].str] for name in table.dtype.names or ()],
        },
    }
    schema = schema_of(plan.provenance.profile)
    first = "vlalign feature shard, schema {}, HDF5 from byte {}, crc32 of this block from here on {:08x}\n"
    padded = json.dumps(about).encode().ljust(plan.first_byte - len(first.format(schema, plan.first_byte, 0)))
    return first.format(schema, plan.first_byte, crc32(padded)).encode() + padded


def _write_columns(fd: int, plan: Plan, table: np.ndarray, rows_of: Callable[[int], VideoRows]) -> list[int]:
    """Write the rows of all videos; return their checksums.

    Features are written group by group (``_groups``). The other columns, about 20 bytes a row, are collected and
    written together at the end.
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
    """Write buffers one after the other, in few system calls: each waits for the file's lock, then for the GIL."""
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
def require_disk_space(num_bytes: int, folder: Path) -> Iterator[None]:
    """Check that a shard of ``num_bytes`` fits into the folder; create the folder if it is missing.

    Every ``OSError``, including errors in the ``with`` block that writes the shard, names the folder.
    """
    make_folder(folder)
    try:
        if shutil.disk_usage(folder).free < num_bytes:
            raise OSError(errno.ENOSPC, "not enough")
        yield
    except OSError as error:
        if error.errno == errno.EROFS:
            raise OSError(f"{folder}: read-only file system, a shard cannot be written; pass another --root") from None
        if error.errno not in NO_ROOM:
            raise OSError(f"{folder}: a shard could not be written there ({error.strerror or error})") from error
        needed, free = math.ceil(num_bytes / 1e4) / 100, math.floor(shutil.disk_usage(folder).free / 1e4) / 100
        raise OSError(
            f"{folder}: disk full: a shard needs {needed:,.2f} MB, {free:,.2f} MB are free; make room, or pass another "
            "--root; what is on disk is kept"
        ) from None

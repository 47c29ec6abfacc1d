"""Writes feature shards."""

import contextlib
import errno
import json
import math
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import DTypeLike

from ..files import written_whole
from ..hdf5 import Layout
from ..records import Profile, VideoFeatures, Weights
from ..shard_names import shard_path
from .format import (
    ALIGNMENT,
    BLOCK_BYTES,
    COLUMNS,
    EXTRACTED,
    GROUP_BYTES,
    INDEX_TYPES,
    MOST_PARTS,
    ROW_TYPES,
    SCHEMA,
    SHORT_BYTES,
    TEXT,
    checksum,
    crc32,
    rest_crc32,
)
from .read import read_shard


def check_storable(video: VideoFeatures, profile: Profile, dtype: DTypeLike = "float16") -> None:
    """Raises ``ValueError`` for features that are not as wide as the profile says, not finite, or that ``dtype`` cannot hold."""
    if video.features.shape[1] != profile.dimension:
        raise ValueError(
            f"{video.video_id}: features of {video.features.shape[1]:,} values, the profile has {profile.dimension:,}"
        )
    if video.features.dtype == np.float16:
        # By their bits, as NumPy computes with halves one by one: what is not finite is the last of both signs. Many features have none
        # below zero, and are looked through once.
        bits = np.ascontiguousarray(video.features)
        last = bits.view(np.uint16).max(initial=0)
        finite = last < 0x7C00 or (0x8000 <= last < 0xFC00 and bits.view(np.int16).max() < 0x7C00)
        peak = np.abs(video.features).max() if not finite else 0
    else:
        peak = np.maximum(video.features.max(initial=0.0), -video.features.min(initial=0.0))
        finite = peak <= np.finfo(dtype).max
    if not finite:
        raise ValueError(f"{video.video_id}: the features reach {peak}, which {np.dtype(dtype)} does not hold")


def write_shard(
    folder: Path,
    profile: Profile,
    weights: Weights,
    videos: Sequence[VideoFeatures],
    *,
    made_with: dict[str, str],
    origin: str = EXTRACTED,
    dtype: str = "float16",
) -> Path:
    """One shard with all of ``videos``: written under a temporary name, flushed, and only then named.

    Names begin with the time, so that of two shards with the same video the later one counts. ``made_with``: versions of
    the programs that made the features. Raises ``ValueError`` for features that cannot be stored, ``OSError`` where there is no room.
    """

    def prepared(video: VideoFeatures) -> tuple[list[np.ndarray], int]:
        check_storable(video, profile, dtype)
        columns = [
            video.features.astype(dtype, copy=False),
            *(getattr(video, name).astype(t) for name, t in ROW_TYPES.items()),
        ]
        return columns, checksum(columns)

    table = index_of(
        [(v.video_id, len(v.features), v.duration_seconds, v.source, v.decoder, v.partial) for v in videos]
    )
    attributes = attributes_of(profile, weights, origin, made_with)
    return write_rows(
        shard_path(folder), attributes, profile.dimension, dtype, table, lambda number: prepared(videos[number])
    )


def attributes_of(profile: Profile, weights: Weights, origin: str, made_with: dict[str, str]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "profile": profile.to_json(),
        "profile_hash": profile.hash,
        "weights": weights.name,
        "weights_sha256": weights.sha256,
        "origin": origin,
        "made_with": made_with,
    }


def index_of(videos: Sequence[tuple[str, int, float, str, str, str]]) -> np.ndarray:
    """The ``videos`` table, of (video id, number of rows, seconds, source, decoder, partial) each; without checksums yet."""
    columns = dict(
        zip(
            ("video_id", "num_rows", "duration_seconds", "source", "decoder", "partial"),
            zip(*videos, strict=True),
            strict=False,
        )
    )
    texts = {
        name: [text.encode() for text in columns.get(name, ())] for name, kind in INDEX_TYPES.items() if kind == TEXT
    }
    for text in (text for column in texts.values() for text in column if b"\0" in text):
        raise ValueError(f"{text!r}: a zero byte in it, which no store holds")
    widths = {name: f"S{max(map(len, [b' ', *column]))}" for name, column in texts.items()}
    table = np.zeros(len(videos), np.dtype([(name, widths.get(name, kind)) for name, kind in INDEX_TYPES.items()]))
    for name, values in (columns | texts).items():
        table[name] = values
    table["first_row"] = np.cumsum(table["num_rows"]) - table["num_rows"]
    return table


def write_rows(
    path: Path,
    attributes: dict[str, Any],
    dimension: int,
    dtype: str,
    table: np.ndarray,
    rows_of: Callable[[int], tuple[Sequence[np.ndarray], int]],
) -> Path:
    """A shard with the videos of ``table``. ``rows_of`` gives for each, by its number, the columns and their checksum; it is called
    by two threads, each of which writes what it got while it is still in the processor's cache.

    HDF5 lays the file out in memory; what it wrote, and the rows in their places, then go to disk by plain writes, which say when
    they fail.
    """
    num_rows, first_byte = int(table["num_rows"].sum()), _block_bytes(attributes)
    layout, offsets = _lay_out(attributes, dimension, dtype, num_rows, table)
    row_bytes = dimension * np.dtype(dtype).itemsize
    with room_for(layout.size, path.parent), written_whole(path) as partial:
        with partial.open("x+b", buffering=0) as file:
            fd = file.fileno()
            file.truncate(layout.size)
            for place, part in layout.parts.items():
                _write_all(fd, [part], place)

            def write(numbers: range) -> list[tuple[Sequence[np.ndarray], int]]:
                """Features at once; the other columns, some 20 bytes a row, are returned, to be written all together."""
                rows, others = [], []
                for number in numbers:
                    (features, *short), crc = rows_of(number)
                    if len(features) != table["num_rows"][number]:
                        video_id, expected = table["video_id"][number].decode(), table["num_rows"][number]
                        raise ValueError(f"{len(features):,} rows of {video_id!r}, expected {expected:,}")
                    rows.append(features)
                    others.append((short, crc))
                if numbers:
                    _write_all(fd, rows, offsets["features"] + int(table["first_row"][numbers[0]]) * row_bytes)
                return others

            pool, written = ThreadPoolExecutor(2), []
            try:
                for others in pool.map(write, _groups(table["num_rows"] * row_bytes)):
                    written += others
                    os.fsync(fd)  # the disk works while more is prepared
            finally:
                pool.shutdown(cancel_futures=True)
            for place, name in enumerate(ROW_TYPES):
                _write_all(fd, [short[place] for short, _ in written], offsets[name])
            ranges = sorted(
                (offsets[n], offsets[n] + num_rows * size)
                for n, size in zip(COLUMNS, (row_bytes, *SHORT_BYTES), strict=True)
            )
            table = table.copy()
            table["checksum"] = [crc for _, crc in written]
            _write_all(fd, [table], offsets["videos"])
            about = {
                "attributes": attributes,
                "dtype": np.dtype(dtype).newbyteorder("<").str,
                "num_rows": num_rows,
                "num_bytes": layout.size,
                "offsets": {name: offsets[name] for name in COLUMNS},
                "rest_crc32": rest_crc32(partial, first_byte, ranges),
                "videos": {
                    "offset": offsets["videos"],
                    "count": len(table),
                    "crc32": crc32(table.tobytes()),
                    "dtype": [[name, table.dtype[name].str] for name in table.dtype.names],
                },
            }
            _write_all(fd, [_block(about, first_byte)], 0)
        if not np.array_equal(read_shard(partial).videos, table):
            raise OSError("what was read back is not what was written; is the disk broken?")
    return path


def _groups(num_bytes: np.ndarray) -> list[range]:
    """Neighbours, of about ``GROUP_BYTES`` together: what a thread does at once."""
    group = np.cumsum(num_bytes) // GROUP_BYTES
    borders = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(group)]
    return [range(low, high) for low, high in pairwise(borders)]


def _lay_out(
    attributes: dict[str, Any], dimension: int, dtype: str, num_rows: int, table: np.ndarray
) -> tuple[Layout, dict[str, int]]:
    """The file without its rows, as HDF5 lays it out, and where each data set begins."""
    layout, first_byte = Layout(), _block_bytes(attributes)
    with h5py.File(
        layout, "w", userblock_size=first_byte, alignment_threshold=ALIGNMENT, alignment_interval=ALIGNMENT
    ) as file:
        for name in COLUMNS:
            kind = np.dtype(ROW_TYPES.get(name, dtype)).newbyteorder("<")
            creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            space = h5py.h5s.create_simple((num_rows, dimension) if name == "features" else (num_rows,))
            h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(kind, logical=True), space, creation)
        kinds = {name: table.dtype[name] for name in INDEX_TYPES}
        texts = {name: h5py.string_dtype("utf-8", kind.itemsize) for name, kind in kinds.items() if kind.kind == "S"}
        file.create_dataset("videos", data=table.astype(np.dtype(list((kinds | texts).items()))))
        file.attrs.update({k: v for k, v in attributes.items() if k != "made_with"} | attributes["made_with"])
        offsets = {name: file[name].id.get_offset() if file[name].size else first_byte for name in (*COLUMNS, "videos")}
    return layout, offsets


def _block_bytes(attributes: dict[str, Any]) -> int:
    needed = 2048 + len(json.dumps(attributes))
    return max(BLOCK_BYTES, 1 << (needed - 1).bit_length())


def _block(about: dict[str, Any], num_bytes: int) -> bytes:
    first = "vlalign feature shard, schema {}, HDF5 from byte {}, crc32 of this block from here on {:08x}\n"
    rest = json.dumps(about).encode().ljust(num_bytes - len(first.format(SCHEMA, num_bytes, 0)))
    return first.format(SCHEMA, num_bytes, crc32(rest)).encode() + rest


def _write_all(fd: int, parts: Sequence[np.ndarray | bytes], offset: int) -> None:
    """One after the other, in as few calls as the system allows: each waits for the file, and for Python's lock after it."""
    arrays = (np.ascontiguousarray(part) if isinstance(part, np.ndarray) else part for part in parts if len(part))
    left = deque(memoryview(array).cast("B") for array in arrays)
    while left:
        done = os.pwritev(fd, list(islice(left, MOST_PARTS)), offset)
        offset += done
        while left and done >= left[0].nbytes:
            done -= left.popleft().nbytes
        if done:
            left[0] = left[0][done:]


@contextlib.contextmanager
def room_for(num_bytes: int, folder: Path) -> Iterator[None]:
    """Says what is needed where a disk is full, or will be."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if shutil.disk_usage(folder).free < num_bytes:
            raise OSError(errno.ENOSPC, "not enough")
        yield
    except OSError as error:
        if error.errno == errno.EROFS:
            raise OSError(f"{folder}: read-only; nothing can be written there; pass another --root") from None
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(f"{folder}: a shard could not be written there ({error.strerror or error})") from error
        needed, free = math.ceil(num_bytes / 1e4) / 100, math.floor(shutil.disk_usage(folder).free / 1e4) / 100
        raise OSError(
            f"{folder}: no room there: a shard needs {needed:,.2f} MB, {free:,.2f} MB are free; make room, or pass another --root; "
            "what was finished before is kept"
        ) from None

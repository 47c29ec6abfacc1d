"""Read feature shards: their metadata, and their rows."""

import json
import math
import mmap
import os
import re
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import UserError, unreadable
from ..common.system import BINARY_CLOEXEC, NONBLOCK, advise, read_at
from ..common.validation import is_text
from ..records import Profile, Weights
from .format import (
    BLOCK_BYTES,
    COLUMNS,
    FIRST_LINE,
    FRAMES_SCHEMA,
    INDEX_TYPES,
    MAX_BLOCK_BYTES,
    MAX_INDEX_BYTES,
    ROW_TYPES,
    SCHEMA,
    OtherSchema,
    Shard,
    Unreadable,
    checksum,
    crc32,
    rest_crc32,
    row_types,
    schema_of,
)


def read_shard(path: Path) -> Shard:
    """Read the metadata of a shard.

    Block and index are compared with their checksums, and impossible values are refused. The checksums of the rows are
    compared when the rows are read.

    Raises:
        OtherSchema: Another version of vlalign wrote the shard.
        Unreadable: The system cannot read the file now.
        UserError: The file is damaged, or not a shard.
        FileNotFoundError: There is no such file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | BINARY_CLOEXEC | NONBLOCK)  # does not wait for a pipe
        try:
            return _parse(path, fd)
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise
    except IsADirectoryError:
        raise UserError(f"{path}: a folder; expected a feature shard; remove it") from None
    except OSError as error:
        raise Unreadable(f"{path}: cannot be read now ({error.strerror or error})") from None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        todo = "drop it with vlalign-store repair, then run vlalign-extract again"
        raise unreadable(path, "not a readable feature shard", error, todo) from None


def _parse(path: Path, fd: int) -> Shard:
    mode, size = os.fstat(fd).st_mode, os.fstat(fd).st_size
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # reading a folder raises its own error
        raise ValueError("a pipe or a device, expected a file")
    schema, first_byte, about = _read_block(path, fd)
    _check_types(about)
    if about["num_bytes"] != size:
        raise ValueError(f"has {size:,} of its {about['num_bytes']:,} bytes")
    attributes = about["attributes"]
    profile = _profile(attributes["profile"])
    shard = Shard(
        path=path,
        profile=profile,
        weights=Weights(name=attributes["weights"], sha256=attributes["weights_sha256"]),
        origin=attributes["origin"],
        made_with=attributes["made_with"],
        dtype=np.dtype(about["dtype"]),
        num_rows=about["num_rows"],
        num_bytes=size,
        videos=_read_index(fd, about["videos"], size),
        offsets={name: about["offsets"][name] for name in COLUMNS},
        first_byte=first_byte,
        rest_crc32=about["rest_crc32"],
    )
    if shard.dtype.name not in row_types(profile) or profile.hash != attributes["profile_hash"]:
        raise ValueError("impossible profile or data type")
    if schema != schema_of(profile):
        raise ValueError(f"schema {schema}, expected {schema_of(profile)} for its profile")
    _check_rows(shard)
    return shard


def _read_block(path: Path, fd: int) -> tuple[int, int, dict[str, Any]]:
    """Return the schema, the size of the block, and its JSON."""
    block = read_at(fd, BLOCK_BYTES, 0)
    first = FIRST_LINE.match(block)
    if first is None:
        raise ValueError("wrong first line")
    schema, first_byte = int(first[1]), int(first[2])
    if schema not in (SCHEMA, FRAMES_SCHEMA):
        raise OtherSchema(
            f"{path}: schema {schema}, this vlalign reads {SCHEMA} and {FRAMES_SCHEMA}; extract again with this "
            "version, or use the version that wrote it"
        )
    if not BLOCK_BYTES <= first_byte <= MAX_BLOCK_BYTES:
        raise ValueError("its first block has an impossible size")
    if first_byte > BLOCK_BYTES:
        block = read_at(fd, first_byte, 0)
    if len(block) != first_byte or f"{crc32(block[first.end() :]):08x}".encode() != first[3]:
        raise ValueError("its first block is damaged")
    return schema, first_byte, json.loads(block[first.end() :])


def _check_types(about: dict[str, Any]) -> None:
    """Raise an error if a value that is used without a further check has another type than expected."""
    index, attributes = about["videos"], about["attributes"]
    texts = [attributes[name] for name in ("origin", "weights", "weights_sha256", "profile", "profile_hash")]
    if not all(map(is_text, (*texts, *attributes["made_with"].keys(), *attributes["made_with"].values()))):
        raise ValueError("an attribute is not a text")
    integers = [
        *(about[name] for name in ("num_bytes", "num_rows", "rest_crc32")),
        *(index[name] for name in ("count", "offset", "crc32")),
        *about["offsets"].values(),
    ]
    if not all(type(value) is int and 0 <= value < 1 << 63 for value in integers):
        raise ValueError("a size or an offset is not a valid integer")


def _read_index(fd: int, index: dict[str, Any], file_bytes: int) -> np.ndarray:
    dtype = _index_dtype(tuple((name, kind) for name, kind in index["dtype"]))
    if not 0 <= index["count"] * dtype.itemsize <= file_bytes:
        raise ValueError("its index ends outside of the file")
    content = read_at(fd, index["count"] * dtype.itemsize, index["offset"])
    if crc32(content) != index["crc32"]:
        raise ValueError("its index is damaged")
    return np.frombuffer(content, dtype)


def _check_rows(shard: Shard) -> None:
    lengths, first_rows = shard.videos["num_rows"], shard.videos["first_row"]
    if (lengths < 0).any() or lengths.sum() != shard.num_rows or (np.cumsum(lengths) - lengths != first_rows).any():
        raise ValueError("its videos do not add up to its rows")
    if any(not shard.first_byte <= first <= last <= shard.num_bytes for first, last in shard.column_ranges()):
        raise ValueError("its rows end outside of the file")


@lru_cache(maxsize=1024)
def _index_dtype(columns: tuple[tuple[str, str], ...]) -> np.dtype:
    kinds = dict(columns)
    if kinds.keys() != INDEX_TYPES.keys() or not all(
        re.fullmatch(INDEX_TYPES[name], kind) for name, kind in kinds.items()
    ):
        raise ValueError("its index has unexpected columns")
    return np.dtype(list(kinds.items()))


@lru_cache(maxsize=64)
def _profile(text: str) -> Profile:
    return Profile.from_json(text)


@dataclass(frozen=True)
class BlockLayout:
    """The layout of a shard as its beginning states it, read before the whole shard has arrived."""

    block_bytes: int
    """Size of the first block."""
    index: tuple[int, int] | None
    """Bytes [first, last) of the index; None if the block is not complete."""
    num_bytes: int
    """Size of the shard; 0 if the block is not complete."""


def read_layout(block: bytes) -> BlockLayout:
    """Return the positions of a shard's parts.

    Args:
        block: The first bytes of the shard, at least ``BLOCK_BYTES``.

    Raises:
        ValueError, KeyError, TypeError: This is not the beginning of a shard.
    """
    first = FIRST_LINE.match(block)
    if first is None or not BLOCK_BYTES <= int(first[2]) <= MAX_BLOCK_BYTES:
        raise ValueError("wrong first line")
    if len(block) < int(first[2]):
        return BlockLayout(int(first[2]), None, 0)
    about = json.loads(block[first.end() :])
    index, num_bytes = about["videos"], about["num_bytes"]
    length = index["count"] * _index_dtype(tuple((name, kind) for name, kind in index["dtype"])).itemsize
    if length > MAX_INDEX_BYTES or not 0 <= index["offset"] <= index["offset"] + length <= num_bytes:
        raise ValueError("its index ends outside of the file, or is too large")
    return BlockLayout(int(first[2]), (index["offset"], index["offset"] + length), num_bytes)


class ShardRows:
    """The rows of a shard, mapped into memory; threads and forked processes may read them without a lock.

    ``columns`` are read-only arrays over the file, valid for as long as anything refers to them. As with all mapped
    files, the process ends (SIGBUS) if the file is truncated or the disk fails while they are read.
    """

    def __init__(self, shard: Shard) -> None:
        """Map the file. Raises ``UserError`` if it changed since its index was read."""
        self.shard = shard
        with shard.path.open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != shard.num_bytes:
                raise UserError(
                    f"{shard.path}: changed since its index was read; run vlalign-store verify {shard.path.parent}"
                )
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.columns: dict[str, np.ndarray] = {}
        for name, offset in shard.offsets.items():
            dtype, shape = shard.row_type(name)
            values = np.frombuffer(self._map, dtype, shard.num_rows * math.prod(shape), offset)
            self.columns[name] = values.reshape(-1, *shape)
        self.features = self.columns["features"]
        self.first_rows: list[int] = shard.videos["first_row"].tolist()
        self.num_rows: list[int] = shard.videos["num_rows"].tolist()
        self._features_offset, self._row_bytes = shard.offsets["features"], shard.row_bytes("features")
        # The times of all videos are small: they are read at once.
        starts = [shard.offsets[name] for name in ROW_TYPES]
        ends = [shard.offsets[name] + shard.num_rows * shard.row_bytes(name) for name in ROW_TYPES]
        self._prefetch(min(starts), max(ends))

    def expect_few_rows(self) -> None:
        """Tell the system that few rows are used: it then reads only accessed or prefetched rows.

        Otherwise it reads 128 kB or more around each accessed row; for frames, most of that is not needed.
        """
        advise(self._map, "MADV_RANDOM")

    def prefetch(self, first: int, last: int) -> int:
        """Ask the system to read rows [first, last) of the features ahead; return their size in bytes.

        A disk reads many requests at once faster than one after the other.
        """
        offset, size = self._features_offset, self._row_bytes
        return self._prefetch(offset + first * size, offset + last * size)

    def _prefetch(self, start: int, end: int) -> int:
        if end > start:
            page = start - start % mmap.PAGESIZE
            advise(self._map, "MADV_WILLNEED", page, end - page)
        return max(end - start, 0)

    def rows_of(self, index: int) -> list[np.ndarray]:
        """Return the rows of the video in row ``index`` of the index, one array for each of ``COLUMNS``."""
        first, last = self.first_rows[index], self.first_rows[index] + self.num_rows[index]
        return [self.columns[name][first:last] for name in COLUMNS]

    def is_damaged(self, index: int) -> bool:
        """Return True if the rows of a video differ from the written ones."""
        return checksum(self.rows_of(index)) != self.shard.videos["checksum"][index]


def damaged_videos(rows: ShardRows) -> list[int]:
    """Return the numbers in the index of the videos whose rows differ from the written ones."""
    return [index for index in range(len(rows.shard.videos)) if rows.is_damaged(index)]


def rest_is_damaged(shard: Shard) -> bool:
    """Return True if anything in the HDF5 part except the rows differs from the written file."""
    return rest_crc32(shard.path, shard.first_byte, shard.column_ranges()) != shard.rest_crc32

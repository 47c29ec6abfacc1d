"""Reads a feature shard: what it says of itself, and its rows."""

import json
import math
import mmap
import os
import re
import stat
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import UserError
from ..records import Profile, Weights, is_text
from .format import (
    BLOCK_BYTES,
    COLUMNS,
    FIRST_LINE,
    INDEX_TYPES,
    MOST_BLOCK_BYTES,
    MOST_INDEX_BYTES,
    ROW_TYPES,
    SCHEMA,
    OtherSchema,
    Shard,
    Unreadable,
    checksum,
    column_ranges,
    crc32,
    rest_crc32,
    row_bytes,
)


def read_shard(path: Path) -> Shard:
    """Checks block and index against their checksums, and that what they say is possible; the rows' own checksums are for whoever
    reads the rows. Raises ``OtherSchema``, ``Unreadable``, ``UserError`` for what is no shard or a damaged one, ``FileNotFoundError``."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe is not waited for
        try:
            return _parse(path, fd)
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        if isinstance(error, IsADirectoryError):
            raise UserError(f"{path}: not a readable feature shard, but a folder; remove it") from None
        raise Unreadable(f"{path}: cannot be read now ({error.strerror or error})") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UserError(
            f"{path}: not a readable feature shard ({str(error) or type(error).__name__}); drop it with vlalign-store repair, then "
            "run vlalign-extract again"
        ) from None


def _parse(path: Path, fd: int) -> Shard:
    mode, size = os.fstat(fd).st_mode, os.fstat(fd).st_size
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # reading a folder has its own error
        raise ValueError("it is no file, but a pipe or a device")
    block = os.pread(fd, BLOCK_BYTES, 0)
    first = FIRST_LINE.match(block)
    if first is None:
        raise ValueError("its first line does not say so")
    schema, first_byte = int(first[1]), int(first[2])
    if schema != SCHEMA:
        raise OtherSchema(
            f"{path}: schema {schema}, this vlalign reads {SCHEMA}; extract again with this version, or use that one"
        )
    if not BLOCK_BYTES <= first_byte <= MOST_BLOCK_BYTES:
        raise ValueError("its block has no possible size")
    if first_byte > BLOCK_BYTES:
        block = os.pread(fd, first_byte, 0)
    if len(block) != first_byte or f"{crc32(block[first.end() :]):08x}".encode() != first[3]:
        raise ValueError("its first block is damaged")
    about = json.loads(block[first.end() :])
    _check_types(about)
    if about["num_bytes"] != size:
        raise ValueError(f"it has {size:,} of its {about['num_bytes']:,} bytes")
    index, attributes = about["videos"], about["attributes"]
    dtype = _index_dtype(tuple((name, kind) for name, kind in index["dtype"]))
    if not 0 <= index["count"] * dtype.itemsize <= size:
        raise ValueError("its index lies outside of it")
    content = os.pread(fd, index["count"] * dtype.itemsize, index["offset"])
    if crc32(content) != index["crc32"]:
        raise ValueError("its index is damaged")
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
        videos=np.frombuffer(content, dtype),
        offsets={name: about["offsets"][name] for name in COLUMNS},
        first_byte=first_byte,
        rest_crc32=about["rest_crc32"],
    )
    lengths = shard.videos["num_rows"]
    if shard.dtype not in (np.float16, np.float32) or profile.hash != attributes["profile_hash"]:
        raise ValueError("its profile or type is not possible")
    if (
        (lengths < 0).any()
        or lengths.sum() != shard.num_rows
        or (np.cumsum(lengths) - lengths != shard.videos["first_row"]).any()
    ):
        raise ValueError("its videos do not add up to its rows")
    if any(not first_byte <= first <= last <= size for first, last in column_ranges(shard)):
        raise ValueError("its rows lie outside of it")
    return shard


def _check_types(about: dict[str, Any]) -> None:
    """Raises ``TypeError`` and ``KeyError`` where a value that is used without another look is of another type."""
    index, attributes = about["videos"], about["attributes"]
    texts = [attributes[name] for name in ("origin", "weights", "weights_sha256", "profile", "profile_hash")]
    if not all(map(is_text, (*texts, *attributes["made_with"].keys(), *attributes["made_with"].values()))):
        raise TypeError("its attributes are no texts")
    numbers = [
        about["num_bytes"],
        about["num_rows"],
        about["rest_crc32"],
        index["count"],
        index["offset"],
        index["crc32"],
    ]
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in (*numbers, *about["offsets"].values())):
        raise TypeError("its numbers are no whole numbers")


def places_in(block: bytes) -> tuple[int, int, int, int]:
    """What the beginning of a shard says without being whole: the length of its first block, where its index begins and ends, and the
    size of all. Of a block that is not all there, the length alone is known. Raises ``ValueError`` for what begins no shard."""
    first = FIRST_LINE.match(block)
    if first is None or not BLOCK_BYTES <= int(first[2]) <= MOST_BLOCK_BYTES:
        raise ValueError("its first line does not say so")
    if len(block) < int(first[2]):
        return int(first[2]), 0, 0, 0
    about = json.loads(block[first.end() :])
    index = about["videos"]
    length = index["count"] * _index_dtype(tuple((name, kind) for name, kind in index["dtype"])).itemsize
    if length > MOST_INDEX_BYTES or not 0 <= index["offset"] <= index["offset"] + length <= about["num_bytes"]:
        raise ValueError("its index lies outside of it, or is too large")
    return int(first[2]), index["offset"], index["offset"] + length, about["num_bytes"]


@lru_cache(maxsize=1024)
def _index_dtype(columns: tuple[tuple[str, str], ...]) -> np.dtype:
    kinds = dict(columns)
    if kinds.keys() != INDEX_TYPES.keys() or not all(
        re.fullmatch(INDEX_TYPES[name], kind) for name, kind in kinds.items()
    ):
        raise ValueError("its index has other columns")
    return np.dtype(list(kinds.items()))


@lru_cache(maxsize=64)
def _profile(text: str) -> Profile:
    return Profile.from_json(text)


class ShardRows:
    """A shard's rows, mapped into memory: any thread and any forked process may read, and no lock is taken.

    ``columns`` are arrays over the file; they may be read, not written, and stay valid for as long as anybody has them. As with
    all mapped files, a file that is cut short, or a disk that fails, while they are read ends the process (SIGBUS).
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        with shard.path.open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != shard.num_bytes:
                raise UserError(
                    f"{shard.path}: was changed since its index was read; run vlalign-store verify {shard.path.parent}"
                )
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.columns = {}
        for name, offset in shard.offsets.items():
            dtype, shape = shard.row_type(name)
            self.columns[name] = np.frombuffer(self._map, dtype, shard.num_rows * math.prod(shape), offset).reshape(
                -1, *shape
            )
        self.features = self.columns["features"]
        self.first_rows, self.num_rows = shard.videos["first_row"].tolist(), shard.videos["num_rows"].tolist()
        self._features_at, self._row_bytes = shard.offsets["features"], row_bytes(shard, "features")
        times = [
            (shard.offsets[name], shard.offsets[name] + shard.num_rows * row_bytes(shard, name)) for name in ROW_TYPES
        ]
        self._expect(
            min(start for start, _ in times), max(end for _, end in times)
        )  # of all videos: they take little room

    def expect(self, first: int, last: int) -> int:
        """Has the system fetch features [first, last), soon to be read: many at once take a disk less time than one after the other.
        Returns how many bytes they are."""
        return self._expect(self._features_at + first * self._row_bytes, self._features_at + last * self._row_bytes)

    def _expect(self, start: int, end: int) -> int:
        if hasattr(mmap, "MADV_WILLNEED") and end > start:
            page = start - start % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, page, end - page)
        return max(end - start, 0)

    def of(self, video: np.void) -> list[np.ndarray]:
        """All rows of a video, a row of the shard's ``videos``: its part of each column."""
        first, last = int(video["first_row"]), int(video["first_row"] + video["num_rows"])
        return [self.columns[name][first:last] for name in COLUMNS]


def damaged_videos(rows: ShardRows) -> list[int]:
    """Numbers of the videos whose rows are not those that were written."""
    return [number for number, video in enumerate(rows.shard.videos) if checksum(rows.of(video)) != video["checksum"]]


def rest_is_damaged(shard: Shard) -> bool:
    return rest_crc32(shard.path, shard.first_byte, column_ranges(shard)) != shard.rest_crc32

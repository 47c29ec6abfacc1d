"""One feature shard (schema 1): what a writer finishes at once, in one file that is never changed once it has its name.

To everybody else it is an HDF5 file, readable with nothing but h5py: ``features`` [sum T, D], flat, contiguous, not compressed;
``start_seconds``, ``end_seconds``, ``valid_frames`` [sum T]; ``videos``, a row a video; and attributes that say how it was made.

To this package it is a file of known layout, read without HDF5. The block before the HDF5 part (HDF5's "user block") holds two lines
of text, padded with blanks: what the file is, with the checksum of the block; and as JSON the attributes, and where each data set
lies. So a store of 20,000 shards opens in seconds (26 s through h5py, tests/benchmarks), rows are read from mapped memory by any
thread and forked process at once, and a file from elsewhere cannot make HDF5 open other files. Four kinds of CRC-32 cover every
byte: the block's own, the index's (``videos``), each video's rows, and ``rest_crc32`` for what is left, HDF5's own records.
"""

import contextlib
import errno
import json
import math
import mmap
import os
import re
import shutil
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import DTypeLike
from zlib_ng.zlib_ng import crc32  # the same CRC-32 as zlib's, five times as fast

from .common.errors import UserError
from .files import written_whole
from .hdf5 import Layout, shard_path
from .records import Profile, VideoFeatures, Weights, is_text

SCHEMA = 1
EXTRACTED = "extracted"
"""``origin`` of features that this package made, whose profile is therefore known rather than stated."""
ROW_TYPES = {"start_seconds": "<f8", "end_seconds": "<f8", "valid_frames": "<i4"}
COLUMNS = ("features", *ROW_TYPES)
SHORT_BYTES = [np.dtype(kind).itemsize for kind in ROW_TYPES.values()]
BLOCK_BYTES = 4096
"""The user block; one power of two more where the profile says much."""
MOST_BLOCK_BYTES = 1 << 20
MOST_INDEX_BYTES = 1 << 28
FIRST_LINE = re.compile(
    rb"vlalign feature shard, schema (\d+), HDF5 from byte (\d+), crc32 of this block from here on ([0-9a-f]{8})\n"
)
READ_BYTES = 1 << 22
GROUP_BYTES = 1 << 23
MOST_PARTS = 1024
"""That one call of the system takes (Linux; IOV_MAX)."""
ALIGNMENT = 4096
"""Data sets begin on a page of memory."""
TEXT = r"\|S[1-9]\d*"
INDEX_TYPES = {
    "video_id": TEXT,
    "first_row": "<i8",
    "num_rows": "<i8",
    "duration_seconds": "<f8",
    "source": TEXT,
    "decoder": TEXT,
    "partial": TEXT,
    "checksum": "<u4",
}
"""Columns of ``videos``. Texts are as wide as the longest in the shard."""


class OtherSchema(UserError):
    """A shard that another version made."""


class Unreadable(UserError):
    """A file of which nobody can say whether it is damaged: a disk or a network that does not answer, a missing permission."""


@dataclass(frozen=True, eq=False)
class Shard:
    """What a shard says of itself. ``videos`` has a row a video; its texts are UTF-8."""

    path: Path
    profile: Profile
    weights: Weights
    origin: str
    made_with: dict[str, str]
    dtype: np.dtype
    num_rows: int
    num_bytes: int
    videos: np.ndarray
    offsets: dict[str, int]
    """Where each column lies in the file."""
    first_byte: int
    """Of the HDF5 part."""
    rest_crc32: int

    @property
    def key(self) -> tuple[str, Weights, str]:
        """What all shards of a store have in common."""
        return self.profile.hash, self.weights, self.origin

    def row_type(self, column: str) -> tuple[np.dtype, tuple[int, ...]]:
        """Type and shape of one row."""
        return (self.dtype, (self.profile.dimension,)) if column == "features" else (np.dtype(ROW_TYPES[column]), ())


def describe_key(key: tuple[str, Weights, str]) -> str:
    profile_hash, weights, origin = key
    return f"profile {profile_hash} with weights {weights.name} ({weights.sha256[:12] or 'no sha256'}), {origin}"


# Reading


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
    if any(not first_byte <= first <= last <= size for first, last in _ranges(shard)):
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


def _ranges(shard: Shard) -> list[tuple[int, int]]:
    """Bytes [first, last) of each column, in the file's order."""
    return sorted((offset, offset + shard.num_rows * _row_bytes(shard, name)) for name, offset in shard.offsets.items())


def _row_bytes(shard: Shard, column: str) -> int:
    dtype, shape = shard.row_type(column)
    return dtype.itemsize * (shape[0] if shape else 1)


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
        self._features_at, self._row_bytes = shard.offsets["features"], _row_bytes(shard, "features")
        times = [
            (shard.offsets[name], shard.offsets[name] + shard.num_rows * _row_bytes(shard, name)) for name in ROW_TYPES
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


def checksum(columns: Iterable[np.ndarray]) -> int:
    """CRC-32 of a video's rows in all columns, one after the other."""
    crc = 0
    for column in columns:
        crc = crc32(memoryview(np.ascontiguousarray(column)).cast("B"), crc) if column.size else crc
    return crc


def damaged_videos(rows: ShardRows) -> list[int]:
    """Numbers of the videos whose rows are not those that were written."""
    return [number for number, video in enumerate(rows.shard.videos) if checksum(rows.of(video)) != video["checksum"]]


def rest_crc32(path: Path, first_byte: int, ranges: Sequence[tuple[int, int]]) -> int:
    """CRC-32 of all from ``first_byte`` on that is in none of ``ranges``."""
    crc, size = 0, path.stat().st_size
    with path.open("rb") as file:
        for first, last in zip(
            [first_byte, *(last for _, last in ranges)], [*(first for first, _ in ranges), size], strict=True
        ):
            file.seek(first)
            for start in range(first, last, READ_BYTES):
                crc = crc32(file.read(min(READ_BYTES, last - start)), crc)
    return crc


def rest_is_damaged(shard: Shard) -> bool:
    return rest_crc32(shard.path, shard.first_byte, _ranges(shard)) != shard.rest_crc32


# Writing


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

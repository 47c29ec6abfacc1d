"""One feature shard (schema 1): what a writer finishes at once, in one file that is never changed once it has its name.

To everybody else it is an HDF5 file, readable with nothing but h5py: ``features`` [sum T, D], flat, contiguous, not compressed;
``start_seconds``, ``end_seconds``, ``valid_frames`` [sum T]; ``videos``, a row a video; and attributes that say how it was made.

To this package it is a file of known layout, read without HDF5. The block before the HDF5 part (HDF5's "user block") holds two lines
of text, padded with blanks: what the file is, with the checksum of the block; and as JSON the attributes, and where each data set
lies. So a store of 20,000 shards opens in seconds (26 s through h5py, tests/benchmarks), rows are read from mapped memory by any
thread and forked process at once, and a file from elsewhere cannot make HDF5 open other files. Four kinds of CRC-32 cover every
byte: the block's own, the index's (``videos``), each video's rows, and ``rest_crc32`` for what is left, HDF5's own records.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from zlib_ng.zlib_ng import crc32  # the same CRC-32 as zlib's, five times as fast

from ..common.errors import UserError
from ..records import Profile, Weights

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


def column_ranges(shard: Shard) -> list[tuple[int, int]]:
    """Bytes [first, last) of each column, in the file's order."""
    return sorted((offset, offset + shard.num_rows * row_bytes(shard, name)) for name, offset in shard.offsets.items())


def row_bytes(shard: Shard, column: str) -> int:
    dtype, shape = shard.row_type(column)
    return dtype.itemsize * (shape[0] if shape else 1)


def checksum(columns: Iterable[np.ndarray]) -> int:
    """CRC-32 of a video's rows in all columns, one after the other."""
    crc = 0
    for column in columns:
        crc = crc32(memoryview(np.ascontiguousarray(column)).cast("B"), crc) if column.size else crc
    return crc


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

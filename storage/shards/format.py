"""The format of a feature shard: videos that one writer finished together, in a file that never changes.

Its schema is 1, or 2 for frames.

To other programs a shard is an HDF5 file that h5py alone can read: ``features`` [sum T, D], flat, contiguous and not
compressed; ``start_seconds``, ``end_seconds`` and ``valid_frames`` [sum T]; ``videos`` with a row for each video; and
attributes with the origin of the features.

This package reads the file without HDF5. The block in front of the HDF5 part (HDF5's "user block") holds two lines of
text, padded with spaces. The first line has the kind of file and the checksum of the block. The second line is
JSON: the attributes, and the offset of each data set. This has three advantages. A store of 20,000 shards opens in
seconds (26 s through h5py, see tests/benchmarks). Threads and forked processes read rows from mapped memory at the
same time. And a file from a stranger cannot make HDF5 open other files.

Four kinds of CRC-32 cover every byte: one of the block, one of the index (``videos``), one of the rows of each video,
and ``rest_crc32`` of the HDF5 part except the rows (HDF5's own records, and the index again).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.errors import UserError
from ..records import Profile, Weights

if TYPE_CHECKING:
    from zlib import crc32
else:
    try:
        from zlib_ng.zlib_ng import crc32  # five times as fast as zlib's
    except ImportError:
        from zlib import crc32  # the same checksum

SCHEMA = 1
FRAMES_SCHEMA = 2
"""The schema of shards of frames (``Profile.is_frames``): their rows are uint8, everything else is the same. Versions
without support for frames refuse shards with this number, and neither read nor repair them.
"""
EXTRACTED = "extracted"
"""``origin`` of features that this package computed. Their profile is known, not just stated by the user."""
UNKNOWN_FACTS = "; unknown: "
"""Separator in an ``origin``, before the unknown facts of the profile."""
ROW_TYPES = {"start_seconds": "<f8", "end_seconds": "<f8", "valid_frames": "<i4"}
COLUMNS = ("features", *ROW_TYPES)
BLOCK_BYTES = 4096
"""Size of the user block; a larger power of two if the profile is long."""
MAX_BLOCK_BYTES = 1 << 20
MAX_INDEX_BYTES = 1 << 28
FIRST_LINE = re.compile(
    rb"vlalign feature shard, schema (\d+), HDF5 from byte (\d+), crc32 of this block from here on ([0-9a-f]{8})\n"
)
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
"""Columns of ``videos``. A text column is as wide as its longest text in the shard."""
READ_BYTES = 1 << 22
TEXTS = "texts"
"""Key of ``Provenance.made_with``: how to prepare the texts that are compared with the features. Stores of 1.0.0 lack
it.
"""


class OtherSchema(UserError):
    """A shard that another version of vlalign wrote."""


class Unreadable(UserError):
    """A file that may or may not be damaged: the disk or network does not answer, or a permission is missing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Provenance:
    """The origin of a shard's features: profile, weights and programs.

    Example:
        >>> from vlalign.storage import Provenance, open_store
        >>> store = open_store("vlalign_data/demo/features/s3d")
        >>> provenance = Provenance(profile=store.profile, weights=store.weights, made_with={"numpy": "2.2.0"})
        >>> provenance.origin, provenance.weights.name
        ('extracted', 'toy')
    """

    profile: Profile
    """Everything that decides the features' values."""
    weights: Weights
    """The weights that the model ran with."""
    origin: str = EXTRACTED
    """``EXTRACTED``, or who stated the profile."""
    made_with: dict[str, str] = field(default_factory=dict)
    """Versions of the programs that made the features, the device, and how texts must be prepared (``TEXTS``)."""

    @property
    def key(self) -> tuple[str, Weights, str]:
        """The values that all shards of a store have in common."""
        return self.profile.hash, self.weights, self.origin

    def describe(self) -> str:
        """Return the key in words, for messages."""
        sha256 = self.weights.sha256[:12] or "no sha256"
        return f"profile {self.profile.hash} with weights {self.weights.name} ({sha256}), {self.origin}"

    def attributes(self) -> dict[str, Any]:
        """Return the attributes as the file has them."""
        return {
            "schema": schema_of(self.profile),
            "profile": self.profile.to_json(),
            "profile_hash": self.profile.hash,
            "weights": self.weights.name,
            "weights_sha256": self.weights.sha256,
            "origin": self.origin,
            "made_with": self.made_with,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Shard(Provenance):
    """The metadata of a shard, without its rows."""

    path: Path
    dtype: np.dtype
    """Type of the features: float16 or float32; uint8 if they are frames."""
    num_rows: int
    num_bytes: int
    """Size of the file."""
    videos: np.ndarray
    """The index: a structured array with a row for each video (``INDEX_TYPES``); its texts are UTF-8."""
    offsets: dict[str, int]
    """Offset of each column in the file, in bytes."""
    first_byte: int
    """Offset of the HDF5 part."""
    rest_crc32: int
    """Checksum of everything in the HDF5 part but the columns."""

    def row_type(self, column: str) -> tuple[np.dtype, tuple[int, ...]]:
        """Return type and shape of one row of a column."""
        return (self.dtype, (self.profile.dimension,)) if column == "features" else (np.dtype(ROW_TYPES[column]), ())

    def row_bytes(self, column: str) -> int:
        """Return the size of one row of a column."""
        dtype, shape = self.row_type(column)
        return dtype.itemsize * (shape[0] if shape else 1)

    def column_ranges(self) -> list[tuple[int, int]]:
        """Return the bytes [first, last) of each column, in the order of the file."""
        return sorted(
            (offset, offset + self.num_rows * self.row_bytes(column)) for column, offset in self.offsets.items()
        )


def schema_of(profile: Profile) -> int:
    """Return the schema of the shards of a profile."""
    return FRAMES_SCHEMA if profile.is_frames else SCHEMA


def row_types(profile: Profile) -> tuple[str, ...]:
    """Return the names of the types that rows of a profile may be stored in."""
    return ("uint8",) if profile.is_frames else ("float16", "float32")


def checksum(columns: Iterable[np.ndarray]) -> int:
    """Return the CRC-32 of a video's rows in all columns, one column after the other."""
    crc = 0
    for column in columns:
        crc = crc32(np.ascontiguousarray(column).data.cast("B"), crc) if column.size else crc
    return crc


def rest_crc32(path: Path, first_byte: int, ranges: Sequence[tuple[int, int]]) -> int:
    """Return the CRC-32 of a file from ``first_byte`` on, without the bytes in ``ranges``, which must be sorted."""
    crc, size = 0, path.stat().st_size
    firsts, lasts = [first_byte, *(last for _, last in ranges)], [*(first for first, _ in ranges), size]
    with path.open("rb") as file:
        for first, last in zip(firsts, lasts, strict=True):
            file.seek(first)
            for start in range(first, last, READ_BYTES):
                crc = crc32(file.read(min(READ_BYTES, last - start)), crc)
    return crc

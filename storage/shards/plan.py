"""The layout of a new shard, before its rows are written."""

import json
from dataclasses import dataclass

import h5py
import numpy as np

from ..untrusted.hdf5 import MemoryFile
from .format import BLOCK_BYTES, COLUMNS, INDEX_TYPES, ROW_TYPES, SCHEMA, Provenance, crc32

ALIGNMENT = 4096
"""Data sets begin on a page of memory."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A shard before its rows are written."""

    provenance: Provenance
    dtype: np.dtype
    num_rows: int
    first_byte: int
    """Offset of the HDF5 part."""
    hdf5: MemoryFile
    """All that HDF5 writes itself."""
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
        rest: Checksum of what HDF5 wrote (``rest_crc32``).
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
    first = "vlalign feature shard, schema {}, HDF5 from byte {}, crc32 of this block from here on {:08x}\n"
    padded = json.dumps(about).encode().ljust(plan.first_byte - len(first.format(SCHEMA, plan.first_byte, 0)))
    return first.format(SCHEMA, plan.first_byte, crc32(padded)).encode() + padded

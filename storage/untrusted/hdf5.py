"""HDF5 files: writing them safely, and reading files from strangers."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import h5py
import numpy as np


@contextmanager
def new_hdf5(path: Path) -> Iterator[h5py.File]:
    """Yield a new file. Raises ``OSError`` if it cannot be written; h5py itself raises other errors on a full disk.

    HDF5's file locks are off. No other process knows the temporary name, and locks fail or hang on NFS and Lustre
    without a lock service.
    """
    try:
        with h5py.File(path, "w", locking=False) as file:
            yield file
    except (RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise OSError(
            f"{path.parent}: HDF5 could not write there ({reason}); check that the disk is not full"
        ) from error


# Reading of files from strangers

MAX_UNPACK_FACTOR = 1100
"""Maximum ratio of a data set's size to its bytes in the file: the best ratio of deflate and LZF."""
SMALL_BYTES = 1 << 20
"""Data sets of at most this size are read, whatever their compression ratio."""
MAX_HEAP_BYTES = 1 << 26
"""Limit of a heap of values of variable length. HDF5 makes heaps of 4 KB, or as large as one value needs."""


def is_inside(group: h5py.Group, name: str) -> bool:
    """Return True if an object is in this file. Following any other link may make HDF5 open another file."""
    return isinstance(group.get(name, getlink=True), h5py.HardLink)


def offset_of(group: h5py.Group, name: str) -> int:
    """Return the offset of an object in the file, the same for all of its names."""
    encoded = name.encode("utf-8", "surrogateescape")
    return h5py.h5o.get_info(group.id, encoded).addr  # pyright: ignore[reportAttributeAccessIssue] - the stub lacks h5o


def inner_dataset(group: h5py.Group, name: str) -> h5py.Dataset:
    """Return a data set whose values are in this file.

    Raises:
        ValueError: It is a link, not a data set, or its values are in another file.
        KeyError: There is no such object.
    """
    if not is_inside(group, name):
        raise ValueError(f"its {name!r} is a link, which is not followed")
    dataset = group[name]
    if not isinstance(dataset, h5py.Dataset):
        raise ValueError(f"its {name!r} is not a data set")
    if dataset.external or dataset.is_virtual:  # checked first: even the shape of a virtual one may lie in another file
        raise ValueError(f"its data set {name!r} is in another file, which is not read")
    return dataset


def check_size(dataset: h5py.Dataset, max_bytes: int) -> h5py.Dataset:
    """Raise ``ValueError`` if a data set has more than ``max_bytes``, or more than its bytes in the file can unpack
    to.
    """
    stored = dataset.id.get_storage_size()
    if dataset.nbytes > max_bytes:
        raise ValueError(f"its data set {dataset.name!r} has more than {max_bytes >> 30} GiB")
    if dataset.nbytes > SMALL_BYTES + MAX_UNPACK_FACTOR * stored:
        raise ValueError(f"its data set {dataset.name!r} has {stored:,} of its {dataset.nbytes:,} bytes in the file")
    return dataset


@dataclass(frozen=True)
class _Heap:
    content: bytes
    parts: dict[int, tuple[int, int]]
    """Offset and length of each value, by its index."""


class VlenReader:
    """Reads values of variable length (texts, JPEGs) without HDF5, which hangs on some damaged heaps.

    It reads vlalign's own files: contiguous data sets, in a file with addresses and lengths of 8 bytes.

    Source: HDF5 File Format Specification 3.0, III.E "Global Heap" and VIII.B "Dataset VL".
    """

    REFERENCE = np.dtype([("length", "<u4"), ("address", "<u8"), ("index", "<u4")])
    """The placeholder that a data set holds instead of a value."""
    _MAX_HEAPS = 16

    def __init__(self, file: h5py.File, content: "BinaryIO | ReadAhead") -> None:
        """Prepare to read values of ``file``, whose bytes are ``content``.

        Raises ``ValueError`` for another kind of file.
        """
        if file.id.get_create_plist().get_sizes() != (8, 8) or file.userblock_size:
            raise ValueError("its addresses do not have vlalign's layout")
        self._content = content
        self._heaps: dict[int, _Heap] = {}
        """The heaps that were read last, by their offset."""

    def rows(self, dataset: h5py.Dataset, row: np.dtype) -> np.ndarray:
        """Return a one-dimensional data set as stored, with ``REFERENCE`` instead of values.

        Args:
            dataset: The data set.
            row: Type of a row in the file.

        Raises:
            ValueError: The data set is not contiguous, or has rows of another size.
        """
        if not len(dataset):
            return np.empty(0, row)
        offset, num_bytes = dataset.id.get_offset(), len(dataset) * row.itemsize
        if offset is None or dataset.id.get_storage_size() != num_bytes:
            raise ValueError(f"its data set {dataset.name!r} does not have vlalign's layout")
        return np.frombuffer(self._bytes(offset, num_bytes), row)

    def value(self, reference: np.void, max_bytes: int) -> bytes:
        """Return the value that a row refers to.

        Raises ``ValueError`` if it is missing or longer than ``max_bytes``.
        """
        length, address, index = reference.item()
        if not length:
            return b""
        if length > max_bytes:
            raise ValueError(f"a value of more than {max_bytes:,} bytes")
        if address not in self._heaps:
            while len(self._heaps) >= self._MAX_HEAPS:
                del self._heaps[next(iter(self._heaps))]
            self._heaps[address] = self._heap(address)
        heap = self._heaps[address]
        begin, size = heap.parts.get(index, (0, 0))
        if size < length:
            raise ValueError("a value is not in its heap")
        return heap.content[begin : begin + length]

    def _heap(self, address: int) -> _Heap:
        head = self._bytes(address, 16)
        size = int.from_bytes(head[8:], "little")
        if head[:5] != b"GCOL\x01" or not 16 <= size <= MAX_HEAP_BYTES:
            raise ValueError("a heap of values is damaged")
        content, parts, offset = self._bytes(address, size), {}, 16
        while offset + 16 <= size:
            index = int.from_bytes(content[offset : offset + 2], "little")
            length = int.from_bytes(content[offset + 8 : offset + 16], "little")
            total = 16 + -(-length // 8) * 8 if index else length  # the length of free space includes its head
            if total < 16 or offset + total > size:
                raise ValueError("a heap of values is damaged")
            if index:
                parts[index] = offset + 16, length
            offset += total
        return _Heap(content, parts)

    def _bytes(self, offset: int, num_bytes: int) -> bytes:
        if offset + num_bytes > os.fstat(self._content.fileno()).st_size:
            raise ValueError("it is truncated")
        self._content.seek(offset)
        return self._content.read(num_bytes)


class ReadAhead:
    """A file whose first bytes are read together: HDF5 reads in many small steps, each of which waits for the disk."""

    NUM_BYTES = 1 << 16

    def __init__(self, file: io.FileIO) -> None:
        """Read the first bytes of a file, which is closed with this one."""
        self._file, self._offset = file, 0
        self._first = file.read(self.NUM_BYTES)

    def fileno(self) -> int:
        """Return the descriptor of the file."""
        return self._file.fileno()

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move the position, as files do."""
        self._offset = offset + (0, self._offset, os.fstat(self.fileno()).st_size)[whence]
        return self._offset

    def tell(self) -> int:
        """Return the position."""
        return self._offset

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes from the position on."""
        content = self._first[self._offset : self._offset + size]
        if len(content) < size:
            self._file.seek(self._offset)
            content = self._file.read(size)
        self._offset += len(content)
        return content

    def readinto(self, target: memoryview) -> int:
        """Fill ``target`` with the bytes at the position; return their number."""
        content = self.read(len(target))
        target[: len(content)] = content
        return len(content)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class MemoryFile:
    """A file that HDF5 writes in memory. Only HDF5's own records need memory; the data may have any size.

    HDF5 must not write to the disk itself: on a full disk it reports success though bytes are missing, or crashes when
    the process ends.
    """

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}
        """The bytes that were written, by offset."""
        self.size = self._offset = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move the position, as files do."""
        self._offset = offset + (0, self._offset, self.size)[whence]
        return self._offset

    def tell(self) -> int:
        """Return the position."""
        return self._offset

    def write(self, content: memoryview) -> int:
        """Keep a copy of ``content`` at the position."""
        self.parts[self._offset] = bytes(content)
        self._offset += len(content)
        self.size = max(self.size, self._offset)
        return len(content)

    def readinto(self, target: memoryview) -> int:
        """Fill ``target`` with the written bytes at the position, and with zeros elsewhere."""
        content = bytearray(len(target))
        for offset, part in self.parts.items():
            low, high = max(offset, self._offset), min(offset + len(part), self._offset + len(target))
            if low < high:
                content[low - self._offset : high - self._offset] = part[low - offset : high - offset]
        target[:] = content
        self._offset += len(target)
        return len(target)

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes from the position on."""
        content = bytearray(size)
        self.readinto(memoryview(content))
        return bytes(content)

    def truncate(self, size: int | None = None) -> int:
        """Set the size, by default to the position."""
        self.size = self._offset if size is None else size
        return self.size

    def flush(self) -> None:
        """Do nothing; files have this method."""

"""HDF5 files: what their names say, and errors that say where."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np


@contextmanager
def new_hdf5(path: Path) -> Iterator[h5py.File]:
    """A new file. Raises ``OSError`` where it cannot be written, whatever h5py makes of that (on a full disk, a RuntimeError).

    HDF5's file locks are off: nobody else knows the temporary name, and on NFS and Lustre they fail or hang without a lock service.
    """
    try:
        with h5py.File(path, "w", locking=False) as file:
            yield file
    except (RuntimeError, OSError) as error:
        raise OSError(
            f"{path.parent}: HDF5 could not write there ({str(error).splitlines()[0]}); is the disk full?"
        ) from error


# Files from elsewhere


MOST_TIMES_PACKED = 1100
"""A data set unpacks to so many times its size in the file at most: what deflate and LZF do at their best."""
LEAST_BYTES = 1 << 20
"""Less is read however it is packed."""
MOST_HEAP_BYTES = 1 << 26
"""Of values of variable length. HDF5 makes heaps of 4 KB, or as large as one value needs."""


def is_inside(group: h5py.Group, name: str) -> bool:
    """Whether it is in this very file: following any other link may have HDF5 open another one."""
    return isinstance(group.get(name, getlink=True), h5py.HardLink)


def place_of(group: h5py.Group, name: str) -> int:
    """Where in the file it lies, whatever its name."""
    return h5py.h5o.get_info(group.id, name.encode("utf-8", "surrogateescape")).addr


def own_dataset(group: h5py.Group, name: str) -> h5py.Dataset:
    """A data set whose values lie in this very file. Raises ``ValueError`` for anything else, ``KeyError`` where there is none."""
    if not is_inside(group, name):
        raise ValueError(f"its {name!r} is a link; that is not followed")
    dataset = group[name]
    if not isinstance(dataset, h5py.Dataset):
        raise ValueError(f"its {name!r} is no data set")
    if dataset.external or dataset.is_virtual:  # asked first: even a virtual one's shape may lie in another file
        raise ValueError(f"its data set {name!r} lies in another file; that is not followed")
    return dataset


def check_size(dataset: h5py.Dataset, most_bytes: int) -> h5py.Dataset:
    """Raises ``ValueError`` where reading all of it would take more than ``most_bytes``, or more than its bytes in the file unpack to."""
    stored = dataset.id.get_storage_size()
    if dataset.nbytes > most_bytes:
        raise ValueError(f"its data set {dataset.name!r} has more than {most_bytes >> 30} GiB")
    if dataset.nbytes > LEAST_BYTES + MOST_TIMES_PACKED * stored:
        raise ValueError(f"its data set {dataset.name!r} has {stored:,} of its {dataset.nbytes:,} bytes in the file")
    return dataset


class VlenReader:
    """Values of variable length (texts, pictures), read past HDF5, whose own reader does not return from some damaged heaps.

    Only of what vlalign writes: contiguous data sets in a file whose addresses and lengths have 8 bytes. Format: HDF5 File Format
    Specification 3.0, III.E "Global Heap" and VIII.B "Dataset VL".
    """

    REFERENCE = np.dtype([("length", "<u4"), ("address", "<u8"), ("index", "<u4")])
    """What stands in a data set in place of a value."""
    _MOST_HEAPS = 16

    def __init__(self, file: h5py.File, path: Path) -> None:
        if file.id.get_create_plist().get_sizes() != (8, 8) or file.userblock_size:
            raise ValueError("its addresses are not laid out as ours")
        self._path = path
        self._heaps: dict[int, tuple[bytes, dict[int, tuple[int, int]]]] = {}
        """By their place: what each of the last ones holds, and by its index where each value in it begins and how long it is."""

    def rows(self, dataset: h5py.Dataset, row: np.dtype) -> np.ndarray:
        """A data set of one dimension as it lies in the file, with ``REFERENCE`` in place of values. Raises ``ValueError``."""
        if not len(dataset):
            return np.empty(0, row)
        place, num_bytes = dataset.id.get_offset(), len(dataset) * row.itemsize
        if place is None or dataset.id.get_storage_size() != num_bytes:
            raise ValueError(f"its data set {dataset.name!r} is not laid out as ours")
        return np.frombuffer(self._bytes(place, num_bytes), row)

    def value(self, reference: np.void, most_bytes: int) -> bytes:
        """Raises ``ValueError`` for one that is longer, or is not there."""
        length, address, index = reference.item()
        if not length:
            return b""
        if length > most_bytes:
            raise ValueError(f"a value of more than {most_bytes:,} bytes")
        if address not in self._heaps:
            while len(self._heaps) >= self._MOST_HEAPS:
                del self._heaps[next(iter(self._heaps))]
            self._heaps[address] = self._heap(address)
        content, places = self._heaps[address]
        begin, size = places.get(index, (0, 0))
        if size < length:
            raise ValueError("a value is not in the heap that should have it")
        return content[begin : begin + length]

    def _heap(self, address: int) -> tuple[bytes, dict[int, tuple[int, int]]]:
        head = self._bytes(address, 16)
        size = int.from_bytes(head[8:], "little")
        if head[:5] != b"GCOL\x01" or not 16 <= size <= MOST_HEAP_BYTES:
            raise ValueError("a heap of values is damaged")
        content, places, at = self._bytes(address, size), {}, 16
        while at + 16 <= size:
            index, length = (
                int.from_bytes(content[at : at + 2], "little"),
                int.from_bytes(content[at + 8 : at + 16], "little"),
            )
            whole = 16 + -(-length // 8) * 8 if index else length  # what is free counts its own head
            if whole < 16 or at + whole > size:
                raise ValueError("a heap of values is damaged")
            if index:
                places[index] = at + 16, length
            at += whole
        return content, places

    def _bytes(self, place: int, num_bytes: int) -> bytes:
        with self._path.open("rb") as file:
            if place + num_bytes > os.fstat(file.fileno()).st_size:
                raise ValueError("it ends too soon")
            file.seek(place)
            return file.read(num_bytes)


class Layout:
    """A file that HDF5 lays out in memory: only what HDF5 itself writes takes room, the data may be of any size.

    HDF5 never sees the disk so: on a full one it reports success with bytes missing, or crashes when the process ends.
    """

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}
        """What was written, by its place."""
        self.size = self._at = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def write(self, content: memoryview) -> int:
        self.parts[self._at] = bytes(content)
        self._at += len(content)
        self.size = max(self.size, self._at)
        return len(content)

    def readinto(self, target: memoryview) -> int:
        found = bytearray(len(target))
        for place, part in self.parts.items():
            low, high = max(place, self._at), min(place + len(part), self._at + len(target))
            if low < high:
                found[low - self._at : high - self._at] = part[low - place : high - place]
        target[:] = found
        self._at += len(target)
        return len(target)

    def read(self, size: int) -> bytes:
        content = bytearray(size)
        self.readinto(memoryview(content))
        return bytes(content)

    def truncate(self, size: int | None = None) -> int:
        self.size = self._at if size is None else size
        return self.size

    def flush(self) -> None:
        pass

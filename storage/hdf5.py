"""HDF5 files, with errors that say where."""

import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import h5py

SHARD_NAME = re.compile(r"(\d{20})-[0-9a-f]{8}\.h5")


def shard_path(folder: Path, *, in_place_of: Path | None = None) -> Path:
    """A new shard's name: no other writer has it, and in order of names it follows all that are there, even if a clock was set back.

    ``in_place_of``: a shard that it follows directly, before any that was made later.
    """
    if in_place_of is None:
        names = [name for file in (os.listdir(folder) if folder.exists() else ()) if (name := SHARD_NAME.fullmatch(file))]
        stamp = max([time.time_ns(), *(int(name[1]) + 1 for name in names)])
    else:
        replaced = SHARD_NAME.fullmatch(in_place_of.name)
        stamp = int(replaced[1]) + 1 if replaced else time.time_ns()
    return folder / f"{stamp:020d}-{uuid.uuid4().hex[:8]}.h5"


@lru_cache(maxsize=1 << 16)  # asked for each of the videos in a shard
def written_at_ns(shard: Path) -> int:
    """When a shard was written, in nanoseconds since 1970, as its name says; 0 for another name."""
    name = SHARD_NAME.fullmatch(shard.name)
    return int(name[1]) if name else 0


@contextmanager
def new_hdf5(path: Path) -> Iterator[h5py.File]:
    """A new file. Raises ``OSError`` where it cannot be written, whatever h5py makes of that (on a full disk, a RuntimeError).

    HDF5's file locks are off: nobody else knows the temporary name, and on NFS and Lustre they fail or hang without a lock service.
    """
    try:
        with h5py.File(path, "w", locking=False) as file:
            yield file
    except (RuntimeError, OSError) as error:
        raise OSError(f"{path.parent}: HDF5 could not write there ({str(error).splitlines()[0]}); is the disk full?") from error


# Files from elsewhere


MOST_TIMES_PACKED = 1100
"""A data set unpacks to so many times its size in the file at most: what deflate and LZF do at their best."""
LEAST_BYTES = 1 << 20
"""Less is read however it is packed."""


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

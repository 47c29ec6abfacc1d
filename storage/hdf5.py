"""HDF5 files, with errors that say where."""

import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

SHARD_NAME = re.compile(r"(\d{20})-[0-9a-f]{8}\.h5")


def shard_path(folder: Path, *, in_place_of: Path | None = None) -> Path:
    """A new shard's name: no other writer has it, and in order of names a later shard follows an earlier one.

    ``in_place_of``: a shard that it follows directly, before any that was made later.
    """
    replaced = SHARD_NAME.fullmatch(in_place_of.name) if in_place_of is not None else None
    return folder / f"{int(replaced[1]) + 1 if replaced else time.time_ns():020d}-{uuid.uuid4().hex[:8]}.h5"


ALIGNMENT = 4096
"""Data sets begin on a page, where there is a block: copies from mapped memory take a fifth less time."""


@contextmanager
def new_hdf5(path: Path, *, block_bytes: int = 0) -> Iterator[h5py.File]:
    """A new file, of which HDF5 leaves the first ``block_bytes`` alone.

    Raises ``OSError`` where it cannot be written, whatever h5py makes of that (on a full disk, a RuntimeError). HDF5's file locks are
    off: nobody else knows the temporary name, and on NFS and Lustre they fail or hang where no lock service runs.
    """
    try:
        aligned = {"alignment_threshold": ALIGNMENT, "alignment_interval": ALIGNMENT} if block_bytes else {}
        with h5py.File(path, "w", userblock_size=block_bytes, locking=False, **aligned) as file:
            yield file
    except (RuntimeError, OSError) as error:
        raise OSError(f"{path.parent}: HDF5 could not write there ({str(error).splitlines()[0]}); is the disk full?") from error

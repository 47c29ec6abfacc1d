"""HDF5 files, with errors that say where."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py


def shard_path(folder: Path) -> Path:
    """A new shard's name: no other writer has it, and in order of names a later shard follows an earlier one."""
    return folder / f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.h5"


@contextmanager
def new_hdf5(path: Path) -> Iterator[h5py.File]:
    """A new file. Raises ``OSError`` where it cannot be written, whatever h5py makes of that (on a full disk, a RuntimeError)."""
    try:
        with h5py.File(path, "w") as file:
            yield file
    except (RuntimeError, OSError) as error:
        raise OSError(f"{path.parent}: HDF5 could not write there ({str(error).splitlines()[0]}); is the disk full?") from error

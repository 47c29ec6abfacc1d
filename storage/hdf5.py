"""HDF5 files, with errors that say where."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py


@contextmanager
def new_hdf5(path: Path) -> Iterator[h5py.File]:
    """A new file. Raises ``OSError`` where it cannot be written, whatever h5py makes of that (on a full disk, a RuntimeError)."""
    try:
        with h5py.File(path, "w") as file:
            yield file
    except (RuntimeError, OSError) as error:
        raise OSError(f"{path.parent}: HDF5 could not write there ({str(error).splitlines()[0]}); is the disk full?") from error

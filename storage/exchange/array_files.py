"""Files that hold arrays by name: .npy, .npz and HDF5."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import h5py
import numpy as np

from ..common.errors import UserError
from ..untrusted.hdf5 import check_size, inner_dataset, is_inside, offset_of
from ..untrusted.limits import MAX_ARRAY_BYTES, Budget, Read, Tree
from ..untrusted.npz import open_npz

FEATURE_SUFFIXES = (".npy", ".npz", ".h5", ".hdf5")


@contextmanager
def open_arrays(path: Path) -> Iterator[Tree]:
    """Yield the arrays in a file with one of ``FEATURE_SUFFIXES``, which stays open in the block.

    Nothing in the file is executed, and it cannot make HDF5 open another file.
    """
    suffix = path.suffix.lower()
    if suffix == ".npy":
        with np.errstate(over="ignore"):  # NumPy computes the size of an impossible shape before it refuses it
            array = np.lib.format.open_memmap(path, mode="r")
        yield {path.stem: lambda: array}
    elif suffix == ".npz":
        with open_npz(path) as arrays:
            yield arrays
    else:
        with h5py.File(path, "r", locking=False) as file:
            if "profile_hash" in file.attrs:
                raise UserError(f"{path}: a shard of a feature store of vlalign; it needs no import")
            yield _hdf5_tree(file, {}, _HDF5Budget(path), with_groups=True)


class _HDF5Budget(Budget):
    """The memory that all arrays of a file may take together. One that is read again counts once."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.stat().st_size)
        self._read: set[str] = set()

    def take_once(self, dataset: h5py.Dataset) -> None:
        """Count an array. Raises ``ValueError`` if the file would take more than it may."""
        name = str(dataset.name)
        if name not in self._read:
            self.take(dataset.nbytes, f"its data set {name[:80]!r}")
            self._read.add(name)


def _hdf5_tree(group: h5py.Group, names: dict[int, str], budget: _HDF5Budget, *, with_groups: bool) -> Tree:
    """Return the arrays of a group.

    Args:
        group: The group.
        names: First name of each object, by its offset in the file. A further name takes a few bytes and would have the
            object read again.
        budget: What the arrays may take.
        with_groups: Include the groups in this group.
    """
    tree: dict[str, Read | Tree] = {}
    for name in [name for name in group if name is not None]:
        if not is_inside(group, name):
            tree[name] = lambda: None
            continue
        full_name, kind = f"{(group.name or '').rstrip('/')}/{name}", group.get(name, getclass=True)
        first = names.setdefault(offset_of(group, name), full_name)
        if first != full_name:
            tree[name] = partial(_refuse_repeated, first)
        elif kind is h5py.Dataset:
            tree[name] = partial(_hdf5_array, group, name, budget)
        elif with_groups and isinstance(inner := group[name] if kind is h5py.Group else None, h5py.Group):
            tree[name] = _hdf5_tree(inner, names, budget, with_groups=False)
    return tree


def _refuse_repeated(first: str) -> NoReturn:
    raise ValueError(f"the same as {first!r} under another name; expected each once")


def _hdf5_array(group: h5py.Group, name: str, budget: _HDF5Budget) -> np.ndarray | None:
    dataset = inner_dataset(group, name)
    if dataset.dtype.kind not in "fiu" or not dataset.shape:
        return None
    check_size(dataset, MAX_ARRAY_BYTES)
    budget.take_once(dataset)
    return dataset[()]

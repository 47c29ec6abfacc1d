"""Files that hold arrays by name: .npy, .npz and HDF5."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import h5py
import numpy as np

from ..common.errors import UserError
from ..hdf5 import check_size, inner_dataset, is_inside, offset_of
from .npz import open_npz
from .tree import MAX_ARRAY_BYTES, Read, Tree

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
            yield _hdf5_tree(file, {}, with_groups=True)


def _hdf5_tree(group: h5py.Group, names: dict[int, str], *, with_groups: bool) -> Tree:
    """Return the arrays of a group.

    Args:
        group: The group.
        names: First name of each object, by its offset in the file. A further name takes a few bytes and would have the
            object read again.
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
            tree[name] = partial(_hdf5_array, group, name)
        elif with_groups and isinstance(inner := group[name] if kind is h5py.Group else None, h5py.Group):
            tree[name] = _hdf5_tree(inner, names, with_groups=False)
    return tree


def _refuse_repeated(first: str) -> NoReturn:
    raise ValueError(f"the same as {first!r} under another name; expected each once")


def _hdf5_array(group: h5py.Group, name: str) -> np.ndarray | None:
    dataset = inner_dataset(group, name)
    return check_size(dataset, MAX_ARRAY_BYTES)[()] if dataset.dtype.kind in "fiu" and dataset.shape else None

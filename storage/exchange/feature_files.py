"""Feature files: the arrays in a file of any format, and the choice of a video's features among them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import h5py
import numpy as np

from ..common.errors import UserError, refuse_unreadable
from ..common.terminal import one_line
from ..records import VideoFeatures
from ..stores.store import Store
from ..untrusted.hdf5 import check_size, inner_dataset, is_inside, offset_of
from ..untrusted.limits import FORMAT_ERRORS, MAX_ARRAY_BYTES, ArrayGroup, Budget, ReadArray
from ..untrusted.npz import open_npz
from ..untrusted.pickles import open_pickle
from ..untrusted.torch_files import TORCH_SUFFIXES, open_torch

FEATURE_SUFFIXES = (".npy", ".npz", ".h5", ".hdf5")
PICKLE_SUFFIXES = (".pkl", ".pickle")
ARRAY_SUFFIXES = (*FEATURE_SUFFIXES, *PICKLE_SUFFIXES, *TORCH_SUFFIXES)
"""Files that ``open_arrays`` opens."""
EXPORTED = ("start_seconds", "end_seconds", "valid_frames", "duration_seconds", "profile", "weights", "partial")
"""The arrays of vlalign's own exports besides ``features``."""


def exported_values(store: Store, video: VideoFeatures) -> dict[str, Any]:
    """Return the values of ``EXPORTED`` as arrays, numbers, texts and dicts."""
    return {
        "start_seconds": video.start_seconds,
        "end_seconds": video.end_seconds,
        "valid_frames": video.valid_frames,
        "duration_seconds": video.duration_seconds,
        "profile": json.loads(store.profile.to_json()),
        "weights": asdict(store.weights),
        "partial": video.partial,
    }


@dataclass(frozen=True, eq=False)
class SourceFeatures:
    """The features of a video, as read from a file."""

    rows: np.ndarray
    """[T, D], float16 or float32; may contain non-finite values."""
    exported: Mapping[str, Any] | None = None
    """For an export of vlalign, the unchecked values of ``EXPORTED``; profile and weights as JSON. Otherwise None."""
    times: np.ndarray | None = None
    """[T, 2], unchecked: the first and last second of each feature vector, if the file has them."""


@contextmanager
def refuse_damaged(where: str | Path) -> Iterator[None]:
    """Turn all errors of the libraries for a damaged file into a one-line ``UserError``."""
    try:
        with refuse_unreadable(where, "not a readable feature file", errors=FORMAT_ERRORS):
            yield
    except UserError as error:
        raise UserError(one_line(str(error))) from None


@contextmanager
def open_arrays(path: Path) -> Iterator[ArrayGroup]:
    """Yield the arrays in a file with one of ``ARRAY_SUFFIXES``; the file is open in the block.

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
    elif suffix in PICKLE_SUFFIXES:
        yield open_pickle(path)
    elif suffix in TORCH_SUFFIXES:
        with open_torch(path) as tensors:
            yield tensors
    else:
        with h5py.File(path, "r", locking=False) as file:
            if "profile_hash" in file.attrs:
                raise UserError(f"{path}: already a shard of a vlalign feature store; it needs no import")
            yield _hdf5_group(file, {}, _HDF5Budget(path), with_groups=True)


class _HDF5Budget(Budget):
    """The memory limit of all arrays of a file together. An array that is read twice is counted once."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.stat().st_size)
        self._read: set[str] = set()

    def take_once(self, dataset: h5py.Dataset) -> None:
        """Count an array. Raises ``ValueError`` if the file would take more than it may."""
        name = str(dataset.name)
        if name not in self._read:
            self.take(dataset.nbytes, f"its data set {name[:80]!r}")
            self._read.add(name)


def _hdf5_group(group: h5py.Group, names: dict[int, str], budget: _HDF5Budget, *, with_groups: bool) -> ArrayGroup:
    """Return the arrays of a group.

    Args:
        group: The group.
        names: First name of each object, by its offset in the file. Further names take only a few bytes in the file,
            but the object would be read again for each of them.
        budget: Memory limit of the arrays.
        with_groups: Include the groups in this group.
    """
    arrays: dict[str, ReadArray | ArrayGroup] = {}
    for name in [name for name in group if name is not None]:
        if not is_inside(group, name):
            arrays[name] = lambda: None
            continue
        full_name, kind = f"{(group.name or '').rstrip('/')}/{name}", group.get(name, getclass=True)
        first = names.setdefault(offset_of(group, name), full_name)
        if first != full_name:
            arrays[name] = partial(_refuse_repeated, first)
        elif kind is h5py.Dataset:
            arrays[name] = partial(_hdf5_array, group, name, budget)
        elif with_groups and isinstance(inner := group[name] if kind is h5py.Group else None, h5py.Group):
            arrays[name] = _hdf5_group(inner, names, budget, with_groups=False)
    return arrays


def _refuse_repeated(first: str) -> NoReturn:
    raise ValueError(f"the same as {first!r} under another name; expected each once")


def _hdf5_array(group: h5py.Group, name: str, budget: _HDF5Budget) -> np.ndarray | None:
    dataset = inner_dataset(group, name)
    if dataset.dtype.kind not in "fiu" or not dataset.shape:
        return None
    check_size(dataset, MAX_ARRAY_BYTES)
    budget.take_once(dataset)
    return dataset[()]


def flatten(group: ArrayGroup) -> dict[str, ReadArray]:
    """Return all arrays of a group by their path, such as ``group/name``."""
    arrays: dict[str, ReadArray] = {}
    for name, item in group.items():
        if callable(item):
            arrays[name] = item
        else:
            arrays |= {f"{name}/{inner}": read for inner, read in flatten(item).items()}
    return arrays


def arrays_in(group: ArrayGroup) -> dict[str, ReadArray]:
    """Return the arrays of a group, without the arrays of its groups."""
    return {name: item for name, item in group.items() if callable(item)}


def read_video(group: ArrayGroup, where: str, key: str | None = None, times: str | None = None) -> SourceFeatures:
    """Read the features of one video.

    Args:
        group: The video's part of the file.
        where: The file, for messages.
        key: Name of the array of features; by default the one called ``features``, or the only one.
        times: Name of the array [T, 2] of the first and last second of each vector.
    """
    rows = np.atleast_2d(choose_features(group, where) if key is None else _chosen(group, key, where))
    with np.errstate(over="ignore"):
        rows = np.array(rows, np.float16 if rows.dtype.kind == "f" and rows.dtype.itemsize == 2 else np.float32)
    if times is not None:
        return SourceFeatures(rows, times=_named(group, times, where))
    if not {"profile", "start_seconds"} <= group.keys():
        return SourceFeatures(rows)
    arrays = arrays_in(group)
    return SourceFeatures(rows, {name: arrays[name]() for name in EXPORTED if name in arrays})


def choose_features(group: ArrayGroup, where: str) -> np.ndarray:
    """Return the array called ``features``, or else the only array of numbers: [T, D], or [D] for one vector.

    Raises:
        UserError: There is no such array, there are several, or it has more than two axes longer than 1.
    """
    arrays = arrays_in(group)
    numeric: dict[str, np.ndarray] = {}
    if "features" in arrays and (features := _numbers(arrays["features"])) is not None:
        numeric["features"] = features
    else:
        for name, read in arrays.items():
            if (array := _numbers(read)) is not None:
                numeric[name] = array
    if len(numeric) != 1:
        raise UserError(f"{where}: expected one array, or one called 'features'; found {join_names(numeric)}")
    (array,) = numeric.values()
    may_be_empty = array.ndim == 2 and "profile" in group  # vlalign's exports may have videos without feature vectors
    return _as_rows(array, where, may_be_empty=may_be_empty)


def _chosen(group: ArrayGroup, key: str, where: str) -> np.ndarray:
    return _as_rows(_named(group, key, where), f"{where}, {key!r}", may_be_empty=False)


def _named(group: ArrayGroup, key: str, where: str) -> np.ndarray:
    arrays = arrays_in(group)
    if key not in arrays:
        raise UserError(f"{where}: no array {key!r} in it; found {join_names(arrays)}")
    if (array := _numbers(arrays[key])) is None:
        raise UserError(f"{where}: its {key!r} is not an array of numbers; expected [rows, values]")
    return array


def _as_rows(array: np.ndarray, where: str, *, may_be_empty: bool) -> np.ndarray:
    shape = list(array.shape)
    if array.ndim > 2:
        array = array.squeeze() if max(shape) > 1 else array.reshape(1, 1)
    if array.ndim > 2 or (0 in shape and not may_be_empty):
        raise UserError(f"{where}: expected [rows, values], got {shape}")
    return array


def _numbers(read: ReadArray) -> np.ndarray | None:
    array = read()
    return array if isinstance(array, np.ndarray) and array.dtype.kind in "fiu" and array.ndim > 0 else None


def join_names(names: Iterable[str]) -> str:
    """Return the first names and the number of the others, as text for messages."""
    names = list(names)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "none"

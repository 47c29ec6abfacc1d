"""The arrays in a feature file, whatever its format, and which of them are the features."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import UserError, refuse_unreadable
from ..common.terminal import one_line
from ..untrusted.limits import FORMAT_ERRORS, Read, Tree

EXPORTED = ("start_seconds", "end_seconds", "valid_frames", "duration_seconds", "profile", "weights", "partial")
"""The arrays of vlalign's own exports besides ``features``."""


@dataclass(frozen=True, eq=False)
class ForeignFeatures:
    """The features of a video as a file has them."""

    rows: np.ndarray
    """[T, D], float16 or float32; may contain non-finite values."""
    exported: Mapping[str, Any] | None = None
    """For an export of vlalign, the unchecked values of ``EXPORTED``; profile and weights as JSON. Otherwise None."""


@contextlib.contextmanager
def refuse_damaged(where: str | Path) -> Iterator[None]:
    """Turn whatever the libraries raise for a damaged file into a ``UserError`` of one line."""
    try:
        with refuse_unreadable(where, "not a readable feature file", errors=FORMAT_ERRORS):
            yield
    except UserError as error:
        raise UserError(one_line(str(error))) from None


def flat(tree: Tree) -> dict[str, Read]:
    """Return all arrays of a tree by their path, such as ``group/name``."""
    arrays: dict[str, Read] = {}
    for name, item in tree.items():
        if callable(item):
            arrays[name] = item
        else:
            arrays |= {f"{name}/{inner}": read for inner, read in flat(item).items()}
    return arrays


def arrays_of(tree: Tree) -> dict[str, Read]:
    """Return the arrays of a tree that are not in a group."""
    return {name: item for name, item in tree.items() if callable(item)}


def read_tree(tree: Tree, where: str) -> ForeignFeatures:
    """Read the features of one video.

    Args:
        tree: What is in the file about this video.
        where: The file, for messages.
    """
    rows = np.atleast_2d(choose(tree, where))
    with np.errstate(over="ignore"):
        rows = np.array(rows, np.float16 if rows.dtype.kind == "f" and rows.dtype.itemsize == 2 else np.float32)
    if not {"profile", "start_seconds"} <= tree.keys():
        return ForeignFeatures(rows)
    arrays = arrays_of(tree)
    return ForeignFeatures(rows, {name: arrays[name]() for name in EXPORTED if name in arrays})


def choose(tree: Tree, where: str) -> np.ndarray:
    """Return the array called ``features``, or else the only array of numbers: [T, D], or [D] for one row.

    Raises:
        UserError: There is no such array, there are several, or it has more than two axes longer than 1.
    """
    arrays = arrays_of(tree)
    numeric: dict[str, np.ndarray] = {}
    if "features" in arrays and (features := _numbers(arrays["features"])) is not None:
        numeric["features"] = features
    else:
        for name, read in arrays.items():
            if (array := _numbers(read)) is not None:
                numeric[name] = array
    if len(numeric) != 1:
        raise UserError(f"{where}: expected one array, or one called 'features'; found {listed(numeric)}")
    (array,) = numeric.values()
    shape = list(array.shape)
    if array.ndim > 2:
        array = array.squeeze() if max(shape) > 1 else array.reshape(1, 1)
    may_be_empty = array.ndim == 2 and "profile" in tree  # vlalign's exports may have videos without rows
    if array.ndim > 2 or (0 in shape and not may_be_empty):
        raise UserError(f"{where}: expected [rows, values], got {shape}")
    return array


def _numbers(read: Read) -> np.ndarray | None:
    array = read()
    return array if isinstance(array, np.ndarray) and array.dtype.kind in "fiu" and array.ndim > 0 else None


def listed(names: Iterable[str]) -> str:
    """Return the first names in words, for messages."""
    names = list(names)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "none"

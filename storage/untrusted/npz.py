"""Read untrusted .npz files, with memory limits that depend on the size of the file."""

import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from .limits import MAX_ARRAY_BYTES, Budget, ReadArray

NPY_MAGIC = np.lib.format.MAGIC_PREFIX
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compression methods that NumPy uses. A kilobyte unpacks to at most a megabyte; with others, to gigabytes."""


@contextmanager
def open_npz(path: Path) -> Iterator[dict[str, ReadArray]]:
    """Yield functions that read the arrays of a file, by name. The file is open in the block.

    Raises:
        ValueError, zipfile.BadZipFile: NumPy would not have written this: members overlap or have the same name; or
            they unpack to more than a file of this size may.
            Reading an array raises them if it has more than ``MAX_ARRAY_BYTES`` or is truncated.
    """
    with zipfile.ZipFile(path) as file:
        members = sorted(file.infolist(), key=lambda member: member.header_offset)
        if any(
            first.header_offset + first.compress_size >= second.header_offset for first, second in pairwise(members)
        ):
            raise ValueError("a zip with overlapping members")
        names = Counter(member.filename.removesuffix(".npy") for member in members)
        if repeated := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"a zip with two members called {repeated[0]!r}")
        budget = Budget(path.stat().st_size)
        for member in [member for member in members if member.compress_type in COMPRESSIONS]:
            budget.take(member.file_size, f"its array {member.filename[:80]!r}")
        yield {member.filename.removesuffix(".npy"): partial(_read, file, member) for member in file.infolist()}


def _read(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray | None:
    """Return an array; None for a member that is not one."""
    if member.file_size > MAX_ARRAY_BYTES:
        raise ValueError(f"its array {member.filename!r} has more than {MAX_ARRAY_BYTES >> 30} GiB")
    if member.compress_type not in COMPRESSIONS:
        raise ValueError(f"its array {member.filename!r} uses a compression that NumPy does not")
    with file.open(member) as content:
        magic = content.read(len(NPY_MAGIC))
        if magic != NPY_MAGIC:
            return None
        content.seek(0)
        return np.lib.format.read_array(content, allow_pickle=False)

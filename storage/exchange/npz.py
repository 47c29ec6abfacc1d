"""Arrays of .npz files from elsewhere: what is read of one is what its own size allows."""

import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from .pickles import MOST_BYTES, Read

NPY_MAGIC = np.lib.format.MAGIC_PREFIX
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""NumPy's. Of others, a kilobyte may hold gigabytes; of these, a megabyte."""


@contextmanager
def open_npz(path: Path) -> Iterator[dict[str, Read]]:
    """Its arrays by name; each is read, from the file that stays open meanwhile, when it is asked for.

    Raises ``ValueError`` and ``zipfile.BadZipFile`` for what NumPy would not have written: members with the same name, or in the same
    place. Reading raises them for an array of more than ``MOST_BYTES`` or one that is not all there.
    """
    with zipfile.ZipFile(path) as file:
        members = sorted(file.infolist(), key=lambda member: member.header_offset)
        if any(one.header_offset + one.compress_size >= other.header_offset for one, other in pairwise(members)):
            raise ValueError("a zip whose members lie one in the other")
        names = Counter(member.filename.removesuffix(".npy") for member in members)
        if several := [name for name, number in names.items() if number > 1]:
            raise ValueError(f"two members called {several[0]!r}")
        yield {member.filename.removesuffix(".npy"): partial(_read, file, member) for member in file.infolist()}


def _read(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray | None:
    """None for a member that is no array."""
    if member.file_size > MOST_BYTES:
        raise ValueError(f"its array {member.filename!r} has more than {MOST_BYTES >> 30} GiB")
    if member.compress_type not in PACKINGS:
        raise ValueError(f"its array {member.filename!r} is packed in another way than NumPy's")
    with file.open(member) as content:
        if content.peek(len(NPY_MAGIC))[: len(NPY_MAGIC)] != NPY_MAGIC:
            return None
        return np.lib.format.read_array(content, allow_pickle=False)

"""Memory limits for untrusted files, and the errors that libraries raise for damaged ones."""

import pickle
import struct
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from ..common.errors import READ_ERRORS

FORMAT_ERRORS: tuple[type[Exception], ...] = (
    *READ_ERRORS,
    AssertionError,
    SyntaxError,
    pa.ArrowException,
    pickle.PickleError,
    struct.error,
    tarfile.TarError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Errors that NumPy, h5py, Arrow, zipfile, tarfile and pickle raise for damaged files."""
MAX_ARRAY_BYTES = 2 << 30
"""Limit of one video's array. A small file may claim, or unpack to, more than any memory holds."""
ReadArray = Callable[[], np.ndarray | None]
"""Reads an array; returns None if it is not an array of numbers."""
ArrayGroup = Mapping[str, "ReadArray | ArrayGroup"]
"""The content of a file: arrays by name, or one level of groups of arrays."""


FREE_BYTES, FACTOR = 64 << 20, 32
"""Any file may take ``FREE_BYTES`` and ``FACTOR`` times its size in memory. Features and captions are compressed to a
fifth at best; only endless repetition is compressed more.
"""


class Budget:
    """The remaining memory limit for the unpacked content of a file.

    Args:
        file_bytes: Size of the file.
    """

    def __init__(self, file_bytes: int) -> None:
        self.left = FREE_BYTES + FACTOR * file_bytes
        self._file_bytes = file_bytes

    def take(self, num_bytes: int, what: str) -> None:
        """Count bytes before they are read. Raises ``ValueError`` if the file exceeds its limit."""
        if num_bytes > self.left:
            raise ValueError(f"{what} would take {num_bytes:,} bytes, too much for a file of {self._file_bytes:,}")
        self.left -= num_bytes

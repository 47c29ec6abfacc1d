"""The file that a decoder reads: a descriptor that another process handed over, or else the file at a path."""

import errno
import io
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import av.error

from ...storage.common.files import not_mounted
from ...storage.common.system import BINARY_CLOEXEC, NONBLOCK, read_at
from ...storage.dataset.trusted_folders import AllowedFolders
from .errors import VideoError

if TYPE_CHECKING:
    from typing_extensions import Buffer

OF_THE_PATH = (errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO)
"""Errors of opening that a retry does not change: the path is invalid, or leads to a socket."""
_descriptors: dict[Path, int] = {}
_read_errors: list[OSError] = []
"""The first error of ``InputFile.read`` since ``take``, if any."""


class InputFile(io.RawIOBase):
    """The bytes of a file. Each object has its own read position, even if the file is open several times."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)  # libraries use the suffix as a hint
        self._owns_descriptor = False  # Python closes the object even if ``__init__`` fails
        is_handed = path in _descriptors
        self._descriptor = _descriptors[path] if is_handed else open_regular(path)
        self._owns_descriptor = not is_handed
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def read(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes; all that are left if it is negative."""
        if size < 0:
            return self.readall()
        try:
            part = read_at(self._descriptor, size, self._position)
        except OSError as error:  # of a disk or network: raised as FFmpeg's own, as if FFmpeg had read the file
            _read_errors[:] = _read_errors[:1] or [error]
            raise av.error.OSError(error.errno or errno.EIO, error.strerror or "") from None
        self._position += len(part)
        return part

    def readinto(self, buffer: "Buffer") -> int:
        """Fill ``buffer`` from the file; return the number of bytes read."""
        target = memoryview(buffer).cast("B")
        part = self.read(len(target))
        target[: len(part)] = part
        return len(part)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the read position; return it, or -1 for a position before the file."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        position = offset + (num_bytes_of(self._descriptor) if start is None else start)
        if position < 0:
            return -1  # FFmpeg seeks here to get the size of an empty file, and cannot handle an exception
        self._position = position
        return position

    def tell(self) -> int:
        """Return the read position."""
        return self._position

    def close(self) -> None:
        """Close the file, unless its descriptor was handed over."""
        if not self.closed and self._owns_descriptor:
            os.close(self._descriptor)
        super().close()


def open_file(path: Path) -> io.BufferedReader:
    """Open ``path``, or the descriptor that was handed over for it.

    Raises:
        OSError: There is no such regular file.
    """
    return io.BufferedReader(InputFile(path))


def num_bytes_of(descriptor: int) -> int:
    """Return the size of an open file. ``fstat`` may be refused: some C libraries replace it by another call."""
    return os.lseek(descriptor, 0, os.SEEK_END)


def open_regular(path: Path, folders: Sequence[str] | None = None) -> int:
    """Return a descriptor for reading; never wait for a pipe or a device.

    Args:
        path: The file.
        folders: Folders that must contain it; None for any.

    Raises:
        OSError: There is no such regular file.
    """
    if folders is not None:
        return AllowedFolders(folders).open(path)[0]
    descriptor = os.open(path, os.O_RDONLY | NONBLOCK | BINARY_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(f"{path}: not a regular file")
    return descriptor


def take(path: Path, descriptor: int) -> None:
    """Read ``path`` from ``descriptor`` from now on; close the previous descriptor."""
    for before in _descriptors.values():
        os.close(before)
    _descriptors.clear()
    _read_errors.clear()
    _descriptors[path] = descriptor


def read_failure() -> VideoError | None:
    """Return the failure of a file that could not be read completely from its disk or network.

    A decoder may mistake the error for the end of the file or for damage.
    """
    return VideoError("unreachable", f"reading it failed ({_read_errors[0].strerror})") if _read_errors else None


def opening_failure(error: OSError, path: Path) -> VideoError:
    """Return the failure of the video at ``path`` for an error of ``open_regular``."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        problem = not_mounted(path.parent)
        return VideoError("unreachable", problem) if problem else VideoError("missing", "no such file")
    kind = "unreadable" if error.errno in OF_THE_PATH else "unreachable"
    return VideoError(kind, f"it cannot be opened ({error.strerror})")

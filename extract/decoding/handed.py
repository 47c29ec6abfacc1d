"""The file that a decoder reads: one that the process was handed, open already, or else one that is opened by its path."""

import io
import os
import stat
from pathlib import Path

import av

_descriptors: dict[Path, int] = {}


class HandedFile(io.RawIOBase):
    """Bytes of a file, with a place of its own in it, however often the file is open."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)  # libraries take the suffix for a hint
        self._own = path not in _descriptors
        self._descriptor = open_regular(path) if self._own else _descriptors[path]
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            return self.readall()
        try:
            part = os.pread(self._descriptor, size, self._at)
        except OSError as error:  # of a disk or a network: FFmpeg's own, as if it had read the file itself
            raise av.error.OSError(error.errno, error.strerror) from None
        self._at += len(part)
        return part

    def readinto(self, buffer: bytearray | memoryview) -> int:
        part = self.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence)
        place = offset + (os.fstat(self._descriptor).st_size if start is None else start)
        if place < 0:
            return -1  # FFmpeg asks so for the size of empty files; an exception would not be its own
        self._at = place
        return place

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        if not self.closed and self._own:
            os.close(self._descriptor)
        super().close()


def open_file(path: Path) -> io.BufferedReader:
    """Raises ``OSError`` where there is no such regular file."""
    return io.BufferedReader(HandedFile(path))


def open_regular(path: Path) -> int:
    """A descriptor to read from. Raises ``OSError`` for what is no regular file, and never waits for a pipe or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(f"{path}: no regular file")
    return descriptor


def take(path: Path, descriptor: int) -> None:
    """From now on, ``path`` is read from ``descriptor``, and what was taken before is closed."""
    for before in _descriptors.values():
        os.close(before)
    _descriptors.clear()
    _descriptors[path] = descriptor

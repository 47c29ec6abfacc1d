"""What a process opens, seen from outside it."""

import ctypes
import os
import struct
from collections.abc import Sequence
from pathlib import Path


class Openings:
    """Which of some files are opened, by any process (inotify)."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = self._libc.inotify_init1(os.O_NONBLOCK)
        self._names = {self._libc.inotify_add_watch(self._file, os.fsencode(path), 0x20): path.name for path in paths}
        assert self._file >= 0 and -1 not in self._names, os.strerror(ctypes.get_errno())

    def since_last(self) -> set[str]:
        try:
            events = os.read(self._file, 1 << 16)
        except BlockingIOError:
            return set()
        return {self._names[watch] for watch, _, _, _ in struct.iter_unpack("iIII", events)}

    def close(self) -> None:
        os.close(self._file)

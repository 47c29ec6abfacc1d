"""Memory in which a decoder's process writes windows of frames, and from which its parent copies them into batches.

The memory is a file without a name: nothing of it is left when its processes have ended, in whatever way. Its size is
fixed before the decoder starts. The decoder chooses where in it a window lies, and the parent checks that. Frames may
change while the parent copies them, if a file has taken over the decoder: that gives other pictures, and nothing else.
"""

import contextlib
import fcntl
import mmap
import os
import tempfile
from collections import deque
from collections.abc import Sequence

import numpy as np

from .decode import Wanted
from .errors import VideoError

AHEAD_BYTES = 8 << 20
"""Windows of one profile that wait in the memory at once, if there is more than one."""
MAX_WINDOW_BYTES = 256 << 20
TAKEN_AT_ONCE = 4096


def num_bytes_for(wanted: Sequence[Wanted]) -> int:
    """Return the size of the memory for the windows of ``wanted``, each of which gets an equal part.

    Memory is used only where frames were written: at most ``AHEAD_BYTES`` of a part, or one window.
    """
    largest = max((min(w.max_window_bytes, MAX_WINDOW_BYTES) for w in wanted), default=0)
    return max(len(wanted), 1) * _whole_pages(max(largest, AHEAD_BYTES))


def create(num_bytes: int) -> int:
    """Return the descriptor of a file in memory that has no name and keeps its size.

    Where the system has none (macOS), it is a temporary file whose name is removed at once.
    """
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):  # forbidden in some containers
            descriptor = os.memfd_create("frames", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, num_bytes)
            # Were it made shorter, reading its end would kill the parent.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return descriptor
    with tempfile.TemporaryFile() as file:
        file.truncate(num_bytes)
        return os.dup(file.fileno())


class FrameMemory:
    """The memory as the decoder's process sees it.

    Each profile has a part of it, in which its windows follow each other in a ring. When all places are unread, the
    next window waits until the parent has copied one.
    """

    def __init__(self, memory: int, taken: int) -> None:
        """Map the memory.

        Args:
            memory: The descriptor of the memory. It is closed.
            taken: The descriptor of a pipe from which a byte comes for each window that the parent has copied.
        """
        self._memory = mmap.mmap(memory, 0)
        os.close(memory)
        self._start = np.frombuffer(self._memory, np.uint8).ctypes.data
        self._taken = taken
        self._unread: deque[int] = deque()
        """Where the windows begin that the parent has been told of and has not copied, oldest first."""
        self._part_bytes = len(self._memory)
        self._rings: dict[int, tuple[int, int]] = {}
        """(bytes of a place, number of the place in use) of each profile."""

    def divide(self, num_wanted: int) -> None:
        """Give each of ``num_wanted`` profiles a part of the memory. Nothing may be unread."""
        self._part_bytes = len(self._memory) // num_wanted // mmap.PAGESIZE * mmap.PAGESIZE
        self._rings.clear()

    def place(self, wanted: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return the memory for a profile's next window, whose content is arbitrary; wait until it is free.

        The window before it keeps its content until the call after this one.

        Args:
            wanted: Index of the profile.
            shape: Shape of the window's frames.
            dtype: Their type.

        Raises:
            VideoError: The window is too large.
        """
        num_bytes = _whole_pages(int(np.prod(shape)) * dtype.itemsize)
        if num_bytes > self._part_bytes:
            raise VideoError("out_of_memory", f"frames of {list(shape)} are more than {MAX_WINDOW_BYTES >> 20} MB")
        bytes_before, number = self._rings.get(wanted, (num_bytes, -1))
        if bytes_before != num_bytes:
            self.wait_until_read()
        number = (number + 1) % max(min(self._part_bytes, AHEAD_BYTES) // num_bytes, 1)
        self._rings[wanted] = num_bytes, number
        offset = wanted * self._part_bytes + number * num_bytes
        while offset in self._unread:
            self._wait()
        return np.ndarray(shape, dtype, self._memory, offset)

    def hand_over(self, frames: np.ndarray) -> int:
        """Return where ``frames``, which ``place`` returned, begin. The parent must be told, and copies them."""
        self._unread.append(frames.ctypes.data - self._start)
        return self._unread[-1]

    def wait_until_read(self) -> None:
        """Wait until the parent has copied all windows.

        Another process may take over then: the parent's bytes are counted by the process that expects them.
        """
        while self._unread:
            self._wait()

    def _wait(self) -> None:
        taken = os.read(self._taken, TAKEN_AT_ONCE)
        if not taken:
            raise EOFError
        for _ in taken:
            self._unread.popleft()


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE

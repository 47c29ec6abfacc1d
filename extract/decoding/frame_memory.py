"""Memory in which a decoder's process writes windows of frames, and from which its parent copies them into batches.

The memory is a file without a name: nothing of it is left when its processes have ended, in whatever way. Its size is
fixed before the decoder starts. The decoder chooses where in it a window lies, and the parent checks that. Frames may
change while the parent copies them, if a file has taken over the decoder: that gives other pictures, and nothing else.
"""

import contextlib
import math
import mmap
import os
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Sequence

import numpy as np

from ...storage.common.system import keep_size
from .decode import Wanted
from .errors import VideoError

PLACES = 2
"""Windows of one profile that are in the memory at once: one is filled while the parent copies the other."""
MAX_WINDOW_BYTES = 256 << 20
SMALL_WINDOW_BYTES = 4 << 20
TAKEN_AT_ONCE = 4096


def num_bytes_for(wanted: Sequence[Wanted]) -> int:
    """Return the size of the memory for the windows of ``wanted``; without any, for small windows.

    A place has room for the largest window that may come, but takes only as much memory as was written there.
    """
    largest = max((min(w.max_window_bytes, MAX_WINDOW_BYTES) for w in wanted), default=SMALL_WINDOW_BYTES)
    whole_pages = -(-largest // mmap.PAGESIZE) * mmap.PAGESIZE
    return max(len(wanted), 1) * PLACES * whole_pages


def create(num_bytes: int) -> int:
    """Return the descriptor of a file in memory that has no name and keeps its size.

    Where such files are forbidden, it is a temporary file whose name is removed at once.
    """
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):  # forbidden in some containers
            descriptor = os.memfd_create("frames", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, num_bytes)
            keep_size(descriptor)  # were it made shorter, reading its end would kill the parent
            return descriptor
    with tempfile.TemporaryFile() as file:
        file.truncate(num_bytes)
        return os.dup(file.fileno())


class FrameMemory:
    """The memory as the decoder's process sees it.

    Each profile has ``PLACES`` in it, which its windows take in turn. A window waits until the parent has copied the
    one that was in its place.
    """

    def __init__(self, memory: int, read_taken: Callable[[int], bytes]) -> None:
        """Map the memory.

        Args:
            memory: The descriptor of the memory. It is closed.
            read_taken: Waits, and returns a byte for each window that the parent has copied, up to a number of them.
        """
        self._memory = mmap.mmap(memory, 0)
        os.close(memory)
        self._start = np.frombuffer(self._memory, np.uint8).ctypes.data
        self._read_taken = read_taken
        self._unread: deque[int] = deque()
        """Where the windows begin that the parent has been told of and has not copied, oldest first."""
        self._place_bytes = 0
        self._turns: Counter[int] = Counter()
        """The number of windows that each profile has had."""

    def divide(self, num_wanted: int) -> None:
        """Give each of ``num_wanted`` profiles its places. Nothing may be unread."""
        self._place_bytes = len(self._memory) // (num_wanted * PLACES) // mmap.PAGESIZE * mmap.PAGESIZE

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
        if math.prod(shape) * dtype.itemsize > self._place_bytes:
            raise VideoError("out_of_memory", f"frames of {list(shape)} are more than {MAX_WINDOW_BYTES >> 20} MB")
        self._turns[wanted] += 1
        offset = (wanted * PLACES + self._turns[wanted] % PLACES) * self._place_bytes
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
        taken = self._read_taken(TAKEN_AT_ONCE)
        if not taken:
            raise EOFError
        for _ in taken:
            self._unread.popleft()

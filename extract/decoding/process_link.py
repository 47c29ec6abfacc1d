"""The link between a decoder's process and its parent: messages over a connection, frames in shared memory.

On Linux the child inherits both as descriptors, which it can use after it has lost the right to open files. Elsewhere
it connects to its parent and opens the memory's file by its name.

The memory is a file without a name: the system removes it when its processes end, even after a crash. Its size is fixed
before the decoder starts. The decoder chooses the offset of a window, and the parent checks it. If a file has taken
over the decoder, frames may change while the parent copies them. The result is wrong frames, but no other harm.
"""

import contextlib
import math
import mmap
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

import numpy as np

from ...storage.common.child_connection import ConnectionServer, connect
from ...storage.common.system import BINARY_CLOEXEC, IS_LINUX, keep_size
from .errors import VideoError
from .sampling import FrameSpec

MAX_OUTPUT_BYTES = 1 << 16
DELETED_AT_LAST: int = getattr(os, "O_TEMPORARY", 0)
"""Flag of ``os.open``: Windows removes the file when the last process closes it."""
NUM_SLOTS = 2
"""Number of one profile's windows in the memory: the child fills one while the parent copies the other."""
MAX_WINDOW_BYTES = 256 << 20
SMALL_WINDOW_BYTES = 4 << 20
TAKEN_AT_ONCE = 4096


# Frames in shared memory


def num_bytes_for(specs: Sequence[FrameSpec]) -> int:
    """Return the size of the memory for the windows of ``specs``; without specs, for small windows.

    A slot has room for the largest possible window, but only uses the memory that was written.
    """
    largest = max((min(spec.max_window_bytes, MAX_WINDOW_BYTES) for spec in specs), default=SMALL_WINDOW_BYTES)
    whole_pages = -(-largest // mmap.PAGESIZE) * mmap.PAGESIZE
    return max(len(specs), 1) * NUM_SLOTS * whole_pages


def create_memory(num_bytes: int) -> int:
    """Return the descriptor of a file in memory that has no name and keeps its size.

    Where such files are forbidden, it is a temporary file whose name is removed at once.
    """
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):  # forbidden in some containers
            descriptor = os.memfd_create("frames", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, num_bytes)
            keep_size(descriptor)  # if it were shortened, reading its end would kill the parent
            return descriptor
    with tempfile.TemporaryFile() as file:
        file.truncate(num_bytes)
        return os.dup(file.fileno())


class FrameMemory:
    """The shared memory, as used by the decoder's process.

    Each profile has ``NUM_SLOTS`` slots, which its windows use in turn. A window waits until the parent has copied the
    previous window of its slot.
    """

    def __init__(self, memory: int, read_taken: Callable[[int], bytes]) -> None:
        """Map the memory.

        Args:
            memory: The descriptor of the memory. It is closed.
            read_taken: Waits, then returns a byte for each window that the parent has copied, at most the given number.
        """
        self._memory = mmap.mmap(memory, 0)
        os.close(memory)
        self._start = np.frombuffer(self._memory, np.uint8).ctypes.data
        self._read_taken = read_taken
        self._unread: deque[int] = deque()
        """Offsets of the windows that were announced to the parent but not copied yet, oldest first."""
        self._slot_bytes = 0
        self._turns: Counter[int] = Counter()
        """{index of a profile: number of windows allocated}"""

    def divide(self, num_specs: int) -> None:
        """Divide the memory among ``num_specs`` profiles. The parent must have read all windows."""
        self._slot_bytes = len(self._memory) // (num_specs * NUM_SLOTS) // mmap.PAGESIZE * mmap.PAGESIZE

    def allocate(self, spec_index: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Wait for the memory of a profile's next window and return it, with arbitrary content.

        The previous window stays valid until the next call.

        Args:
            spec_index: Index of the profile.
            shape: Shape of the window's frames.
            dtype: Their type.

        Raises:
            VideoError: The window is too large.
        """
        if math.prod(shape) * dtype.itemsize > self._slot_bytes:
            raise VideoError("out_of_memory", f"frames of {list(shape)} are more than {MAX_WINDOW_BYTES >> 20} MB")
        self._turns[spec_index] += 1
        offset = (spec_index * NUM_SLOTS + self._turns[spec_index] % NUM_SLOTS) * self._slot_bytes
        while offset in self._unread:
            self._wait()
        return np.ndarray(shape, dtype, self._memory, offset)

    def hand_over(self, frames: np.ndarray) -> int:
        """Return the offset of ``frames``, an array from ``allocate``.

        The caller sends the offset to the parent, which copies the frames.
        """
        self._unread.append(frames.ctypes.data - self._start)
        return self._unread[-1]

    def wait_until_read(self) -> None:
        """Wait until the parent has copied all windows.

        Only then may another process take over, since each process counts the parent's reports of its own windows.
        """
        while self._unread:
            self._wait()

    def _wait(self) -> None:
        taken = self._read_taken(TAKEN_AT_ONCE)
        if not taken:
            raise EOFError
        for _ in taken:
            self._unread.popleft()


# Both ends of the link


@dataclass
class ParentLink:
    """The parent's side."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    memory: mmap.mmap
    tell_taken: Callable[[bytes], int]
    """Reports copied frames to the child, without waiting: one byte for each window."""
    take_output: Callable[[], bytes]
    """Returns the child's printed output since the last call, truncated to the stored part, without waiting."""
    _release: Callable[[], None]

    def close(self) -> None:
        """Release the resources after the child has ended."""
        self.connection.close()
        self.memory.close()
        self._release()


def start(command: list[str], gpu: str, num_bytes: int, environment: Mapping[str, str]) -> ParentLink:
    """Start a decoder's process.

    Args:
        command: The program, which calls ``child_link``; its arguments are added.
        gpu: Passed as the last argument, unless it is empty.
        num_bytes: Size of the memory for frames.
        environment: The process's variables.
    """
    return (_start_inheriting if IS_LINUX else _start_connecting)(command, [gpu] if gpu else [], num_bytes, environment)


def _start_inheriting(
    command: list[str], of_gpu: list[str], num_bytes: int, environment: Mapping[str, str]
) -> ParentLink:
    ours, theirs = socket.socketpair()
    descriptor = create_memory(num_bytes)
    memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    taken, tell = os.pipe()
    printed, output = os.pipe()  # output that does not fit is lost; nobody waits for it
    for descriptor_without_waiting in (tell, printed, output):
        os.set_blocking(descriptor_without_waiting, False)
    passed = [theirs.fileno(), descriptor, taken]
    process = subprocess.Popen(
        [*command, *map(str, passed), *of_gpu],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        pass_fds=passed,
        env=environment,
    )
    theirs.close()
    os.close(descriptor)
    os.close(taken)
    os.close(output)

    def take_output() -> bytes:
        with contextlib.suppress(BlockingIOError):
            return os.read(printed, MAX_OUTPUT_BYTES)
        return b""

    def release() -> None:
        os.close(tell)
        os.close(printed)

    return ParentLink(process, ours, memory, partial(os.write, tell), take_output, release)


def _start_connecting(
    command: list[str], of_gpu: list[str], num_bytes: int, environment: Mapping[str, str]
) -> ParentLink:
    output = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the link)
    file = tempfile.NamedTemporaryFile(prefix="vlalign-")  # noqa: SIM115 (closed below, or with the link)
    file.truncate(num_bytes)
    memory = mmap.mmap(file.fileno(), num_bytes, access=mmap.ACCESS_READ)
    entrance = ConnectionServer()
    with contextlib.closing(entrance):
        process = subprocess.Popen(
            [*command, file.name, *of_gpu],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**environment, **entrance.environment()},
        )
        taken_line = entrance.wait_for(process)
        messages = entrance.wait_for(process)
    if not DELETED_AT_LAST:
        file.close()  # its name is removed, and the memory remains

    def release() -> None:
        taken_line.close()
        file.close()
        output.close()

    def take_output() -> bytes:
        output.seek(0)
        printed = output.read()[-MAX_OUTPUT_BYTES:]
        output.seek(0)
        output.truncate()
        return printed

    taken_line.setblocking(False)
    return ParentLink(process, messages, memory, taken_line.send, take_output, release)


def child_link() -> tuple[Connection, FrameMemory, str]:
    """Return the connection, the memory and the GPU of the process that ``start`` has started."""
    if IS_LINUX:
        answering, memory, taken = map(int, sys.argv[1:4])
        return Connection(answering), FrameMemory(memory, partial(os.read, taken)), "".join(sys.argv[4:])
    memory = os.open(sys.argv[1], os.O_RDWR | BINARY_CLOEXEC | DELETED_AT_LAST)
    taken_line = connect(last=False)
    frames = FrameMemory(memory, taken_line.recv)
    return Connection(connect().detach()), frames, "".join(sys.argv[2:])


def answer_descriptors() -> list[int]:
    """Return the descriptors for answers, in a process forked from the one that ``start`` started (Linux)."""
    answering, _, taken = map(int, sys.argv[1:4])
    return [answering, taken]

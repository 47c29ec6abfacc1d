"""How a decoder's process and its parent reach each other.

Messages go over a connection, and frames through a file that both have in memory (``frame_memory.py``). On Linux the
child inherits all as descriptors, which it can use when it may open nothing any more. Elsewhere it connects to its
parent and opens the file by its name.
"""

import contextlib
import mmap
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

from ...storage.common.child_connection import Entrance, connect
from ...storage.common.system import AS_IT_IS, IS_LINUX
from . import frame_memory
from .frame_memory import FrameMemory

MAX_OUTPUT_BYTES = 1 << 16
DELETED_AT_LAST: int = getattr(os, "O_TEMPORARY", 0)
"""Flag of ``os.open``: Windows removes the file when the last process closes it."""


@dataclass
class ParentLink:
    """The parent's side."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    memory: mmap.mmap
    tell_taken: Callable[[bytes], int]
    """Tells the child that frames were copied, without waiting: one byte for each window."""
    take_output: Callable[[], bytes]
    """Returns what the process has printed since the last call, as far as it was kept, without waiting."""
    _release: Callable[[], None]

    def close(self) -> None:
        """Free what is held, once the child has ended."""
        self.connection.close()
        self.memory.close()
        self._release()


def start(command: list[str], gpu: str, num_bytes: int, environment: Mapping[str, str]) -> ParentLink:
    """Start a decoder's process.

    Args:
        command: The program, which calls ``child_link``; its arguments are added.
        gpu: The last argument, unless it is empty.
        num_bytes: Size of the memory for frames.
        environment: The process's variables.
    """
    return (_start_inheriting if IS_LINUX else _start_connecting)(command, [gpu] if gpu else [], num_bytes, environment)


def _start_inheriting(
    command: list[str], of_gpu: list[str], num_bytes: int, environment: Mapping[str, str]
) -> ParentLink:
    ours, theirs = socket.socketpair()
    descriptor = frame_memory.create(num_bytes)
    memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    taken, tell = os.pipe()
    printed, output = os.pipe()  # what does not fit is lost, and nobody waits
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
    entrance = Entrance()
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
        file.close()  # its name is gone, and the memory stays

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
    memory = os.open(sys.argv[1], os.O_RDWR | AS_IT_IS | DELETED_AT_LAST)
    taken_line = connect(last=False)
    frames = FrameMemory(memory, taken_line.recv)
    return Connection(connect().detach()), frames, "".join(sys.argv[2:])


def descriptors_to_answer() -> list[int]:
    """Return the descriptors by which a process forked from the one that ``start`` has started answers (Linux)."""
    answering, _, taken = map(int, sys.argv[1:4])
    return [answering, taken]

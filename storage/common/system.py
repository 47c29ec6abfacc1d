"""Portable system calls: locks, reading at an offset, flushing, cores, and limits of a process.

Windows has no ``fcntl`` and no ``resource``, and lacks many names of ``os``, ``signal`` and ``mmap``; macOS lacks some
names as well. Other modules use this one for calls that some systems lack.
"""

import contextlib
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import fcntl
    import resource
else:
    try:
        import fcntl
        import resource
    except ImportError:  # Windows
        fcntl = resource = None

IS_LINUX = sys.platform == "linux"
"""True if decoders can be confined and inherit descriptors."""
IS_WINDOWS = os.name == "nt"
NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
"""Flag of ``os.open``: fail for a link; 0 on systems without it."""
NONBLOCK: int = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
"""Flags of ``os.open``: do not wait for the other end of a pipe."""
BINARY_CLOEXEC: int = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""Flags of ``os.open``: keep bytes unchanged, and do not pass the descriptor to child processes."""
SIGKILL: int = getattr(signal, "SIGKILL", 9)
SIGPIPE: int = getattr(signal, "SIGPIPE", 13)
SIGXCPU: int = getattr(signal, "SIGXCPU", 24)
LOCKED_BYTE = (1 << 31) - 2
"""Offset of the byte that Windows locks. Others cannot read a locked byte, so it is beyond the end of any file."""
POLL_SECONDS = 0.2
_moving = threading.Lock()


def try_lock(file: IO[str]) -> None:
    """Lock an open file for this process, until it is closed.

    Raises:
        BlockingIOError: Another process has locked it.
        OSError: The file system has no locks.
    """
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    import msvcrt

    position = os.lseek(file.fileno(), 0, os.SEEK_CUR)
    os.lseek(file.fileno(), LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except PermissionError as error:
        raise BlockingIOError(*error.args) from None
    finally:
        os.lseek(file.fileno(), position, os.SEEK_SET)


def wait_for_lock(file: IO[str]) -> None:
    """Wait until no other process has locked an open file; then lock it for this process, until it is closed.

    On a file system without locks, processes do not wait for each other.
    """
    with contextlib.suppress(OSError):
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
            return
        while True:
            try:
                return try_lock(file)
            except BlockingIOError:
                time.sleep(POLL_SECONDS)


def read_at(descriptor: int, num_bytes: int, offset: int) -> bytes:
    """Read up to ``num_bytes`` of a file from ``offset`` on."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, num_bytes, offset)
    with _moving:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, num_bytes)


def write_at(descriptor: int, parts: Sequence[memoryview], offset: int) -> int:
    """Write buffers one after the other at ``offset``; return the number of bytes written, which may be fewer."""
    if hasattr(os, "pwritev"):
        return os.pwritev(descriptor, parts, offset)
    with _moving:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.write(descriptor, parts[0])


def flush_file(path: Path) -> None:
    """Wait until the content of a file is on its disk."""
    with path.open("rb+" if IS_WINDOWS else "rb") as file:  # Windows flushes only files that are open for writing
        os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Wait until the names in a folder are on its disk. Windows cannot open folders, and flushes names itself."""
    if IS_WINDOWS:
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def real_path_of(folder: int, path: Path) -> str:
    """Return the real path of an open folder, without links; ``path`` is the path that it was opened by."""
    if IS_LINUX:
        with contextlib.suppress(OSError):  # without /proc
            return os.readlink(f"/proc/self/fd/{folder}")
    if hasattr(fcntl, "F_GETPATH"):  # macOS
        return os.fsdecode(fcntl.fcntl(folder, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return os.path.realpath(path)


def keep_size(descriptor: int) -> None:
    """Forbid changes of a memory file's size (Linux)."""
    if fcntl is not None:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def advise(memory: mmap.mmap, advice: str, start: int = 0, num_bytes: int | None = None) -> None:
    """Tell the system how mapped memory is used, if it supports ``advice``, the name of a constant of ``mmap``."""
    if hasattr(mmap, advice):
        memory.madvise(getattr(mmap, advice), start, len(memory) - start if num_bytes is None else num_bytes)


def limit(what: str, value: int | None) -> None:
    """Set a limit of this process, at most the system's. Windows has no limits, and macOS no limit of address space.

    Args:
        what: Name of a constant of ``resource``, such as "RLIMIT_AS".
        value: The limit; None for the highest.
    """
    if resource is None:
        return
    number = getattr(resource, what)
    _, highest = resource.getrlimit(number)
    lower = highest if value is None else value if highest == resource.RLIM_INFINITY else min(value, highest)
    try:
        resource.setrlimit(number, (lower, highest))
    except ValueError:
        if IS_LINUX:
            raise


def make_limits_final() -> None:
    """Forbid this process to raise its limits again (a superuser must also give up this right)."""
    for name in dir(resource) if resource is not None else ():
        if name.startswith("RLIMIT_"):
            current, _ = resource.getrlimit(getattr(resource, name))
            resource.setrlimit(getattr(resource, name), (current, current))


def peak_memory_bytes() -> int | None:
    """Return the peak memory of this process; None if the system does not report it."""
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def signal_self(number: int) -> None:
    """Send this process a signal for its handler. On Windows, ``os.kill`` would end the process instead."""
    if IS_WINDOWS:
        signal.raise_signal(number)
    else:
        os.kill(os.getpid(), number)


def available_cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

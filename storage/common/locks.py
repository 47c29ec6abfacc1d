"""Locks for a folder or a file, for one process at a time. The system releases them when the process ends.

The library filelock opens files itself: it would lock a pipe, and create a file outside of a guarded folder.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from .errors import UserError
from .system import IS_WINDOWS, try_lock
from .terminal import one_line, say
from .writing import NOT_WRITABLE, make_folder, open_to_write, remove_empty_folder, remove_file

TURN_SECONDS, POLL_SECONDS = 10.0, 0.02
"""Maximum wait for a lock, and interval between attempts. Locks are held for less time: a longer wait has another
cause, such as a network file system without locks.
"""


@contextlib.contextmanager
def file_lock(path: Path, seconds: float | None = None) -> Iterator[None]:
    """Lock ``path`` for one process at a time.

    The lock is on a file beside it, and ends with the process at the latest. On a file system without locks, processes
    do not wait for each other.

    Args:
        path: The file.
        seconds: Maximum wait for other processes (default: ``TURN_SECONDS``).

    Raises:
        UserError: The lock file is a link, or no regular file.
    """
    make_folder(path.parent)
    with open_to_write(path.with_name(f".{path.name}.lock"), "a", allow_hard_links=True) as lock:
        deadline = time.monotonic() + (TURN_SECONDS if seconds is None else seconds)
        while time.monotonic() < deadline:
            try:
                try_lock(lock)
                break
            except BlockingIOError:
                time.sleep(POLL_SECONDS)
            except OSError:
                break
        yield


@contextlib.contextmanager
def folder_lock(path: Path, doing: str, todo: str = "") -> Iterator[None]:
    """Create the folder of ``path`` and lock it for this process. New folders are removed if they are empty at the end.

    Args:
        path: The file that names the process and its machine; it exists during the block. The system releases the lock
            itself when the process ends.
        doing: The process's activity, for messages, such as "trains".
        todo: The user's alternative to waiting, if another process has the lock.

    Raises:
        UserError: Another process has the lock; the message names it. Or ``path`` is a link, or no regular file; or
            writing is forbidden there.
    """
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        while (file := _lock(path, doing, todo)) is None:
            pass
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise
        raise UserError(
            f"{path.parent}: not writable ({error.strerror}); make this folder writable, or pass another --root"
        ) from None
    with file:
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        file.flush()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # a folder with content stays
                if IS_WINDOWS:
                    file.close()  # Windows removes no open file, and none that another process has opened meanwhile
                remove_file(path)
                for folder in made or [path.parent]:
                    remove_empty_folder(folder)


def _lock(path: Path, doing: str, todo: str) -> TextIO | None:
    """Return the locked file, or None if the process that had the lock has just removed it."""
    make_folder(path.parent)
    try:
        file = open_to_write(path, "a+", encoding="utf-8")
    except FileNotFoundError:  # its folder was just removed
        return None
    try:
        try_lock(file)
    except BlockingIOError:
        with file:
            wait = f"wait until it ends{', ' if todo else ''}{todo}"
            raise UserError(f"{path.parent}: {_holder(file)} {doing} there; {wait}") from None
    except OSError as error:
        say(
            f"note: {path}: this file system has no locks ({error.strerror}); make sure that no other process "
            f"{doing} there"
        )
    if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.lstat()):
        return file
    file.close()
    return None


def _holder(file: TextIO) -> str:
    file.seek(0)
    try:
        about = json.loads(file.read(1000))
        return one_line(f"process {about['pid']} on {about['host']}")
    except (ValueError, KeyError, TypeError, RecursionError):  # it has only just begun
        return "another process"

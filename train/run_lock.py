"""One training at a time in a run's folder."""

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ..storage.common.errors import UserError
from ..storage.common.terminal import one_line, say

LOCK_FILE = "train.lock"
"""The file that names the process and machine that train; it exists while they do. The lock itself is the system's,
which ends it with the process."""


@contextlib.contextmanager
def training_in(folder: Path, todo: str = "or pass another --run-name NAME") -> Iterator[None]:
    """Create ``folder`` and lock it for this process. A folder that is empty at the end is removed.

    Args:
        folder: A run's folder.
        todo: What the user can do besides waiting, if another process trains there.

    Raises:
        UserError: Another process trains there; the message names it.
    """
    path = folder / LOCK_FILE
    while (file := _lock(path, todo)) is None:
        pass
    with file:
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        file.flush()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # a folder with something in it stays
                path.unlink()
                folder.rmdir()


def _lock(path: Path, todo: str) -> TextIO | None:
    """Return the locked file, or None if the process that had the lock has just removed it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = path.open("a+", encoding="utf-8")
    except FileNotFoundError:  # with its folder
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with file:
            raise UserError(f"{path.parent}: {_holder(file)} trains there; wait until it ends, {todo}") from None
    except OSError as error:
        say(
            f"note: {path}: this file system has no locks ({error.strerror}); make sure that no other training writes "
            "there"
        )
    if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
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

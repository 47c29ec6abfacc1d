"""One process at a time in a folder."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from .errors import UserError
from .system import IS_WINDOWS, try_lock
from .terminal import one_line, say
from .writing import make_folder, open_own, remove_empty_folder, remove_file


@contextlib.contextmanager
def only_process_in(path: Path, doing: str, todo: str = "") -> Iterator[None]:
    """Create the folder of ``path`` and lock it for this process. It, and folders made for it, are removed if they are
    empty at the end.

    Args:
        path: The file that names the process and its machine; it exists while they work. The lock itself is the
            system's, which ends it with the process.
        doing: What the process does there, for messages, such as "trains".
        todo: What the user can do besides waiting, if another process has the lock.

    Raises:
        UserError: Another process has the lock; the message names it. Or ``path`` is a link, or no regular file.
    """
    made = [folder for folder in path.parents if not folder.exists()]
    while (file := _lock(path, doing, todo)) is None:
        pass
    with file:
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        file.flush()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # a folder with something in it stays
                if IS_WINDOWS:
                    file.close()  # Windows removes no open file, and none that another process has opened meanwhile
                remove_file(path)
                for folder in made or [path.parent]:
                    remove_empty_folder(folder)


def _lock(path: Path, doing: str, todo: str) -> TextIO | None:
    """Return the locked file, or None if the process that had the lock has just removed it."""
    make_folder(path.parent)
    try:
        file = open_own(path, "a+", encoding="utf-8")
    except FileNotFoundError:  # with its folder
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

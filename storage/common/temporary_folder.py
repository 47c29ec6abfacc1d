"""Folders of temporary files, which are removed even if their process is killed."""

import os
import shutil
import stat
import tempfile
import weakref
from pathlib import Path
from typing import TextIO

from .errors import UserError
from .system import try_lock, wait_for_lock
from .writing import open_to_write

LOCK_NAME = "lock"


class TemporaryFolder:
    """A folder in ``TMPDIR`` that only this user can open. A lock in it marks it as in use.

    It is removed by ``close``, or at the end of the process. After a kill, the next process that makes a folder with
    the same prefix removes it.
    """

    def __init__(self, prefix: str) -> None:
        """Create the folder, and remove those of killed processes."""
        _remove_left_behind(prefix)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix))
            lock: TextIO = (self.path / LOCK_NAME).open("w")
            wait_for_lock(lock)
            if self.path.exists():  # no other process found it before it was locked
                break
            lock.close()
        self._remove = weakref.finalize(self, _remove, self.path, lock)

    def close(self) -> None:
        """Remove the folder and its files."""
        self._remove()


def _remove(folder: Path, lock: TextIO) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()
    shutil.rmtree(folder, ignore_errors=True)  # Windows removes no open file


def _remove_left_behind(prefix: str) -> None:
    """Remove this user's folders whose locks are free: their processes were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            if not _is_own_folder(folder):
                continue
            with open_to_write(folder / LOCK_NAME, "r+") as lock:
                try_lock(lock)
                shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
        except (OSError, UserError):
            continue


def _is_own_folder(path: Path) -> bool:
    about = path.lstat()
    return stat.S_ISDIR(about.st_mode) and (not hasattr(os, "geteuid") or about.st_uid == os.geteuid())

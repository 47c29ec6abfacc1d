"""One training at a time in a run's folder."""

import contextlib
from pathlib import Path

from ..storage.folder_lock import only_process_in

LOCK_FILE = "train.lock"


def training_in(folder: Path, todo: str = "or pass another --run-name NAME") -> contextlib.AbstractContextManager[None]:
    """Create a run's folder and lock it for this process. A folder that is empty at the end is removed.

    Args:
        folder: A run's folder.
        todo: What the user can do besides waiting, if another process trains there.

    Raises:
        UserError: Another process trains there; the message names it.
    """
    return only_process_in(folder / LOCK_FILE, "trains", todo)

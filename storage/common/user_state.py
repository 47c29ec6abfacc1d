"""The user's own files on this machine: recorded confirmations, and the folder of downloads.

A confirmation is stored outside of folders that people pass around: such a folder cannot confirm anything itself. The
place is ``$XDG_STATE_HOME/vlalign``, by default ``~/.local/state/vlalign``.
"""

import hashlib
import os
import stat
from pathlib import Path

from .errors import UserError


def cache_folder(kind: str) -> Path:
    """Return the folder of downloads of one kind, such as "weights".

    Raises:
        UserError: There is no home folder, and the environment names no other.
    """
    try:
        return Path(os.environ.get("VLALIGN_CACHE") or Path.home() / ".cache" / "vlalign") / kind
    except RuntimeError:
        raise UserError(f"{kind}: no home folder to store them in; set VLALIGN_CACHE to a writable folder") from None


def state_file(kind: str, about: str) -> Path:
    """Return the path of a record.

    Args:
        kind: Kind of record, such as "links".
        about: The folder that the record is about.

    Raises:
        OSError: There is no home folder, and ``XDG_STATE_HOME`` names no other.
    """
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        try:
            state = Path.home() / ".local" / "state"
        except RuntimeError:
            raise OSError("no home folder") from None
    return state / "vlalign" / kind / f"{hashlib.sha256(os.fsencode(about)).hexdigest()[:32]}.json"


def writable_state_file(kind: str, about: str) -> Path:
    """Return the path for writing a record, in a folder that other users can neither read nor change.

    Args:
        kind: See ``state_file``.
        about: See ``state_file``.

    Raises:
        OSError: There is no home folder, or nothing can be written there.
    """
    path = state_file(kind, about)
    folder = path.parent.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        folder.chmod(0o700)  # an older version made it
    return path

"""The confirmations that this user gave on this machine.

It is kept outside of the folders that people pass around, so that such a folder cannot confirm anything itself: in
``$XDG_STATE_HOME/vlalign``, by default in ``~/.local/state/vlalign``.
"""

import hashlib
import os
from pathlib import Path


def state_file(kind: str, about: str) -> Path:
    """Return the path of a record. Raises ``RuntimeError`` if there is no home folder.

    Args:
        kind: What is recorded, such as "links".
        about: The folder that the record is about.
    """
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    state = state if state.is_absolute() else Path.home() / ".local" / "state"
    return state / "vlalign" / kind / f"{hashlib.sha256(os.fsencode(about)).hexdigest()[:32]}.json"

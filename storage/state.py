"""What this user has said on this machine: kept outside of the folders that are passed around, so that none of them can say it.

The records lie in ``$XDG_STATE_HOME/vlalign``, by default under ``~/.local/state``.
"""

import hashlib
import os
from pathlib import Path


def state_file(kind: str, about: str) -> Path:
    """Where the record of a ``kind`` ``about`` a folder lies. Raises ``RuntimeError`` where there is no home folder."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    state = state if state.is_absolute() else Path.home() / ".local" / "state"
    return state / "vlalign" / kind / f"{hashlib.sha256(os.fsencode(about)).hexdigest()[:32]}.json"

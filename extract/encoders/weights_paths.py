"""The paths of the weights that made this user's stores."""

import contextlib
from pathlib import Path

from ...storage.common.errors import UserError
from ...storage.common.files import read_json, write_json
from ...storage.common.user_state import cache_folder, state_file, writable_state_file
from ...storage.records import Profile, Weights
from . import is_of_hub


def remember_weights(used: Weights, place: Path) -> None:
    """Record the path of weights, so that a search can encode queries with them.

    Args:
        used: The weights.
        place: Their file or folder.
    """
    try:
        write_json(writable_state_file("weights", _about(used)), {"place": str(place.absolute())})
    except OSError:  # no home folder, or a read-only one: a search then needs --weights
        return


def find_weights(profile: Profile, used: Weights) -> Path:
    """Return the file or folder of a store's weights.

    Args:
        profile: The store's profile.
        used: The weights that made the store.

    Raises:
        UserError: The weights are neither at a recorded path nor in the cache.
    """
    moved_from = ""
    with contextlib.suppress(OSError):  # no home folder
        records = (
            state_file("weights", about) for about in (_about(used), used.sha256)
        )  # the second: records of older versions
        record = next((path for path in records if path.is_file()), None)
        about = read_json(record) if record else None
        if isinstance(about, dict) and isinstance(about.get("place"), str):
            if Path(about["place"]).exists():
                return Path(about["place"])
            moved_from = about["place"]
    which = f"weights {used.name}, which made the features {profile.name}"
    if is_of_hub(profile):
        problem = f"{moved_from} no longer exists" if moved_from else "no extraction on this machine used them"
        raise UserError(f"{which}: {problem}; pass --weights with the folder of the model, once")
    if (cached := cache_folder("weights") / profile.weights).is_file():
        return cached
    problem = f"{moved_from} no longer exists" if moved_from else "no extraction on this machine used them"
    raise UserError(f"{which}: not in {cached.parent}, and {problem}; pass --weights with their file or folder, once")


def _about(used: Weights) -> str:
    """Return the key of a record. It includes the name: copies of a model under other names make other features."""
    return f"{used.sha256} {used.name}"

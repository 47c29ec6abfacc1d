"""Folders of feature stores, and the shards in them."""

import os
from pathlib import Path

from ..common.errors import UserError
from ..remote.store import remote_store
from ..shards.names import in_order


def shard_files(folder: Path) -> list[Path]:
    """Return the shards in a folder, in order: of two with the same video the later one counts."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(".h5") and not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in in_order(names)]


def current_shards(folder: Path) -> list[Path]:
    """Return the shards that count, in order. For a remote store these are the ones that it has now."""
    return remote.update() if (remote := remote_store(folder)) else shard_files(folder)


def is_store(folder: Path) -> bool:
    """Return True if the folder, or the remote store that it stands for, has shards."""
    try:
        return bool(shard_files(folder) or ((remote := remote_store(folder)) and remote.names()))
    except UserError:  # opening the store reports why it cannot be read
        return True


def stores_in(folder: Path) -> list[str]:
    """Return the names of the folders in ``folder`` that are stores."""
    return sorted(path.name for path in folder.glob("*") if is_store(path))

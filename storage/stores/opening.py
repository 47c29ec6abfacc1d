"""Opening of stores: the one place that chooses the class of a store."""

import hashlib
from pathlib import Path

from ..common.user_state import cache_folder
from ..common.writing import make_folder
from ..remote.addresses import scheme_of
from ..remote.links import checked_address
from ..remote.store import link_store
from .feature_store import FeatureStore
from .shard_writer import ShardWriter
from .store import StoreWriter


def open_store(place: str | Path) -> FeatureStore:
    """Open a store to read it.

    Args:
        place: A folder of shards, or one that is linked to a store on a server; or the address of a store on a server,
            such as ``s3://bucket/folder/s3d``, whose shards are kept in the folder of downloads (``VLALIGN_CACHE``).

    Raises:
        UserError: There is no store, or it cannot be read (``FeatureStore``).
    """
    return FeatureStore(_folder_of(place))


def open_writer(place: str | Path) -> StoreWriter:
    """Open a store to write into it.

    Args:
        place: As for ``open_store``; a folder is created when it is needed.

    Raises:
        UserError: It is an address that nothing here can use.
    """
    return ShardWriter(_folder_of(place))


def _folder_of(place: str | Path) -> Path:
    """Return a folder as it is, and for an address the folder that stands for it."""
    if isinstance(place, Path) or not scheme_of(place):
        return Path(place)
    url = checked_address(place, "store")
    folder = cache_folder("stores") / hashlib.sha256(url.encode()).hexdigest()[:16] / url.rpartition("/")[2]
    make_folder(folder)
    link_store(folder, url)
    return folder

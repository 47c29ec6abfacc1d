"""Open stores: the only module that chooses the class of a store.

Folders and addresses that the user names contain shards. The user may also name custom stores, as objects or by the
module that opens them (``StoreSource``). Nothing in a folder chooses a class, a module or an address.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from ..common.errors import SettingError, UserError, reason_of
from ..common.plugins import load_plugin
from ..common.terminal import note_once
from ..common.user_state import cache_folder
from ..common.writing import make_folder
from ..dataset.folder import DatasetFolder
from ..remote.addresses import scheme_of
from ..remote.links import checked_address
from ..remote.store import link_store
from .checked_store import CheckedWriter, checked_store
from .feature_store import FeatureStore, is_store, stores_in
from .shard_writer import ShardWriter
from .store import Store, StoreWriter, WritableStore

StoreSource: TypeAlias = str | Mapping[str, Store]
"""The source of a data set's stores, instead of its folder: ``MODULE:NAME``, a class or function that is called with
the folder ``<root>/<dataset>/features/<features>`` and returns a ``Store``; or {features: open store}.
Features that are not in this dict are in the data set's folder. Extraction needs a ``WritableStore``.
"""


def open_store(place: str | Path) -> FeatureStore:
    """Open a store to read it.

    Args:
        place: A folder of shards, or one that is linked to a store on a server; or the address of a store on a server,
            such as ``s3://bucket/folder/s3d``, whose shards are kept in the folder of downloads (``VLALIGN_CACHE``).

    Returns:
        The store. Files are opened when rows are read.

    Raises:
        UserError: There is no store, or it cannot be read (``FeatureStore``).

    Example:
        >>> from vlalign.storage import open_store
        >>> store = open_store("vlalign_data/demo/features/s3d")
        >>> "demo0000" in store, store.profile.name
        (True, 's3d')
    """
    return FeatureStore(_folder_of(place))


def open_writer(place: str | Path) -> StoreWriter:
    """Open a store to write into it.

    Args:
        place: As for ``open_store``; a folder is created when it is needed.

    Returns:
        A writer. It writes a shard for each call of ``write``.

    Raises:
        UserError: The address is not supported.

    Example:
        >>> from vlalign.storage import Provenance, open_store, open_writer
        >>> store = open_store("vlalign_data/demo/features/s3d")
        >>> writer = open_writer("written/s3d")
        >>> writer.write([store.get("demo0000")], Provenance(profile=store.profile, weights=store.weights))
        >>> open_store("written/s3d").video_ids()
        ['demo0000']
    """
    return ShardWriter(_folder_of(place))


def _folder_of(place: str | Path) -> Path:
    """Return a folder unchanged, or the folder that is linked to an address."""
    if isinstance(place, Path) or not scheme_of(place):
        return Path(place)
    url = checked_address(place, "store")
    folder = cache_folder("stores") / hashlib.sha256(url.encode()).hexdigest()[:16] / url.rpartition("/")[2]
    make_folder(folder)
    link_store(folder, url)
    return folder


def open_features(dataset: DatasetFolder, name: str) -> Store:
    """Open the store of a data set's features to read it.

    Raises:
        UserError: There is no such store, or it is empty or cannot be read.
    """
    own = _own_store(dataset, name)
    if own is None:
        return open_store(dataset.features(name))
    store = checked_store(own, name)
    if not len(store):
        raise UserError(f"{dataset.features(name)}: your own store of it has no videos; run vlalign-extract first")
    if store.profile.name != name:
        note_once(f"note: {store.where} is opened as {name}, but has features of the profile {store.profile.name}")
    return store


def find_features(dataset: DatasetFolder, name: str) -> Store | None:
    """Open the store of a data set's features as ``open_features`` does; return None if it does not exist yet."""
    own, folder = _own_store(dataset, name), dataset.features(name)
    if own is None:
        return open_store(folder) if is_store(folder) else None
    store = checked_store(own, name)
    return store if len(store) else None


def refuse_frames(store: Store, todo: str) -> None:
    """Raise ``UserError`` if the rows of a store are frames, where features of a network are needed.

    Args:
        store: The store.
        todo: What to do instead, for the message.
    """
    if store.profile.is_frames:
        raise UserError(f"{store.where}: its rows are frames, not features of a network; {todo}")


def open_features_writer(dataset: DatasetFolder, name: str) -> StoreWriter:
    """Open the store of a data set's features for writing.

    Raises:
        UserError: It cannot be opened, or is a read-only custom store.
    """
    store = _own_store(dataset, name)
    if store is None:
        return open_writer(dataset.features(name))
    _check_methods(store, WritableStore, name)
    return CheckedWriter(store, name)


def feature_names(dataset: DatasetFolder) -> list[str]:
    """Return the names of a data set's features. If a module opens the stores, return all folders' names."""
    folder = dataset.features("")
    if isinstance(dataset.stores, str):
        return sorted(path.name for path in folder.glob("*") if path.is_dir())
    return sorted({*stores_in(folder), *_open_stores(dataset)})


def _own_store(dataset: DatasetFolder, name: str) -> Store | None:
    """Return the custom store of a data set's features; None if they are in its folder.

    Raises:
        UserError: The module that opens it is missing or fails, or the result is not a store.
    """
    if not isinstance(dataset.stores, str):
        store = _open_stores(dataset).get(name)
    else:
        opener = load_plugin("stores", dataset.stores).value
        try:
            store = opener(dataset.features(name))
        except (Exception, SystemExit) as error:  # the user's own code may raise anything
            problem = f"{dataset.features(name)} cannot be opened ({reason_of(error)})"
            raise SettingError("stores", dataset.stores, problem) from error
    if store is not None or isinstance(dataset.stores, str):
        _check_methods(store, Store, name)
    return store


def _open_stores(dataset: DatasetFolder) -> Mapping[str, Store]:
    """Return the open stores that the user passed, by features' names.

    Raises:
        SettingError: The stores are not a mapping.
    """
    stores = {} if dataset.stores is None else dataset.stores
    if not isinstance(stores, Mapping):
        problem = "expected MODULE:NAME, or open stores by features' names, such as {'s3d': store}"
        raise SettingError("stores", type(stores).__name__, problem)
    return stores


def _check_methods(store: object, protocol: type, name: str) -> None:
    """Raise ``SettingError`` if a custom store lacks a method of a protocol."""
    methods = (name for kind in protocol.__mro__ for name in vars(kind) if not name.startswith("_"))
    lacking = [name for name in methods if not hasattr(type(store), name)]
    if lacking:
        problem = f"{type(store).__name__} is not a vlalign.storage.{protocol.__name__}: it lacks {', '.join(lacking)}"
        raise SettingError("stores", name, problem)

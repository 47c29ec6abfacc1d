"""The feature stores that a run reads. Each command opens them once."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from ...storage.common.errors import SettingError
from ...storage.common.plugins import load_plugin
from ...storage.dataset.folder import DatasetFolder
from ...storage.profiles import LOGMEL, SHOTS, split_features
from ...storage.stores.opening import feature_names, open_features
from ...storage.stores.store import Store
from ..settings import ModelSettings


@dataclass(frozen=True)
class Stores:
    """Open stores of a data set."""

    features: Sequence[Store]
    recordings: Store | None = None
    """Log-mel rows of spoken captions, if the encoder takes recordings."""
    extra: Mapping[str, Store] = field(default_factory=dict)
    """{features: store} of custom inputs."""


def check_frames_are_read(stores: Stores, model: ModelSettings) -> None:
    """Check that frames are read only by a video tower or custom encoder, and that both read only frames.

    Raises:
        SettingError: One of them is missing, or frames are an input of one's own.
    """
    tower, reads_frames = model.tower, model.encoder_traits.reads_frames
    for store in stores.features:
        name = store.profile.name
        if store.profile.is_shots:
            raise SettingError("features", name, "its rows are shots; expected features of a network")
        if store.profile.is_frames and tower is None and not reads_frames:
            problem = f"expected the network that reads the frames of {name}, such as clip_vit_b32 or hf:FOLDER"
            raise SettingError("video_tower", "is missing", problem)
        if tower is not None and not store.profile.is_frames:
            reads = f"video_tower {tower.encoder} reads frames; expected a store of {tower.frames}"
            problem = f"{reads}; omit video_tower for features"
            raise SettingError("features", name, problem)
        if reads_frames and not store.profile.is_frames:
            problem = f"encoder {model.encoder} reads frames; expected a store of them, such as clip_vit_b32_frames"
            raise SettingError("features", name, problem)
    for name, store in stores.extra.items():
        if store.profile.is_frames:
            raise SettingError("features", name, "is a store of frames; an input of your own reads only features")


class StoreOrigin(TypedDict):
    """The origin of a store's features."""

    features: str
    """Name of the features."""
    weights: str
    """Name of the weights."""
    origin: str
    """As ``Store.origin``."""


class StoreFacts(StoreOrigin):
    """The facts that tell a store from others with the same name, as ``run.json`` has them."""

    profile_hash: str
    weights_sha256: str
    num_videos: int
    rows_checksum: int


def open_stores(
    dataset: DatasetFolder, features: str, *, recordings: bool = False, extra: Iterable[str] = ()
) -> Stores:
    """Open the stores of features joined by +, the store of the spoken captions (``recordings``), and the stores of
    ``extra``.

    Raises:
        UserError: A store is missing or damaged.
    """
    stores = [open_features(dataset, name) for name in features.split("+")]
    of_inputs = {name: open_features(dataset, name) for name in sorted(set(extra))}
    return Stores(stores, open_features(dataset, LOGMEL) if recordings else None, of_inputs)


def sent_stores(dataset: DatasetFolder) -> list[tuple[str, str]]:
    """Return the arguments of ``load_stores_in_child`` for another process: (name, module folder) of each custom
    store's opener or class.
    """
    stores = dataset.stores or {}
    named = [stores] if isinstance(stores, str) else {type(store) for store in stores.values()}
    own = [of for of in named if isinstance(of, str) or not of.__module__.startswith("vlalign.")]
    plugins = [load_plugin("stores", of) for of in own]
    return [(plugin.text, plugin.folder) for plugin in plugins]


def load_stores_in_child(sent: Iterable[tuple[str, str]]) -> None:
    """Import the modules of stores that another process sent, before anything opens or unpickles them."""
    for text, folder in sent:
        load_plugin("stores", text, folder)


def choose_features(dataset: DatasetFolder, text: str) -> str:
    """Return the full names of features such as "i3d,s3d", joined by +.

    Raises:
        SettingError: The data set has no store of some of them.
    """
    folder = dataset.path / "features"
    existing = feature_names(dataset)
    names = split_features(text, existing)
    if unknown := [name for name in names if name not in existing]:
        expected = f"expected some of {', '.join(existing)}, or run" if existing else "it has no stores; run"
        options = ["--root", str(dataset.root), "--dataset", dataset.name]
        if dataset.name != "demo" and not dataset.videos_file.exists():
            options += ["--videos", "FOLDER"]
        raise SettingError(
            "features",
            text,
            f"no store of {' and '.join(map(repr, unknown))} in {folder}; {expected} "
            f"{shlex.join(['vlalign-extract', *options, '--features', ','.join(unknown)])} first",
        )
    return "+".join(names)


def only_features(dataset: DatasetFolder) -> str:
    """Return the features of a data set's only store, not counting shots, nor log-mel rows beside other features, which
    may be those of spoken captions.

    Raises:
        SettingError: There is no such store, or more than one.
    """
    folder, names = dataset.path / "features", feature_names(dataset)
    trainable = [name for name in names if name != SHOTS]
    existing = [name for name in trainable if name != LOGMEL] or trainable
    if not existing:
        problem = f"{folder} has only {SHOTS}; expected features of a network" if names else f"no store in {folder}"
        raise SettingError("features", "is missing", f"{problem}; run vlalign-extract first")
    if len(existing) > 1:
        raise SettingError("features", "is missing", f"expected one of {', '.join(existing)}, or several joined by +")
    return existing[0]


def origin_of(store: Store) -> StoreOrigin:
    """Return the origin of a store's features."""
    return {"features": store.profile.name, "weights": store.weights.name, "origin": store.origin}


def facts_of(store: Store) -> StoreFacts:
    """Return the facts that tell a store from others with the same name."""
    return {
        **origin_of(store),
        "profile_hash": store.profile.hash,
        "weights_sha256": store.weights.sha256,
        "num_videos": len(store),
        "rows_checksum": store.rows_checksum(),
    }

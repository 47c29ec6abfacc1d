"""Settings of a sync. Imports nothing heavy."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...extract.settings import ExtractionSettings, parse_weights
from ...extract.speech.settings import DEFAULT_MODEL
from ...storage.common.errors import SettingError
from ...storage.common.files import write_json
from ...storage.common.locks import file_lock
from ...storage.common.settings import Settings, setting
from ...storage.common.terminal import note_once
from ...storage.common.user_state import state_file, writable_state_file
from ...storage.dataset.folder import DatasetFolder, dataset_at
from ...storage.hub.names import is_hub_name
from ...storage.profiles import BUILT_IN
from ...storage.shards.format import EXTRACTED
from ...storage.stores.opening import feature_names, find_features

DEFAULT_FEATURES = "s3d"
"""The default of ``vlalign-extract``, too."""
EVERY_SECONDS = 60.0
"""Default time from the end of a sync to the next one."""


@dataclass(frozen=True, kw_only=True)
class SyncSettings(Settings):
    """The settings of ``sync_videos``. Those that are declared with ``setting`` are options of ``vlalign-sync``.

    Raises:
        SettingError: A value cannot be used.

    Example:
        >>> from vlalign.train import SyncSettings
        >>> settings = SyncSettings(dataset="vlalign_data/mine", folders=["Videos"], features="clip_vit_b32")
        >>> settings.folder.name, settings.prune
        ('mine', False)
    """

    dataset: Path | str
    """The data set's folder, ``<root>/<data set>``; a new one is made."""
    folders: Sequence[Path | str] = ()
    """Folders of videos that the data set should follow, too; all followed folders are brought up to date."""
    features: str | None = setting(
        None,
        "features to extract, as for vlalign-extract, such as clip_vit_b32 for search by text (default: the features "
        f"that the data set has, or {DEFAULT_FEATURES})",
    )
    weights: Sequence[str] = setting(
        (), "a checkpoint file, 'pretrained' or 'random', as for vlalign-extract", metavar="[NAME=]WEIGHTS"
    )
    fps: float | None = setting(None, "frames a second for hf: encoders, as for vlalign-extract")
    trust: Sequence[str] = setting((), "Python module that your own profile may import and run", metavar="MODULE")
    device: str = setting("auto", "cpu, cuda, cuda:N, mps, or several, separated by commas; auto: all GPUs, or the CPU")
    language: str | None = setting(
        None, "language of the subtitles, such as de, for which a spaCy pipeline must be installed (default: English)"
    )
    transcribe: str | None = setting(
        None,
        "transcribe videos that have no subtitles beside them, by this model: a folder or hf:ORG/MODEL, as for "
        "vlalign-transcribe --weights, or 'default'; kept for later syncs, until 'no'",
        metavar="WEIGHTS|default|no",
    )
    prune: bool = setting(False, "remove the features and transcripts of deleted videos")
    forget: Sequence[Path] = setting((), "folder to stop following; its videos count as deleted", metavar="FOLDER")

    @cached_property
    def folder(self) -> DatasetFolder:
        """The data set's folder and the paths in it."""
        return dataset_at(self.dataset)

    def extraction(self) -> ExtractionSettings:
        """Return the settings of the extraction. Given options are remembered for later calls.

        Raises:
            UserError: Features are unknown, or a store is damaged.
        """
        more: dict[str, Any] = {"dataset": self.folder.path, "trust": self.trust, "device": self.device}
        if self.features is not None:
            asked = ExtractionSettings(features=self.features, weights=self.weights, fps=self.fps, **more)
            _remember(self.folder, asked)
            return asked
        if self.fps is not None:
            raise SettingError("fps", self.fps, "needs --features; pass both, or omit it")
        encoders, weights = _used_before(self.folder)
        if not encoders:
            encoders = {DEFAULT_FEATURES: DEFAULT_FEATURES}
        if self.weights:
            weights |= parse_weights(self.weights, [name for name in encoders if not is_hub_name(encoders[name])])
        return ExtractionSettings(
            features=list(encoders.values()),
            weights={name: chosen for name, chosen in weights.items() if name in encoders},
            **more,
        )

    def speech_weights(self) -> str | None:
        """Return the speech model, or None if videos are not transcribed. A given option is remembered."""
        if self.transcribe is None:
            return _remembered_speech(self.folder)
        chosen = {"no": "", "default": DEFAULT_MODEL}.get(self.transcribe, self.transcribe)
        if chosen and not is_hub_name(chosen):
            chosen = str(Path(chosen).expanduser().absolute())
        _remember_speech(self.folder, chosen)
        return chosen or None


def _used_before(dataset: DatasetFolder) -> tuple[dict[str, str], dict[str, str]]:
    """Return ({store: encoder}, {store: weights}) of a data set's features or, if it has none, of the requested ones.

    Requested features without a store, for example because their weights are missing, would stop every later sync. An
    encoder of a library is loaded only if this user named it on this machine: nothing in the data set's folder
    chooses a model.
    """
    remembered, weights = _remembered(dataset)
    encoders: dict[str, str] = {}
    unknown = []
    for name in feature_names(dataset):
        store = find_features(dataset, name)
        if store is None or store.origin != EXTRACTED:
            continue
        if name in remembered:
            encoders[name] = remembered[name]
        elif name in BUILT_IN:
            encoders[name] = name
        else:
            unknown.append(name)
    if lacking := [encoder for name, encoder in remembered.items() if encoders and name not in encoders]:
        note_once(
            f"note: {dataset.path}: features {', '.join(lacking)} were requested, but are of no video yet; they are "
            f"skipped; to try again, pass --features {shlex.quote(','.join(lacking))}"
        )
    encoders = encoders or remembered
    if unknown:
        note_once(
            f"note: {dataset.path}: features {', '.join(unknown)} are of an encoder that was never named for a "
            "sync; to update them, pass --features once"
        )
    return encoders, weights


def _remember(dataset: DatasetFolder, asked: ExtractionSettings) -> None:
    """Store the user's arguments in the user's own state. Custom profiles need ``--trust`` each time."""
    known = {name: text for name, text in asked.encoders.items() if is_hub_name(text) or name in BUILT_IN}
    key = dataset.real_path
    try:
        path = writable_state_file("sync", key)
        with file_lock(path):
            encoders, weights = _remembered(dataset)
            chosen = {name: asked.chosen_weights[name] for name in known if name in asked.chosen_weights}
            absolute = {name: _absolute(text) for name, text in chosen.items()}
            write_json(path, {"dataset": key, "encoders": encoders | known, "weights": weights | absolute})
    except OSError as error:  # no home folder, or a read-only one
        note_once(f"note: the features of this sync cannot be remembered ({error}); pass --features next time also")


def _remember_speech(dataset: DatasetFolder, weights: str) -> None:
    """Keep the model in the user's own state: nothing in the data set's folder chooses one."""
    key = dataset.real_path
    try:
        path = writable_state_file("sync-speech", key)
        with file_lock(path):
            write_json(path, {"dataset": key, "weights": weights})
    except OSError as error:  # no home folder, or a read-only one
        note_once(f"note: the model of this sync cannot be remembered ({error}); pass --transcribe next time also")


def _remembered_speech(dataset: DatasetFolder) -> str | None:
    key = dataset.real_path
    try:
        record = json.loads(state_file("sync-speech", key).read_text(encoding="utf-8"))
        return str(record["weights"]) or None if record["dataset"] == key else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _absolute(weights: str) -> str:
    return weights if weights in ("pretrained", "random") else str(Path(weights).absolute())


def _remembered(dataset: DatasetFolder) -> tuple[dict[str, str], dict[str, str]]:
    key = dataset.real_path
    try:
        record = json.loads(state_file("sync", key).read_text(encoding="utf-8"))
        return (_texts(record["encoders"]), _texts(record["weights"])) if record["dataset"] == key else ({}, {})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}, {}


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in values.items()}

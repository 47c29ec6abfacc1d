"""Export of a run as one folder that can be shared. ``vlalign-runs export`` wraps ``export_run``."""

import json
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...storage.captions.files import read_captions, read_captions_about
from ...storage.captions.idf import read_idf, write_idf
from ...storage.common.errors import UserError
from ...storage.common.files import write_json, write_jsonl, write_text
from ...storage.common.plugins import trust_modules
from ...storage.common.terminal import number_of
from ...storage.common.writing import atomic_write, make_folder, open_to_read
from ...storage.dataset.folder import DatasetFolder
from ...storage.hub.names import HUB_ID, is_hub_name, read_hub_name
from ...storage.profiles import PROFILES
from ..data.stores import Stores
from ..data.text_inputs import save_text_inputs
from ..data.usable_captions import captions_of_split
from ..runs.files import (
    CARD_FILE,
    EVENTS_FILE,
    IDF_FILE,
    LABELS_FILE,
    METRICS_FILE,
    MODEL_FILE,
    RUN_FILE,
    TEXT_FOLDER,
    VIDEO_FOLDER,
)
from ..runs.folder import named_folder, own_dataset
from ..runs.load import load_scorer
from ..runs.loaded_run import read_metrics
from ..runs.run_json import find_run_stores, read_events, read_run
from .run_card import run_card
from .run_metrics import RunMetrics, read_run_metrics

SETTINGS_OF_PATHS = ("text_encoder", "init", "video_tower")
"""Settings that may name a folder of this machine."""


def export_run(run: Path | str, folder: Path | str, *, trust: Collection[str] = ()) -> Path:
    """Write a run into a folder of its own, from which it can be loaded anywhere without its data set.

    The folder has the weights, the inputs of the text encoder (such as a tokenizer), the IDF table, labels, the
    settings with the profiles and checksums of the features, the metrics, and a card, ``README.md``. It has no
    captions, no queries with their answers, no videos and no features, and names no folder of this machine.

    Args:
        run: The run's folder.
        folder: A new folder, or an empty one.
        trust: As for ``load_run``.

    Returns:
        The folder.

    Raises:
        UserError: The run is incomplete or damaged, its data set lacks its features, it also reads rows of another
            store, or the folder has files.

    Example:
        >>> from vlalign.train import export_run, load_run
        >>> folder = export_run("vlalign_data/demo/runs/words-s3d-seed0", "exported")
        >>> load_run(folder, device="cpu").encode_text(["cut the onion"]).shape[0]
        1
    """
    trust_modules(trust)
    run, folder = named_folder(run), Path(folder)
    about = read_run(run)
    own = own_dataset(run, about)
    if own is None:
        raise UserError(f"{run}: is an exported run already; copy its folder")
    if os.path.lexists(folder) and (not folder.is_dir() or folder.is_symlink() or any(folder.iterdir())):
        raise UserError(f"{folder}: already exists; expected a new or empty folder")
    stores = find_run_stores(own, run.name, about)
    if stores.extra:
        names = ", ".join(stores.extra)
        raise UserError(f"{run}: cannot be exported: its objective or encoder also reads rows of {names}")
    scorer, labels = load_scorer(run, about, stores, "cpu")  # raises if the run is damaged
    evaluations, events = _evaluations(run), read_events(run / EVENTS_FILE)
    exported, training = _exported(about, stores), _training_split(own, about)
    make_folder(folder)
    with (
        atomic_write(folder / MODEL_FILE) as partial,
        open_to_read(run / MODEL_FILE, "rb") as source,
        partial.open("wb") as target,
    ):
        shutil.copyfileobj(source, target)
    save_text_inputs(scorer.text_inputs, folder / TEXT_FOLDER)
    if (tower := scorer.model.video_tower) is not None:
        make_folder(folder / VIDEO_FOLDER)
        tower.saved.save(folder / VIDEO_FOLDER)
    write_idf(folder / IDF_FILE, read_idf(own.idf))
    write_jsonl(folder / EVENTS_FILE, events)
    if labels:
        write_json(folder / LABELS_FILE, labels)
    if metrics := read_metrics(run):
        write_json(folder / METRICS_FILE, _portable(metrics))
    files = {CARD_FILE, RUN_FILE, *(path.name for path in folder.iterdir())}
    write_text(folder / CARD_FILE, run_card(run.name, scorer.config, exported, stores, training, evaluations, files))
    write_json(folder / RUN_FILE, exported)  # last: a folder with it is a finished run
    return folder


def _training_split(dataset: DatasetFolder, about: Mapping[str, Any]) -> str:
    """Return the size of the split that a run was trained on; empty if the captions have changed since."""
    note = about["inputs"].get("captions")
    if note is None or note != read_captions_about(dataset.captions):
        return ""
    captions = captions_of_split(read_captions(dataset.captions), "train")
    return f"{number_of(len(captions), 'captions')} of {number_of(len(captions.videos()[0]), 'videos')}"


def _evaluations(run: Path) -> list[RunMetrics]:
    """Return the metrics of a run on its own data set and on others, each with default settings."""
    folders = [run, *sorted(path for path in (run / "on").glob("*") if path.is_dir() and not path.is_symlink())]
    return [metrics for metrics in map(read_run_metrics, folders) if metrics is not None]


def _exported(about: Mapping[str, Any], stores: Stores) -> dict[str, Any]:
    """Return the ``run.json`` of the exported run, with the features' profiles but without paths and captions."""
    profiles = [json.loads(store.profile.to_json()) for store in stores.features]
    recordings = None if stores.recordings is None else json.loads(stores.recordings.profile.to_json())
    inputs = _portable(about["inputs"])
    captions = inputs.get("captions")
    captions = captions if isinstance(captions, dict) else {}
    # Lists and objects among these facts contain texts of captions, such as the steps of tasks.
    captions = {name: value for name, value in captions.items() if not isinstance(value, list | dict)}
    config = dict(about["config"])
    config |= {name: _without_folder(config[name]) for name in SETTINGS_OF_PATHS if name in config}
    return {
        **_portable(about),
        "config": _portable(config),
        "inputs": inputs | {"captions": captions},
        "exported": {"profiles": profiles} | ({} if recordings is None else {"recordings": recordings}),
    }


def _without_folder(value: str) -> str:
    """Return a model's or a run's name without its folder. Names of the hub are not changed.

    hf:/home/me/clip:mean  ->  hf:clip:mean;  clip_vit_b32=/home/me/weights.bin  ->  clip_vit_b32=weights.bin
    """
    if is_hub_name(value):
        hub = read_hub_name(value)
        return replace(hub, model=Path(hub.model).name).text if hub.is_folder else value
    name, equals, weights = value.partition("=")
    if equals and name in PROFILES:
        return f"{name}={Path(weights).name}"
    return value if HUB_ID.fullmatch(value) and not Path(value).exists() else Path(value).name


def _portable(value: Any) -> Any:
    """Return a JSON value with each absolute path replaced by its last part."""
    if isinstance(value, dict):
        return {name: _portable(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_portable(inner) for inner in value]
    is_path = isinstance(value, str) and (os.path.isabs(value) or value.startswith("~"))
    return Path(value).name if is_path else value

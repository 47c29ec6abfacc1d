"""A run's folder: what it holds, where it is, what it was made from. Imports nothing heavy."""

import glob
import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..storage.captions import read_captions_about
from ..storage.common.errors import UserError
from ..storage.feature_store import FeatureStore, stores_in
from ..storage.files import check_regular, read_json, sha256_of, write_json
from ..storage.layout import DatasetFolder
from ..storage.profiles import LOGMEL, split_features
from ..storage.records import is_text
from ..storage.shards import EXTRACTED
from .config import TrainConfig
from .run_files import check_run, read_config

RUN_FILE = "run.json"
MODEL_FILE = "model.safetensors"
"""The model as it did best on the validation clips."""
LAST_MODEL_FILE = "last.safetensors"
STATE_FILE = "state.safetensors"
"""All that is needed to go on, while the run is not finished."""
TENSORBOARD_FOLDER = "tensorboard"
EVENTS_FILE = "events.jsonl"
METRICS_FILE = "metrics.json"
QUERIES_FILE = "queries.jsonl"
REPORT_FILE = "report.html"
TEXT_FOLDER = "text_encoder"
LABELS_FILE = "labels.json"
"""What a run can answer, where that is one of a list."""


def describe_inputs(
    dataset: DatasetFolder,
    stores: Sequence[FeatureStore],
    init: Path | None = None,
    recordings: FeatureStore | None = None,
) -> dict[str, Any]:
    """What a run was trained on, so that it can be told from one on other data. ``init``: the run whose model it goes on from;
    ``recordings``: of spoken captions, where it hears those."""
    begun = {} if init is None else {"init": {"run": init.name, "model_sha256": sha256_of(init / MODEL_FILE)}}
    heard = {} if recordings is None else {"recordings": _describe(recordings)}
    return (
        begun
        | heard
        | {"captions": read_captions_about(dataset.captions), "features": [_describe(store) for store in stores]}
    )


def _describe(store: FeatureStore) -> dict[str, Any]:
    return {
        "features": store.profile.name,
        "profile_hash": store.profile.hash,
        "weights": store.weights.name,
        "weights_sha256": store.weights.sha256,
        "origin": store.origin,
        "num_videos": len(store),
        "rows_checksum": store.rows_checksum(),
    }


def choose_features(dataset: DatasetFolder, text: str) -> str:
    """The names of ``--features``, joined by +. Raises ``UserError`` for those that the data set has no store of."""
    there = stores_in(dataset.path / "features")
    names = split_features(text, there)
    if unknown := [name for name in names if name not in there]:
        raise UserError(
            f"--features {text}: no store of {' and '.join(map(repr, unknown))} in {dataset.path / 'features'}; expected "
            + (f"some of {', '.join(there)}, or run" if there else "some; run")
            + f" vlalign-extract --dataset {dataset.name} --features {','.join(unknown)} first"
        )
    return "+".join(names)


def open_stores(dataset: DatasetFolder, features: str) -> list[FeatureStore]:
    return [FeatureStore(dataset.features(name)) for name in features.split("+")]


def open_recordings(dataset: DatasetFolder, config: TrainConfig) -> FeatureStore | None:
    """The log-mel rows of spoken captions, where the run's encoder hears those."""
    return FeatureStore(dataset.features(LOGMEL)) if config.encoder == "spoken" else None


def describe_software() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("vlalign", "torch", "transformers", "numpy")} | {
        "python": platform.python_version()
    }


def features_note(inputs: dict[str, Any]) -> str | None:
    """What must stand beside every number of a run whose features come from weights that nobody trained, or from elsewhere."""
    notes = []
    random = " and ".join(dict.fromkeys(f["features"] for f in inputs["features"] if f["weights"].startswith("random")))
    imported = " and ".join(dict.fromkeys(f["features"] for f in inputs["features"] if f["origin"] != EXTRACTED))
    if random:
        notes.append(
            f"Features {random} come from seeded random weights, not from published ones: the numbers show that all parts work."
        )
    if imported:
        notes.append(f"Features {imported} were imported: how they were made is as stated then, not known.")
    return " ".join(notes) or None


def save_run(folder: Path, config: TrainConfig, inputs: dict[str, Any], result: dict[str, Any]) -> None:
    """Written last: a folder with it is a finished run."""
    write_json(
        folder / RUN_FILE,
        {"config": asdict(config), "inputs": inputs, "result": result, "software": describe_software()},
    )


def read_labels(folder: Path) -> list[str]:
    """What a run can answer; empty where that is not one of a list. Raises ``UserError`` where it cannot be read."""
    path = folder / LABELS_FILE
    labels = read_json(path) if path.exists() else []
    if not isinstance(labels, list) or not all(map(is_text, labels)):
        raise UserError(f"{path}: no list of labels; train the run again")
    return labels


def find_run(root: Path, dataset: str | None, name: str | None) -> Path:
    """The folder of a run given as a path, or as a name under ``<root>/<dataset>/runs``, or else under another data set's; with no name,
    the last one finished."""
    if name is not None and (Path(name) / RUN_FILE).exists():
        return Path(name)
    wanted = glob.escape(name.strip("/")) if name else "*"

    def finished(under: str) -> list[Path]:
        return sorted(root.glob(f"{under}/runs/{wanted}/{RUN_FILE}"), key=lambda path: path.stat().st_mtime)

    found = finished(glob.escape(dataset) if dataset else "*") or (finished("*") if name else [])
    if not found:
        where = f"{root / (dataset or '*') / 'runs' / (name or '*')}"
        raise UserError(
            f"run {name or ''}: no finished run at {where}; expected a run's folder or name; train one with vlalign-train"
        )
    if name is not None and len(found) > 1:
        raise UserError(
            f"run {name}: there are {len(found)} of this name; pass --dataset: {', '.join(p.parts[-4] for p in found)}, or its folder"
        )
    return found[-1].parent


def asked_dataset(root: Path, name: str | None, own: DatasetFolder, having: str) -> DatasetFolder:
    """What ``--dataset NAME`` asks a run about: its ``own`` data set where ``name`` is None or means that, or another one, under
    ``root`` or else beside the run's own. Raises ``UserError`` where that has no folder ``having``."""
    if name is None:
        return own
    roots = [root, own.root]
    found = next((there for there in roots if (DatasetFolder(there, name).path / having).is_dir()), None)
    if found is None:
        hint = "vlalign-extract" if having == "features" else "vlalign-preprocess"
        where = " or ".join(dict.fromkeys(str(DatasetFolder(there, name).path / having) for there in roots))
        raise UserError(
            f"--dataset {name}: no {where}; the run is of {own.name}; run {hint} --dataset {name} first, or leave out --dataset to ask it "
            f"about {own.name}"
        )
    other = DatasetFolder(found, name)
    return own if other.path.resolve() == own.path.resolve() else other


def read_run(folder: Path) -> dict[str, Any]:
    """``run.json``. Raises ``UserError`` where it cannot be read."""
    for path in folder.rglob("*"):  # libraries open some of them by their names
        check_regular(path)
    try:
        about = read_json(folder / RUN_FILE)
        check_run(about)
    except (OSError, ValueError, TypeError, RecursionError, UserError) as error:
        raise UserError(f"{folder / RUN_FILE}: not readable ({error}); train the run again") from None
    return about


def dataset_of(folder: Path, config: TrainConfig) -> DatasetFolder:
    """The data set of a run, from where the run lies: ``<root>/<dataset>/runs/<run>``."""
    parents = folder.resolve().parents
    if len(parents) < 3:
        raise UserError(f"{folder}: lies in no data set; expected <root>/<dataset>/runs/<run>")
    return DatasetFolder(parents[2], config.dataset, config.protocol)


def trained_before(folder: Path, config: TrainConfig, inputs: dict[str, Any]) -> bool:
    """Whether ``folder`` holds this very run, finished. Raises ``UserError`` where it holds another one."""
    if not (folder / RUN_FILE).exists():
        return False
    about = read_run(folder)
    if about["inputs"] == inputs and read_config(about) == config:
        return True
    raise UserError(
        f"{folder}: holds a finished run with other settings or data; pass another --run-name NAME, or remove that folder"
    )

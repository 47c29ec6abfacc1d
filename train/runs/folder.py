"""A run's folder: where it is, what it was made from, and whether it is finished. Imports nothing heavy."""

import contextlib
import glob
import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from ...storage.captions.files import read_captions_about
from ...storage.common.errors import SettingError, UserError
from ...storage.common.files import check_regular, read_json, write_json
from ...storage.common.locks import folder_lock
from ...storage.common.packages import package_version
from ...storage.common.terminal import one_line, say
from ...storage.common.validation import is_text
from ...storage.dataset.folder import DatasetFolder
from ...storage.shards import EXTRACTED
from ..data.stores import StoreFacts, StoreOrigin, Stores, facts_of, open_stores
from ..recipes.train_config import TrainConfig
from ..run_file_names import LABELS_FILE, MODEL_FILE, RUN_FILE
from ..untrusted_files import sha256_of_tensors
from .run_json import UnknownRun, check_run, read_config

MAX_SHOWN_CHARACTERS = 100
"""Of a text that no run has as its name."""


class InitFacts(TypedDict):
    """The run whose model a training started from."""

    run: str
    model_sha256: str


class _OptionalInputs(TypedDict, total=False):
    init: InitFacts
    recordings: StoreFacts


class RunInputs(_OptionalInputs):
    """The inputs of a run, as ``run.json`` has them. Runs on other data have others."""

    captions: dict[str, Any] | None
    """The note ``about.json`` of the captions."""
    features: list[StoreFacts]


def open_run_stores(dataset: DatasetFolder, config: TrainConfig) -> Stores:
    """Open the stores that a run with these settings reads.

    Raises:
        UserError: A store is missing or damaged.
    """
    return open_stores(dataset, config.data.features, recordings=not config.model.encoder_traits.reads_words)


def describe_inputs(dataset: DatasetFolder, stores: Stores, init: Path | None = None) -> RunInputs:
    """Return the inputs that tell a run from another one on other data.

    Args:
        dataset: Has the captions.
        stores: The stores that the run reads.
        init: Folder of the run whose model training starts from.
    """
    inputs: RunInputs = {
        "captions": read_captions_about(dataset.captions),
        "features": [*map(facts_of, stores.features)],
    }
    if init is not None:
        inputs["init"] = {"run": init.name, "model_sha256": sha256_of_tensors(init / MODEL_FILE)}
    if stores.recordings is not None:
        inputs["recordings"] = facts_of(stores.recordings)
    return inputs


def describe_software() -> dict[str, str]:
    """Return the versions of Python and of what a run's numbers depend on."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")}
    return {"vlalign": package_version()} | versions | {"python": platform.python_version()}


def features_note(stores: Sequence[StoreOrigin]) -> str | None:
    """Return the note that every number of a run needs if its features are of random weights or imported; else None."""
    notes = []
    random = " and ".join(dict.fromkeys(s["features"] for s in stores if s["weights"].startswith("random")))
    imported = " and ".join(dict.fromkeys(s["features"] for s in stores if s["origin"] != EXTRACTED))
    if random:
        notes.append(
            f"Features {random} come from seeded random weights, not from published ones: the numbers show that all "
            "parts work."
        )
    if imported:
        notes.append(
            f"Features {imported} were imported: how they were made is what was stated at the import, and was not "
            "checked."
        )
    return " ".join(notes) or None


def save_run(folder: Path, config: TrainConfig, inputs: RunInputs, result: dict[str, Any]) -> None:
    """Write ``run.json``, last of all files: a folder with it is a finished run.

    Args:
        folder: The run's folder.
        config: Its settings.
        inputs: What ``describe_inputs`` gave.
        result: The best validation, and how the training went.
    """
    write_json(
        folder / RUN_FILE,
        {"config": config.flat(), "inputs": inputs, "result": result, "software": describe_software()},
    )


def read_labels(folder: Path) -> list[str]:
    """Return what a run can answer; empty if that is not one of a list.

    Raises:
        UserError: The file cannot be read.
    """
    path = folder / LABELS_FILE
    labels = read_json(path) if path.exists() else []
    if not isinstance(labels, list) or not all(map(is_text, labels)):
        raise UserError(f"{path}: expected a list of labels; train the run again")
    return labels


def find_run(root: Path, dataset: str | None, name: str | None) -> Path:
    """Return the folder of a finished run.

    Args:
        root: Folder of all data sets.
        dataset: Where to look first; None: in all data sets.
        name: A path, or a name under ``<root>/<dataset>/runs``; None: the run that was finished last. Runs that cannot
            be read, such as those of an objective that this version does not know, are then skipped with a line each.

    Raises:
        UserError: There is no such run, or there are several, or none can be read.
    """
    matches = finished_runs(root, dataset, name)
    if not matches:
        shown = one_line(name)[:MAX_SHOWN_CHARACTERS] if name else ""
        where, what = root / (dataset or "*") / "runs" / (shown or "*"), f"run {shown}" if name else "run"
        raise UserError(
            f"{what}: no finished run at {where}; expected a run's folder or name; train one with vlalign-train"
        )
    if name is not None and len(matches) > 1:
        datasets = ", ".join(folder.parts[-3] for folder in matches)
        raise UserError(f"run {name}: {len(matches)} data sets have one; pass its folder, or --dataset: {datasets}")
    return matches[-1] if name is not None else _last_known(matches)


def _last_known(folders: Sequence[Path]) -> Path:
    """Return the last folder whose run can be read."""
    while True:
        try:
            read_run(folders[-1])
        except UserError as error:
            if len(folders) == 1:
                raise
            say(f"note: {error}; skipped")
            folders = folders[:-1]
        else:
            return folders[-1]


def finished_runs(root: Path, dataset: str | None, name: str | None) -> list[Path]:
    """Return the folders of all finished runs that a name can mean, the last finished at the end.

    Args:
        root: Folder of all data sets.
        dataset: Where to look first; None: in all data sets.
        name: A path, a name under ``<root>/<dataset>/runs``, or any other text, which no run has. None: all runs.
    """
    # os.path.exists and glob.glob take any text; Path.exists and Path.glob raise if it is too long for a file's name.
    if name is not None and os.path.exists(Path(name) / RUN_FILE):
        return [Path(name)]
    pattern = glob.escape(name.strip("/")) if name else "*"

    def finished(under: str) -> list[Path]:
        files = map(root.joinpath, glob.glob(f"{under}/runs/{pattern}/{RUN_FILE}", root_dir=root))
        return [file.parent for file in sorted(filter(os.path.exists, files), key=lambda file: file.stat().st_mtime)]

    return finished(glob.escape(dataset) if dataset else "*") or (finished("*") if name else [])


def choose_dataset(root: Path, name: str | None, own: DatasetFolder, having: str) -> DatasetFolder:
    """Return the data set that a run is used on.

    Args:
        root: Folder of all data sets.
        name: Name of the data set; None: the run's own.
        own: The run's own data set. Another one may also lie beside it.
        having: Folder that the data set needs, "captions" or "features".

    Raises:
        UserError: The data set has no such folder.
    """
    if name is None:
        return own
    roots = [root, own.root]
    other = next((d for d in (DatasetFolder(r, name) for r in roots) if (d.path / having).is_dir()), None)
    if other is None:
        hint = "vlalign-extract" if having == "features" else "vlalign-preprocess"
        where = " or ".join(dict.fromkeys(str(DatasetFolder(r, name).path / having) for r in roots))
        raise SettingError(
            "dataset",
            name,
            f"no {where}; the run is of {own.name}; run {hint} --dataset {name} first, or leave out --dataset to ask "
            f"it about {own.name}",
        )
    return own if other.path.resolve() == own.path.resolve() else other


def read_run(folder: Path) -> dict[str, Any]:
    """Return what ``run.json`` says.

    Raises:
        UserError: It cannot be read, or the folder has something that is neither file nor folder.
    """
    for path in folder.rglob("*"):  # libraries open some of them by name
        check_regular(path)
    try:
        about = read_json(folder / RUN_FILE)
        check_run(about)
    except UnknownRun as error:
        raise UnknownRun(f"{folder / RUN_FILE}: {error}") from None
    except (OSError, ValueError, TypeError, RecursionError, UserError) as error:
        raise UserError(f"{folder / RUN_FILE}: not readable ({error}); train the run again") from None
    return about


def dataset_of(folder: Path, config: TrainConfig) -> DatasetFolder:
    """Return the data set of the run in ``<root>/<dataset>/runs/<run>``.

    Raises:
        UserError: The run lies elsewhere.
    """
    parents = folder.resolve().parents
    if len(parents) < 3:
        raise UserError(f"{folder}: not in a data set's folder; expected <root>/<dataset>/runs/<run>")
    return DatasetFolder(parents[2], config.data.dataset, config.data.protocol)


def trained_before(folder: Path, config: TrainConfig, inputs: RunInputs) -> bool:
    """Return whether ``folder`` holds a finished run with these settings and inputs.

    Raises:
        UserError: It holds another finished run.
    """
    if not (folder / RUN_FILE).exists():
        return False
    about = read_run(folder)
    if about["inputs"] == inputs and read_config(about) == config:
        return True
    raise UserError(
        f"{folder}: holds a finished run with other settings or data; pass another --run-name NAME, or remove that "
        "folder"
    )


LOCK_FILE = "train.lock"


def training_in(folder: Path, todo: str = "or pass another --run-name NAME") -> contextlib.AbstractContextManager[None]:
    """Create a run's folder and lock it for this process. A folder that is empty at the end is removed.

    Args:
        folder: A run's folder.
        todo: What the user can do besides waiting, if another process trains there.

    Raises:
        UserError: Another process trains there; the message names it.
    """
    return folder_lock(folder / LOCK_FILE, "trains", todo)

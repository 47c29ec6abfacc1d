"""A run's folder: where it is, its name, and its lock. Imports nothing heavy."""

import contextlib
import glob
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...storage.common.errors import SettingError, UserError
from ...storage.common.files import sha256_of
from ...storage.common.locks import folder_lock
from ...storage.common.terminal import one_line, say
from ...storage.dataset.folder import DatasetFolder, dataset_at, find_dataset
from ..recipes.own_parts import plugins_of
from ..recipes.recipes import RECIPES, usual_recipe
from ..recipes.train_config import TrainConfig, default_settings
from ..untrusted_files import TRAIN_AGAIN
from .files import IDF_FILE, LABELS_FILE, RUN_FILE, TEXT_FOLDER, VIDEO_FOLDER
from .hub_runs import hub_run, is_hub_run
from .run_json import is_exported, read_config, read_run

HINTS = {"features": "vlalign-extract", "captions": "vlalign-preprocess"}
"""{folder of a data set: the command that makes it}"""
MAX_SHOWN_CHARACTERS = 100
"""Number of characters that a message shows of a text that is not the name of any run."""
MAX_FILE_BYTES = 1 << 30
"""Maximum size of a run's file, except its model; word vectors are the largest, with some 100 MB."""


def find_run(root: Path, dataset: str | None, name: str | None) -> Path:
    """Return the folder of a finished run.

    Args:
        root: Folder of all data sets.
        dataset: Where to look first; None: in all data sets.
        name: A path, a name under ``<root>/<dataset>/runs`` or "hf:ORG/NAME"; None: the run that was finished last.
            Runs that cannot be read, for example because this version lacks their objective, are then skipped with
            a note.

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
        raise UserError(
            f"run {name}: {len(matches)} data sets have a run of this name ({datasets}); pass its folder, or --dataset"
        )
    return matches[-1] if name is not None else _last_known(matches)


def _last_known(folders: Sequence[Path]) -> Path:
    """Return the last folder with a readable run."""
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
    """Return the folders of all finished runs that a name can mean, in the order in which they finished.

    Args:
        root: Folder of all data sets.
        dataset: Where to look first; None: in all data sets.
        name: A path, a name under ``<root>/<dataset>/runs``, "hf:ORG/NAME", or any other text, which matches no run.
            None: all runs.

    Raises:
        UserError: The hub has no such run.
    """
    # os.path.exists and glob.glob take any text; Path.exists and Path.glob raise if it is too long for a file's name.
    if name is not None and (is_hub_run(name) or os.path.exists(Path(name) / RUN_FILE)):
        return [named_folder(name)]
    pattern = glob.escape(name.strip("/")) if name else "*"

    def finished(under: str) -> list[Path]:
        files = map(root.joinpath, glob.glob(f"{under}/runs/{pattern}/{RUN_FILE}", root_dir=root))
        return [file.parent for file in sorted(filter(os.path.exists, files), key=lambda file: file.stat().st_mtime)]

    return finished(glob.escape(dataset) if dataset else "*") or (finished("*") if name else [])


def run_in(dataset: Path | str | None, run: Path | str | None) -> Path:
    """Return the folder of a finished run that is named in a call from Python.

    Args:
        dataset: Folder of the data set in which a name is looked up first; then those beside it are tried. None:
            ``run`` is a folder.
        run: A run's folder or name, or "hf:ORG/NAME". None: the run of the data set that was finished last.

    Raises:
        UserError: There is no such run.
    """
    if dataset is not None:
        folder = dataset_at(dataset)
        return find_run(folder.root, folder.name, None if run is None else str(run))
    if run is None:
        raise UserError("run: missing; expected the folder of a run or of a data set")
    if not is_hub_run(run) and not os.path.exists(Path(run) / RUN_FILE):  # False for any long text
        shown = one_line(str(run))[:MAX_SHOWN_CHARACTERS]
        raise UserError(
            f"run {shown}: not the folder of a finished run; expected such a folder, or a run's name "
            "and the folder of its data set"
        )
    return named_folder(run)


def named_folder(run: Path | str) -> Path:
    """Return a run's folder as a path that ends with its name, not with "." or "..".

    Raises:
        UserError: The run is named "hf:ORG/NAME", and the hub has no such run.
    """
    if is_hub_run(run):
        return hub_run(str(run))
    path = Path(run)
    return path if path.name not in ("", "..") else Path(os.path.abspath(path))


def named_dataset(root: Path, name: str | None, run: Path, having: str) -> Path | None:
    """Return the folder of the data set that a command line names for a run; None for the run's own.

    An exported run has no data set of its own: if the command line names none, the only prepared data set under
    ``root`` is returned.

    Args:
        root: Folder of all data sets.
        name: Name of the data set, under ``root`` or beside the run's own; None if the command line names none.
        run: The run's folder.
        having: Folder that the data set needs, "captions" or "features".

    Raises:
        UserError: The data set has no such folder.
    """
    own = own_dataset(run, read_run(run))
    if own is None:
        return find_dataset(root, name, having=having, hint=HINTS.get(having, HINTS["features"])).path
    if name is None:
        return None
    return choose_dataset([DatasetFolder(root, name), DatasetFolder(own.root, name)], own, run.name, having).path


def beside(run: Path, name: str, root: Path) -> Path:
    """Return the folder of a data set: under the root of the run, or under ``root`` if the run was exported."""
    own = own_dataset(run, read_run(run))
    return DatasetFolder(root if own is None else own.root, name).path


def choose_dataset(
    given: Sequence[DatasetFolder], own: DatasetFolder | None, run_name: str, having: str
) -> DatasetFolder:
    """Return the data set that a run is evaluated on or searched in.

    Args:
        given: All places where the named data set can be. Empty: use the run's own.
        own: The run's own data set; None for an exported run.
        run_name: Name of the run.
        having: Folder that the data set needs, "captions" or "features".

    Raises:
        UserError: The data set has no such folder, or none was named for an exported run.
    """
    if not given and own is None:
        problem = f"run {run_name} was exported, without a data set; expected a data set with {having}"
        raise SettingError("dataset", "is missing", problem)
    if not given:
        assert own is not None
        return own
    other = next((dataset for dataset in given if (dataset.path / having).is_dir()), None)
    if other is None:
        hint, name = HINTS.get(having, HINTS["features"]), given[0].name
        where = " or ".join(dict.fromkeys(str(dataset.path / having) for dataset in given))
        raise SettingError(
            "dataset",
            name,
            f"no {where}; the run is of {own.name}; run {hint} --dataset {name} first, or omit --dataset to use "
            f"{own.name}"
            if own is not None
            else f"no {where}; run {hint} --dataset {name} first",
        )
    return own if own is not None and other.real_path == own.real_path else other


def own_dataset(folder: Path, about: Mapping[str, Any]) -> DatasetFolder | None:
    """Return the data set of the run in ``<root>/<dataset>/runs/<run>``; None for an exported run, in any folder.

    Args:
        folder: The run's folder.
        about: ``run.json``.

    Raises:
        UserError: The run is elsewhere.
    """
    if is_exported(about):
        return None
    config = read_config(about)
    parents = Path(os.path.realpath(folder)).parents
    if len(parents) < 3:
        raise UserError(f"{folder}: not in a data set's folder; expected <root>/<dataset>/runs/<run>")
    return DatasetFolder(parents[2], config.data.dataset, config.data.protocol)


LOCK_FILE = "train.lock"


def lock_for_training(
    folder: Path, todo: str = "or pass another --run-name NAME"
) -> contextlib.AbstractContextManager[None]:
    """Create a run's folder and lock it for this process. A folder that is empty at the end is removed.

    Args:
        folder: A run's folder.
        todo: What the user can do besides waiting, if another process trains there.

    Raises:
        UserError: Another process trains there; the message names it.
    """
    return folder_lock(folder / LOCK_FILE, "trains", todo)


SETTINGS_WITH_A_PLACE = ("dataset", "objective", "recipe", "features", "protocol", "init", "seed")
"""Settings that have a place of their own in a name, or in the folder's path."""
MAX_SETTINGS_CHARACTERS = 120
"""Longest text of settings in a name. Longer ones are replaced by a hash: file systems allow 255 bytes for a name."""
MAX_NAME_BYTES = 255
"""Longest name. In a longer one, the name of the run that training starts from is replaced by a hash."""


def changed_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that differ from the run's recipe: {name: value}.

    Settings in ``SETTINGS_WITH_A_PLACE`` are not included.
    """
    recipe = RECIPES.get(config.recipe, {})
    defaults = default_settings(type(config.objective))
    changed = {}
    without_grid = {"video_grid": "", "code_layers": "linear"}  # follow from the features
    for name, value in config.flat().items():
        is_no_grid = config.data.grid is None and without_grid.get(name) == value
        if name not in SETTINGS_WITH_A_PLACE and not is_no_grid and value != recipe.get(name, defaults[name]):
            changed[name] = value
    return changed


def settings_text(settings: dict[str, Any]) -> str:
    """Return settings as a text without spaces or separators of paths, such as "losses=sentence-num_steps=100"."""
    return "-".join(f"{name}={re.sub(r'[^A-Za-z0-9._+-]+', '_', _text(value))}" for name, value in settings.items())


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def default_run_name(config: TrainConfig, init: Path | None, *, seed: str | None = None) -> str:
    """Return the default name of a run's folder.

    It begins with the objective, or with the recipe if that is not the data set's usual one. It contains the settings
    that differ from the recipe, and the first digits of the SHA-256 of custom modules.

    Args:
        config: The run's settings.
        init: Folder of the run whose model training starts from.
        seed: Text instead of the seed, for the name of several runs; None: the run's own seed.
    """
    usual = usual_recipe(config.objective.name, config.data.dataset, config.data.protocol, config.init)
    start = config.objective.name.replace(":", ".") if config.recipe in ("", usual) else config.recipe
    settings = settings_text(changed_settings(config))
    if len(settings) > MAX_SETTINGS_CHARACTERS:
        settings = "settings-" + hashlib.sha256(settings.encode()).hexdigest()[:8]
    origin = f"from-{init.name}" if init else ""
    parts = [
        start,
        config.data.features,
        config.data.protocol,
        origin,
        settings,
        *(plugin.sha256[:8] for plugin in plugins_of(config).values()),  # an edited module is another run
        seed or f"seed{config.optimization.seed}",
    ]
    name = "-".join(filter(None, parts))
    if origin and len(name) > MAX_NAME_BYTES:
        parts[3] = f"from-{hashlib.sha256(origin.encode()).hexdigest()[:8]}"
        name = "-".join(filter(None, parts))
    return name


def old_idf_note(path: Path) -> str:
    """Return the note that an IDF table is from an earlier version and lacks the counts of TACo's Eq. 7."""
    return (
        f"note: {path}: an earlier version made it, with counts by part of speech only (--idf tag); run "
        "vlalign-preprocess again for the counts of TACo's Eq. 7"
    )


def idf_of_run(folder: Path, own: DatasetFolder | None) -> Path:
    """Return the path of the IDF table of a run's training captions, whatever data set is evaluated.

    Args:
        folder: The run's folder.
        own: Its own data set; None for an exported run.
    """
    return folder / IDF_FILE if own is None else own.idf


def sha256_of_run_files(folder: Path, about: Mapping[str, Any]) -> dict[str, str]:
    """Return {name: SHA-256} of a run's settings and files, other than its model, that affect its scores.

    Args:
        folder: The run's folder.
        about: Its ``run.json``.

    Raises:
        UserError: A file is larger than any that a training writes.
    """
    in_folders = [path for name in (TEXT_FOLDER, VIDEO_FOLDER) for path in sorted((folder / name).rglob("*"))]
    paths = {path.relative_to(folder).as_posix(): path for path in in_folders}
    paths |= {LABELS_FILE: folder / LABELS_FILE, IDF_FILE: idf_of_run(folder, own_dataset(folder, about))}
    config = json.dumps(about["config"], sort_keys=True)
    paths = {name: path for name, path in paths.items() if path.is_file()}
    for path in paths.values():
        if (size := path.stat().st_size) > MAX_FILE_BYTES:  # a stranger's file could take hours to read
            raise UserError(f"{path}: has {size:,} bytes; expected {MAX_FILE_BYTES:,} or fewer; {TRAIN_AGAIN}")
    files = {name: sha256_of(path) for name, path in paths.items()}
    return {"config": hashlib.sha256(config.encode()).hexdigest(), **files}

"""Deleting and renaming runs: only runs of the data set, and never one that is being trained."""

import os
import re
from pathlib import Path

from ...storage.common.errors import UserError, refuse_unreadable
from ...storage.common.files import read_json, write_json
from ...storage.common.writing import check_folders, move, remove_file, remove_tree
from ...storage.dataset.folder import DatasetFolder
from ..runs.files import EVALUATIONS_FOLDER, METRICS_FILE, RUN_FILE, STATE_FILE
from ..runs.folder import LOCK_FILE, lock_for_training

RUN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=-]{0,199}")
"""Names that a run can be given."""
REMEDY = "or stop it first"


def check_run_folder(dataset: DatasetFolder, name: str) -> Path:
    """Return the folder of a run that may be deleted or renamed.

    Raises:
        UserError: The name is a path, or the folder is a link or is not a run.
    """
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise UserError(f"run {name!r}: expected the name of a folder in {dataset.runs}, not a path")
    check_folders(dataset.runs)
    folder = dataset.runs / name
    if folder.is_symlink():
        raise UserError(f"{folder}: is a symbolic link; expected the folder of a run; remove the link by hand")
    if not folder.is_dir():
        raise UserError(f"{folder}: no such run; list them with vlalign-runs --dataset {dataset.name}")
    if not any((folder / file).exists() for file in (RUN_FILE, STATE_FILE, LOCK_FILE)):
        raise UserError(f"{folder}: has neither {RUN_FILE} nor {STATE_FILE}, so it is not a run; not changed")
    return folder


def delete_run(dataset: DatasetFolder, name: str) -> None:
    """Delete a run's folder. Links in it are removed; their targets are not touched.

    Raises:
        UserError: It is no run of the data set, or a process trains there.
    """
    folder = check_run_folder(dataset, name)
    with lock_for_training(folder, REMEDY):
        remove_file(folder / RUN_FILE, missing_ok=True)  # first: the rest of a killed deletion is not a finished run
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                remove_tree(path)
            elif path.name != LOCK_FILE:
                remove_file(path)


def rename_run(dataset: DatasetFolder, name: str, new_name: str) -> Path:
    """Rename a run's folder, and the run in its metrics; return the new folder.

    The report shows the old name until the run is evaluated again.

    Raises:
        UserError: It is no run of the data set, a process trains there, or the new name is taken or not a name.
    """
    folder = check_run_folder(dataset, name)
    if RUN_NAME.fullmatch(new_name) is None:
        raise UserError(f"run name {new_name!r}: expected at most 200 letters, digits, '.', '_', '+', '=' and '-'")
    target = dataset.runs / new_name
    if os.path.lexists(target):
        raise UserError(f"{target}: already exists; choose another name")
    with lock_for_training(folder, REMEDY):
        move(folder, target)
        remove_file(target / LOCK_FILE, missing_ok=True)
    each = (METRICS_FILE, f"{EVALUATIONS_FOLDER}/*/{METRICS_FILE}")
    for path in sorted(path for base in ("", "on/*/") for name in each for path in target.glob(base + name)):
        parts = [path, *(parent for parent in path.parents if target in parent.parents)]
        if path.is_file() and not any(part.is_symlink() for part in parts):
            metrics = read_json(path)
            with refuse_unreadable(path, "not a valid file of vlalign-evaluate", "run vlalign-evaluate again"):
                write_json(path, {**metrics, "run": new_name})
    return target

"""Exported runs of the Hugging Face hub, by names such as ``hf:ORG/NAME``.

A run of the hub is a stranger's. Only the files of an exported run, which have fixed names, are copied, into a folder
without links: the files in the hub's cache are links.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from ...storage.common.errors import UserError, refuse_unreadable
from ...storage.common.files import read_object
from ...storage.common.terminal import note_once
from ...storage.common.user_state import cache_folder
from ...storage.common.writing import atomic_write, make_folder
from ...storage.hub.files import download
from ...storage.hub.names import HF, HUB_ID
from .files import (
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
from .run_json import is_exported

FILES = (MODEL_FILE, IDF_FILE, LABELS_FILE, METRICS_FILE, EVENTS_FILE, CARD_FILE, RUN_FILE)
"""Files of an exported run, ``run.json`` last: a folder that has it is complete."""
FOLDERS = (TEXT_FOLDER, VIDEO_FOLDER)
HUB_RUN = re.compile(rf"{HF}({HUB_ID.pattern})(?:@([\w./-]+))?")
MAX_RUN_FILE_BYTES = 64 << 20


def is_hub_run(name: Path | str) -> bool:
    """Return whether a text names a run of the hub.

    >>> is_hub_run("hf:me/words-on-demo"), is_hub_run("words-on-demo")
    (True, False)
    """
    return HUB_RUN.fullmatch(str(name)) is not None


def hub_run(name: str) -> Path:
    """Return the folder of an exported run of the hub, and print its revision.

    The hub is asked for the newest revision, and its cache on this machine is used if it cannot be reached.

    Args:
        name: "hf:ORG/NAME", or "hf:ORG/NAME@REVISION" with a branch, a tag or a commit.

    Raises:
        UserError: The hub cannot be reached and its cache has no such run, or the run is not an exported one.
    """
    match = HUB_RUN.fullmatch(name)
    assert match is not None, "is_hub_run was asked before"
    model, revision = match.groups()
    patterns = [*FILES, *(f"{folder}/*" for folder in FOLDERS)]
    snapshot = download(model, revision, patterns, f"run {name}", "pass its path")
    if not re.fullmatch("[0-9a-f]{40}", snapshot.name):
        raise UserError(f"{snapshot}: expected a folder of the hub's cache, with the name of a commit")
    if not (snapshot / RUN_FILE).is_file():
        raise UserError(f"run {name}: has no {RUN_FILE}; expected a run that vlalign-runs export wrote")
    with refuse_unreadable(f"run {name}", f"{RUN_FILE} is not a valid file of vlalign-runs export"):
        about = read_object(_blob(snapshot / RUN_FILE), MAX_RUN_FILE_BYTES)
    if not is_exported(about):
        raise UserError(f"run {name}: is not an exported run; expected a run that vlalign-runs export wrote")
    folder = cache_folder("runs") / snapshot.name / model.replace("/", "--")
    if not (folder / RUN_FILE).exists():
        make_folder(folder)
        for path in _files_of(snapshot):
            target = folder / path.relative_to(snapshot)
            make_folder(target.parent)
            with atomic_write(target) as partial, _blob(path).open("rb") as source, partial.open("wb") as copy:
                shutil.copyfileobj(source, copy)
    note_once(f"run {name}: revision {snapshot.name}")
    return folder


def _files_of(snapshot: Path) -> Iterator[Path]:
    """Yield the files of a snapshot that are copied, ``run.json`` last."""
    for folder in FOLDERS:
        for path in sorted((snapshot / folder).glob("*")):
            if re.fullmatch(r"\w[\w.-]*", path.name) and not path.is_dir():
                yield path
    yield from (path for name in FILES if (path := snapshot / name).exists())


def _blob(path: Path) -> Path:
    """Return the file that a link of the hub's cache leads to.

    Raises:
        UserError: The link leads outside the repository's folder in the cache, or not to a file.
    """
    repository = next(parent.parent for parent in path.parents if parent.name == "snapshots")
    found = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for a link to itself
    if Path(os.path.realpath(repository)) not in found.parents:
        raise UserError(
            f"{path}: links to {found}, outside {repository}; expected a folder that the hub's library made; remove it"
        )
    if not found.is_file():
        raise UserError(f"{path}: links to no file; expected a folder that the hub's library made; remove it")
    return found

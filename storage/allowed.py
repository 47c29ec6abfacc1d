"""Folders outside of ``--root`` that may hold videos of a data set.

``videos.jsonl`` may come from a stranger and may name any file, so the user names these folders. They are kept for
each data set (``state.py``).
"""

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from .common.errors import UserError
from .common.terminal import note_once
from .files import one_at_a_time, write_json
from .layout import DatasetFolder
from .records import VideoRecord
from .state import state_file

_of_this_process: dict[str, list[str]] = {}


def allow_folder(dataset: DatasetFolder, folder: Path) -> None:
    """Record that videos of a data set may lie in ``folder``. Raises ``UserError`` if there is no such folder."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected one with videos of {dataset.name}")
    key, allowed = str(dataset.path.resolve()), os.path.abspath(folder)
    if allowed in _recorded(key):
        return
    _of_this_process.setdefault(key, []).append(allowed)
    try:
        path = state_file("videos", key)
        with one_at_a_time(path):
            write_json(path, {"dataset": key, "folders": [*_written(key), allowed]})
    except (OSError, RuntimeError) as error:  # no home folder, or a read-only one
        note_once(
            f"note: {folder}: the permission to read videos there cannot be kept ({error}), so the next command asks "
            "again; "
            "set XDG_STATE_HOME to a folder that can be written"
        )


def outside_of_folders(dataset: DatasetFolder, videos: Sequence[VideoRecord]) -> list[str]:
    """Return the paths of the videos that lie neither under the root nor in a folder that the user named."""
    folders = [str(dataset.root.absolute()), *_recorded(str(dataset.path.resolve()))]
    allowed = tuple(folder.rstrip("/") + "/" for folder in folders)
    files = (video.path for video in videos if os.path.isabs(video.path))
    return [path for path in files if not os.path.normpath(path).startswith(allowed)]


def refuse_other_folders(dataset: DatasetFolder, videos: Sequence[VideoRecord]) -> None:
    """Raise ``UserError`` if videos lie neither under the root nor in a folder that the user named."""
    if outside := outside_of_folders(dataset, videos):
        folder = os.path.commonpath([os.path.dirname(path) for path in outside])
        raise UserError(
            f"{dataset.videos_file}: {len(outside):,} of its videos lie outside of {dataset.root}, such as "
            f"{outside[0]}; if "
            f"you trust this list, pass --allow-folder {shlex.quote(folder)} once"
        )


def _recorded(key: str) -> list[str]:
    return [*_of_this_process.get(key, []), *_written(key)]


def _written(key: str) -> list[str]:
    try:
        record = json.loads(state_file("videos", key).read_text(encoding="utf-8"))
        return [str(folder) for folder in record["folders"]] if record["dataset"] == key else []
    except (OSError, RuntimeError, ValueError, TypeError, KeyError):
        return []

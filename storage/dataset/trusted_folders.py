"""Folders outside of ``--root`` that may contain videos and files of a data set.

A data set may come from a stranger: ``videos.jsonl`` may name any file, and links may lead anywhere. Therefore the user
names these folders. They are stored for each data set (``user_state.py``).
"""

import errno
import json
import os
import shlex
import stat
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.errors import UserError
from ..common.files import write_json
from ..common.locks import file_lock
from ..common.terminal import note_once
from ..common.threads import map_in_threads
from ..common.user_state import state_file, writable_state_file
from ..common.writing import SAFE_FLAGS
from ..records import VideoRecord

if TYPE_CHECKING:
    from .folder import DatasetFolder

SCANNED_NAMES = 4
"""A folder with at least this many videos is listed once. On a network disk, checking a million names one by one would
take an hour.
"""
NAMED_FOLDERS = 3
"""A message names at most this many folders to allow."""
SYSTEM_PARTS = 2
"""A folder whose path has at most this many parts, such as ``/`` or ``/home``, is not proposed as a common folder."""
NO_NAMES = ("", ".", "..")
"""Last parts of paths that name no entry of their folder."""
FOLDER_FLAGS = SAFE_FLAGS | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_PATH", 0)
"""Flags of ``os.open`` for a folder that is no link. With ``O_PATH`` (Linux) it need not be readable."""
_of_this_process: dict[str, list[str]] = {}


def allow_folder(dataset: "DatasetFolder", folder: Path) -> None:
    """Record that ``folder`` may contain videos and files of a data set.

    Raises:
        UserError: There is no such folder.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected one with videos or files of {dataset.name}")
    key, allowed = dataset.real_path, os.path.realpath(folder)
    if allowed in _recorded(key):
        return
    _of_this_process.setdefault(key, []).append(allowed)
    try:
        path = writable_state_file("videos", key)
        with file_lock(path):
            write_json(path, {"dataset": key, "folders": [*_written(key), allowed]})
    except OSError as error:  # no home folder, or a read-only one
        note_once(
            f"note: {folder}: its permission cannot be stored ({error}), so the next command asks again; set "
            "XDG_STATE_HOME to a writable folder"
        )


class AllowedFolders:
    """The real folders that may contain files."""

    def __init__(self, folders: Iterable[str]) -> None:
        """Take real paths. They are not resolved again: a folder that became a link since then allows nothing."""
        self.folders = list(folders)
        self._prefixes = tuple(folder.rstrip("/") + "/" for folder in self.folders)

    @classmethod
    def of(cls, dataset: "DatasetFolder") -> "AllowedFolders":
        """Return the folders of a data set: the root, the data set's own folder, and the allowed ones."""
        return cls([os.path.realpath(dataset.root), dataset.real_path, *_recorded(dataset.real_path)])

    @classmethod
    def named(cls, dataset: "DatasetFolder") -> "AllowedFolders":
        """Return the data set's own folder and the allowed folders, without the root, which has other data sets."""
        return cls([dataset.real_path, *_recorded(dataset.real_path)])

    def have(self, real_path: str) -> bool:
        """Return whether a real path, without links, is in one of the folders or is one."""
        return f"{real_path}/".startswith(self._prefixes)

    def open(self, path: Path | str) -> tuple[int, str]:
        """Open a regular file in one of the folders for reading; return its descriptor and real path.

        Links are resolved first. Then the file is opened from the folder, one subfolder after the other, without
        following links: a link created in the meantime has no effect. On Windows, the real path is compared afterwards.

        Raises:
            OSError: There is no such file, or it is elsewhere.
        """
        real_path = os.path.realpath(path)
        if not self.have(real_path):
            raise PermissionError(errno.EACCES, "outside of the trusted folders", str(path))
        top = next(prefix for prefix in self._prefixes if f"{real_path}/".startswith(prefix))
        if os.open in os.supports_dir_fd:
            descriptor = _open_below(top, real_path[len(top) :].split("/"))
        else:
            descriptor = os.open(real_path, os.O_RDONLY | SAFE_FLAGS)
        is_same = os.open in os.supports_dir_fd or os.path.realpath(path) == real_path
        if not is_same or not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path))
        return descriptor, real_path


def _open_below(top: str, parts: Sequence[str]) -> int:
    """Open a file below a folder; no part of the path below it may be a link."""
    folder = os.open(top, FOLDER_FLAGS)
    try:
        for part in parts[:-1]:
            inner = os.open(part, FOLDER_FLAGS, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(parts[-1], os.O_RDONLY | SAFE_FLAGS, dir_fd=folder)
    finally:
        os.close(folder)


def outside_of_folders(dataset: "DatasetFolder", videos: Sequence[VideoRecord]) -> dict[str, str]:
    """Return {path: real path} of the videos outside of the root and the allowed folders.

    Links are resolved: only the real folder of a file matters.
    """
    allowed, home = AllowedFolders.of(dataset), str(dataset.path.absolute())
    by_folder: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for video in videos:
        if not video.url:
            folder, _, name = os.path.join(home, video.path).rpartition("/")
            by_folder[folder].append((name, video.path))
    real_folder_of = _real_folders(by_folder)

    def links_in(folder: str) -> set[str]:
        return _links_among(folder or "/", [name for name, _ in by_folder[folder]])

    real_paths: dict[str, str] = {}
    links: dict[str, str] = {}
    linked = map_in_threads(links_in, by_folder, calls_per_part=4)
    for (folder, files), names in zip(by_folder.items(), linked, strict=True):
        for name, path in files:
            if name in names or name in NO_NAMES:
                links[path] = f"{folder}/{name}"
            elif not allowed.have(real_folder_of[folder]):
                real_paths[path] = os.path.join(real_folder_of[folder], name)
    real_paths |= zip(links, map_in_threads(os.path.realpath, links.values()), strict=True)
    return {path: real_path for path, real_path in real_paths.items() if not allowed.have(real_path)}


def with_real_folders(paths: Collection[str]) -> dict[str, str]:
    """Return {path: the same path with the real path of its folder}, the form in which scans name files.

    A link to a file is not followed: a scan has resolved it, unless its target cannot be listed under its own name.

    Args:
        paths: Absolute paths. They may contain ``..`` and links to folders, as in lists of earlier versions.
    """
    real_folder_of = _real_folders({path.rpartition("/")[0] for path in paths})
    found = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        found[path] = os.path.realpath(path) if name in NO_NAMES else os.path.join(real_folder_of[folder], name)
    return found


def _real_folders(folders: Collection[str]) -> dict[str, str]:
    """Return {absolute path of a folder: its real path}."""
    # Following each folder's whole path would take a call for each part of it.
    parents = {parent for folder in folders if (parent := folder.rpartition("/")[0])}
    real_parents = dict(zip(parents, map_in_threads(os.path.realpath, parents), strict=True))

    def real(folder: str) -> str:
        parent, _, name = folder.rpartition("/")
        is_plain = parent and name not in NO_NAMES and not os.path.islink(folder)
        return os.path.join(real_parents[parent], name) if is_plain else os.path.realpath(folder or "/")

    return dict(zip(folders, map_in_threads(real, folders, calls_per_part=4), strict=True))


def _links_among(folder: str, names: Sequence[str]) -> set[str]:
    """Return which names of a folder are links."""
    if len(names) < SCANNED_NAMES:
        return {name for name in names if os.path.islink(f"{folder}/{name}")}
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_symlink()}
    except OSError:  # no such folder, or one that can be opened but not listed
        return {name for name in names if os.path.islink(f"{folder}/{name}")}


def refuse_other_folders(dataset: "DatasetFolder", videos: Sequence[VideoRecord]) -> None:
    """Raise ``UserError`` if videos are outside of the root and the allowed folders."""
    if outside := outside_of_folders(dataset, videos):
        for video in videos:
            if video.path in outside:
                # raises for a relative path that leaves the data set's folder, which cannot be allowed
                dataset.video_file(video)
        path, real_path = next(iter(outside.items()))
        link = f" (a link to {real_path})" if os.path.normpath(path) != real_path else ""
        raise UserError(
            f"{dataset.videos_file}: {len(outside):,} of its videos are outside of {dataset.root}, such as "
            f"{path}{link}; if you trust this list, {how_to_allow(map(os.path.dirname, outside.values()))}"
        )


def how_to_allow(folders: Iterable[str]) -> str:
    """Return the end of a message, which tells how to allow folders.

    Args:
        folders: Real paths. A stranger may have chosen them, so all are named, or the folder that contains them unless
            it is one of the system's.

    Example:
        >>> how_to_allow(["/etc", "/home/me/clips", "/home/me/clips/2026"])
        'pass --allow-folder /etc --allow-folder /home/me/clips once'
    """
    tops: list[str] = []
    for folder in sorted(set(folders), key=lambda folder: folder.split("/")):
        if not tops or not f"{folder}/".startswith(tops[-1].rstrip("/") + "/"):
            tops.append(folder)
    options = " ".join(f"--allow-folder {shlex.quote(folder)}" for folder in tops[:NAMED_FOLDERS])
    if len(tops) <= NAMED_FOLDERS:
        return f"pass {options} once"
    common = os.path.commonpath(tops) if len({Path(folder).anchor for folder in tops}) == 1 else ""
    if len(Path(common).parts) > SYSTEM_PARTS:
        return f"pass --allow-folder {shlex.quote(common)} once, which allows everything in it"
    return f"pass --allow-folder once for each of the {len(tops):,} folders, such as {options}"


def refuse_link_out(dataset: "DatasetFolder", path: str, real_path: str) -> None:
    """Raise ``UserError`` if a folder to write to is a link to a folder that the user has not allowed.

    Args:
        dataset: The data set.
        path: A folder in the data set's folder. It need not exist yet.
        real_path: Its real path.
    """
    allowed = AllowedFolders.of(dataset)
    if allowed.have(real_path):
        return
    home = os.path.abspath(dataset.path)
    for part in (part for part in reversed([Path(path), *Path(path).parents]) if Path(home) in part.parents):
        if not allowed.have(real_part := os.path.realpath(part)):
            path, real_path = str(part), real_part
            break
    raise UserError(
        f"{path}: a link to {real_path}, outside of {dataset.root}; nothing is written there; remove it or, if you "
        f"made it, pass --allow-folder {shlex.quote(real_path)} once"
    )


def _recorded(key: str) -> list[str]:
    return [*_of_this_process.get(key, []), *_written(key)]


def _written(key: str) -> list[str]:
    try:
        record = json.loads(state_file("videos", key).read_text(encoding="utf-8"))
        return [str(folder) for folder in record["folders"]] if record["dataset"] == key else []
    except (OSError, ValueError, TypeError, KeyError):
        return []

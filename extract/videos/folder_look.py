"""A look at a synchronised folder: its video files with size and time, and whether it can be reached at all."""

import os
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from ...storage.common.problems import Problems
from ...storage.common.terminal import number_of
from ...storage.common.threads import map_in_threads
from ...storage.dataset.folder import DatasetFolder
from ...storage.dataset.media_types import VIDEO_SUFFIXES
from ...storage.dataset.synced import SyncedFile, SyncedFolder
from ...storage.dataset.trusted_folders import AllowedFolders, how_to_allow, outside_of_folders
from ...storage.records import VideoRecord
from .scan import Scan, scan_folder

RECENT_SECONDS = 60.0
"""A file that was written within this time may still be written."""
GROWTH_SECONDS = 2.0
"""Time between two checks of such a file."""


@dataclass(frozen=True, kw_only=True)
class FoundFile:
    """A video file in a folder."""

    path: str
    """Absolute path; for a link, the real path of its target."""
    name: str
    """Path in the folder, which becomes the id."""
    size: int
    mtime_ns: int
    changed_ns: int
    """Time of the file's last change of content or metadata, on the clock of its machine."""
    mount: str
    """Mount point of its file system; empty for the root."""


@dataclass(kw_only=True)
class FolderLook:
    """The current videos of a folder, and the skipped files."""

    folder: SyncedFolder
    unreachable: str = ""
    """Reason why the folder cannot be read; empty if it can."""
    files: list[FoundFile] = field(default_factory=list)
    unfinished: dict[str, str] = field(default_factory=dict)
    """{path: why the file is not read yet}"""
    unlisted: list[str] = field(default_factory=list)
    """Paths that cannot be read, as in a scan; their videos stay listed."""
    skipped: dict[str, str] = field(default_factory=dict)
    """{path: why it is no video of the data set}: hidden, trash, unfinished downloads."""
    scan: Scan = field(default_factory=Scan)
    """The folder's content; empty if it could not be listed."""


def mount_of(path: str) -> str:
    """Return the mount point of a path's file system; empty for the root file system.

    >>> mount_of("/")
    ''
    """
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return "" if path == os.path.dirname(path) else path


def look_at(
    dataset: DatasetFolder,
    folder: SyncedFolder,
    known: Mapping[str, SyncedFile],
    listed: Collection[str],
    problems: Problems,
) -> FolderLook:
    """Return the content of a folder, or the reason why it is unreachable.

    A folder is unreachable, not empty, if it is missing, cannot be listed, has lost all of its videos, or if its file
    system is no longer mounted.

    Args:
        dataset: The data set that follows the folder. Links may lead to the folders that the user allowed for it.
        folder: The folder.
        known: Files that were seen before, by path.
        listed: Files of the data set's videos.
        problems: Receives unusable names, broken links, and links that leave the allowed folders.
    """
    allowed = AllowedFolders.named(dataset)
    look = FolderLook(folder=folder, unreachable=_obstacle(folder, allowed))
    if look.unreachable:
        return look
    scan = scan_folder(Path(folder.path), VIDEO_SUFFIXES, problems, is_allowed=allowed.have)
    look.unlisted, look.scan = scan.unlisted, scan
    look.skipped = {os.path.join(folder.path, name): "hidden or trash" for name in scan.hidden}
    look.skipped |= {os.path.join(folder.path, name): "unfinished download" for name in scan.unfinished}
    if not scan.files and (num_known := len(paths_of([folder], {*listed, *known}, known))):
        look.unreachable = (
            f"it has no videos now, but had {number_of(num_known, 'videos')}; if you deleted them, pass "
            f"--forget {shlex.quote(folder.path)}"
        )
        return look
    _take_files(dataset, look, scan.files, problems)
    _find_unfinished(look, known)
    return look


def _obstacle(folder: SyncedFolder, allowed: AllowedFolders) -> str:
    """Return why a folder cannot be read; empty if it can."""
    if not allowed.have(real := os.path.realpath(folder.path)):
        link = f"a link to {real}, " if real != folder.path else ""
        return f"{link}not allowed yet on this machine; if the folder is yours, pass {shlex.quote(folder.path)} once"
    if folder.mount and not os.path.ismount(folder.mount):
        return f"nothing is mounted at {folder.mount}; mount it"
    try:
        with os.scandir(folder.path):
            pass
    except OSError as error:
        return f"it cannot be listed ({error.strerror}); connect the disk or the share"
    return ""


def _take_files(dataset: DatasetFolder, look: FolderLook, found: Mapping[str, str], problems: Problems) -> None:
    """Add the files whose names can be ids and whose folders the user allows."""
    names = {}
    for name in sorted(found, key=lambda name: name.split("/")):
        path = found[name]
        if name.isprintable() and path.isprintable():
            names.setdefault(path, name)
        else:  # bytes that are not UTF-8, or control characters
            problems.add(f"{path!a}: a file name with non-printable characters; skipped; rename it")
    outside = outside_of_folders(dataset, [VideoRecord(video_id=path, path=path) for path in names])
    mounts = lru_cache(maxsize=None)(mount_of)
    inside = [path for path in names if path not in outside]
    looks = dict(zip(inside, map_in_threads(_stat, inside), strict=True))
    for path, name in names.items():
        about = looks.get(path)
        if about is None:
            look.unlisted.append(path)
            todo = how_to_allow([os.path.dirname(outside[path])])
            problems.add(f"{path}: a link to {outside[path]}; skipped; if you trust this link, {todo}")
        elif isinstance(about, OSError):
            look.unfinished[path] = f"cannot be read ({about.strerror})"
            problems.add(f"{path}: {look.unfinished[path]}; skipped")
        else:
            look.files.append(
                FoundFile(
                    path=path,
                    name=name,
                    size=about.st_size,
                    mtime_ns=about.st_mtime_ns,
                    changed_ns=max(about.st_mtime_ns, about.st_ctime_ns),
                    mount=mounts(os.path.dirname(path)),
                )
            )


def _stat(path: str) -> os.stat_result | OSError:
    try:
        return os.stat(path)
    except OSError as error:
        return error


def _find_unfinished(look: FolderLook, known: Mapping[str, SyncedFile]) -> None:
    """Move files that are empty or still growing to the unfinished ones."""
    recent = [file for file in look.files if not _is_known(file, known) and _is_recent(file)]
    if any(file.size for file in recent):
        time.sleep(GROWTH_SECONDS)
    for file in look.files:
        if not file.size:
            look.unfinished[file.path] = "empty"
    for file, about in zip(recent, map_in_threads(_stat, [file.path for file in recent]), strict=True):
        # a file that has disappeared was a temporary file
        if isinstance(about, OSError) or (about.st_size, about.st_mtime_ns) != (file.size, file.mtime_ns):
            look.unfinished[file.path] = "still being written"
    look.files = [file for file in look.files if file.path not in look.unfinished]


def _is_known(file: FoundFile, known: Mapping[str, SyncedFile]) -> bool:
    before = known.get(file.path)
    return before is not None and (before.size, before.mtime_ns) == (file.size, file.mtime_ns)


def _is_recent(file: FoundFile) -> bool:
    return file.changed_ns > time.time_ns() - RECENT_SECONDS * 1e9


def kept_paths(
    paths: Collection[str],
    looks: Sequence[FolderLook],
    forgotten: Collection[SyncedFolder],
    files: Mapping[str, SyncedFile],
) -> set[str]:
    """Return the paths of videos that may exist although they were not found.

    Their folder may be unreachable, unlistable or no longer synchronised, a disk in it may not be mounted, or the files
    may be unfinished.

    Args:
        paths: Files of the data set's videos.
        looks: The content of the folders.
        forgotten: Folders that the user removed: files that are in no other folder are gone.
        files: Known files by path.
    """
    unmounted, found = unmounted_disks(looks, files), {file.path for look in looks for file in look.files}
    not_found, folders = set(paths) - found, [look.folder for look in looks]
    unlisted = {path for look in looks for path in look.unlisted}
    closed = tuple(path.rstrip("/") + "/" for path in unlisted)
    kept = paths_of([look.folder for look in looks if look.unreachable], not_found, files)
    for path in paths_of(folders, not_found, files):
        is_away = path in files and files[path].mount in unmounted
        if is_away or path in unlisted or path.startswith(closed):
            kept.add(path)
    kept |= (not_found & files.keys()) - paths_of([*folders, *forgotten], not_found, files)
    return kept.union(*(look.unfinished for look in looks))


def unmounted_disks(looks: Sequence[FolderLook], files: Mapping[str, SyncedFile]) -> dict[str, str]:
    """Return {mount point: advice} for disks in the folders that are not mounted, so that known files are missing."""
    found = {file.path for look in looks for file in look.files}
    reachable = {look.folder.path for look in looks if not look.unreachable}
    mounts = {file.mount for path, file in files.items() if file.folder in reachable and path not in found}
    todo = "not mounted now, although listed videos are on it; mount it"
    return {mount: todo for mount in sorted(mounts) if mount and not os.path.ismount(mount)}


def paths_of(folders: Collection[SyncedFolder], paths: Collection[str], files: Mapping[str, SyncedFile]) -> set[str]:
    """Return the paths that are in the folders, or that links in the folders lead to.

    Args:
        folders: Synchronised folders, which may be nested.
        paths: Absolute paths of files.
        files: Known files by path.
    """
    names = {folder.path for folder in folders}
    tops = tuple(name.rstrip("/") + "/" for name in names)
    return {path for path in paths if path.startswith(tops) or (path in files and files[path].folder in names)}

"""The files of a folder that may be videos, and why others are skipped."""

import heapq
import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ...storage.common.problems import Problems
from ...storage.common.terminal import number_of
from ...storage.common.threads import map_in_threads
from ...storage.dataset.trusted_folders import how_to_allow

MAX_SUFFIXES = 5
"""Number of suffixes in a line about skipped files."""
APPLE_DOUBLE = "._"
"""Prefix of the files that macOS writes beside others on foreign disks. They are never videos."""
SYSTEM_FOLDERS = (
    "$recycle.bin",
    "recycler",
    "#recycle",
    "@recycle",
    "@eadir",
    "lost+found",
    "system volume information",
)
"""Trash and index folders of systems and network disks, in lower case. Hidden ones, such as ``.Trash``, are skipped
anyway.
"""
UNFINISHED_SUFFIXES = (".part", ".crdownload", ".download", ".tmp")
"""Suffixes of unfinished downloads. Safari's downloads are folders."""
MAX_EXAMPLES = 3
"""Number of examples in a line about skipped files."""


@dataclass
class Scan:
    """The content of a folder and all of its subfolders."""

    files: dict[str, str] = field(default_factory=dict)
    """{path in the folder, with "/": real path of the file, with links resolved}."""
    others: Counter[str] = field(default_factory=Counter)
    """Number of files with other suffixes, by suffix."""
    num_repeated: int = 0
    """Number of links to folders that are scanned under another path."""
    hidden: list[str] = field(default_factory=list)
    """Hidden folders, trash, and hidden files that are named like videos; paths in the folder."""
    unfinished: list[str] = field(default_factory=list)
    """Unfinished downloads, recognised by their names; paths in the folder."""
    unlisted: list[str] = field(default_factory=list)
    """Paths with unknown content: folders that cannot be listed or are outside the allowed ones, and files whose
    metadata cannot be read.
    """

    def skipped(self, used: Counter[str] | None = None) -> str:
        """Return the skipped files in words, such as "312 files with other names (310 .srt, 2 .txt)"; empty if none.

        Args:
            used: Number of files in ``others`` that are not skipped, by suffix.
        """
        reasons = []
        if others := self.others - (used or Counter()):
            common = others.most_common(MAX_SUFFIXES)
            named = [f"{count:,} {suffix or 'without a suffix'}" for suffix, count in common]
            more = ", ..." if len(others) > MAX_SUFFIXES else ""
            reasons.append(f"{number_of(others.total(), 'files')} with other names ({', '.join(named)}{more})")
        for names, what in ((self.hidden, "hidden or trash"), (self.unfinished, "unfinished downloads")):
            if names:
                examples = [name if name.isprintable() else ascii(name) for name in sorted(names)[:MAX_EXAMPLES]]
                more = ", ..." if len(names) > MAX_EXAMPLES else ""
                reasons.append(f"{number_of(len(names), what)} ({', '.join(examples)}{more})")
        if self.num_repeated:
            reasons.append(f"{number_of(self.num_repeated, 'links')} to folders that are scanned under another path")
        return "; ".join(reasons)


def scan_folder(
    folder: Path, suffixes: Collection[str], problems: Problems, *, is_allowed: Callable[[str], bool]
) -> Scan:
    """Return the files in ``folder`` and below whose names end in one of ``suffixes``, in upper or lower case.

    Many folders are listed at once. Links are followed. Each real folder is scanned once, under its own path if it is
    in ``folder``, so that cycles of links end. Links that leave the allowed folders are not followed. Hidden files and
    folders, trash and unfinished downloads are skipped.

    Args:
        folder: A folder.
        suffixes: Lower-case suffixes.
        problems: Receives broken and forbidden links, folders that cannot be listed, and pipes named like videos.
        is_allowed: Returns whether a real folder may contain videos.
    """
    scan = Scan()
    real_folder = os.path.realpath(folder)
    seen = {real_folder}
    folders = [("", real_folder, real_folder)]
    linked: list[tuple[str, str]] = []
    outside: list[tuple[str, str]] = []
    while folders or linked:
        if not folders:  # only now: a folder's own path precedes links to it
            name, real = heapq.heappop(linked)
            if real in seen:
                scan.num_repeated += 1
                continue
            seen.add(real)
            folders.append((name, real, real))
        level, folders = folders, []
        for prefix, real, entry, link in _entries_of(level, scan, problems):
            name = prefix + entry.name
            try:
                if _skips(scan, entry, name, suffixes):
                    continue
                if isinstance(link, OSError):
                    raise link
                if entry.is_dir(follow_symlinks=False):
                    if (real_entry := os.path.join(real, entry.name)) in seen:
                        scan.num_repeated += 1
                    else:
                        seen.add(real_entry)
                        folders.append((f"{name}/", entry.path, real_entry))
                elif link is not None and stat.S_ISDIR(link.mode):
                    if is_allowed(link.real):
                        heapq.heappush(linked, (f"{name}/", link.real))
                    else:
                        outside.append((entry.path, link.real))
                        scan.unlisted.append(link.real)
                else:
                    _take_file(scan, entry, link, name, suffixes, problems, is_allowed)
            except FileNotFoundError:  # it was removed or renamed meanwhile
                continue
            except OSError as error:
                scan.unlisted.append(entry.path)
                problems.add(f"{entry.path}: cannot be read ({error.strerror}); skipped")
    if outside:
        path, target = outside[0]
        problems.add(
            f"{folder}: {number_of(len(outside), 'folders')} outside of the trusted folders skipped, such as {path} "
            f"(a link to {target}); if you trust these links, {how_to_allow(target for _, target in outside)}"
        )
    return scan


class _Link(NamedTuple):
    """The target of a link."""

    real: str
    mode: int
    """File type and permissions of the target; 0 if there is none."""


def _entries_of(
    folders: Sequence[tuple[str, str, str]], scan: Scan, problems: Problems
) -> Iterator[tuple[str, str, os.DirEntry[str], _Link | OSError | None]]:
    """Yield (prefix of names, real path of the folder, entry, link) for each entry of the folders.

    ``link`` is a link's target, or the error of resolving it; None for other entries.

    Args:
        folders: Prefix, path and real path of each; all are listed at once.
        scan: Receives folders that cannot be listed.
        problems: Receives these folders as well.
    """
    listed = map_in_threads(_list_folder, [path for _, path, _ in folders], calls_per_part=1)
    for (prefix, path, real), found in zip(folders, listed, strict=True):
        if isinstance(found, OSError):
            scan.unlisted.append(path)
            problems.add(f"{path}: a folder that cannot be listed ({found.strerror}); skipped")
            continue
        links = dict(map_in_threads(_look_at_link, (entry for entry, is_link in found if is_link)))
        for entry, _ in found:
            yield prefix, real, entry, links.get(entry.name)


def _look_at_link(entry: os.DirEntry[str]) -> tuple[str, _Link | OSError]:
    """Return the name of a link, and its target or the error of resolving it."""
    try:
        real = os.path.realpath(entry.path)
    except OSError as error:
        return entry.name, error
    try:
        return entry.name, _Link(real, os.stat(entry.path).st_mode)
    except OSError:
        return entry.name, _Link(real, 0)


def _list_folder(path: str) -> list[tuple[os.DirEntry[str], bool]] | OSError:
    """Return (entry, whether it is a link) for each entry of a folder, by name; or the error of listing the folder."""
    try:
        with os.scandir(path) as entries:
            return [(entry, entry.is_symlink()) for entry in sorted(entries, key=lambda entry: entry.name)]
    except OSError as error:
        return error


def _skips(scan: Scan, entry: os.DirEntry[str], path: str, suffixes: Collection[str]) -> bool:
    """Return whether an entry is skipped because of its name; if so, add its path in the folder to the scan."""
    name = entry.name
    if name.startswith(APPLE_DOUBLE):
        return False
    if name.lower().endswith(UNFINISHED_SUFFIXES):
        scan.unfinished.append(path)
        return True
    is_hidden_video = name.startswith(".") and name.lower().endswith(tuple(suffixes))  # such as ..mp4
    if is_hidden_video or ((name.startswith(".") or name.lower() in SYSTEM_FOLDERS) and os.path.isdir(entry.path)):
        scan.hidden.append(path)
        return True
    return False


def _take_file(
    scan: Scan,
    entry: os.DirEntry[str],
    link: _Link | None,
    name: str,
    suffixes: Collection[str],
    problems: Problems,
    is_allowed: Callable[[str], bool],
) -> None:
    """Add a file to the scan, or report why it is skipped."""
    suffix = os.path.splitext(entry.name)[1].lower()
    if entry.name.startswith(APPLE_DOUBLE):
        return
    if link is not None and not link.mode:
        if not entry.name.startswith("."):
            target = os.readlink(entry.path)
            problems.add(f"{entry.path}: a broken link to {target}; skipped; remove or fix it")
    elif suffix not in suffixes:
        if not entry.name.startswith("."):
            scan.others[suffix] += 1
    elif not (entry.is_file() if link is None else stat.S_ISREG(link.mode)):
        problems.add(f"{entry.path}: a pipe, a socket or a device; expected a video file; skipped")
    else:
        # The suffix of the real name may be missing, as in caches that name files by their hash.
        is_kept = link is not None and is_allowed(link.real) and link.real.lower().endswith(tuple(suffixes))
        scan.files[name] = link.real if link is not None and is_kept else entry.path

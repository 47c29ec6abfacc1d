"""The files of a folder that may be videos, and why others are skipped."""

import heapq
import os
import shlex
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from ...storage.common.problems import Problems
from ...storage.common.terminal import number_of

MAX_SUFFIXES = 5
"""Suffixes that are named in a line about files that are skipped."""
APPLE_DOUBLE = "._"
"""Names of the files that macOS writes beside others on foreign disks begin with this. They are never videos."""
SYSTEM_FOLDERS = (
    "$recycle.bin",
    "recycler",
    "#recycle",
    "@recycle",
    "@eadir",
    "lost+found",
    "system volume information",
)
"""Trash and indexes of systems and network disks, in lower case. Their other folders are hidden ones, as ``.Trash``."""
UNFINISHED_SUFFIXES = (".part", ".crdownload", ".download", ".tmp")
"""Ends of the names of downloads that are not finished. Safari's are folders."""
MAX_EXAMPLES = 3
"""Examples in a line about what is skipped."""


@dataclass
class Scan:
    """The content of a folder and all of its subfolders."""

    files: dict[str, str] = field(default_factory=dict)
    """{path in the folder, with "/": where the file lies}. If links lead to a file, that is where it really lies."""
    others: Counter[str] = field(default_factory=Counter)
    """Number of files with other suffixes, by suffix."""
    num_repeated: int = 0
    """Links to folders that are scanned by another path."""
    hidden: list[str] = field(default_factory=list)
    """Hidden folders, trash, and hidden files that are named like videos; paths in the folder."""
    unfinished: list[str] = field(default_factory=list)
    """Downloads that are not finished, by their names; paths in the folder."""
    unlisted: list[str] = field(default_factory=list)
    """Paths of which nothing is known: folders that cannot be listed, or that links lead out to, and files that cannot
    be looked at."""

    def skipped(self, used: Counter[str] | None = None) -> str:
        """Return the skipped files in words, such as "312 files with other names (310 .srt, 2 .txt)"; empty if none.

        Args:
            used: Number of the others that are not skipped, by suffix.
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
            reasons.append(f"{number_of(self.num_repeated, 'links')} to folders that are scanned by another path")
        return "; ".join(reasons)


def scan_folder(
    folder: Path, suffixes: Collection[str], problems: Problems, *, is_allowed: Callable[[str], bool]
) -> Scan:
    """Return the files in ``folder`` and below whose names end in one of ``suffixes``, in upper or lower case.

    Links are followed. Each real folder is scanned once, by its own path if it has one in ``folder``, so rings of links
    end. No link that leads out of the allowed folders is entered. Hidden files and folders, trash and unfinished
    downloads are skipped.

    Args:
        folder: A folder.
        suffixes: Lower-case suffixes.
        problems: Receives links that lead nowhere or out, folders that cannot be listed, and pipes that are named like
            videos.
        is_allowed: Whether videos may lie in a real folder.
    """
    scan = Scan()
    real_folder = os.path.realpath(folder)
    seen = {real_folder}
    folders = [("", str(folder.absolute()), real_folder)]
    linked: list[tuple[str, str]] = []
    outside: list[tuple[str, str]] = []
    while folders or linked:
        if not folders:  # only now, so that a folder's own path comes before links to it
            name, real = heapq.heappop(linked)
            if real in seen:
                scan.num_repeated += 1
                continue
            seen.add(real)
            folders.append((name, real, real))
        prefix, path, real = folders.pop()
        try:
            with os.scandir(path) as entries:
                found = sorted(entries, key=lambda entry: entry.name, reverse=True)  # the last one is popped first
        except OSError as error:
            scan.unlisted.append(path)
            problems.add(f"{path}: a folder that cannot be listed ({error.strerror}); skipped")
            continue
        for entry in found:
            name = prefix + entry.name
            try:
                if _skips(scan, entry, name, suffixes):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if (real_entry := os.path.join(real, entry.name)) in seen:
                        scan.num_repeated += 1
                    else:
                        seen.add(real_entry)
                        folders.append((f"{name}/", entry.path, real_entry))
                elif entry.is_symlink() and os.path.isdir(target := os.path.realpath(entry.path)):
                    if is_allowed(target):
                        heapq.heappush(linked, (f"{name}/", target))
                    else:
                        outside.append((entry.path, target))
                        scan.unlisted.append(target)
                else:
                    _take_file(scan, entry, name, suffixes, problems, is_allowed)
            except FileNotFoundError:  # it was removed or renamed meanwhile
                continue
            except OSError as error:
                scan.unlisted.append(entry.path)
                problems.add(f"{entry.path}: cannot be looked at ({error.strerror}); skipped")
    if outside:
        path, target = outside[0]
        common = os.path.commonpath([target for _, target in outside])
        problems.add(
            f"{folder}: {number_of(len(outside), 'folders')} skipped, since links lead out to them, such as {path} "
            f"(a link to {target}); if you trust these links, pass --allow-folder {shlex.quote(common)} once"
        )
    return scan


def _skips(scan: Scan, entry: os.DirEntry[str], path: str, suffixes: Collection[str]) -> bool:
    """Return whether an entry is skipped for its name, and keep it, by its path in the folder."""
    name = entry.name
    if name.startswith(APPLE_DOUBLE):
        return False
    if name.lower().endswith(UNFINISHED_SUFFIXES):
        scan.unfinished.append(path)
        return True
    is_hidden_video = name.startswith(".") and os.path.splitext(name)[1].lower() in suffixes
    if is_hidden_video or ((name.startswith(".") or name.lower() in SYSTEM_FOLDERS) and os.path.isdir(entry.path)):
        scan.hidden.append(path)
        return True
    return False


def _take_file(
    scan: Scan,
    entry: os.DirEntry[str],
    name: str,
    suffixes: Collection[str],
    problems: Problems,
    is_allowed: Callable[[str], bool],
) -> None:
    """Add a file to the scan, or report why it is skipped."""
    suffix = os.path.splitext(entry.name)[1].lower()
    is_link = entry.is_symlink()
    if entry.name.startswith(APPLE_DOUBLE):
        return
    if is_link and not os.path.exists(entry.path):
        if not entry.name.startswith("."):
            target = os.readlink(entry.path)
            problems.add(f"{entry.path}: a link to {target}, where nothing is; skipped; remove it or mend it")
    elif suffix not in suffixes:
        if not entry.name.startswith("."):
            scan.others[suffix] += 1
    elif not entry.is_file():
        problems.add(f"{entry.path}: a pipe, a socket or a device, expected a video file; skipped")
    else:
        real = os.path.realpath(entry.path) if is_link else entry.path
        # A real name may say less, as in caches that name files by their hash.
        is_kept = is_link and is_allowed(real) and real.lower().endswith(tuple(suffixes))
        scan.files[name] = real if is_kept else entry.path

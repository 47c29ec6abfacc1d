"""Changes of synchronised folders: pure functions of the list of videos and the files found.

A video is identified by its content. It keeps its id, and with it its features and captions, when its file is moved or
renamed. A file with new content keeps the id of its path, or gets a new id.
"""

import os
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from ...storage.common.threads import map_in_threads
from ...storage.dataset.synced import RemovedVideo, SyncedFile
from ...storage.records import VideoRecord
from .folder_look import FolderLook, FoundFile
from .selection import id_of_name


@dataclass(frozen=True, kw_only=True)
class Renamed:
    """A video whose file was renamed or moved."""

    video_id: str
    old_path: str
    new_path: str


@dataclass(kw_only=True)
class Changes:
    """The changes in the folders of a data set, and the list of videos after them."""

    videos: list[VideoRecord] = field(default_factory=list)
    """All videos of the data set."""
    files: dict[str, SyncedFile] = field(default_factory=dict)
    """{path: facts to remember about the file}."""
    new: list[str] = field(default_factory=list)
    """Ids of new videos."""
    changed: list[str] = field(default_factory=list)
    """Ids of videos whose files have new content."""
    renamed: list[Renamed] = field(default_factory=list)
    removed: list[RemovedVideo] = field(default_factory=list)
    doubles: dict[str, str] = field(default_factory=dict)
    """{id: the id that its file keeps} of removed videos whose files were listed twice."""
    returned: list[str] = field(default_factory=list)
    """Ids of removed videos that were found again."""
    unchanged: set[str] = field(default_factory=set)
    """Ids of videos whose files have the same content as before, at the same paths."""
    paths: dict[str, str] = field(default_factory=dict)
    """{id: path of the file, as in ``files``} of all videos that are files on this machine."""
    copies: dict[str, str] = field(default_factory=dict)
    """{path: path of the listed file with the same content}"""
    other_ids: dict[str, str] = field(default_factory=dict)
    """{path: id} of new videos whose id is not their path in the folder, since another video has that id."""
    unreadable: list[str] = field(default_factory=list)
    """Paths of files whose content cannot be read."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """The listed and removed videos of a data set, and their files."""

    videos: Sequence[VideoRecord]
    path_of: Mapping[str, str]
    """{id: absolute path} of the videos that are files on this machine, as scans name them."""
    files: Mapping[str, SyncedFile]
    """Files as they were seen before, by path."""
    removed: Mapping[str, RemovedVideo]
    source_of: Callable[[str], str]
    """Returns the identity of the file that a video's features were made from; empty if it has none."""


def find_changes(
    known: Known,
    looks: Sequence[FolderLook],
    kept: Collection[str],
    *,
    identity: Callable[[str], str],
    is_copy: Callable[[str, str], bool],
) -> Changes:
    """Compare folders with their known state.

    Args:
        known: The known videos and files.
        looks: The files found in each folder. If two folders have the same file, the first folder is used.
        kept: Paths that stay listed although their files were not found.
        identity: Returns the identity of a file's content; empty if it cannot be read. Called only for files with a new
            size or time, in threads.
        is_copy: Returns whether two files of the same identity have the same content.
    """
    return _Comparison(known, looks, kept, identity, is_copy).changes


class _Comparison:
    """The steps of ``find_changes``, in order."""

    def __init__(
        self,
        known: Known,
        looks: Sequence[FolderLook],
        kept: Collection[str],
        identity: Callable[[str], str],
        is_copy: Callable[[str, str], bool],
    ) -> None:
        self.changes, self.known, self.is_copy = Changes(), known, is_copy
        self.found: dict[str, tuple[FolderLook, FoundFile]] = {}
        for look in looks:
            for file in look.files:
                self.found.setdefault(file.path, (look, file))
        self.id_at: dict[str, str] = {}
        """{path: id}; the first one, if a file is listed twice."""
        for video_id, path in known.path_of.items():
            self.id_at.setdefault(path, video_id)
        self.before = {video_id: self._source_before(video_id) for video_id in known.path_of}
        self.now: dict[str, str] = {}
        """{path: identity of its current file}"""
        self._read(identity)
        self.id_of: dict[str, str] = {}
        """{path: id}, as decided so far."""
        self._keep_what_is_the_same(kept)
        not_at_their_paths = [*self._missing(looks, kept), *self._replaced()]
        self._follow_renamed([video_id for video_id in not_at_their_paths if video_id not in self.changes.doubles])
        self._keep_changed()
        self._add_new()
        self._remove(not_at_their_paths, kept)
        self._list()

    def _source_before(self, video_id: str) -> str:
        file = self.known.files.get(self.known.path_of[video_id])
        return file.source if file is not None else self.known.source_of(video_id)

    def _read(self, identity: Callable[[str], str]) -> None:
        sources: dict[str, str] = {}
        for path, (_, file) in self.found.items():
            before = self.known.files.get(path)
            if before is not None and (before.size, before.mtime_ns) == (file.size, file.mtime_ns):
                sources[path] = before.source
        unread = [path for path in self.found if path not in sources]
        sources |= zip(unread, map_in_threads(identity, unread), strict=True)
        for path in self.found:
            if source := sources[path]:
                self.now[path] = source
            else:
                self.changes.unreadable.append(path)

    def _keep_what_is_the_same(self, kept: Collection[str]) -> None:
        for path, source in self.now.items():
            video_id, before = self.id_at.get(path), self.known.files.get(path)
            if video_id is not None and self.before[video_id] in ("", source):
                self.id_of[path] = video_id
                self.changes.unchanged.add(video_id)
            elif before is not None and before.copy_of in kept and before.source == source:
                self.changes.copies[path] = before.copy_of  # a backup, while the original's disk is not mounted

    def _missing(self, looks: Sequence[FolderLook], kept: Collection[str]) -> list[str]:
        """Return the ids of the folders' videos whose files were not found, for whatever reason."""
        tops = tuple(look.folder.path.rstrip("/") + "/" for look in looks)
        return [
            video_id
            for video_id, path in self.known.path_of.items()
            if path not in self.found and (path in self.known.files or path in kept or path.startswith(tops))
        ]

    def _replaced(self) -> list[str]:
        """Return the ids of the videos whose files have new content, or keep another id."""
        self.changes.doubles = {
            video_id: self.id_at[path]
            for video_id, path in self.known.path_of.items()
            if path in self.now and self.id_at[path] != video_id
        }
        return [
            video_id
            for video_id, path in self.known.path_of.items()
            if path in self.now and path not in self.changes.copies and self.id_of.get(path) != video_id
        ]

    def _undecided(self) -> list[str]:
        return [path for path in self.now if path not in self.id_of and path not in self.changes.copies]

    def _follow_renamed(self, not_at_their_paths: Sequence[str]) -> None:
        """Give each moved file the id of the video with its content."""
        changes, known = self.changes, self.known
        old_path = {video_id: video.path for video_id, video in known.removed.items()} | dict(known.path_of)
        source_of = {video_id: video.source for video_id, video in known.removed.items()} | self.before
        removed = [video_id for video_id in known.removed if video_id not in known.path_of]
        lost: dict[str, list[str]] = defaultdict(list)
        for video_id in [*not_at_their_paths, *removed]:
            lost[source_of[video_id]].append(video_id)
        lost.pop("", None)  # files that were never read
        for path in self._undecided():
            if not (ids := lost.get(self.now[path])):
                continue
            name = os.path.basename(path)
            video_id = min(ids, key=lambda each: os.path.basename(old_path[each]) != name)
            ids.remove(video_id)
            self.id_of[path] = video_id
            if video_id not in known.path_of:
                changes.returned.append(video_id)
            if old_path[video_id] == path:
                changes.unchanged.add(video_id)
            else:
                changes.renamed.append(Renamed(video_id=video_id, old_path=old_path[video_id], new_path=path))

    def _keep_changed(self) -> None:
        taken = set(self.id_of.values())
        for path in self._undecided():
            video_id = self.id_at.get(path)
            if video_id is not None and video_id not in taken:
                self.id_of[path] = video_id
                self.changes.changed.append(video_id)

    def _add_new(self) -> None:
        there = {self.now[path]: path for path in self.id_of}
        taken = {video.video_id: self.known.path_of.get(video.video_id, video.path) for video in self.known.videos}
        taken |= {video_id: path for path, video_id in self.id_of.items()}
        for path in self._undecided():
            original = there.setdefault(self.now[path], path)
            if original != path and self._is_copy(path, original):
                self.changes.copies[path] = original
                continue
            look, file = self.found[path]
            video_id = _free_id(look.folder.path, file.name, taken)
            if video_id != id_of_name(file.name):
                self.changes.other_ids[path] = video_id
            taken[video_id] = path
            self.id_of[path] = video_id
            self.changes.new.append(video_id)

    def _is_copy(self, path: str, original: str) -> bool:
        """Return whether a file is a copy: it was found to be before, or is found to be now."""
        before = self.known.files.get(path)
        was = before is not None and before.source == self.now[path] and before.copy_of == original
        return was or self.is_copy(path, original)

    def _remove(self, not_at_their_paths: Sequence[str], kept: Collection[str]) -> None:
        followed = set(self.id_of.values())
        for video_id in not_at_their_paths:
            path = self.known.path_of[video_id]
            if video_id not in followed and path not in kept:
                source = "" if video_id in self.changes.doubles else self.before[video_id]  # a double does not return
                removed = RemovedVideo(video_id=video_id, path=path, source=source)
                self.changes.removed.append(removed)

    def _list(self) -> None:
        changes, new_path = self.changes, {video_id: path for path, video_id in self.id_of.items()}
        gone = {video.video_id for video in changes.removed}
        listed: set[str] = set()
        for video in self.known.videos:
            old_path = self.known.path_of.get(video.video_id, "")
            is_found = video.video_id in new_path
            path = new_path.pop(video.video_id, old_path)
            if video.video_id not in gone:
                # A path with ".." or a link to a folder becomes the real path; one relative to the data set stays.
                is_written = path == (video.path if is_found and os.path.isabs(video.path) else old_path)
                changes.videos.append(video if is_written else VideoRecord(video_id=video.video_id, path=path))
                listed.add(path)
        changes.videos += [VideoRecord(video_id=video_id, path=path) for video_id, path in new_path.items()]
        changes.paths = {video_id: path for video_id, path in self.known.path_of.items() if video_id not in gone}
        changes.paths |= {video_id: path for path, video_id in self.id_of.items()}
        changes.files = {path: file for path, file in self.known.files.items() if path in listed}
        for path, source in self.now.items():
            look, file = self.found[path]
            changes.files[path] = SyncedFile(
                path=path,
                folder=look.folder.path,
                size=file.size,
                mtime_ns=file.mtime_ns,
                source=source,
                copy_of=changes.copies.get(path, ""),
                mount=file.mount if file.mount != look.folder.mount else "",
            )


def _free_id(folder: str, name: str, taken: Mapping[str, str]) -> str:
    """Return an id for a new file.

    The id is the path in the folder without the suffix. If another video has this id, the suffix is kept, as for
    ``a.mp4`` and ``a.webm``; or, if the other video is in another folder, the folder's name is put before the path.

    Args:
        folder: Path of the synchronised folder.
        name: Path in the folder.
        taken: {id: path} of all other videos.
    """
    plain = id_of_name(name)
    if plain not in taken:
        return plain
    top = folder.rstrip("/")
    if taken[plain].startswith(f"{top}/"):
        other = unicodedata.normalize("NFC", name)
    else:
        other = f"{os.path.basename(top) or 'videos'}/{plain}"
    numbered = (f"{other} ({number})" for number in count(2))
    return other if other not in taken else next(each for each in numbered if each not in taken)

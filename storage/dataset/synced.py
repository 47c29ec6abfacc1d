"""The record of a data set's synchronised folders (``vlalign-sync``): folders, their files, and removed videos.

The record is not a permission: a folder in it is read only if the user allowed it on this machine
(``trusted_folders``).
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..common.errors import refuse_unreadable
from ..common.files import MAX_JSON_BYTES, numbered_jsonl, read_jsonl, read_object, write_json, write_jsonl
from ..common.validation import check_text
from .folder import DatasetFolder

REMEDY = "remove it, and pass all folders to vlalign-sync again"


@dataclass(frozen=True, kw_only=True)
class SyncedFolder:
    """A folder of the user's own videos that the data set follows."""

    path: str
    """Absolute."""
    mount: str = ""
    """Mount point of its file system; empty for the root."""

    def __post_init__(self) -> None:
        _check_path(self.path)
        if self.mount != "":
            _check_path(self.mount)


@dataclass(frozen=True, kw_only=True)
class SyncedFile:
    """A video file as the last sync saw it: while size and time are the same, its content is not read again."""

    path: str
    """Absolute path; for a link, the real path of its target."""
    folder: str
    """Path of the ``SyncedFolder`` that it was found in."""
    size: int
    mtime_ns: int
    source: str
    """Identity of its content (``common.files.file_identity``)."""
    copy_of: str = ""
    """Path of the listed file with the same content, if this one is a copy."""
    mount: str = ""
    """Mount point of its file system, if it differs from its folder's."""

    def __post_init__(self) -> None:
        for path in (self.path, self.folder, *(path for path in (self.copy_of, self.mount) if path != "")):
            _check_path(path)
        check_text(self.source)
        for number in (self.size, self.mtime_ns):
            _check_number(number)


@dataclass(frozen=True, kw_only=True)
class RemovedVideo:
    """A video whose file was deleted. Its features remain until ``vlalign-sync --prune``."""

    video_id: str
    path: str
    """Path of the deleted file."""
    source: str
    """Identity of its content; empty if it was never read."""

    def __post_init__(self) -> None:
        for text in (self.video_id, self.source):
            check_text(text)
        _check_path(self.path)


def _check_path(path: Any) -> None:
    """Raise ``ValueError`` unless a path is absolute: a relative one depends on the current folder."""
    check_text(path)
    if not os.path.isabs(path) or "\0" in path:
        raise ValueError(f"{path!r}: expected an absolute path")


def _check_number(number: Any) -> int:
    """Return a size or a time; raise ``ValueError`` for an impossible one."""
    if isinstance(number, bool) or not isinstance(number, int) or not -(1 << 63) <= number < 1 << 63:
        raise ValueError("a size or time that is not a 64-bit integer")
    return number


@dataclass(kw_only=True)
class SyncRecord:
    """The record of a data set's synchronised folders."""

    folders: list[SyncedFolder] = field(default_factory=list)
    files: dict[str, SyncedFile] = field(default_factory=dict)
    """By path."""
    removed: dict[str, RemovedVideo] = field(default_factory=dict)
    """By id."""
    made_from: dict[str, str] = field(default_factory=dict)
    """{an index or the subtitles: key of its input}; made again only if the key changes."""


def sync_folder(dataset: DatasetFolder) -> Path:
    """Return the folder of the record."""
    return dataset.path / "sync"


def is_synced(folder: Path) -> bool:
    """Return whether the data set in a folder follows folders of videos."""
    return (folder / "sync" / "folders.json").is_file()


def read_sync_record(dataset: DatasetFolder) -> SyncRecord:
    """Read the record of a data set; empty if it was never synchronised.

    Raises:
        UserError: A file of the record is damaged.
    """
    folder = sync_folder(dataset)
    path = folder / "folders.json"
    if path.exists():
        with refuse_unreadable(path, "not a list of synchronised folders", REMEDY):
            about = read_object(path, MAX_JSON_BYTES)
            record = SyncRecord(
                folders=[SyncedFolder(**row) for row in about["folders"]],
                made_from={str(name): str(value) for name, value in about["made_from"].items()},
            )
    else:
        record = SyncRecord()
    path = folder / "files.jsonl"
    with refuse_unreadable(path, "not a list of synchronised files", REMEDY):
        record.files = {row.path: row for row in (SyncedFile(**each) for each in read_jsonl(path))}
    record.removed = _read_removed(dataset)
    return record


def read_file_times(dataset: DatasetFolder) -> dict[str, int]:
    """Return {path: modification time in nanoseconds} for the files of the synchronised folders.

    Raises:
        UserError: The record is damaged.
    """
    path = sync_folder(dataset) / "files.jsonl"
    with refuse_unreadable(path, "not a list of synchronised files", REMEDY):
        rows = numbered_jsonl(path) if path.exists() else ()
        return {str(row["path"]): _check_number(row["mtime_ns"]) for _, row in rows}


def _read_removed(dataset: DatasetFolder) -> dict[str, RemovedVideo]:
    path = sync_folder(dataset) / "removed.jsonl"
    with refuse_unreadable(path, "not a list of removed videos", "remove it and run vlalign-sync again"):
        return {row.video_id: row for row in (RemovedVideo(**each) for each in read_jsonl(path))}


def write_folders(dataset: DatasetFolder, record: SyncRecord) -> None:
    """Write the synchronised folders, and the keys of the indexes' inputs."""
    about = {"folders": [asdict(folder) for folder in record.folders], "made_from": record.made_from}
    write_json(sync_folder(dataset) / "folders.json", about)


def write_files(dataset: DatasetFolder, record: SyncRecord) -> None:
    """Write the files as they were seen."""
    write_jsonl(sync_folder(dataset) / "files.jsonl", map(_short, record.files.values()))


def write_removed(dataset: DatasetFolder, record: SyncRecord) -> None:
    """Write the removed videos. From now on, searches omit them, unless ``videos.jsonl`` lists them again."""
    write_jsonl(sync_folder(dataset) / "removed.jsonl", map(asdict, record.removed.values()))


def _short(file: SyncedFile) -> Mapping[str, Any]:
    """Return the non-empty values of a file."""
    return {name: value for name, value in asdict(file).items() if value != ""}


def without_removed(dataset: DatasetFolder, video_ids: Iterable[str]) -> list[str]:
    """Return the videos that a sync has not removed, sorted. Removed videos that are listed again are included.

    Raises:
        UserError: The record or the list of videos is damaged.
    """
    removed = _read_removed(dataset).keys()
    if removed:
        removed = removed - {video.video_id for video in dataset.read_videos()}
    return sorted(video_id for video_id in video_ids if video_id not in removed)

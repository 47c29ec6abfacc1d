"""Bring folders of a user's own videos up to date: the Python call behind ``vlalign-sync``.

The steps use the functions of the commands: look at the folders and change the list of videos (``extract.videos``),
extract new features (``vlalign-extract``), read subtitles beside videos (``vlalign-preprocess``), and make the search
index (``vlalign-index``). Whatever ends a call, the next call continues.
"""

import hashlib
import json
import os
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...extract.encoders.text_tower import WITH_TEXT_TOWER
from ...extract.pipeline.dataset import extract_dataset
from ...extract.pipeline.pending_work import PendingWork, is_transient
from ...extract.pipeline.store_mismatch import mismatch_notes
from ...extract.settings import ExtractionSettings
from ...extract.videos.changes import Changes, Known, Renamed, find_changes
from ...extract.videos.folder_look import FolderLook, kept_paths, look_at, mount_of, paths_of, unmounted_disks
from ...storage.captions.transcripts import LOCK_NAME, TranscriptStore
from ...storage.common.errors import UserError
from ...storage.common.files import file_identity, has_same_samples
from ...storage.common.locks import folder_lock
from ...storage.common.packages import package_version
from ...storage.common.problems import Problems
from ...storage.common.progress import Listener, report_progress_to
from ...storage.common.terminal import number_of, say
from ...storage.common.writing import remove_tree
from ...storage.dataset.folder import DatasetFolder
from ...storage.dataset.synced import (
    SyncedFolder,
    SyncRecord,
    read_sync_record,
    sync_folder,
    without_removed,
    write_files,
    write_folders,
    write_removed,
)
from ...storage.dataset.trusted_folders import AllowedFolders, allow_folder, refuse_other_folders, with_real_folders
from ...storage.hub.names import is_hub_name
from ...storage.profiles import BUILT_IN, FRAME_MAPS, WITHOUT_NETWORK
from ...storage.records import VideoRecord
from ...storage.shards.format import EXTRACTED
from ...storage.stores.failure_log import FAILURES_NAME, FailureLog, read_failures
from ...storage.stores.opening import feature_names, find_features, open_features_writer
from ...storage.stores.thumbnails import remove_thumbnails
from ..search.search_source import SearchSource
from .settings import SyncSettings

if TYPE_CHECKING:
    from ...preprocess.datasets.subtitles import SubtitleFile

MAX_EXAMPLES = 3
"""Examples in a note."""
SUBTITLE_PROBLEMS = "subtitles/problems"
"""Key in ``made_from`` of the problems with subtitles, one per line: each sync reports them again until the subtitles
change.
"""


@dataclass(frozen=True, kw_only=True)
class SyncResult:
    """The result of a sync: changes of files, and work that was done.

    Example:
        >>> from vlalign.train import SyncResult
        >>> result = SyncResult(extracted=["demo0000"], failed={"demo0007": "no video stream"}, num_videos=2)
        >>> result.changed, result.complete, result.warnings
        (True, False, ["video 'demo0007': no video stream"])
    """

    extracted: Sequence[str] = ()
    """Ids of the videos whose features were extracted: new, changed, or left over from an earlier call."""
    transcribed: Sequence[str] = ()
    """Ids of the videos that were transcribed, if that is asked for."""
    renamed: Sequence[Renamed] = ()
    """Videos whose files were renamed or moved. They keep their ids; nothing was extracted."""
    removed: Sequence[str] = ()
    """Ids of the videos whose files were deleted. They are not listed and not found any more."""
    returned: Sequence[str] = ()
    """Ids of the videos that had been removed and are there again."""
    pruned: Sequence[str] = ()
    """Ids of the removed videos whose features were removed now."""
    num_unchanged: int = 0
    """Number of videos whose files have the same content as before, without those in ``extracted`` and ``failed``."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """{path: reason} of files and folders that are not videos of the data set; nothing has to be done."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """{id: reason} of the videos that lack features."""
    failed_now: Sequence[str] = ()
    """Ids of the videos that failed in this call; its extraction has printed why."""
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """{folder: reason} of the folders that could not be looked at. Their videos stay."""
    problems: Sequence[str] = ()
    """Files and folders that could not be used, one line each, besides those of ``failed`` and ``unreachable``."""
    notes: Sequence[str] = ()
    """Further information, one line each."""
    num_videos: int = 0
    """Videos of the data set now."""
    subtitles_changed: bool = False
    """True if subtitles beside the videos were read, or are gone."""
    indexed: Sequence[str] = ()
    """Features whose search index was built in this call, also if an earlier call ended before it."""

    @property
    def complete(self) -> bool:
        """True if all folders were read and all videos have their features."""
        return not (self.failed or self.unreachable or self.problems)

    @property
    def changed(self) -> bool:
        """True if this call changed the files of a search: reopen searches that were opened before.

        Changes by another process, or by an earlier call that failed, do not count.
        """
        videos = self.extracted or self.renamed or self.removed or self.returned or self.pruned
        return bool(videos or self.indexed) or self.subtitles_changed

    @property
    def warnings(self) -> list[str]:
        """Unreachable folders, problems and failed videos, one line each."""
        unreachable = [f"{folder}: {why}; its videos stay" for folder, why in self.unreachable.items()]
        return [*unreachable, *self.problems, *(self.failure_line(video_id) for video_id in self.failed)]

    def failure_line(self, video_id: str) -> str:
        """Return the line about a video that lacks features.

        Args:
            video_id: One of ``failed``.
        """
        return f"video {video_id!r}: {self.failed[video_id]}"

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as ``vlalign-sync --json`` prints them."""
        return {
            "extracted": list(self.extracted),
            "transcribed": list(self.transcribed),
            "renamed": [{"id": r.video_id, "from": r.old_path, "to": r.new_path} for r in self.renamed],
            "removed": list(self.removed),
            "returned": list(self.returned),
            "pruned": list(self.pruned),
            "unchanged": self.num_unchanged,
            "skipped": [{"path": path, "reason": reason} for path, reason in self.skipped.items()],
            "failed": [{"id": video_id, "reason": reason} for video_id, reason in self.failed.items()],
            "unreachable": [{"folder": folder, "reason": reason} for folder, reason in self.unreachable.items()],
            "problems": list(self.problems),
        }


def sync_videos(settings: SyncSettings, *, on_progress: Listener | None = None) -> SyncResult:
    """Bring the folders of a data set up to date: list, extract, read subtitles, index.

    Videos are recognised by their content. A video that was renamed or moved keeps its id, features and captions. A
    deleted video is no longer listed or found. A folder that cannot be reached changes nothing. Files of the data set
    are replaced whole, so a search that is open meanwhile sees the old ones; open it again if ``SyncResult.changed``.
    Only with ``prune`` may an open search miss features of videos that were deleted. It can run in any thread.

    Args:
        settings: The data set, its folders, and what to extract.
        on_progress: Called with the progress of the work.

    Returns:
        What was found and done.

    Raises:
        UserError: A folder or a setting cannot be used, or another process syncs the data set.
        OSError: A file cannot be written.

    Example:
        >>> import shutil
        >>> from vlalign.train import SyncSettings, sync_videos
        >>> _ = shutil.copytree("vlalign_data/demo/videos", "Videos")
        >>> settings = SyncSettings(
        ...     dataset="vlalign_data/synced", folders=["Videos"], features="clip_vit_b32_frames", device="cpu"
        ... )
        >>> result = sync_videos(settings)
        >>> result.num_videos, sorted(result.extracted)
        (2, ['demo0000', 'demo0005'])
    """
    dataset = settings.folder
    with (
        report_progress_to(on_progress),
        folder_lock(sync_folder(dataset) / "sync.lock", "syncs videos"),
        Problems(quiet=True) as problems,
    ):
        written = read_sync_record(dataset)
        record, folders = _choose_folders(settings, written)
        extraction = settings.extraction()
        videos = dataset.read_videos()
        refuse_other_folders(dataset, videos)
        path_of = {v.video_id: dataset.video_file(v) for v in videos if not v.url and v.scene is None}
        real = with_real_folders(path_of.values())
        path_of = {video_id: real[path] for video_id, path in path_of.items()}
        looks = [look_at(dataset, folder, record.files, path_of.values(), problems) for folder in folders]
        unmounted = unmounted_disks(looks, record.files)
        forgotten = [SyncedFolder(path=path) for path in _forgotten(settings, record)]
        kept = kept_paths(path_of.values(), looks, forgotten, record.files)
        changes = _compare(dataset, videos, path_of, record, looks, kept)
        _write_changes(dataset, written, record, looks, changes, videos)
        pruned = _prune(dataset, record, problems) if settings.prune else []  # before weights are needed
        if pruned:
            say(f"{dataset.path}: features of {number_of(len(pruned), 'videos')} pruned: {_some(pruned)}")
        captions_left = _prune_captions(settings, record, pruned, problems) if settings.prune else []
        extracted, failed_now, mismatches = _extract(extraction, changes, kept)
        subtitles_before = record.made_from.get("subtitles")
        are_read = not _has_own_captions(dataset, record)
        subtitles = _find_subtitles(settings, changes.videos, problems if are_read else Problems(quiet=True))
        transcribed = _transcribe(settings, changes, kept, subtitles, record, problems)
        notes = [*captions_left, *mismatches, *_notes(settings, looks, changes, subtitles)]
        notes += _read_subtitles(settings, subtitles, record, problems)
        indexed = _index(extraction, record, problems)
        for path in changes.unreadable:
            problems.add(f"{path}: cannot be read; skipped")
        failed = _failed(extraction, changes)
        return SyncResult(
            extracted=extracted,
            transcribed=transcribed,
            renamed=changes.renamed,
            removed=[video.video_id for video in changes.removed],
            returned=changes.returned,
            pruned=pruned,
            num_unchanged=len(changes.unchanged - set(extracted) - failed.keys()),
            skipped=_skipped(looks, changes),
            failed=failed,
            failed_now=failed_now,
            unreachable={look.folder.path: look.unreachable for look in looks if look.unreachable} | unmounted,
            problems=problems.messages,
            notes=notes,
            num_videos=len(changes.videos),
            subtitles_changed=record.made_from.get("subtitles") != subtitles_before,
            indexed=indexed,
        )


def followed_folders(settings: SyncSettings) -> list[str]:
    """Return the folders that a sync would follow: the data set's, and the new ones, which the user allows.

    Raises:
        UserError: One of the new folders cannot be used, or there is none at all.
    """
    return [folder.path for folder in _choose_folders(settings, read_sync_record(settings.folder))[1]]


def searched_features(extraction: ExtractionSettings) -> tuple[str, str]:
    """Return the features to search with, of those that a sync extracts, and a note if they cannot be searched by text
    (otherwise empty)."""
    reading = [name for name, encoder in extraction.encoders.items() if name in WITH_TEXT_TOWER or is_hub_name(encoder)]
    names = [name for name in reading if extraction.chosen_weights.get(name) != "random"]
    if names:
        return names[0], ""
    name, todo = extraction.store_names[0], f"pass --features {WITH_TEXT_TOWER[0]}"
    if reading:
        name, todo = reading[0], "omit --weights random"
    return (
        name,
        f"features {name} cannot be searched by text, only by example and by captions; for search by text, {todo}",
    )


def features_of_run(settings: SyncSettings, features: Sequence[str], run_name: str) -> SyncSettings:
    """Return settings that extract the features which a run reads.

    Args:
        settings: Settings without features.
        features: Names of the run's features.
        run_name: Name of the run.

    Raises:
        UserError: Some of the features cannot be extracted.
    """
    known = settings.extraction().store_names
    if set(features) <= set(known):
        return settings
    dataset = settings.folder
    for name in features:
        store = find_features(dataset, name)
        if name not in BUILT_IN or (store is not None and store.origin != EXTRACTED):
            raise UserError(
                f"run {run_name}: its features {name} cannot be extracted: they were imported, or no vlalign-sync "
                f"had their encoder in --features; run vlalign-sync --dataset {shlex.quote(dataset.name)} once with "
                "--features, or omit --videos"
            )
    return replace(settings, features=",".join(features))


def search_source(extraction: ExtractionSettings, name: str) -> SearchSource:
    """Return the source of searches with the features ``name`` that a sync extracts."""
    encoder, weights = extraction.encoders[name], extraction.chosen_weights.get(name)
    return SearchSource(
        dataset=extraction.folder.path,
        features=encoder if is_hub_name(encoder) else name,
        weights=None if weights in (None, "pretrained", "random") else weights,
    )


# The folders


def _with_real_paths(dataset: DatasetFolder, record: SyncRecord) -> SyncRecord:
    """Return a record with real paths of folders, as far as the user allows them.

    Earlier versions recorded links as the user typed them. A folder that became a link since then keeps its path, and
    is unreachable until the user passes it again.
    """
    allowed = AllowedFolders.named(dataset)
    copied = [file.copy_of for file in record.files.values() if file.copy_of]
    real = {
        path: real_path if allowed.have(os.path.dirname(real_path)) else path
        for path, real_path in with_real_folders([*record.files, *copied]).items()
    }

    @cache
    def real_folder(folder: str) -> str:
        real_path = os.path.realpath(folder)
        return real_path if allowed.have(real_path) else folder

    folders = [replace(folder, path=real_folder(folder.path)) for folder in record.folders]
    files = [
        replace(
            file,
            path=real[path],
            folder=real_folder(file.folder),
            copy_of=real[file.copy_of] if file.copy_of else "",
        )
        for path, file in record.files.items()
    ]
    return replace(
        record,
        folders=list({folder.path: folder for folder in folders}.values()),
        files={file.path: file for file in files},
    )


def _followed(record: SyncRecord) -> list[str]:
    return sorted({*(folder.path for folder in record.folders), *(file.folder for file in record.files.values())})


def _forgotten(settings: SyncSettings, record: SyncRecord) -> list[str]:
    """Return the folders to forget as they are recorded: by their real paths, unless they became links since then.

    Raises:
        UserError: One of them is not followed.
    """
    followed = _followed(record) if settings.forget else []
    forgotten = []
    for folder in settings.forget:
        paths = (os.path.realpath(folder), os.path.abspath(folder))
        if not (found := [path for path in paths if path in followed]):
            expected = ", ".join(followed) or "none"
            raise UserError(f"{paths[0]}: not a folder that {settings.folder.name} follows; expected one of {expected}")
        forgotten.append(found[0])
    return forgotten


def _choose_folders(settings: SyncSettings, written: SyncRecord) -> tuple[SyncRecord, list[SyncedFolder]]:
    """Allow the new folders; return the record with real paths, and the folders to follow from now on."""
    dataset = settings.folder
    recorded = {os.path.realpath(folder.path) for folder in written.folders}
    for folder in settings.folders:
        path = os.path.realpath(folder)
        if not path.isprintable():
            raise UserError(f"{path!a}: the folder's name has unprintable characters; rename it")
        if path not in recorded or os.path.isdir(path):
            allow_folder(dataset, Path(path))
    record = _with_real_paths(dataset, written)
    known = {folder.path: folder for folder in record.folders}
    for path in _forgotten(settings, record):
        known.pop(path, None)
    for folder in settings.folders:
        path = os.path.realpath(folder)
        known.setdefault(path, SyncedFolder(path=path, mount=mount_of(path)))
    if not known and not settings.forget:
        followed = _followed(record)
        before = f", such as {shlex.quote(followed[0])}, which it followed before" if followed else ""
        raise UserError(f"{dataset.path}: follows no folder of videos; run vlalign-sync FOLDER{before}")
    return record, list(known.values())


def _compare(
    dataset: DatasetFolder,
    videos: Sequence[VideoRecord],
    path_of: Mapping[str, str],
    record: SyncRecord,
    looks: Sequence[FolderLook],
    kept: Collection[str],
) -> Changes:
    """Return the changes; the stores tell which files the features were made from."""
    stores = [store for name in feature_names(dataset) if (store := find_features(dataset, name)) is not None]

    def source_of(video_id: str) -> str:
        return next((store.source(video_id) for store in stores if video_id in store), "")

    allowed = AllowedFolders.of(dataset)

    def open_file(path: Path) -> int:
        return allowed.open(path)[0]

    def identity(path: str) -> str:
        return file_identity(Path(path), open_file)

    def is_copy(path: str, other: str) -> bool:
        return has_same_samples(Path(path), Path(other), open_file)

    known = Known(videos=videos, path_of=path_of, files=record.files, removed=record.removed, source_of=source_of)
    return find_changes(known, looks, kept, identity=identity, is_copy=is_copy)


def _write_changes(
    dataset: DatasetFolder,
    written: SyncRecord,
    record: SyncRecord,
    looks: Sequence[FolderLook],
    changes: Changes,
    videos: Sequence[VideoRecord],
) -> None:
    """Write the list of videos and the record, in an order that leaves them valid if the call ends in between: removed
    videos that are still listed count as listed, and files that are not recorded are looked at again."""
    removed = {video.video_id: video for video in changes.removed}
    if removed:
        record.removed |= removed
        write_removed(dataset, record)
    folders = [replace(look.folder, mount=_mount_now(look)) for look in looks]
    record.folders = folders
    if folders != written.folders:
        write_folders(dataset, record)
    if changes.videos != list(videos):
        dataset.write_videos(changes.videos)
    listed = {video.video_id for video in changes.videos}
    if not listed.isdisjoint(record.removed):
        record.removed = {video_id: video for video_id, video in record.removed.items() if video_id not in listed}
        write_removed(dataset, record)
    record.files = changes.files
    if changes.files != written.files:
        write_files(dataset, record)


def _mount_now(look: FolderLook) -> str:
    return look.folder.mount if look.unreachable else mount_of(look.folder.path)


# The steps


def _extract(
    extraction: ExtractionSettings, changes: Changes, kept: Collection[str]
) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    """Extract missing features; return the ids of videos that have them now, the ids of failed videos, and notes on
    stores that were made in another way, unless the extraction printed them."""
    pending = PendingWork(extraction.folder, extraction.store_names)
    if not _lacks_features(pending, extraction.store_names, changes, kept):
        return [], [], mismatch_notes(extraction, pending.stores)
    result = extract_dataset(extraction)
    return result.extracted, result.failed, []


def _lacks_features(pending: PendingWork, names: Sequence[str], changes: Changes, kept: Collection[str]) -> bool:
    """Return whether a video that can be reached lacks features, and did not fail permanently.

    Files are not read again: their identities are recorded.
    """
    unseen = []
    for video in changes.videos:
        path = changes.paths.get(video.video_id, "")
        file = changes.files.get(path)
        if file is None:
            unseen += [video] if path not in kept else []
            continue
        for name in names:
            store, failure = pending.stores.get(name), pending.failures[name].get(video.video_id)
            is_there = store is not None and video.video_id in store and store.source(video.video_id) == file.source
            has_failed = failure is not None and failure.source == file.source and not is_transient(failure)
            if not (is_there or has_failed or path in kept):
                return True
    return any(pending.tasks(unseen, only_failed=False))


def _failed(extraction: ExtractionSettings, changes: Changes) -> dict[str, str]:
    """Return {id: reason} of the videos that lack features."""
    failed = {}
    pending = PendingWork(extraction.folder, extraction.store_names)
    for video in changes.videos:
        failures = [found for name in pending.features if (found := pending.failures[name].get(video.video_id))]
        if failures:
            failed[video.video_id] = f"{failures[0].kind}: {failures[0].message}"
    return failed


def _transcribe(
    settings: SyncSettings,
    changes: Changes,
    kept: Collection[str],
    subtitles: Sequence["SubtitleFile"],
    record: SyncRecord,
    problems: Problems,
) -> Sequence[str]:
    """Transcribe the reachable videos without subtitles, if requested; return their ids.

    No model is loaded if the videos are unchanged. Each sync reports permanent failures again.
    """
    weights = settings.speech_weights()
    if weights is None:
        return []
    from ...extract.transcription.dataset import transcribe_dataset
    from ...extract.transcription.settings import TranscriptionSettings

    dataset, with_subtitles = settings.folder, {file.video_id for file in subtitles}
    wanted = {}
    for video in changes.videos:
        path = changes.paths.get(video.video_id)
        if path and path not in kept and path in changes.files and video.video_id not in with_subtitles:
            wanted[video.video_id] = changes.files[path].source
    key = hashlib.sha256(json.dumps([weights, package_version(), sorted(wanted.items())]).encode()).hexdigest()
    transcribed: Sequence[str] = []
    if wanted and record.made_from.get("transcripts") != key:
        try:
            asked = TranscriptionSettings(dataset=dataset.path, weights=weights, video_ids=wanted)
            transcribed = transcribe_dataset(asked).transcribed
        except UserError as error:
            problems.add(f"videos are not transcribed: {error}")
            return []
        record.made_from["transcripts"] = key
        write_folders(dataset, record)
    failures = read_failures(dataset.transcripts / FAILURES_NAME)
    for video_id, failure in failures.items():
        if video_id in wanted:
            problems.add(f"video {video_id!r} is not transcribed: {failure.kind}: {failure.message}")
    if any(is_transient(failure) for video_id, failure in failures.items() if video_id in wanted):
        record.made_from.pop("transcripts", None)  # the next sync tries again
    return transcribed


def _has_own_captions(dataset: DatasetFolder, record: SyncRecord) -> bool:
    """Return whether there are captions under the protocol of subtitles (``cues``) that no sync made."""
    return "subtitles" not in record.made_from and replace(dataset, protocol="cues").captions.is_dir()


def _find_subtitles(settings: SyncSettings, videos: Sequence[VideoRecord], problems: Problems) -> list["SubtitleFile"]:
    """Return the subtitles beside the videos."""
    from ...preprocess.datasets.subtitles import find_beside

    found = find_beside(settings.folder, videos, settings.language, problems)
    return [file for of_video in found for file in of_video]


def _read_subtitles(
    settings: SyncSettings, files: Sequence["SubtitleFile"], record: SyncRecord, problems: Problems
) -> list[str]:
    """Prepare the subtitles beside the videos, if they changed; return notes.

    Problems of unchanged subtitles are recorded, and each sync reports them again.
    """
    from ...preprocess.prepare import prepare_subtitles
    from ...preprocess.settings import PreprocessingSettings

    dataset = settings.folder
    about = [(file.video_id, str(file.path), *_size_and_time(file.path)) for file in files]
    spoken = _spoken(dataset, {file.video_id for file in files})
    key = hashlib.sha256(json.dumps([settings.language, about, *spoken]).encode()).hexdigest()
    made_from, captions = record.made_from.get("subtitles"), replace(dataset, protocol="cues").captions
    if made_from == key and captions.is_dir():
        for message in record.made_from.get(SUBTITLE_PROBLEMS, "").splitlines():
            problems.add(message)
        return []
    if (files or spoken) and _has_own_captions(dataset, record):
        return [f"{captions}: has your own captions; subtitles beside the videos are not read while it exists"]
    if files or spoken:
        found = Problems(deferred=True)
        try:
            prepare_subtitles(PreprocessingSettings(dataset.path, language=settings.language), found)
        except UserError as error:
            found.add(f"subtitles beside the videos are not read: {error}")
        else:
            record.made_from |= {"subtitles": key, SUBTITLE_PROBLEMS: "\n".join(found.messages)}
        for message in found.messages:
            problems.add(message)
    elif made_from is not None:
        del record.made_from["subtitles"]
        record.made_from.pop(SUBTITLE_PROBLEMS, None)
        if captions.is_dir():
            remove_tree(captions)
    else:
        return []
    write_folders(dataset, record)
    return []


def _spoken(dataset: DatasetFolder, with_subtitles: Collection[str]) -> list[tuple[str, int]]:
    """Return [(id of the video, time of writing)] of the transcripts that are read as captions."""
    from ...preprocess.datasets.subtitles import transcribed_videos

    store = TranscriptStore(dataset.transcripts)
    ids = [video_id for video_id in transcribed_videos(dataset, store) if video_id not in with_subtitles]
    return [(video_id, store.places[video_id].written_ns) for video_id in ids]


def _size_and_time(path: Path) -> tuple[int, int]:
    try:
        about = path.stat()
    except OSError:
        return 0, 0
    return about.st_size, about.st_mtime_ns


def _prune(dataset: DatasetFolder, record: SyncRecord, problems: Problems) -> list[str]:
    """Remove the features, failures, thumbnails and transcripts of the removed videos; return their ids."""
    gone = sorted(record.removed)
    if not gone:
        return []
    num_problems = problems.count
    for name in feature_names(dataset):
        store = find_features(dataset, name)
        if store is None or not (there := [video_id for video_id in gone if video_id in store]):
            continue
        try:
            open_features_writer(dataset, name).remove(there)
        except UserError as error:
            problems.add(f"features {name} of deleted videos are not removed: {error}")
    if problems.count > num_problems:
        return []
    for log in sorted(dataset.features("").glob(f"*/{FAILURES_NAME}")):
        FailureLog(log).remove(gone)
    remove_thumbnails(dataset.thumbnails, gone)
    for folder in (dataset.transcripts, dataset.text_in_frames):
        if folder.is_dir():
            with folder_lock(folder / LOCK_NAME, "transcribes videos"):
                TranscriptStore(folder).remove(gone)
                FailureLog(folder / FAILURES_NAME).remove(gone)
    record.removed = {}
    write_removed(dataset, record)
    return gone


def _prune_captions(settings: SyncSettings, record: SyncRecord, pruned: Sequence[str], problems: Problems) -> list[str]:
    """Make captions of transcripts and of text in frames again without deleted videos; return notes on others."""
    from ...preprocess.removed_videos import make_captions_without_removed

    dataset = settings.folder
    made_later = None if _has_own_captions(dataset, record) else "cues"  # by ``_read_subtitles``
    return make_captions_without_removed(dataset, pruned, settings.language, problems, made_later)


def _index(extraction: ExtractionSettings, record: SyncRecord, problems: Problems) -> list[str]:
    """Rebuild the search index of each kind of features whose videos or features changed; return their names."""
    from ..search.caption_index import open_caption_index
    from ..search.index import index_folder

    dataset, made = extraction.folder, []
    for name in extraction.store_names:
        store = None if name in FRAME_MAPS or name in WITHOUT_NETWORK else find_features(dataset, name)
        if store is None or store.profile.is_frames or not (searched := without_removed(dataset, store.video_ids())):
            continue
        about = [package_version(), store.rows_checksum(), searched]
        key = hashlib.sha256(json.dumps(about).encode()).hexdigest()
        if record.made_from.get(f"index/{name}") == key and index_folder(dataset, store.name).is_dir():
            continue
        try:
            _build_index(extraction, name)
        except UserError as error:
            problems.add(f"the search index of {name} is not made: {error}")
            continue
        record.made_from[f"index/{name}"] = key
        write_folders(dataset, record)
        made.append(name)
    open_caption_index(dataset)
    return made


def _build_index(extraction: ExtractionSettings, name: str) -> None:
    from ..search.build import build_index  # torch takes seconds to import

    build_index(search_source(extraction, name))


# Output


def _skipped(looks: Sequence[FolderLook], changes: Changes) -> dict[str, str]:
    skipped = {path: reason for look in looks for path, reason in (look.skipped | look.unfinished).items()}
    return skipped | {path: f"has the same content as {original}" for path, original in changes.copies.items()}


def _notes(
    settings: SyncSettings, looks: Sequence[FolderLook], changes: Changes, subtitles: Sequence["SubtitleFile"]
) -> list[str]:
    """Return lines for notes that are not errors, with examples."""
    dataset, notes = settings.folder, []
    for look in looks:
        folders = {os.path.dirname(file.path) for file in look.files}
        used = Counter(file.path.suffix.lower() for file in subtitles if str(file.path.parent) in folders)
        if skipped := look.scan.skipped(used):
            notes.append(f"{look.folder.path}: skipped: {skipped}")
    for look in looks:
        if look.unfinished:
            named = [f"{path} ({reason})" for path, reason in look.unfinished.items()]
            notes.append(
                f"{look.folder.path}: {number_of(len(named), 'files')} not ready, left to the next sync: {_some(named)}"
            )
    folders, not_followed = [look.folder for look in looks], Counter[str]()
    for path in changes.files.keys() - paths_of(folders, changes.files, changes.files):
        not_followed[changes.files[path].folder] += 1
    for folder, count in sorted(not_followed.items()):
        quoted = shlex.quote(folder)
        command = f"vlalign-sync --dataset {shlex.quote(dataset.name)}"
        todo = f"{command} {quoted} follows it again; {command} --forget {quoted} removes them"
        notes.append(f"{folder}: not followed; its {number_of(count, 'videos')} are unchanged; {todo}")
    if changes.renamed:
        named = [f"{r.old_path} is now {r.new_path}, id {r.video_id!r}" for r in changes.renamed]
        notes.append(f"{number_of(len(named), 'videos')} renamed, with their old ids: {_some(named)}")
    if changes.other_ids:
        named = [f"{path} is {video_id!r}" for path, video_id in changes.other_ids.items()]
        notes.append(
            f"{number_of(len(named), 'videos')} whose name is another video's id, with other ids: {_some(named)}"
        )
    if changes.copies:
        named = [f"{path} of {original}" for path, original in changes.copies.items()]
        notes.append(f"{number_of(len(named), 'copies')} of listed videos, not listed again: {_some(named)}")
    todo = f"; vlalign-sync --dataset {shlex.quote(dataset.name)} --prune removes their features"
    todo = "" if settings.prune else todo
    if changes.doubles:
        named = [f"{video_id!r} is {other!r}" for video_id, other in changes.doubles.items()]
        count = number_of(len(named), "videos")
        notes.append(f"{count} listed twice, now only under the first id: {_some(named)}{todo}")
    if named := [video.video_id for video in changes.removed if video.video_id not in changes.doubles]:
        notes.append(f"{number_of(len(named), 'videos')} deleted: {_some(named)}{todo}")
    return notes


def _some(named: Sequence[str]) -> str:
    return ", ".join(named[:MAX_EXAMPLES]) + (", ..." if len(named) > MAX_EXAMPLES else "")

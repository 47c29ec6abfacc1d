"""The videos to extract: from a folder, the data set's list, or imported features."""

import os
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...storage.common.errors import SettingError, Unfinished, UserError
from ...storage.common.files import not_mounted
from ...storage.common.problems import Problems
from ...storage.common.process_pool import worker_processes
from ...storage.common.progress import progress
from ...storage.common.system import available_cores
from ...storage.common.terminal import number_of, say
from ...storage.common.threads import map_in_threads
from ...storage.common.writing import make_folder
from ...storage.dataset.folder import DatasetFolder
from ...storage.dataset.media_types import IMAGE_SUFFIXES, SOUND_SUFFIXES, VIDEO_SUFFIXES
from ...storage.dataset.trusted_folders import AllowedFolders, allow_folder, refuse_other_folders, with_real_folders
from ...storage.exchange.readers import feature_files
from ...storage.profiles import LOGMEL
from ...storage.records import VideoRecord
from ..settings import ExtractionSettings
from .scan import scan_folder


def choose_videos(
    settings: ExtractionSettings, problems: Problems
) -> tuple[list[VideoRecord], list[VideoRecord] | None]:
    """Return the videos of ``settings.videos`` or else of the data set's list, and the list to write.

    The list to write also has the videos of the folder; it is None if the data set's list has them already. Sound
    recordings are included only if sound features alone are requested. Images are included only if the folder has no
    videos, because images beside videos are mostly posters.

    Args:
        settings: The settings.
        problems: Receives files that cannot be used.

    Raises:
        UserError: There are no videos, or some are in a folder that is not allowed.
        Unfinished: The folder is missing or empty, and had videos.
    """
    dataset, folder = settings.folder, settings.videos
    listed = dataset.read_videos()
    if folder is None:
        if not listed:
            raise UserError(
                f"{dataset.videos_file}: not found; run vlalign-preprocess --dataset {dataset.name} first, or pass "
                "your own: --videos FOLDER"
            )
        videos = listed
    else:
        files = _by_file(dataset, listed)
        _refuse_empty(folder, files)
        allow_folder(dataset, folder)
        if settings.store_names == [LOGMEL]:
            videos = list_folder(folder, problems, suffixes=VIDEO_SUFFIXES + SOUND_SUFFIXES, dataset=dataset)
        else:
            videos = list_folder(folder, problems, instead=IMAGE_SUFFIXES, dataset=dataset)
        videos = _with_listed_ids(files, videos)
        videos += _not_mounted(folder, files, videos)
    refuse_other_folders(dataset, videos)
    if folder is not None:
        _refuse_replaced(dataset, folder, listed, videos)
    new_list = None
    if folder is not None:
        merged = list(({v.video_id: v for v in listed} | {v.video_id: v for v in videos}).values())
        new_list = merged if merged != listed else None
    if settings.verify_against is not None:
        videos = _videos_with_features(settings, settings.verify_against, videos)
    return videos, new_list


def _by_file(dataset: DatasetFolder, listed: Sequence[VideoRecord]) -> dict[str, VideoRecord]:
    """Return the listed videos by file, as a scan names it. If a file has several ids, the first one counts."""
    path_of = {video.video_id: dataset.video_file(video) for video in listed if not video.url}
    real = with_real_folders(path_of.values())
    files: dict[str, VideoRecord] = {}
    for video in listed:
        if not video.url:
            files.setdefault(real[path_of[video.video_id]], video)
    return files


def _below(folder: Path, files: Mapping[str, VideoRecord]) -> dict[str, VideoRecord]:
    """Return the listed videos in a folder or below, by file."""
    start = os.path.join(os.path.realpath(folder), "")
    return {file: video for file, video in files.items() if file.startswith(start)}


def _refuse_empty(folder: Path, files: Mapping[str, VideoRecord]) -> None:
    """Raise ``Unfinished`` if a folder with listed videos is missing or empty: its disk may not be mounted."""
    if (problem := not_mounted(folder)) and (videos := _below(folder, files)):
        raise Unfinished(
            f"{problem} {number_of(len(videos), 'videos')} of earlier calls are in it; run the same command "
            "again once it can be read"
        )


def _not_mounted(folder: Path, files: Mapping[str, VideoRecord], found: Sequence[VideoRecord]) -> list[VideoRecord]:
    """Return the listed videos whose disk may not be mounted. Other missing videos are counted in a printed line."""
    ids = {video.video_id for video in found}
    known = {file: v for file, v in _below(folder, files).items() if v.video_id not in ids}
    is_there = map_in_threads(os.path.lexists, list(known))
    gone = sorted(file for file, there in zip(known, is_there, strict=True) if not there)
    empty = {parent for parent in {os.path.dirname(file) for file in gone} if not_mounted(Path(parent))}
    if deleted := [file for file in gone if os.path.dirname(file) not in empty]:
        are = "is" if len(deleted) == 1 else "are"
        say(f"note: {folder}: {number_of(len(deleted), 'listed videos')} {are} missing, such as {deleted[0]}")
    return [known[file] for file in gone if os.path.dirname(file) in empty]


def _with_listed_ids(files: Mapping[str, VideoRecord], videos: Sequence[VideoRecord]) -> list[VideoRecord]:
    """Replace ids with the listed ids of the same files: a renamed file keeps its id."""
    return [VideoRecord(video_id=files.get(video.path, video).video_id, path=video.path) for video in videos]


def _refuse_replaced(
    dataset: DatasetFolder, folder: Path, listed: Sequence[VideoRecord], videos: Sequence[VideoRecord]
) -> None:
    """Raise ``UserError`` if a video has the id of another file that is still there."""
    home = dataset.path.absolute()
    path_of = {video.video_id: os.path.join(home, video.path) for video in listed if not video.url}
    changed = [video for video in videos if path_of.get(video.video_id, video.path) != video.path]
    is_replaced = map_in_threads(lambda video: _is_other_file(video.path, path_of[video.video_id]), changed)
    if replaced := [(v, path_of[v.video_id]) for v, is_other in zip(changed, is_replaced, strict=True) if is_other]:
        video, path = replaced[0]
        raise UserError(
            f"{folder}: {number_of(len(replaced), 'videos')} have the id of another file, such as {video.path}, whose "
            f"id {video.video_id!r} belongs to {path}; remove the other files or, to keep both, run vlalign-sync "
            f"{shlex.quote(str(folder))} --dataset {dataset.name}, which gives each file its own id"
        )


def _is_other_file(path: str, before: str) -> bool:
    """Return whether the file at ``before`` exists and is another file than ``path``."""
    return os.path.exists(before) and not os.path.samefile(path, before)


def _videos_with_features(settings: ExtractionSettings, folder: Path, videos: list[VideoRecord]) -> list[VideoRecord]:
    """Return the videos with features in ``folder``, which others made."""
    their_files = feature_files(folder)
    if len(settings.store_names) > 1:
        problem = f"expected one kind of features to compare with; pass --features {' or '.join(settings.store_names)}"
        raise SettingError("verify_against", folder, problem)
    matches = [video for video in videos if video.video_id in their_files]
    if not matches:
        some = ", ".join(list(their_files)[:3])
        problem = (
            f"none of its files ({some}, ...) is named after a video of {settings.folder.name}; expected the ids of "
            "videos as names"
        )
        raise SettingError("verify_against", folder, problem)
    if missing := len(their_files) - len(matches):
        say(
            f"note: {missing:,} of its {len(their_files):,} files are not named after a video of {settings.folder.name}"
        )
    return matches


def id_of_name(name: str) -> str:
    """Return the id of a video by its path in its folder: without the suffix, in Unicode's composed form (NFC).

    >>> id_of_name("kitchen/onion.mp4")
    'kitchen/onion'
    """
    return unicodedata.normalize("NFC", os.path.splitext(name)[0])


def list_folder(
    folder: Path,
    problems: Problems,
    *,
    suffixes: Sequence[str] = VIDEO_SUFFIXES,
    instead: Sequence[str] = (),
    dataset: DatasetFolder | None = None,
) -> list[VideoRecord]:
    """Return the video files in ``folder`` and below. A video's id is its path in the folder, without the suffix.

    Ids are in Unicode's composed form (NFC): macOS decomposes names, and captions are mostly composed. Files that are
    skipped are named or counted in the output.

    Args:
        folder: Folder, searched with all of its subfolders and, if allowed, the targets of links.
        problems: Receives files with unusable names, and links that cannot be followed.
        suffixes: Suffixes of the files to return.
        instead: Suffixes of the files to return if no file has one of ``suffixes``.
        dataset: Data set with allowed folders, which links may lead to; None: links may lead only within ``folder``.

    Raises:
        UserError: The folder does not exist or has no such files.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected a folder with video files")
    allowed = AllowedFolders([os.path.realpath(folder)]) if dataset is None else AllowedFolders.of(dataset)
    scan = scan_folder(folder, (*suffixes, *instead), problems, is_allowed=allowed.have)
    skipped = scan.skipped()
    if not scan.files:
        but = f", but {skipped}" if skipped else ""
        raise UserError(
            f"{folder}: no video files in it{but}; expected names ending in {' '.join(sorted((*suffixes, *instead)))}"
        )
    if skipped:
        say(f"note: {folder}: skipped: {skipped}")
    names = sorted(scan.files, key=lambda name: name.split("/"))
    chosen = [name for name in names if name.lower().endswith(tuple(suffixes))] or names
    if num_ignored := len(names) - len(chosen):
        say(
            f"note: {folder}: {num_ignored:,} images beside the videos are ignored; to extract images, pass a "
            "folder without videos"
        )
    videos: dict[str, VideoRecord] = {}
    for name in chosen:
        file, path = str(folder / name), scan.files[name]
        video_id = id_of_name(name)
        if not file.isprintable() or not path.isprintable():  # bytes that are not UTF-8, or control characters
            problems.add(f"{file!a}: a file name with non-printable characters; skipped; rename it")
        elif video_id in videos:
            problems.add(
                f"{file}: has the same id, {video_id!r}, as {videos[video_id].path}; skipped; rename one of them"
            )
        else:
            videos[video_id] = VideoRecord(video_id=video_id, path=path)
    return list(videos.values())


def render_missing(dataset: DatasetFolder, videos: Sequence[VideoRecord]) -> None:
    """Render the demo's videos that do not exist yet.

    Raises:
        UserError: A scene cannot be drawn, or would be drawn outside the data set's folder.
    """
    missing = [(video, video.scene) for video in videos if video.scene and not dataset.video_path(video).exists()]
    if not missing:
        return
    from .demo import check_scene, render_video

    home = dataset.real_path
    for video, scene in missing:
        path = dataset.video_path(video)
        if os.path.isabs(video.path) or not Path(os.path.realpath(path.parent)).is_relative_to(home):
            raise UserError(
                f"{dataset.videos_file}: video {video.video_id!r} would be drawn at {path}; expected a path in "
                f"{dataset.path}"
            )
        try:
            check_scene(scene)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{dataset.videos_file}: video {video.video_id!r}: a scene that cannot be drawn ({error}); run "
                "vlalign-preprocess again"
            ) from None
    paths = [dataset.video_path(video) for video, _ in missing]
    for folder in {path.parent for path in paths}:
        make_folder(folder)
    with worker_processes(available_cores()) as pool:
        done = pool.map(render_video, [scene for _, scene in missing], paths, chunksize=4)
        for _ in progress(done, total=len(missing), what="rendering", unit="videos"):
            pass

"""What there is to extract, and what of it is left. Imports nothing heavy: where nothing is left, this is all that runs."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from ..storage.common.errors import UserError
from ..storage.common.problems import Problems
from ..storage.common.processes import available_cores, worker_processes
from ..storage.common.progress import progress
from ..storage.common.terminal import say
from ..storage.feature_store import FeatureStore, is_store
from ..storage.files import VIDEO_SUFFIXES, file_identity, one_at_a_time, read_jsonl, write_jsonl
from ..storage.layout import DatasetFolder
from ..storage.records import Failure, VideoRecord
from ..storage.shard_names import written_at_ns

OLDER_NS = 3600 * 10**9
"""An hour: machines' clocks differ, and a video was read some time before its shard was written."""


def list_folder(
    folder: Path, problems: Problems, *, suffixes: Sequence[str] = VIDEO_SUFFIXES, instead: Sequence[str] = ()
) -> list[VideoRecord]:
    """The video files, or those with other ``suffixes``, under ``folder``; a video's id is its path there without the suffix.
    ``instead``: suffixes that count where no file has one of ``suffixes``. Raises ``UserError`` where there are none."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; --videos expects one with video files")
    there = sorted(p for p in folder.rglob("*") if p.suffix.lower() in (*suffixes, *instead) and p.is_file())
    if not there:
        raise UserError(
            f"{folder}: no video files in it; expected names ending in {' '.join(sorted((*suffixes, *instead)))}"
        )
    files = [p for p in there if p.suffix.lower() in suffixes] or there
    if len(files) < len(there):
        left_out = len(there) - len(files)
        say(
            f"note: {folder}: {left_out:,} images beside the videos are passed over; to extract images, pass a folder without videos"
        )
    videos: dict[str, VideoRecord] = {}
    for file in files:
        video_id = file.relative_to(folder).with_suffix("").as_posix()
        if not str(
            file
        ).isprintable():  # bytes that are no UTF-8, or control characters: no id that could be written down
            problems.add(f"{str(file)!a}: a file name with characters that are not printable; left out; rename it")
        elif video_id in videos:
            problems.add(
                f"{file}: has the same id, {video_id!r}, as {videos[video_id].path}; left out; rename one of them"
            )
        else:
            videos[video_id] = VideoRecord(video_id=video_id, path=str(file.absolute()))
    return list(videos.values())


def render_missing(dataset: DatasetFolder, videos: Sequence[VideoRecord]) -> None:
    """Makes the videos that are drawn rather than recorded, where they are not there yet."""
    missing = [video for video in videos if video.scene and not dataset.video_path(video).exists()]
    if not missing:
        return
    from .render import check_scene, render_video

    home = dataset.path.resolve()
    for video in missing:
        path = dataset.video_path(video)
        if os.path.isabs(video.path) or not path.parent.resolve().is_relative_to(home):
            raise UserError(
                f"{dataset.videos_file}: video {video.video_id!r} would be drawn at {path}; expected a path in {dataset.path}"
            )
        try:
            check_scene(video.scene)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{dataset.videos_file}: video {video.video_id!r}: a scene that cannot be drawn ({error}); run vlalign-preprocess again"
            ) from None
    for folder in {dataset.video_path(video).parent for video in missing}:
        folder.mkdir(parents=True, exist_ok=True)
    with worker_processes(available_cores()) as pool:
        done = pool.map(render_video, [v.scene for v in missing], [dataset.video_path(v) for v in missing], chunksize=4)
        for _ in progress(done, total=len(missing), what="rendering", unit="videos"):
            pass


class _File:
    """A video file, looked at no closer than is needed: of a million that were done, reading a part of each would take hours."""

    def __init__(self, path: str | None) -> None:
        """``path``: None for one that lies elsewhere, and is not asked for only to be compared."""
        self.path = path
        try:
            self.stat: os.stat_result | None = os.stat(path) if path else None
        except OSError:
            self.stat = None

    @cached_property
    def identity(self) -> str:
        return file_identity(Path(self.path)) if self.path else ""

    def is_still(self, source: str, since_ns: int) -> bool:
        """Whether it is what ``source`` was made from at that time: it has its size and is older, or else its content. A file that
        is gone since needs no features either."""
        if self.stat is None or (
            self.stat.st_mtime_ns < since_ns - OLDER_NS and source.startswith(f"{self.stat.st_size}-")
        ):
            return True
        return self.identity in ("", source)


def _made(store: FeatureStore, video_id: str) -> tuple[str, int]:
    """What a video's features were made from, and when they were written."""
    shard, video = store.place(video_id)
    return video["source"].decode(), written_at_ns(shard.path)


class WorkList:
    """What is left to do for each set of features, known from the stores and from ``failures.jsonl`` alone."""

    def __init__(self, dataset: DatasetFolder, features: Sequence[str]) -> None:
        self.dataset = dataset
        self.stores = {f: FeatureStore(dataset.features(f)) for f in features if is_store(dataset.features(f))}
        self.failures = {f: read_failures(self.failures_file(f)) for f in features}
        self.features = list(features)
        self._changed: dict[str, dict[str, Failure | None]] = {}

    def failures_file(self, features: str) -> Path:
        return self.dataset.features(features) / "failures.jsonl"

    def left(self, video: VideoRecord, *, only_failed: bool) -> list[str]:
        """The features that a video still needs: those that no store has from this very file, and that did not fail on it; or,
        ``only_failed``, just those that did fail."""
        if only_failed:
            return [features for features in self.features if video.video_id in self.failures[features]]
        file = _File(None if video.url else self.dataset.video_file(video))
        left = []
        for features in self.features:
            store, failure = self.stores.get(features), self.failures[features].get(video.video_id)
            if store and video.video_id in store and file.is_still(*_made(store, video.video_id)):
                continue
            if failure and (video.url or (failure.source == file.identity and file.identity)):
                continue
            left.append(features)
        return left

    def note(self, features: str, video_id: str, failure: Failure | None) -> None:
        """Notes that a video failed, or, with None, that it does no longer."""
        failures = self.failures[features]
        if failures.get(video_id) != failure:
            _set(failures, video_id, failure)
            self._changed.setdefault(features, {})[video_id] = failure

    def write_failures(self) -> None:
        """Brings what was noted to what the files say now: another extraction may have written to them since."""
        for features, changed in self._changed.items():
            path = self.failures_file(features)
            with one_at_a_time(path):
                failures = read_failures(path)
                for video_id, failure in changed.items():
                    _set(failures, video_id, failure)
                write_jsonl(path, [asdict(failure) for failure in failures.values()])
            self.failures[features] = failures
        self._changed.clear()


def read_failures(path: Path) -> dict[str, Failure]:
    """{video: why it failed}. Raises ``UserError`` for what is no such list."""
    try:
        return {row["video_id"]: Failure(**row) for row in read_jsonl(path)}
    except (TypeError, KeyError) as error:
        raise UserError(f"{path}: no list of failures ({error}); remove it, and those videos are tried again") from None


def _set(failures: dict[str, Failure], video_id: str, failure: Failure | None) -> None:
    failures.pop(video_id, None)
    if failure is not None:
        failures[video_id] = failure

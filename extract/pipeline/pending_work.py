"""The features that videos still need, according to the stores and the lists of failures.

Heavy imports are deferred: without pending work, no other module runs.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ...storage.common.files import file_identity
from ...storage.common.problems import Problems
from ...storage.common.threads import map_in_threads
from ...storage.dataset.folder import DatasetFolder
from ...storage.records import Failure, VideoRecord
from ...storage.stores.failure_log import FAILURES_NAME, FailureLog, set_failure
from ...storage.stores.opening import find_features
from ..decoding.errors import TRANSIENT
from ..settings import ExtractionSettings

OLDER_NS = 3600 * 10**9
"""Margin for comparing times of files: machines' clocks differ, and a video is read before its shard is written."""

BATCH_VIDEOS = 4096
"""Number of videos whose files are read together, if size and time do not show whether they are unchanged."""


class KnownThumbnails(NamedTuple):
    """The stored thumbnails of a video."""

    source: str
    """Identity of the file that they show."""
    number: int


class VideoTask(NamedTuple):
    """A video to extract."""

    video: VideoRecord
    features: list[str]
    """Names of the features that it needs."""
    size: int = 0
    """Size of its file in bytes; 0 if it is not known."""
    thumbnails: KnownThumbnails | None = None
    """None if no thumbnails are known; new ones are then written."""


class VideoFile:
    """A video file, examined no closer than needed.

    Reading a part of each of a million finished files would take hours.
    """

    def __init__(self, path: str | None) -> None:
        """Take the path of a file; None for a remote video, which is not fetched only to be compared."""
        self._path = path
        self.identity = None if path else ""
        """Identity of its content; None until it is read."""
        try:
            self.stat: os.stat_result | None = os.stat(path) if path else None
        except OSError:
            self.stat = None

    @property
    def size(self) -> int:
        """Size in bytes; 0 if it is not known."""
        return self.stat.st_size if self.stat else 0

    def read(self) -> None:
        """Read its identity."""
        self.identity = file_identity(Path(self._path)) if self._path else ""

    def has_same_size_and_time(self, source: str, since_ns: int) -> bool:
        """Return whether the file is gone, or is older than its features and has the size of their source file.

        In both cases it needs no new features.

        Args:
            source: Identity of the features' source file.
            since_ns: Time when the features were written.
        """
        if self.stat is None:
            return True
        return self.stat.st_mtime_ns < since_ns - OLDER_NS and source.startswith(f"{self.stat.st_size}-")


class PendingWork:
    """The work that is left for each kind of features, according to the stores and ``failures.jsonl``."""

    def __init__(self, dataset: DatasetFolder, features: Sequence[str]) -> None:
        self.dataset = dataset
        self.stores = {f: store for f in features if (store := find_features(dataset, f)) is not None}
        self._logs = {f: FailureLog(self.failures_file(f)) for f in features}
        self.failures = {f: log.failures for f, log in self._logs.items()}
        self.features = list(features)
        self._changed: dict[str, dict[str, Failure | None]] = {}

    def failures_file(self, features: str) -> Path:
        """Return the path of the list of failed videos."""
        return self.dataset.features(features) / FAILURES_NAME

    def tasks(self, videos: Iterable[VideoRecord], *, only_failed: bool) -> Iterator[VideoTask]:
        """Yield the videos that still need features.

        Features are needed if the store has none from the current file, unless they failed because of this file. With
        ``only_failed``, all failed features are needed and no others. Each file is checked once, many files in
        parallel.
        """
        if only_failed:
            videos = (video for video in videos if any(video.video_id in self.failures[name] for name in self.features))
        seen = ((video, None if video.url else self.dataset.video_file(video)) for video in videos)
        files = map_in_threads(lambda each: (each[0], VideoFile(each[1])), seen)
        find_missing = self._failed if only_failed else self._missing
        while batch := list(islice(files, BATCH_VIDEOS)):
            missing = [find_missing(video, file) for video, file in batch]
            unread = [file for (_, file), known in zip(batch, missing, strict=True) if known is None]
            for _ in map_in_threads(VideoFile.read, unread):
                pass
            for (video, file), known in zip(batch, missing, strict=True):
                if left := find_missing(video, file) if known is None else known:
                    yield VideoTask(video, left, file.size)

    def missing_features(self, video: VideoRecord, *, only_failed: bool) -> list[str]:
        """Return the features that a video still needs, as ``tasks`` does."""
        return next((task.features for task in self.tasks([video], only_failed=only_failed)), [])

    def _failed(self, video: VideoRecord, _: VideoFile) -> list[str]:
        return [name for name in self.features if video.video_id in self.failures[name]]

    def _missing(self, video: VideoRecord, file: VideoFile) -> list[str] | None:
        """Return the features that a video needs; None if its file must be read to tell."""
        missing = []
        for features in self.features:
            store, failure = self.stores.get(features), self.failures[features].get(video.video_id)
            if store is not None and video.video_id in store:
                source = store.source(video.video_id)
                if file.has_same_size_and_time(source, store.written_at_ns(video.video_id)):
                    continue
                if file.identity is None:
                    return None
                if file.identity in ("", source):
                    continue
            if failure and not is_transient(failure):
                if file.identity is None:
                    return None
                if video.url or (file.identity and file.identity == failure.source):
                    continue
            missing.append(features)
        return missing

    def note_failure(self, features: str, video_id: str, failure: Failure | None) -> None:
        """Record that a video failed, or, with None, that it no longer fails."""
        failures = self.failures[features]
        if failures.get(video_id) != failure:
            set_failure(failures, video_id, failure)
            self._changed.setdefault(features, {})[video_id] = failure

    def write_failures(self) -> None:
        """Append the recorded changes to the files, and read the lines of other extractions."""
        for features, changed in self._changed.items():
            self._logs[features].append(changed)
        self._changed.clear()

    def compact_failures(self) -> None:
        """Compact lists of failures that consist mostly of superseded lines."""
        for log in self._logs.values():
            log.compact()


@dataclass(frozen=True)
class Extraction:
    """One call: the requested features, the pending videos, and the place where failures are recorded."""

    settings: ExtractionSettings
    videos: Sequence[VideoRecord]
    """All requested videos."""
    tasks: Sequence[VideoTask]
    """Videos that lack features, new ones first."""
    weights: Mapping[str, str]
    """{features: weights} of the features that are needed."""
    pending: PendingWork
    """The stores and the lists of failures, which receives new failures."""
    problems: Problems
    """Receives videos that failed or are damaged."""
    new_list: list[VideoRecord] | None = None
    """The data set's list with the videos of a new folder; None if the list has them already."""

    def write_list(self) -> None:
        """Write ``videos.jsonl`` if there are new videos. Called when nothing can refuse the call any more."""
        if self.new_list is not None:
            self.settings.folder.write_videos(self.new_list)


def is_transient(failure: Failure) -> bool:
    """Return whether an unchanged video may succeed at the next call, which then tries it again.

    "Not found" by a web server is final. A missing file is not: its disk may not be mounted.
    """
    return failure.kind in TRANSIENT or (failure.kind == "missing" and "://" not in failure.path)

"""Extraction of a data set: what is left, one video after another, into the stores."""

import time
from collections.abc import Sequence
from importlib.metadata import version

from ..storage.console import Problems, progress, say
from ..storage.feature_store import check_storable, write_shard
from ..storage.files import file_identity
from ..storage.layout import DatasetFolder
from ..storage.records import Failure, VideoFeatures, VideoRecord
from ..storage.thumbnails import Thumbnail, ThumbnailStore, write_thumbnails
from .decode import VideoError
from .extractor import Extractor
from .video import extract_with_thumbnails
from .work import WorkList

SHARD_VIDEOS = 64
SHARD_SECONDS = 120
"""A stopped run loses at most what was finished since the last shard."""


class _Finished:
    """Features of finished videos, until they are a shard."""

    def __init__(self, dataset: DatasetFolder, extractors: Sequence[Extractor]) -> None:
        self.dataset = dataset
        self.extractors = {e.profile.name: e for e in extractors}
        self.features: dict[str, list[VideoFeatures]] = {name: [] for name in self.extractors}
        self.thumbnails: list[Thumbnail] = []
        self.pictured = ThumbnailStore(dataset.thumbnails)
        self.since = time.monotonic()

    def add(self, features: dict[str, VideoFeatures], thumbnails: list[Thumbnail]) -> None:
        for name, video in features.items():
            self.features[name].append(video)
        self.thumbnails += [t for t in thumbnails if self.pictured.source(t.video_id) != t.source]
        if max(map(len, self.features.values())) >= SHARD_VIDEOS or time.monotonic() - self.since > SHARD_SECONDS:
            self.write()

    def write(self) -> None:
        made_with = {name: version(name) for name in ("vlalign", "torch", "av")}
        for name, videos in self.features.items():
            if videos:
                extractor = self.extractors[name]
                write_shard(self.dataset.features(name), extractor.profile, extractor.weights, videos, made_with=made_with)
                videos.clear()
        if self.thumbnails:
            write_thumbnails(self.dataset.thumbnails, self.thumbnails)
            self.thumbnails.clear()
        self.since = time.monotonic()


def extract_dataset(
    dataset: DatasetFolder,
    work: WorkList,
    todo: Sequence[tuple[VideoRecord, list[str]]],
    extractors: dict[str, Extractor],
    problems: Problems,
) -> None:
    """Extracts each video's missing features. A video that fails is recorded and passed over; what is finished is kept, whatever
    ends the run."""
    finished = _Finished(dataset, list(extractors.values()))
    try:
        for video, features in progress(todo, total=len(todo), what="extracting", unit="videos"):
            path = dataset.video_path(video)
            try:
                made = extract_with_thumbnails(path, [extractors[f] for f in features], video.video_id)
                for part in made[0].values():
                    check_storable(part)
            except Exception as error:  # the one boundary: whatever a video does to its decoder or network, the others go on
                kind = error.kind if isinstance(error, VideoError) else "error"
                words = str(error) if isinstance(error, VideoError) else f"{type(error).__name__}: {error}"
                problems.add(f"video {video.video_id!r}, {path}: {kind}: {words}; recorded in failures.jsonl, the others go on")
                failure = Failure(video_id=video.video_id, path=str(path), kind=kind, message=words, source=file_identity(path))
                for name in features:
                    work.record(name, video.video_id, failure)
                continue
            finished.add(*made)
            for name in features:
                work.record(name, video.video_id, None)
    finally:
        finished.write()
    say(f"{dataset.path}: {len(todo):,} videos tried, {problems.count:,} problems")

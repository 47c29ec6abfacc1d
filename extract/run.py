"""Extraction of a data set: what is left of it, into the stores."""

import time
from collections.abc import Sequence
from importlib.metadata import version

from ..storage.console import Problems, progress, say
from ..storage.files import file_identity
from ..storage.layout import DatasetFolder
from ..storage.records import Failure, VideoFeatures, VideoRecord
from ..storage.shards import check_storable, write_shard
from ..storage.thumbnails import Thumbnail, ThumbnailStore, write_thumbnails
from .engine import Extracted, Job, extract_videos
from .extractor import Extractor
from .probe import VideoError
from .work import WorkList

SHARD_VIDEOS = 64
SHARD_SECONDS = 120
"""A stopped run loses at most what was finished since the last shard."""


class _Finished:
    """What is finished, until it is on disk."""

    def __init__(self, dataset: DatasetFolder, work: WorkList, extractors: Sequence[Extractor]) -> None:
        self.dataset = dataset
        self.work = work
        self.extractors = {e.profile.name: e for e in extractors}
        self.features: dict[str, list[VideoFeatures]] = {name: [] for name in self.extractors}
        self.thumbnails: list[Thumbnail] = []
        self.pictured = ThumbnailStore(dataset.thumbnails)
        self.since = time.monotonic()

    def add(self, made: Extracted) -> None:
        for name, video in made.features.items():
            self.features[name].append(video)
        self.thumbnails += [t for t in made.thumbnails if self.pictured.source(t.video_id) != t.source]

    def write_if_due(self) -> None:
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
        self.work.write_failures()
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
    finished = _Finished(dataset, work, list(extractors.values()))
    jobs = (Job(video.video_id, dataset.video_path(video), [extractors[f] for f in left]) for video, left in todo)
    results = extract_videos(jobs, list(extractors.values()))
    try:
        for job, result in progress(results, total=len(todo), what="extracting", unit="videos"):
            try:
                if isinstance(result, VideoError):
                    raise result
                for name, video in result.features.items():
                    check_storable(video, finished.extractors[name].profile)
            except (VideoError, ValueError) as error:
                kind = error.kind if isinstance(error, VideoError) else "not_storable"
                problems.add(f"video {job.video_id!r}, {job.path}: {kind}: {error}; recorded in failures.jsonl, the others go on")
                failure = Failure(video_id=job.video_id, path=str(job.path), kind=kind, message=str(error), source=file_identity(job.path))
            else:
                if partial := next(iter(result.features.values())).partial:
                    problems.add(f"video {job.video_id!r}, {job.path}: partial: {partial}; its features are those of the frames there are")
                finished.add(result)
                failure = None
            for extractor in job.extractors:
                work.note(extractor.profile.name, job.video_id, failure)
            finished.write_if_due()
    finally:
        results.close()
        finished.write()
    say(f"{dataset.path}: {len(todo):,} videos tried, {problems.count:,} problems")

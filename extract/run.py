"""Extraction of a data set: what is left of it, into the stores."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from ..storage.common.problems import Problems
from ..storage.common.progress import progress
from ..storage.common.signals import keeping, uninterrupted
from ..storage.files import file_identity
from ..storage.layout import DatasetFolder
from ..storage.records import Failure, VideoFeatures, VideoRecord
from ..storage.remote.store import remote_store
from ..storage.shards import check_storable, write_shard
from ..storage.thumbnails import Thumbnail, ThumbnailStore, write_thumbnails
from .decoding.probe import VideoError
from .engine import Extracted, Job, videos_and_pauses
from .extractor import Extractor
from .fetch import Fetcher
from .work import WorkList

SHARD_VIDEOS = 64
SHARD_SECONDS = 120.0
"""A stopped run loses at most what was finished since the last shard."""
SHARD_BYTES = 256 << 20
"""Of features that wait to be written. An hour of sound has 58 MB until it is brought to float16."""


@dataclass(frozen=True)
class Outcome:
    """What became of a video: its features are made, though not on disk yet, or it failed."""

    video_id: str
    path: str
    features: list[str]
    """Names of those that were asked for."""
    failure: Failure | None
    """Why there are none of them."""
    partial: str = ""
    seconds: float = 0.0
    """Of the video."""
    num_rows: int = 0
    num_bytes: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    """Why there are none of some while there are of others, by their names."""


@dataclass(frozen=True)
class Kept:
    """All that was finished so far is on disk: these videos since the last time."""

    video_ids: list[str]


class _Finished:
    """What is finished, until it is on disk."""

    def __init__(self, dataset: DatasetFolder, extractors: Sequence[Extractor]) -> None:
        self.dataset = dataset
        self.extractors = {e.profile.name: e for e in extractors}
        self.features: dict[str, list[VideoFeatures]] = {name: [] for name in self.extractors}
        self.thumbnails: list[Thumbnail] = []
        self.pictured = ThumbnailStore(dataset.thumbnails)
        self.video_ids: list[str] = []
        self.num_bytes = 0
        self.has_news = False
        """Whether a video was done, or failed, since the last time."""
        self.since = time.monotonic()

    def add(self, made: Extracted, video_id: str) -> None:
        for name, video in made.features.items():
            self.features[name].append(video)
            self.num_bytes += video.features.nbytes
        self.thumbnails += [t for t in made.thumbnails if self.pictured.source(t.video_id) != t.source]
        self.video_ids.append(video_id)

    def write(self) -> Kept:
        made_with = {name: version(name) for name in ("vlalign", "torch", "av")}
        for name, videos in self.features.items():
            if videos:
                extractor = self.extractors[name]
                folder = self.dataset.features(name)
                there = remote_store(folder)
                shard = write_shard(
                    there.outgoing if there else folder,
                    extractor.profile,
                    extractor.weights,
                    videos,
                    made_with=made_with,
                )
                if there:
                    there.put(shard)
                videos.clear()
        if self.thumbnails:
            write_thumbnails(self.dataset.thumbnails, self.thumbnails)
            self.thumbnails.clear()
        kept, self.video_ids, self.num_bytes, self.has_news, self.since = (
            Kept(self.video_ids),
            [],
            0,
            False,
            time.monotonic(),
        )
        return kept


def job_of(dataset: DatasetFolder, video: VideoRecord, extractors: Sequence[Extractor]) -> Job:
    return Job(video.video_id, Path() if video.url else dataset.video_path(video), extractors, url=video.url)


def extract_into_stores(
    dataset: DatasetFolder,
    jobs: Iterable[Job | None],
    extractors: Sequence[Extractor],
    *,
    num_cores: int | None = None,
    shard_seconds: Callable[[], float] = lambda: SHARD_SECONDS,
    allowed_hosts: Collection[str] = (),
) -> Iterator[Outcome | Kept]:
    """Each video's ``Outcome`` as it is made, and ``Kept`` whenever a shard was written: every ``SHARD_VIDEOS`` videos, ``SHARD_BYTES``
    or ``shard_seconds()``. What is finished is kept, whatever ends the run. ``jobs``, ``num_cores``: as ``extract_videos`` takes them;
    ``allowed_hosts``: as ``Fetcher`` does."""
    finished, fetcher = _Finished(dataset, extractors), Fetcher(allowed_hosts=allowed_hosts)
    results = videos_and_pauses(fetcher.jobs(jobs), extractors, num_cores=num_cores)
    try:
        for each in results:
            if each is None:  # only now, so that videos that are done at once lie in one shard
                if finished.has_news and time.monotonic() - finished.since > shard_seconds():
                    yield finished.write()
                continue
            job, result = each
            finished.has_news = True
            path = job.url or str(job.path)
            source = (
                file_identity(job.path)
                if isinstance(result, VideoError)
                else next(iter(result.features.values())).source
            )
            asked = job.video_id, path, [e.profile.name for e in job.extractors]
            result = fetcher.done(job) or result
            try:
                if isinstance(result, VideoError):
                    raise result
                for name, video in result.features.items():
                    check_storable(video, finished.extractors[name].profile)
            except (VideoError, ValueError) as error:
                yield Outcome(*asked, _failure(job, path, source, error))
            else:
                finished.add(result, job.video_id)
                made = list(result.features.values())
                num_rows, num_bytes = sum(len(v.features) for v in made), sum(2 * v.features.size for v in made)
                partial = "; ".join(dict.fromkeys(video.partial for video in made if video.partial))
                failures = {name: _failure(job, path, source, error) for name, error in result.failures.items()}
                yield Outcome(
                    *asked, None, partial, max(v.duration_seconds for v in made), num_rows, num_bytes, failures
                )
            if len(finished.video_ids) >= SHARD_VIDEOS or finished.num_bytes > SHARD_BYTES:
                yield finished.write()
    finally:
        with uninterrupted():
            try:
                kept = finished.write()  # first, for closing may take a while
            finally:
                results.close()
                fetcher.close()
    yield kept


def _failure(job: Job, path: str, source: str, error: VideoError | ValueError) -> Failure:
    kind = error.kind if isinstance(error, VideoError) else "not_storable"
    return Failure(video_id=job.video_id, path=path, kind=kind, message=str(error), source=source)


def extract_dataset(
    work: WorkList,
    todo: Sequence[tuple[VideoRecord, list[str]]],
    extractors: dict[str, Extractor],
    problems: Problems,
    *,
    allowed_hosts: Collection[str] = (),
) -> None:
    """Extracts each video's missing features. A video that fails is recorded and passed over. ``allowed_hosts``: as ``Fetcher`` has it."""
    jobs = (job_of(work.dataset, video, [extractors[f] for f in left]) for video, left in todo)
    events = extract_into_stores(work.dataset, jobs, list(extractors.values()), allowed_hosts=allowed_hosts)

    def outcomes() -> Iterator[Outcome]:
        for event in events:
            if isinstance(event, Kept):
                work.write_failures()
            else:
                yield event

    num_made = 0
    with keeping(lambda: f"{num_made:,} videos of this call are kept" if num_made else ""):
        try:
            for outcome in progress(outcomes(), total=len(todo), what="extracting", unit="videos"):
                num_made += outcome.failure is None
                note_outcome(outcome, work, problems)
        finally:
            with uninterrupted():
                events.close()
                work.write_failures()


def note_outcome(outcome: Outcome, work: WorkList, problems: Problems) -> None:
    """Says what is wrong with a video, and notes where it failed."""
    where = f"video {outcome.video_id!r}, {outcome.path}"
    if failure := outcome.failure:
        problems.add(f"{where}: {failure.kind}: {failure.message}; recorded in failures.jsonl, the others go on")
    for name, missing in outcome.failures.items():
        problems.add(
            f"{where}: {name}: {missing.kind}: {missing.message}; recorded in failures.jsonl, its other features are there"
        )
    if outcome.partial:
        problems.add(f"{where}: partial: {outcome.partial}; its features are those of what there is")
    for name in outcome.features:
        work.note(name, outcome.video_id, failure or outcome.failures.get(name))

"""Videos -> features in the stores of a data set, written a shard at a time."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from ...storage.common.device import device_title, tf32_in_use
from ...storage.common.files import file_identity
from ...storage.common.packages import package_version
from ...storage.common.problems import Problems
from ...storage.common.signals import uninterrupted
from ...storage.common.terminal import one_line, say
from ...storage.dataset.folder import DatasetFolder
from ...storage.records import Failure, VideoFeatures
from ...storage.remote.addresses import without_secrets
from ...storage.shards import TEXTS, Provenance, check_storable
from ...storage.shards.names import NewShardNames
from ...storage.stores.opening import open_features_writer
from ...storage.stores.thumbnails import Thumbnail, write_thumbnails
from ..decoding.errors import VideoError
from ..extractor import Extractor
from ..settings import PARTIAL, WorkerSettings
from .download import Fetcher
from .engine import Result, extract_with_pauses
from .pending_work import Extraction, KnownThumbnails, VideoTask, is_transient
from .video_jobs import ClosableIterator, Extracted, VideoJob

SHARD_VIDEOS = 64
SHARD_SECONDS = 120.0
"""Maximum time between shards: a killed run loses at most the videos finished since the last shard."""
SHARD_BYTES = 256 << 20
"""A shard is written when the waiting features are larger than this. An hour of sound takes 58 MB until it is converted
to float16. Frames wait in files."""

ON_CPU = "decoded on the CPU, not by NVIDIA's video engine"
UNUSUAL = "unusual"


@dataclass(frozen=True)
class VideoOutcome:
    """The outcome of a video: its features are computed, though not on disk yet, or it failed."""

    video_id: str
    path: str
    features: list[str]
    """Names of the requested features."""
    failure: Failure | None
    """Reason why there are no features at all; None if there are some."""
    partial: str = ""
    seconds: float = 0.0
    """Length of the video."""
    num_rows: int = 0
    num_bytes: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    """{features: failure} of features that are missing although others exist."""
    remark: str = ""
    """Reason why the requested decoder was not used; empty if it was."""
    note: str = ""
    """Peculiarities of the file, and how they were treated."""


@dataclass(frozen=True)
class ShardsWritten:
    """All videos finished so far are on disk; these were written since the last ``ShardsWritten``."""

    video_ids: list[str]


class _PendingShards:
    """Finished videos that are not on disk yet."""

    def __init__(
        self, dataset: DatasetFolder, extractors: Sequence[Extractor], is_wanted: Callable[[str], bool]
    ) -> None:
        self._dataset, self._is_wanted = dataset, is_wanted
        self.extractors = {e.profile.name: e for e in extractors}
        self._features: dict[str, list[VideoFeatures]] = {name: [] for name in self.extractors}
        self._writers = {name: open_features_writer(dataset, name) for name in self.extractors}
        self._thumbnails: list[Thumbnail] = []
        self._thumbnail_names = NewShardNames(dataset.thumbnails)
        self._made_with = {"vlalign": package_version()} | {name: version(name) for name in ("torch", "av")}
        self._begin()

    def _begin(self) -> None:
        self.video_ids: list[str] = []
        self.num_bytes = 0
        self.has_news = False
        """True if a video was finished, or failed, since the last shard."""
        self.since = time.monotonic()

    def add(self, extracted: Extracted, job: VideoJob) -> None:
        for name, video in extracted.features.items():
            self._features[name].append(video)
            self.num_bytes += video.features.nbytes
        if _are_new(extracted.thumbnails, job.known_thumbnails):
            self._thumbnails += extracted.thumbnails
            self.num_bytes += sum(len(thumbnail.jpeg) for thumbnail in extracted.thumbnails)
        self.video_ids.append(job.video_id)

    def write(self) -> ShardsWritten:
        """Write the finished videos. Files that cannot be sent to a server stay on disk; the next call sends them."""
        for name, finished in self._features.items():
            if videos := [video for video in finished if self._is_wanted(video.video_id)]:
                extractor = self.extractors[name]
                self._writers[name].write(videos, self._provenance(extractor), dtype=extractor.profile.row_type)
            finished.clear()
        if self._thumbnails:
            write_thumbnails(self._dataset.thumbnails, self._thumbnails, self._thumbnail_names)
            self._thumbnails.clear()
        for writer in self._writers.values():
            writer.flush()
        written = ShardsWritten(list(filter(self._is_wanted, self.video_ids)))
        self._begin()
        return written

    def _provenance(self, extractor: Extractor) -> Provenance:
        """Return the provenance of an extractor's features, which a store records."""
        libraries, texts = (), ""
        if extractor.network is not None:
            libraries, texts = extractor.network.libraries, extractor.network.texts
        made_with = self._made_with | {library: version(library) for library in libraries} | _computed_on(extractor)
        made_with |= {TEXTS: texts} if texts else {}
        return Provenance(profile=extractor.profile, weights=extractor.weights, made_with=made_with)


def _are_new(thumbnails: Sequence[Thumbnail], known: KnownThumbnails | None) -> bool:
    """Return whether a video's thumbnails show another file than the stored thumbnails, or are more numerous."""
    return bool(thumbnails) and (
        known is None or known.source != thumbnails[0].source or known.number < len(thumbnails)
    )


def _computed_on(extractor: Extractor) -> dict[str, str]:
    """Return the facts about the device that a store records."""
    device = extractor.device
    rounds = device.type == "cuda" and extractor.profile.precision == "fp32"
    return {"device": device_title(device)} | ({"tf32": tf32_in_use()} if rounds else {})


def extract_into_stores(
    worker: WorkerSettings,
    extractors: Mapping[str, Extractor],
    tasks: Iterable[VideoTask | None],
    *,
    shard_seconds: float | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    is_wanted: Callable[[str], bool] = lambda _: True,
) -> ClosableIterator[VideoOutcome | ShardsWritten]:
    """Yield a ``VideoOutcome`` for each computed video and ``ShardsWritten`` after each write.

    Shards are written every ``SHARD_VIDEOS`` videos, ``SHARD_BYTES`` or ``shard_seconds``. Finished videos are
    written whatever ends the run.

    Args:
        worker: Data set, cores, and hosts that videos may be fetched from.
        extractors: {features: extractor} of all features that the tasks need.
        tasks: The videos. A None among them means "none at the moment": videos already begun continue meanwhile.
        shard_seconds: Maximum time between shards; None for ``SHARD_SECONDS``.
        is_stopped: Called often; once it returns True, no more videos are finished, not even the current ones.
        is_wanted: Returns whether the video with this id should be written and its outcome yielded.
    """
    used = list(extractors.values())
    unwritten, fetcher = _PendingShards(worker.dataset, used, is_wanted), Fetcher(allowed_hosts=worker.allowed_hosts)
    jobs = (task and _job_of(worker, task, extractors) for task in tasks)
    results = extract_with_pauses(fetcher.jobs(jobs), used, num_cores=worker.num_cores)
    try:
        for result in results:
            if result is None:  # only now: videos that finish together are then in one shard
                if is_stopped():
                    break
                if unwritten.has_news and time.monotonic() - unwritten.since > (
                    SHARD_SECONDS if shard_seconds is None else shard_seconds
                ):
                    yield unwritten.write()
                continue
            unwritten.has_news = True
            outcome = _store_result(result, unwritten, fetcher)
            if is_wanted(outcome.video_id):
                yield outcome
            if len(unwritten.video_ids) >= SHARD_VIDEOS or unwritten.num_bytes > SHARD_BYTES:
                yield unwritten.write()
    finally:
        with uninterrupted():
            try:
                written = unwritten.write()  # first: closing may take a while
            finally:
                results.close()
                fetcher.close()
    yield written


def _job_of(worker: WorkerSettings, task: VideoTask, extractors: Mapping[str, Extractor]) -> VideoJob:
    video = task.video
    path = Path() if video.url else worker.dataset.video_path(video)
    wanted = [extractors[name] for name in task.features]
    return VideoJob(
        video.video_id,
        path,
        wanted,
        url=video.url,
        thumbnails_every=worker.thumbnails_every,
        known_thumbnails=task.thumbnails,
        frames_folder=worker.dataset.path,
    )


def _store_result(result: Result, unwritten: _PendingShards, fetcher: Fetcher) -> VideoOutcome:
    """Keep a video's features for the next shard, if they can be stored; return its outcome."""
    job, extracted = result
    path, names = without_secrets(job.url) if job.url else str(job.path), [e.profile.name for e in job.extractors]
    if isinstance(extracted, VideoError):
        source = file_identity(job.path)
    else:
        source = next(iter(extracted.features.values())).source
    extracted = fetcher.done(job) or extracted
    try:
        if isinstance(extracted, VideoError):
            raise extracted
        for name, video in extracted.features.items():
            profile = unwritten.extractors[name].profile
            check_storable(video, profile, profile.row_type)
    except (VideoError, ValueError) as error:
        return VideoOutcome(job.video_id, path, names, _failure(job, path, source, error))
    unwritten.add(extracted, job)
    features = list(extracted.features.values())
    return VideoOutcome(
        video_id=job.video_id,
        path=path,
        features=names,
        failure=None,
        partial="; ".join(dict.fromkeys(video.partial for video in features if video.partial)),
        seconds=max(video.duration_seconds for video in features),
        num_rows=sum(len(video.features) for video in features),
        num_bytes=sum(
            len(video.features) * unwritten.extractors[name].profile.row_bytes
            for name, video in extracted.features.items()
        ),
        failures={name: _failure(job, path, source, error) for name, error in extracted.failures.items()},
        remark=extracted.remark,
        note=extracted.note,
    )


def _failure(job: VideoJob, path: str, source: str, error: VideoError | ValueError) -> Failure:
    kind = error.kind if isinstance(error, VideoError) else "not_storable"
    return Failure(video_id=job.video_id, path=path, kind=kind, message=str(error), source=source)


def _note(words: str, kind: str, more: str, problems: Problems) -> None:
    """Print a note; after many of a kind, print only that there are more."""
    problems.changed[kind] += 1
    if problems.changed[kind] <= problems.MAX_LINES:
        say(f"note: {words}")
    elif problems.changed[kind] == problems.MAX_LINES + 1:
        say(f"note: {more}")


def report_outcome(outcome: VideoOutcome, extraction: Extraction, by: str = "") -> None:
    """Report the problems of a video and record its failures.

    Args:
        outcome: Outcome of the video.
        extraction: Receives the failures and problems.
        by: The machine and the worker that tried the video, if there are several.
    """
    problems = extraction.problems
    where = f"video {outcome.video_id!r}, {outcome.path}" + (f" ({by})" if by else "")
    failure = outcome.failure

    def add(kind: str, message: str, *, transient: bool = False) -> None:
        if extraction.settings.accepts(kind, transient=transient):
            _note(f"{where}: {message}", kind, f"more videos are {kind}, which --accept-failures accepts", problems)
        else:
            problems.add(f"{where}: {message}")

    if failure:
        then = "the same command tries it again" if is_transient(failure) else "the others continue"
        add(
            failure.kind,
            f"{failure.kind}: {failure.message}; recorded in failures.jsonl, {then}",
            transient=is_transient(failure),
        )
    for name, missing in outcome.failures.items():
        add(
            missing.kind,
            f"{name}: {missing.kind}: {missing.message}; recorded in failures.jsonl, its other features are stored",
        )
    if outcome.partial:
        add(PARTIAL, f"partial: {outcome.partial}; its features cover the rest")
    if outcome.remark:
        more = "more videos are decoded on the CPU; vlalign-store info shows how many"
        _note(f"{where}: {ON_CPU}: {one_line(outcome.remark)}", ON_CPU, more, problems)
    if outcome.note:
        more = "further videos are unusual in some way, but complete"
        _note(f"{where}: {one_line(outcome.note)}", UNUSUAL, more, problems)
    for name in outcome.features:
        extraction.pending.note_failure(name, outcome.video_id, failure or outcome.failures.get(name))

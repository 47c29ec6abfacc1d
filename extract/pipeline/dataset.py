"""Extract the features of a data set: the Python call behind ``vlalign-extract``.

Heavy imports are deferred: without pending work, the call ends within a second.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...storage.common.problems import Problems
from ...storage.common.progress import Listener, report_progress_to
from ...storage.common.terminal import number_of, say
from ...storage.common.writing import check_folders
from ...storage.dataset.trusted_folders import allow_folder
from ...storage.hub.names import is_hub_name, read_hub_name
from ...storage.profiles import FRAME_PROFILES
from ...storage.records import Profile, VideoRecord
from ...storage.remote.links import checked_address
from ...storage.remote.store import RemoteStore, link_store, remote_store
from ..decoding import sandbox
from ..settings import NOT_RETRIED, PARTIAL, ExtractionSettings
from ..videos.captioned import warn_of_unlisted
from ..videos.selection import choose_videos, render_missing
from .address_sizes import with_sizes
from .pending_work import Extraction, KnownThumbnails, PendingWork, VideoTask, is_transient
from .runner import LocalRunner, Runner
from .store_mismatch import mismatch_notes

SAME_SECONDS = 1e-6


@dataclass(frozen=True, kw_only=True)
class ExtractionResult:
    """The result of an extraction.

    Example:
        >>> from vlalign.extract import ExtractionResult
        >>> from vlalign.storage import VideoRecord
        >>> videos = [VideoRecord(video_id=name, path=f"{name}.mp4") for name in ("one", "two")]
        >>> result = ExtractionResult(videos=videos, num_tried=2, num_complete=1, num_partial=0, num_problems=0)
        >>> result.num_failed, result.complete
        (1, False)
    """

    videos: Sequence[VideoRecord]
    """All videos that were asked for."""
    num_tried: int
    """Videos that lacked features before."""
    num_complete: int
    """Videos that have all features now."""
    num_partial: int
    """Videos that are damaged or incomplete; only their remaining frames have features."""
    num_problems: int
    """Reported problems: skipped inputs, and failed or damaged videos that are not accepted."""
    num_accepted: int = 0
    """Failed and partial videos that ``accept_failures`` accepts."""
    extracted: Sequence[str] = ()
    """Ids of the videos that lacked features before and have all now."""
    failed: Sequence[str] = ()
    """Ids of the videos that were tried now and still lack features. Messages gave the reasons."""
    num_untried: int = 0
    """Videos that lack features and were not tried, because ``retry_failed`` selects only videos that failed before."""

    @property
    def num_failed(self) -> int:
        """Videos that lack some features because they failed or could not be reached."""
        return len(self.videos) - self.num_complete - self.num_untried

    @property
    def complete(self) -> bool:
        """True if all features of all videos exist, except for failures that ``accept_failures`` accepts."""
        is_accepted = self.num_failed + self.num_partial == self.num_accepted
        return is_accepted and not self.num_untried and not self.num_problems


def extract_dataset(
    settings: ExtractionSettings, *, runner: Runner | None = None, on_progress: Listener | None = None
) -> ExtractionResult:
    """Extract the features that the videos of a data set lack, into its stores.

    Each video is decoded once for all of its features. A video that fails is recorded in ``failures.jsonl`` and the
    others continue; it is not tried again unless its file changes or ``settings.retry_failed`` is set. A video that
    could not be reached, because of its server, the network or a disk, is tried again by the next call, after all new
    videos.
    If the call is interrupted, the next one resumes there.

    Args:
        settings: What to extract, and how.
        runner: Where to run it (default: in this process).
        on_progress: Called with the progress of the work.

    Returns:
        How many videos are complete, partial and failed.

    Raises:
        UserError: A setting, the list of videos, or the weights cannot be used.
        Unfinished: Too many videos failed, or a place with videos could not be read for long; call again to continue.
        OSError: A file cannot be written.

    Example:
        >>> from pathlib import Path
        >>> from vlalign.extract import ExtractionSettings, extract_dataset
        >>> videos = Path("vlalign_data/demo/videos")
        >>> settings = ExtractionSettings(
        ...     dataset="vlalign_data/clips", features="clip_vit_b32_frames", videos=videos, device="cpu"
        ... )
        >>> result = extract_dataset(settings)
        >>> result.num_complete, result.num_failed
        (2, 0)
    """
    with report_progress_to(on_progress), Problems(file=settings.folder.problems("extract")) as problems:
        extraction = prepare_extraction(settings, problems, dry_run=False)
        dataset, num_tasks = settings.folder, len(extraction.tasks)
        if num_tasks:
            if not settings.address:  # else it was checked before it was linked
                for name in extraction.weights:
                    if remote := remote_store(dataset.features(name)):
                        remote.check()
            if lacking := sandbox.missing_protections():
                say(f"note: decoders are confined less than they could be: this system has {'; '.join(lacking)}")
            _report_frames(extraction)
            (runner or LocalRunner()).extract(extraction)
            say(f"{dataset.path}: {number_of(num_tasks, 'videos')} tried, {number_of(problems.count, 'problems')}")
        else:
            extraction.write_list()
        stores = extraction.pending.stores.items()
        for line in mismatch_notes(settings, {name: each for name, each in stores if name not in extraction.weights}):
            say(f"note: {line}")
        if settings.thumbnails_every is not None:
            _report_fewer_thumbnails(extraction, settings.thumbnails_every)
        return summarize(extraction)


def prepare_extraction(settings: ExtractionSettings, problems: Problems, *, dry_run: bool) -> Extraction:
    """Find the videos and their missing features; link stores and render videos unless ``dry_run``."""
    dataset, names = settings.folder, settings.store_names
    for folder in settings.allow_folder:
        allow_folder(dataset, folder)
    if not dry_run:
        check_folders(*map(dataset.features, names), dataset.thumbnails)
    if settings.address:
        _link_stores(settings, settings.address, dry_run=dry_run)
    for name in names if not dry_run else []:
        if remote := remote_store(dataset.features(name)):
            remote.send()
    videos, new_list = choose_videos(settings, problems)
    if not dry_run:
        render_missing(dataset, videos)
    pending = PendingWork(dataset, names)
    if not dry_run:
        pending.compact_failures()
    tasks = with_sizes(list(pending.tasks(videos, only_failed=settings.retry_failed)))
    if tasks:
        warn_of_unlisted(dataset, videos)
    tasks.sort(key=lambda task: any(task.video.video_id in pending.failures[name] for name in task.features))
    if tasks and not dry_run:
        tasks = _with_thumbnails(tasks, pending)
    needed = {name for task in tasks for name in task.features}
    weights = {name: settings.weights_of(name) for name in names if name in needed}
    return Extraction(settings, videos, tasks, weights, pending, problems, new_list)


def _with_thumbnails(tasks: list[VideoTask], pending: PendingWork) -> list[VideoTask]:
    """Add the known thumbnails of the videos to their tasks, which saves workers the lookup.

    The lookup is skipped if each video lacks all of the data set's features: for a million videos it would take a
    minute.
    """
    from ...storage.stores.opening import feature_names
    from ...storage.stores.thumbnails import ThumbnailStore  # imports HDF5

    asked = pending.features
    are_new = all(len(task.features) == len(asked) for task in tasks) and len(pending.stores) == len(asked)
    if are_new and set(feature_names(pending.dataset)) <= set(asked):
        return tasks
    known = ThumbnailStore(pending.dataset.thumbnails)
    return [
        task._replace(thumbnails=KnownThumbnails(source, len(known.seconds(task.video.video_id))))
        if (source := known.source(task.video.video_id))
        else task
        for task in tasks
    ]


def frames_size(profile: Profile) -> str:
    """Return how much room the frames of a profile take, in words.

    >>> frames_size(FRAME_PROFILES["clip_vit_b32_frames"])
    'clip_vit_b32_frames: 150,528 bytes a frame, 542 MB an hour of video'
    """
    line = f"{profile.name}: {profile.row_bytes // profile.window:,} bytes a frame"
    if profile.fps is None:
        return f"{line}, {profile.row_bytes / 1e6:,.1f} MB a video"
    return f"{line}, {3600 * profile.fps / profile.stride * profile.row_bytes / 1e6:,.0f} MB an hour of video"


def _report_frames(extraction: Extraction) -> None:
    """Print how much room frames take, before they fill the disk."""
    from ..extractor import profile_of  # imports torch

    for name, weights in extraction.weights.items():
        if name in FRAME_PROFILES or (is_hub_name(weights) and read_hub_name(weights).is_frames):
            say(f"note: {frames_size(profile_of(name, weights))}; --plan prints the total")


def _link_stores(settings: ExtractionSettings, address: str, *, dry_run: bool) -> None:
    for name in settings.store_names:
        folder, url = settings.folder.features(name), f"{address}/{name}"
        if not dry_run:
            RemoteStore(folder, checked_address(url, "--stores")).check()
            link_store(folder, url)
        elif remote_store(folder) is None:
            say(
                f"note: {folder} is not linked to {url} yet; features there are planned again; link it first "
                "(vlalign-store link)"
            )


def _report_fewer_thumbnails(extraction: Extraction, every_seconds: float) -> None:
    """Print the number of videos that keep thumbnails at larger intervals, since this call did not decode them."""
    from ...storage.stores.thumbnails import ThumbnailStore  # imports HDF5

    decoded = {task.video.video_id for task in extraction.tasks}
    thumbnails = ThumbnailStore(extraction.settings.folder.thumbnails)
    kept = [video.video_id for video in extraction.videos if video.video_id not in decoded]
    num_fewer = sum(
        bool((np.diff(thumbnails.seconds(video_id)) > every_seconds + SAME_SECONDS).any()) for video_id in kept
    )
    if num_fewer:
        say(
            f"note: --thumbnails-every {every_seconds:g}: {number_of(num_fewer, 'videos')} had all features before and "
            "keep their fewer thumbnails; to make more, extract other features of them, or use another --dataset"
        )


def _report_failed(pending: PendingWork, videos: Sequence[VideoRecord]) -> None:
    """Print how many videos failed for reasons of their own, and how many only could not be reached."""
    num_failed, unreached = 0, Counter()
    where: dict[bool, Path] = {}
    """The list of failures, by whether they are transient."""
    for video in videos:
        failures = {name: found for name in pending.features if (found := pending.failures[name].get(video.video_id))}
        for name, failure in failures.items():
            where.setdefault(is_transient(failure), pending.failures_file(name))
        if any(not is_transient(failure) for failure in failures.values()):
            num_failed += 1
        elif failures:
            unreached[next(iter(failures.values())).kind] += 1
    if unreached:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in unreached.most_common())
        say(
            f"{number_of(unreached.total(), 'videos')} could not be reached ({kinds}; see {where[True]}); run the same "
            "command again"
        )
    if num_failed:
        todo = "vlalign-extract --retry-failed tries failed videos again"
        say(f"{number_of(num_failed, 'videos')} failed (see {where[False]}); {todo}")


def summarize(extraction: Extraction) -> ExtractionResult:
    dataset, names = extraction.settings.folder, extraction.settings.store_names
    pending, videos = extraction.pending, extraction.videos
    failed = {video.video_id for video in videos if any(video.video_id in pending.failures[name] for name in names)}
    left = PendingWork(dataset, names) if extraction.tasks else pending
    untried: set[str] = set()
    if extraction.settings.retry_failed:
        untried = {task.video.video_id for task in left.tasks(videos, only_failed=False)} - failed
    num_complete = len(videos) - len(failed) - len(untried)
    say(f"{dataset.path}: {num_complete:,} of {len(videos):,} videos have features {','.join(names)}")
    if untried:
        say(f"{number_of(len(untried), 'videos')} not tried, {NOT_RETRIED}")
    stores = list(left.stores.values())
    partial = {
        video.video_id
        for video in videos
        for store in stores
        if video.video_id in store and store.partial(video.video_id)
    }
    if partial:
        say(
            f"{number_of(len(partial), 'videos')} partial or damaged; the stores list the missing parts "
            "(vlalign-store ls)"
        )
    _report_failed(pending, videos)
    num_accepted = sum(_is_accepted(extraction, video_id) for video_id in failed)
    num_accepted += len(partial) if extraction.settings.accepts(PARTIAL) else 0
    if num_accepted:
        kinds = " ".join(extraction.settings.accept_failures)
        say(f"note: {number_of(num_accepted, 'failed or partial videos')} accepted (--accept-failures {kinds})")
    tried = [task.video.video_id for task in extraction.tasks]
    return ExtractionResult(
        videos=videos,
        num_tried=len(extraction.tasks),
        num_complete=num_complete,
        num_partial=len(partial),
        num_problems=extraction.problems.count,
        num_accepted=num_accepted,
        extracted=[video_id for video_id in tried if video_id not in failed],
        failed=[video_id for video_id in tried if video_id in failed],
        num_untried=len(untried),
    )


def _is_accepted(extraction: Extraction, video_id: str) -> bool:
    """Return whether all failures of a video are accepted."""
    failures = [found for its in extraction.pending.failures.values() if (found := its.get(video_id))]
    return all(extraction.settings.accepts(failure.kind, transient=is_transient(failure)) for failure in failures)

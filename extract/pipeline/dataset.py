"""Extract the features of a data set: the Python call behind ``vlalign-extract``.

Imports nothing heavy: if nothing is left to do, it ends within a second.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...storage.common.problems import Problems
from ...storage.common.progress import Listener, report_progress_to
from ...storage.common.terminal import number_of, say
from ...storage.common.writing import check_folders
from ...storage.dataset.trusted_folders import allow_folder
from ...storage.records import VideoRecord
from ...storage.remote.links import checked_address
from ...storage.remote.store import RemoteStore, link_store, remote_store
from ..decoding import sandbox
from ..settings import ExtractionSettings
from ..videos.selection import choose_videos, render_missing
from .runner import LocalRunner, Runner
from .work_list import Todo, WorkList, is_transient


@dataclass(frozen=True, kw_only=True)
class ExtractionResult:
    """The result of an extraction."""

    videos: Sequence[VideoRecord]
    """All videos that were asked for."""
    num_tried: int
    """Videos that lacked features before."""
    num_complete: int
    """Videos that have all features now."""
    num_partial: int
    """Videos that are damaged or incomplete; their features are those of what remains."""
    num_problems: int

    @property
    def num_failed(self) -> int:
        """Videos that lack some features because they failed or could not be reached."""
        return len(self.videos) - self.num_complete

    @property
    def complete(self) -> bool:
        """True if all features of all videos exist, with no problems."""
        return not (self.num_failed or self.num_partial or self.num_problems)


@dataclass(frozen=True)
class Selection:
    """The videos of a call, and what is left to do for them."""

    videos: list[VideoRecord]
    work: WorkList
    todo: Todo
    weights: dict[str, str]
    """{features: weights} of the features that are needed."""


def extract_dataset(
    settings: ExtractionSettings, *, runner: Runner | None = None, on_progress: Listener | None = None
) -> ExtractionResult:
    """Extract the features that the videos of a data set lack, into its stores.

    Each video is decoded once for all of its features. A video that fails is recorded in ``failures.jsonl`` and the
    others go on; it is not tried again unless its file changes or ``settings.retry_failed`` is set. One that could not
    be reached, because of its server, the network or a disk, is tried again by the next call, after all new ones. If
    the call is interrupted, the next one goes on from there.

    Args:
        settings: What to extract, and how.
        runner: Where to run it (default: in this process).
        on_progress: Called with the progress of the work.

    Returns:
        How many videos are complete, partial and failed.

    Raises:
        UserError: A setting, the list of videos, or the weights cannot be used.
        OSError: A file cannot be written.
    """
    with report_progress_to(on_progress), Problems(file=settings.dataset.problems("extract")) as problems:
        selection = select_videos(settings, problems, dry_run=False)
        dataset, todo = settings.dataset, selection.todo
        if todo:
            if not settings.stores:  # else it was checked before it was linked
                for name in selection.weights:
                    if remote := remote_store(dataset.features(name)):
                        remote.check()
            if lacking := sandbox.missing_protections():
                say(f"note: decoders are confined less than they could be: this system has {'; '.join(lacking)}")
            (runner or LocalRunner()).extract(settings, selection.work, todo, selection.weights, problems)
            say(f"{dataset.path}: {number_of(len(todo), 'videos')} tried, {number_of(problems.count, 'problems')}")
        return _summary(settings, selection, problems)


def select_videos(settings: ExtractionSettings, problems: Problems, *, dry_run: bool) -> Selection:
    """Return the videos and what is left to do for them; link stores and render videos unless ``dry_run``."""
    dataset, names = settings.dataset, settings.names
    for folder in settings.allowed_folders:
        allow_folder(dataset, folder)
    if not dry_run:
        check_folders(*map(dataset.features, names), dataset.thumbnails)
    if settings.stores:
        _link_stores(settings, settings.stores, dry_run=dry_run)
    for name in names if not dry_run else []:
        if remote := remote_store(dataset.features(name)):
            remote.send()
    videos = choose_videos(settings, problems, dry_run=dry_run)
    if not dry_run:
        render_missing(dataset, videos)
    work = WorkList(dataset, names)
    todo = [(video, left) for video in videos if (left := work.left(video, only_failed=settings.retry_failed))]
    todo.sort(key=lambda one: any(one[0].video_id in work.failures[name] for name in one[1]))  # new videos first
    needed = {name for _, left in todo for name in left}
    return Selection(videos, work, todo, {name: settings.weights_of(name) for name in names if name in needed})


def _link_stores(settings: ExtractionSettings, address: str, *, dry_run: bool) -> None:
    for name in settings.names:
        folder, url = settings.dataset.features(name), f"{address}/{name}"
        if not dry_run:
            RemoteStore(folder, checked_address(url, "--stores")).check()
            link_store(folder, url)
        elif remote_store(folder) is None:
            say(
                f"note: {folder} is not linked to {url} yet; features that are already there are planned again "
                "(vlalign-store link)"
            )


def _say_failed(work: WorkList, videos: Sequence[VideoRecord]) -> None:
    """Print how many videos failed for reasons of their own, and how many only could not be reached."""
    num_failed, unreached = 0, Counter()
    where: dict[bool, Path] = {}
    """The list of failures, by whether they are transient."""
    for video in videos:
        failures = {name: found for name in work.features if (found := work.failures[name].get(video.video_id))}
        for name, failure in failures.items():
            where.setdefault(is_transient(failure), work.failures_file(name))
        if any(not is_transient(failure) for failure in failures.values()):
            num_failed += 1
        elif failures:
            unreached[next(iter(failures.values())).kind] += 1
    if unreached:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in unreached.most_common())
        say(
            f"{number_of(unreached.total(), 'videos')} could not be reached ({kinds}); {where[True]} says why; run the "
            "same command again"
        )
    if num_failed:
        say(f"{number_of(num_failed, 'videos')} failed; {where[False]} says why; --retry-failed tries again")


def _summary(settings: ExtractionSettings, selection: Selection, problems: Problems) -> ExtractionResult:
    dataset, names, work, videos = settings.dataset, settings.names, selection.work, selection.videos
    failed = {video.video_id for video in videos if any(video.video_id in work.failures[name] for name in names)}
    num_complete = len(videos) - len(failed)
    say(f"{dataset.path}: features {','.join(names)} of {num_complete:,} of {len(videos):,} videos are there")
    stores = list((WorkList(dataset, names) if selection.todo else work).stores.values())
    partial = {
        video.video_id
        for video in videos
        for store in stores
        if video.video_id in store and store.partial(video.video_id)
    }
    if partial:
        say(f"{number_of(len(partial), 'videos')} partial or damaged; the stores say what is missing")
    _say_failed(work, videos)
    return ExtractionResult(
        videos=videos,
        num_tried=len(selection.todo),
        num_complete=num_complete,
        num_partial=len(partial),
        num_problems=problems.count,
    )

"""The plan of an extraction, made without extracting: the Python call behind ``vlalign-extract --plan``."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...storage.common.problems import Problems
from ...storage.common.progress import Listener, progress, report_progress_to
from ...storage.common.terminal import say
from ...storage.records import Profile
from ...storage.remote.addresses import without_secrets
from ..decoding.errors import VideoError
from ..extractor import profile_of
from ..settings import ExtractionSettings
from .dataset import frames_size, prepare_extraction
from .download import Fetcher, fetch_now
from .pending_work import TRANSIENT, Extraction, VideoTask
from .probing import ProbedVideo, probe_videos
from .runner import LocalRunner, Runner, Speed
from .video_jobs import VideoJob

NUM_FETCHED = 8
"""Maximum number of videos downloaded from servers, to extrapolate from them."""
SHOTS_NOTE = "shots: counted as one a video; how many there are is known once a video is decoded"
ROW_OVERHEAD_BYTES = 8 + 8 + 4
"""Bytes of a feature vector's start, end and number of valid frames."""


@dataclass(frozen=True, kw_only=True)
class PlannedFeatures:
    """The feature vectors that an extraction would add to one store."""

    name: str
    num_videos: int
    hours: float
    num_rows: int
    megabytes: float
    note: str = ""
    """Disk space of frames (``frames_size``), or the reason why shots are not counted; empty for features."""


@dataclass(frozen=True, kw_only=True)
class PlannedAddresses:
    """The videos on servers, which are downloaded only when they are extracted."""

    num_videos: int
    num_bytes: int
    """Total size of the videos with a known size."""
    num_unsized: int
    """Number of videos with an unknown size."""
    hours: float | None
    """Hours of video, extrapolated; None if no video could be probed."""
    num_fetched: int
    """Videos that were downloaded and probed as a sample; 0 if the sample was videos on this machine."""


@dataclass(frozen=True, kw_only=True)
class ExtractionPlan:
    """The plan of an extraction.

    Example:
        >>> from vlalign.extract import ExtractionPlan
        >>> plan = ExtractionPlan(
        ...     num_left=2, num_probed=2, num_unreadable=0, features=[], hours=0.5, speed=None, num_problems=0
        ... )
        >>> plan.num_left, plan.hours
        (2, 0.5)
    """

    num_left: int
    """Videos that lack features."""
    num_probed: int
    """Probed videos: all on this machine, except videos that must be rendered first."""
    num_unreadable: int
    """Probed videos that cannot be read."""
    features: list[PlannedFeatures]
    """The rows that each store would get."""
    hours: float
    """Hours of video that can be read."""
    speed: Speed | None
    """None if there is nothing to measure it on."""
    num_problems: int
    """Number of problems, which were logged."""
    addresses: PlannedAddresses | None = None
    """None if all videos are on this machine."""


def plan_extraction(
    settings: ExtractionSettings, *, runner: Runner | None = None, on_progress: Listener | None = None
) -> ExtractionPlan:
    """Probe the videos that are left to extract, and measure the speed on a few of them.

    Writes nothing into the data set's folder: all problems are logged.

    Args:
        settings: What would be extracted, and how.
        runner: Where it would run (default: in this process).
        on_progress: Called with the progress of the work.

    Returns:
        The number of videos that are left, the rows and bytes that their features take, and the speed.

    Raises:
        UserError: A setting or the list of videos cannot be used.

    Example:
        >>> from pathlib import Path
        >>> from vlalign.extract import ExtractionSettings, plan_extraction
        >>> videos = Path("vlalign_data/demo/videos")
        >>> settings = ExtractionSettings(
        ...     dataset="vlalign_data/planned", features="clip_vit_b32_frames", videos=videos, device="cpu"
        ... )
        >>> plan = plan_extraction(settings)
        >>> plan.num_left, plan.num_unreadable, [planned.name for planned in plan.features]
        (2, 0, ['clip_vit_b32_frames'])
    """
    runner = runner or LocalRunner()
    with report_progress_to(on_progress), Problems() as problems:
        extraction = prepare_extraction(settings, problems, dry_run=True)
        paths = _paths_to_probe(extraction)
        remote = [task for task in extraction.tasks if task.video.url]
        needs_profiles = paths or remote
        profiles = [profile_of(name, weights) for name, weights in extraction.weights.items()] if needs_profiles else []
        answers = []
        if paths:
            probing = runner.probe(list(paths.items()), profiles)
            answers = list(progress(probing, total=len(paths), what="probing", unit="videos"))
        for video_id, answer in answers:
            _report(video_id, str(paths[video_id]), answer, problems)
        probed = [answer for _, answer in answers if not isinstance(answer, VideoError)]
        needed = {
            p.name: {task.video.video_id for task in extraction.tasks if p.name in task.features} for p in profiles
        }
        speed = runner.measure_speed(extraction, probed) if probed else None
        addresses = None
        if remote:
            sizes = {task.video.video_id: task.size for task in extraction.tasks}
            sample = [Sample(sizes[video.video_id], video.duration_seconds / 3600) for video in probed]
            num_fetched = 0
            if not sample:
                sample, speed = fetch_sample(extraction, remote, profiles, problems)
                num_fetched = len(sample)
            addresses = planned_addresses(remote, sample, num_fetched)
        return ExtractionPlan(
            num_left=len(extraction.tasks),
            num_probed=len(paths),
            num_unreadable=len(paths) - len(probed),
            features=[planned_features(profile, probed, needed[profile.name]) for profile in profiles],
            hours=sum(video.duration_seconds for video in probed) / 3600,
            speed=speed,
            num_problems=problems.count,
            addresses=addresses,
        )


def _paths_to_probe(extraction: Extraction) -> dict[str, Path]:
    """Return {video id: path} of the videos that exist on this machine."""
    dataset = extraction.settings.folder
    videos = [task.video for task in extraction.tasks]
    to_render = {video.video_id for video in videos if video.scene and not dataset.video_path(video).exists()}
    if to_render:
        say(f"note: {len(to_render):,} videos are rendered during extraction, and are not counted here")
    return {v.video_id: dataset.video_path(v) for v in videos if v.video_id not in to_render and not v.url}


def _report(video_id: str, path: str, answer: ProbedVideo | VideoError, problems: Problems) -> None:
    where = f"video {video_id!r}, {path}"
    if isinstance(answer, VideoError):
        problems.add(f"{where}: {answer.kind}: {answer}")
        return
    for name, error in answer.failures.items():
        problems.add(f"{where}: {name}: {error.kind}: {error}")
    if answer.missing:
        problems.add(f"{where}: partial: {answer.missing}")


class Sample(NamedTuple):
    """A video that was probed."""

    num_bytes: int
    hours: float


def fetch_sample(
    extraction: Extraction, remote: Sequence[VideoTask], profiles: Sequence[Profile], problems: Problems
) -> tuple[list[Sample], Speed | None]:
    """Download a few videos, one after the other, probe them here, and measure the speed on the first.

    After a video that cannot be reached, no more are tried.

    Args:
        extraction: The planned extraction.
        remote: The pending videos on servers.
        profiles: The profiles of the features.
        problems: Receives videos that cannot be downloaded or read.
    """
    sample: list[Sample] = []
    speed = None
    fetcher = Fetcher(allowed_hosts=extraction.settings.allow_host)
    some = remote[:: math.ceil(len(remote) / NUM_FETCHED)]
    try:
        for task in progress(some, total=len(some), what="downloading a sample", unit="videos"):
            job = fetch_now(fetcher, VideoJob(task.video.video_id, Path(), [], url=task.video.url))
            answer = next(probe_videos([(job.video_id, job.path)], profiles, 1))[1]
            num_bytes = job.path.stat().st_size if job.path.exists() else 0
            if speed is None and not isinstance(answer, VideoError):
                speed = LocalRunner().measure_speed(extraction, [answer])
            failure = fetcher.done(job)
            answer = failure or answer
            _report(job.video_id, without_secrets(job.url), answer, problems)
            if not isinstance(answer, VideoError):
                sample.append(Sample(num_bytes, answer.duration_seconds / 3600))
            elif answer.kind in TRANSIENT:
                break
    finally:
        fetcher.close()
    return sample, speed


def planned_addresses(remote: Sequence[VideoTask], sample: Sequence[Sample], num_fetched: int) -> PlannedAddresses:
    """Extrapolate from a sample: by bytes where the size is known, or else by the mean length.

    Args:
        remote: The pending videos on servers.
        sample: Videos whose length is known.
        num_fetched: Number of videos downloaded for the sample.
    """
    num_bytes, num_unsized = sum(task.size for task in remote), sum(not task.size for task in remote)
    of_sample, hours = sum(each.num_bytes for each in sample), sum(each.hours for each in sample)
    total = num_bytes * hours / of_sample + num_unsized * hours / len(sample) if of_sample else None
    return PlannedAddresses(
        num_videos=len(remote), num_bytes=num_bytes, num_unsized=num_unsized, hours=total, num_fetched=num_fetched
    )


def planned_features(profile: Profile, probed: Sequence[ProbedVideo], needed: set[str]) -> PlannedFeatures:
    """Add up a profile's feature vectors for the videos whose ids are ``needed``."""
    videos = [video for video in probed if video.video_id in needed and profile.name in video.num_rows]
    num_rows = sum(video.num_rows[profile.name] for video in videos)
    return PlannedFeatures(
        name=profile.name,
        num_videos=len(videos),
        hours=sum(video.duration_seconds for video in videos) / 3600,
        num_rows=num_rows,
        megabytes=num_rows * (profile.row_bytes + ROW_OVERHEAD_BYTES) / 1e6,
        note=frames_size(profile) if profile.is_frames else SHOTS_NOTE if profile.is_shots else "",
    )

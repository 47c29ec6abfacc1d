"""The plan of an extraction, made without extracting: the Python call behind ``vlalign-extract --plan``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...storage.common.problems import Problems
from ...storage.common.progress import Listener, progress, report_progress_to
from ...storage.common.terminal import say
from ...storage.records import Profile
from ..decoding.errors import VideoError
from ..extractor import profile_of
from ..settings import ExtractionSettings
from .dataset import prepare_extraction
from .pending_work import Extraction
from .probing import ProbedVideo
from .runner import LocalRunner, Runner, Speed

ROW_OVERHEAD_BYTES = 8 + 8 + 4
"""Start, end and valid frames of a row, beside its float16 features."""


@dataclass(frozen=True, kw_only=True)
class PlannedFeatures:
    """The rows that an extraction would add to one store."""

    name: str
    num_videos: int
    hours: float
    num_rows: int
    megabytes: float


@dataclass(frozen=True, kw_only=True)
class ExtractionPlan:
    """The plan of an extraction."""

    num_probed: int
    """Videos that were probed; those that are yet to be rendered or downloaded are not."""
    num_unreadable: int
    features: list[PlannedFeatures]
    hours: float
    """Hours of video that can be read."""
    speed: Speed | None
    """None if there is nothing to measure it on."""
    num_problems: int


def plan_extraction(
    settings: ExtractionSettings, *, runner: Runner | None = None, on_progress: Listener | None = None
) -> ExtractionPlan:
    """Probe the videos that are left to extract, and measure the speed on a few of them.

    Writes nothing into the data set's folder: all problems are logged.

    Args:
        settings: What would be extracted, and how.
        runner: Where it would run (default: in this process).
        on_progress: Called with the progress of the work.

    Raises:
        UserError: A setting or the list of videos cannot be used.
    """
    runner = runner or LocalRunner()
    with report_progress_to(on_progress), Problems() as problems:
        extraction = prepare_extraction(settings, problems, dry_run=True)
        paths = _paths_to_probe(extraction)
        profiles = [profile_of(name, weights) for name, weights in extraction.weights.items()] if paths else []
        answers = []
        if paths:
            probing = runner.probe(list(paths.items()), profiles)
            answers = list(progress(probing, total=len(paths), what="probing", unit="videos"))
        for video_id, answer in answers:
            _report(video_id, paths[video_id], answer, problems)
        probed = [answer for _, answer in answers if not isinstance(answer, VideoError)]
        needed = {
            p.name: {task.video.video_id for task in extraction.tasks if p.name in task.features} for p in profiles
        }
        return ExtractionPlan(
            num_probed=len(paths),
            num_unreadable=len(paths) - len(probed),
            features=[planned_features(profile, probed, needed[profile.name]) for profile in profiles],
            hours=sum(video.duration_seconds for video in probed) / 3600,
            speed=runner.measure_speed(extraction, probed) if probed else None,
            num_problems=problems.count,
        )


def _paths_to_probe(extraction: Extraction) -> dict[str, Path]:
    """Return {video id: path} of the videos that exist on this machine."""
    dataset = extraction.settings.folder
    videos = [task.video for task in extraction.tasks]
    to_render = {video.video_id for video in videos if video.scene and not dataset.video_path(video).exists()}
    if to_render:
        say(f"note: {len(to_render):,} videos are rendered only when they are extracted, and not counted here")
    if num_remote := sum(bool(video.url) for video in videos):
        say(f"note: {num_remote:,} videos are downloaded only when they are extracted, and not counted here")
    return {v.video_id: dataset.video_path(v) for v in videos if v.video_id not in to_render and not v.url}


def _report(video_id: str, path: Path, answer: ProbedVideo | VideoError, problems: Problems) -> None:
    where = f"video {video_id!r}, {path}"
    if isinstance(answer, VideoError):
        problems.add(f"{where}: {answer.kind}: {answer}")
        return
    for name, error in answer.failures.items():
        problems.add(f"{where}: {name}: {error.kind}: {error}")
    if answer.missing:
        problems.add(f"{where}: partial: {answer.missing}")


def planned_features(profile: Profile, probed: Sequence[ProbedVideo], needed: set[str]) -> PlannedFeatures:
    """Add up the rows that a profile will have of the videos whose ids are ``needed``."""
    videos = [video for video in probed if video.video_id in needed and profile.name in video.num_rows]
    num_rows = sum(video.num_rows[profile.name] for video in videos)
    return PlannedFeatures(
        name=profile.name,
        num_videos=len(videos),
        hours=sum(video.duration_seconds for video in videos) / 3600,
        num_rows=num_rows,
        megabytes=num_rows * (2 * profile.dimension + ROW_OVERHEAD_BYTES) / 1e6,
    )

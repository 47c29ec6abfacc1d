"""A check whether this machine can read some videos."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...storage.profiles import PROFILES
from ..decoding.errors import NOT_OF_THE_VIDEO, VideoError
from ..settings import WorkerSettings
from .download import Fetcher, fetch_now
from .pending_work import VideoTask
from .probing import probe_videos
from .video_jobs import VideoJob

OF_ANOTHER_KIND = ("no_video", "no_sound")
"""Kinds of failures of an intact file that has no frames, or no sound."""
GONE = "gone"
"""Kind of error for a missing file in a folder that has other files."""
PROFILE = PROFILES["resnet152"]
"""An arbitrary profile of frames: probing needs one, since it counts feature vectors."""


def first_readable(worker: WorkerSettings, tasks: Sequence[VideoTask], *, are_good: bool) -> tuple[str, str]:
    """Return the id of the first readable video.

    A video is fetched and opened by a decoder, as for an extraction; its frames are not decoded.

    Args:
        worker: Data set, and hosts that videos may be fetched from.
        tasks: The videos.
        are_good: True if they were extracted before: any error is then caused by the place.

    Returns:
        (id, reason): the id is "" if none can be read; the reason is "" if their place can be read.
    """
    problem = ""
    with ThreadPoolExecutor(max(len(tasks), 1)) as pool:  # a silent server takes minutes for each
        errors = list(pool.map(lambda task: _problem_of(worker, task), tasks))
    for task, error in zip(tasks, errors, strict=True):
        if error is None or error.kind in OF_ANOTHER_KIND:
            return task.video.video_id, ""
        if not are_good and error.kind not in NOT_OF_THE_VIDEO:
            return "", ""
        problem = f"{error.kind}: {error}"
    return "", problem


def _problem_of(worker: WorkerSettings, task: VideoTask) -> VideoError | None:
    video = task.video
    if not video.url:
        error = _probe(worker.dataset.video_path(video))
        return VideoError(GONE, str(error)) if error and error.kind == "missing" else error
    fetcher = Fetcher(allowed_hosts=worker.allowed_hosts)
    try:
        job = fetch_now(fetcher, VideoJob(video.video_id, worker.dataset.path, [], url=video.url))
        error = _probe(job.path)
        return fetcher.done(job) or error
    finally:
        fetcher.close()


def _probe(path: Path) -> VideoError | None:
    ((_, answer),) = probe_videos([("", path)], [PROFILE], 1)
    return answer if isinstance(answer, VideoError) else None

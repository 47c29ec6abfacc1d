"""A check whether this machine can read some videos."""

import os
from collections.abc import Sequence
from pathlib import Path

from ...storage.profiles import PROFILES
from ..decoding.errors import TRANSIENT, VideoError
from ..settings import WorkerSettings
from .download import Fetcher
from .engine import RETRY_KINDS
from .pending_work import VideoTask
from .probing import probe_videos
from .video_jobs import VideoJob

NOT_OF_THE_VIDEO = (*TRANSIENT, *RETRY_KINDS, "missing")
"""Kinds of failures that may be the machine's or the network's. With others, the file was read and found wanting."""
PROFILE = PROFILES["resnet152"]
"""Any profile of frames: probing counts its rows."""


def first_readable(worker: WorkerSettings, tasks: Sequence[VideoTask]) -> tuple[str, str]:
    """Return the id of the first of some videos that can be read here, and why the last one before it cannot.

    A video is fetched and opened by a decoder, as for an extraction; its frames are not decoded.

    Args:
        worker: Data set, and hosts that videos may be fetched from.
        tasks: The videos.

    Returns:
        The id, or "" if none can be read; and the reason, or "".
    """
    problem = ""
    for task in tasks:
        error = _problem_of(worker, task)
        if error is None or error.kind not in NOT_OF_THE_VIDEO:
            return task.video.video_id, problem
        problem = f"{error.kind}: {error}"
    return "", problem


def _problem_of(worker: WorkerSettings, task: VideoTask) -> VideoError | None:
    video = task.video
    if not video.url:
        path = worker.dataset.video_path(video)
        error = _probe(path)
        return VideoError(error.kind, _why_missing(path.parent)) if error and error.kind == "missing" else error
    fetcher = Fetcher(allowed_hosts=worker.allowed_hosts)
    try:
        job = next(
            job for job in fetcher.jobs([VideoJob(video.video_id, worker.dataset.path, [], url=video.url)]) if job
        )
        error = _probe(job.path)
        return fetcher.done(job) or error
    finally:
        fetcher.close()


def _why_missing(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is not there; is it mounted?"
    with os.scandir(folder) as entries:
        return "no such file" if any(entries) else f"{folder} is empty; is it mounted?"


def _probe(path: Path) -> VideoError | None:
    ((_, answer),) = probe_videos([("", path)], [PROFILE], 1)
    return answer if isinstance(answer, VideoError) else None

"""The speed of an extraction, measured on the beginnings of a few videos."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...storage.common.errors import UserError
from ...storage.common.progress import progress
from ...storage.common.terminal import say
from ...storage.hub.names import is_hub_name
from ..decoding.errors import VideoError
from ..encoders.custom import is_custom_encoder
from ..extractor import Extractor, load_extractor
from ..settings import WorkerSettings
from .engine import extract_videos
from .probing import ProbedVideo
from .store_extractor import make_extractor
from .video_jobs import VideoJob

SAMPLE_VIDEOS = 3
SAMPLE_SECONDS = 10.0
WARM_UP_SECONDS = 2.0


def measure_worker_speed(worker: WorkerSettings, probed: Sequence[ProbedVideo]) -> float:
    """Measure the speed of one worker, with random weights if its own cannot be loaded.

    Args:
        worker: Device, weights and cores.
        probed: Videos to measure with.

    Returns:
        Seconds of video that are extracted in a second.
    """
    if worker.device == "cpu" and worker.num_cores:
        torch.set_num_threads(worker.num_cores)
    extractors = []
    how: Mapping[str, Any] = {"device": worker.device, "precision": worker.precision, "decoding": worker.decoding}
    for name, chosen in worker.weights.items():
        try:
            extractor = make_extractor(worker, name)
        except UserError as error:
            if is_hub_name(chosen) or is_custom_encoder(chosen):
                raise
            say(f"note: {error}")
            say(f"note: the speed of {name} is measured with random weights")
            extractor = load_extractor(name, weights="random", **how)
        extractors.append(extractor)
    return measure_speed(probed, extractors, num_cores=worker.num_cores)


def measure_speed(
    videos: Sequence[ProbedVideo], extractors: Sequence[Extractor], *, num_cores: int | None = None
) -> float:
    """Return the seconds of video that are extracted in a second, measured on the beginnings of a few videos."""
    indices = sorted({len(videos) // 2, 0, len(videos) - 1})[:SAMPLE_VIDEOS]
    warm_up = VideoJob("warm-up", videos[0].path, extractors, WARM_UP_SECONDS)
    jobs = [VideoJob(videos[index].video_id, videos[index].path, extractors, SAMPLE_SECONDS) for index in indices]
    started, seconds = None, 0.0
    for job, result in progress(
        extract_videos([warm_up, *jobs], extractors, num_cores=num_cores),
        total=1 + len(jobs),
        what="measuring",
        unit="videos",
    ):
        if job is warm_up:
            started = time.monotonic()
        elif not isinstance(result, VideoError):
            seconds += next(iter(result.features.values())).duration_seconds
    return seconds / max(time.monotonic() - (started or 0.0), 1e-9)

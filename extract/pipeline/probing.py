"""Facts about videos and the speed of their extraction, found by decoding as little as possible."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from ...storage.common.errors import UserError
from ...storage.common.progress import progress
from ...storage.common.terminal import say
from ...storage.hub.names import is_hub_name
from ...storage.records import Profile
from ..decoding.errors import VideoError
from ..decoding.messages import InvalidMessage, Request, SoundFailed, SoundProbed, VideoProbed
from ..decoding.process import DecodeProcess
from ..decoding.sampling import num_windows
from ..encoders.custom import is_custom_encoder
from ..extractor import Extractor, load_extractor
from ..settings import ExtractionSettings
from .engine import extract_videos
from .jobs import Job, frame_spec_of
from .store_extractor import make_extractor

SAMPLE_VIDEOS = 3
SAMPLE_SECONDS = 10.0
WARM_UP_SECONDS = 2.0
LOOK_SECONDS = 1.0
"""How often silent decoders are looked for."""


@dataclass(frozen=True)
class Probed:
    """Facts about a video, and the number of rows that each profile will have of it."""

    video_id: str
    path: Path
    duration_seconds: float
    num_rows: dict[str, int]
    """By name of the profile."""
    failures: dict[str, VideoError]
    """Why there will be no rows of the other profiles."""
    missing: str
    """The parts that are missing in the file; empty if it is complete."""


def probe_videos(
    videos: Sequence[tuple[str, Path]], profiles: Sequence[Profile], num_processes: int
) -> Iterator[tuple[str, Probed | VideoError]]:
    """Yield (id, what is in it or why it cannot be read) for each video, in the order in which they are done.

    Args:
        videos: (id, path) of each.
        profiles: The profiles whose rows are counted.
        num_processes: Number of decoders that probe at once.
    """
    left = list(videos)[::-1]
    busy: dict[DecodeProcess, _Probing] = {}
    try:
        while left or busy:
            while left and len(busy) < num_processes:
                process = DecodeProcess()
                busy[process] = _Probing(*left.pop(), profiles, process)
            ready = wait([process.connection for process in busy], LOOK_SECONDS)
            for process in [p for p in busy if p.connection in ready or p.is_silent]:
                probing = busy[process]
                if (answer := probing.take(process)) is None:
                    continue
                if left and process.usable:
                    busy[process] = _Probing(*left.pop(), profiles, process)
                else:
                    del busy[process]
                    process.close()
                yield probing.video_id, answer
    finally:
        for process in busy:
            process.close()


class _Probing:
    """A video that a decoder process is probing."""

    def __init__(self, video_id: str, path: Path, profiles: Sequence[Profile], process: DecodeProcess) -> None:
        self.video_id = video_id
        self._pictures = [profile for profile in profiles if profile.modality == "pictures"]
        self._sound = next((profile.name for profile in profiles if profile.modality == "sound"), "")
        self._so_far = Probed(video_id, path, 0.0, {}, {}, "")
        specs = [frame_spec_of(profile) for profile in self._pictures]
        process.start(Request(str(path), specs, sound=bool(self._sound), only_probe=True))

    def take(self, process: DecodeProcess) -> Probed | VideoError | None:
        """Take the next message; return the answer once it is complete."""
        try:
            message = process.receive()
        except VideoError as error:
            if not self._so_far.num_rows:
                return error
            return replace(self._so_far, failures={profile.name: error for profile in self._pictures})
        if isinstance(message, SoundFailed):
            failures = {self._sound: VideoError(message.kind, message.words)}
            self._so_far = replace(self._so_far, failures=failures)
        elif isinstance(message, SoundProbed):
            num_rows = {self._sound: message.num_rows}
            self._so_far = replace(self._so_far, duration_seconds=message.duration_seconds, num_rows=num_rows)
            return None if self._pictures else self._so_far
        elif isinstance(message, VideoProbed):
            return self._with_pictures(message, process)
        return None

    def _with_pictures(self, message: VideoProbed, process: DecodeProcess) -> Probed | VideoError:
        if len(message.num_frames) != len(self._pictures):
            return process.refused(InvalidMessage("frames of other features"))
        rows = {
            profile.name: num_windows(num_frames, profile.window, profile.stride)
            for profile, num_frames in zip(self._pictures, message.num_frames, strict=True)
        }
        return replace(
            self._so_far,
            duration_seconds=message.duration_seconds,
            num_rows=self._so_far.num_rows | rows,
            missing=message.missing,
        )


def measure_speed_with(
    settings: ExtractionSettings, probed: Sequence[Probed], weights: Mapping[str, str], *, device: str, num_cores: int
) -> float:
    """Measure the speed of one device with ``weights``, by features, or with random weights where they cannot be
    loaded.

    Args:
        settings: What to extract.
        probed: Videos to measure with.
        weights: {features: weights}
        device: Name of the device.
        num_cores: Cores for decoders and, on a CPU, networks.

    Returns:
        Seconds of video that are extracted in a second.
    """
    if device == "cpu":
        torch.set_num_threads(num_cores)
    extractors = []
    how: Mapping[str, Any] = {"device": device, "precision": settings.precision, "decoding": settings.decoding}
    for name, chosen in weights.items():
        try:
            extractor = make_extractor(settings.dataset, name, chosen, **how)
        except UserError as error:
            if is_hub_name(chosen) or is_custom_encoder(chosen):
                raise
            say(f"note: {error}")
            say(f"note: the speed of {name} is measured with random weights")
            extractor = load_extractor(name, weights="random", **how)
        extractors.append(extractor)
    return measure_speed(probed, extractors, num_cores=num_cores)


def measure_speed(videos: Sequence[Probed], extractors: Sequence[Extractor], *, num_cores: int | None = None) -> float:
    """Return the seconds of video that are extracted in a second, measured on the beginnings of a few videos."""
    indices = sorted({len(videos) // 2, 0, len(videos) - 1})[:SAMPLE_VIDEOS]
    warm_up = Job("warm-up", videos[0].path, extractors, WARM_UP_SECONDS)
    jobs = [Job(videos[index].video_id, videos[index].path, extractors, SAMPLE_SECONDS) for index in indices]
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

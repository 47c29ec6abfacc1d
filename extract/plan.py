"""What an extraction would do, found out without doing it: ``vlalign-extract --plan``."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from ..storage.console import progress
from ..storage.records import Profile
from .decode_process import DecodeProcess
from .engine import Job, extract_videos, wanted_of
from .extractor import Extractor
from .probe import VideoError

BYTES_OF_A_ROW = 8 + 8 + 4
"""Beside its float16 features: start, end, valid frames."""
SAMPLE_VIDEOS = 3
SAMPLE_SECONDS = 10.0
WARM_UP_SECONDS = 2.0


@dataclass(frozen=True)
class Probed:
    """What is in a video, and how many frames each profile takes of it."""

    video_id: str
    path: Path
    duration_seconds: float
    num_frames: list[int]
    missing: str


def probe_videos(
    videos: Sequence[tuple[str, Path]], profiles: Sequence[Profile], num_processes: int
) -> Iterator[tuple[str, Probed | VideoError]]:
    """(id, what is in it or why it cannot be read) of each video, in the order in which they are done; ``num_processes`` at once."""
    wanted = [wanted_of(profile) for profile in profiles]
    left = list(videos)[::-1]
    busy: dict[DecodeProcess, tuple[str, Path]] = {}
    try:
        while left or busy:
            while left and len(busy) < num_processes:
                process = DecodeProcess()
                busy[process] = left.pop()
                process.start(busy[process][1], wanted, only_probe=True)
            ready = wait([process.connection for process in busy])
            for process in [p for p in busy if p.connection in ready]:
                video_id, path = busy[process]
                try:
                    message = process.receive()
                    if message["what"] == "beat":
                        continue
                    answer = Probed(video_id, path, message["duration_seconds"], message["num_frames"], message["missing"])
                except VideoError as error:
                    answer = error
                if left and process.usable:
                    busy[process] = left.pop()
                    process.start(busy[process][1], wanted, only_probe=True)
                else:
                    del busy[process]
                    process.close()
                yield video_id, answer
    finally:
        for process in busy:
            process.close()


def measure_speed(videos: Sequence[Probed], extractors: Sequence[Extractor]) -> float:
    """Seconds of video that are extracted in a second, on the beginnings of a few of ``videos``."""
    places = sorted({len(videos) // 2, 0, len(videos) - 1})[:SAMPLE_VIDEOS]
    warm_up = Job("warm-up", videos[0].path, extractors, WARM_UP_SECONDS)
    jobs = [Job(videos[place].video_id, videos[place].path, extractors, SAMPLE_SECONDS) for place in places]
    started, seconds = None, 0.0
    for job, result in progress(extract_videos([warm_up, *jobs], extractors), total=1 + len(jobs), what="measuring", unit="videos"):
        if job is warm_up:
            started = time.monotonic()
        elif not isinstance(result, VideoError):
            seconds += next(iter(result.features.values())).duration_seconds
    return seconds / max(time.monotonic() - (started or 0.0), 1e-9)


def planned_table(probed: Sequence[Probed], profiles: Sequence[Profile], needed: dict[str, set[str]]) -> list[str]:
    """Lines that say what each profile will give. ``needed``: {features: ids of the videos that they are still missing of}."""
    lines = [f"{'features':<16}{'videos':>10}{'hours':>10}{'rows':>14}{'MB':>12}"]
    for place, profile in enumerate(profiles):
        chosen = [video for video in probed if video.video_id in needed[profile.name]]
        rows = sum(math.ceil(video.num_frames[place] / profile.window) for video in chosen)
        hours = sum(video.duration_seconds for video in chosen) / 3600
        megabytes = rows * (2 * profile.dimension + BYTES_OF_A_ROW) / 1e6
        lines.append(f"{profile.name:<16}{len(chosen):>10,}{hours:>10,.2f}{rows:>14,}{megabytes:>12,.1f}")
    return lines

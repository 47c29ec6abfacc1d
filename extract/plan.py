"""What an extraction would do, found out without doing it: ``vlalign-extract --plan``."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path

from ..storage.common.progress import progress
from ..storage.profiles import LOGMEL
from ..storage.records import Profile
from .decoding.messages import Nonsense, PicturesProbed, SoundProbed, Unheard
from .decoding.probe import VideoError
from .decoding.process import DecodeProcess
from .decoding.sampling import num_windows
from .engine import Job, extract_videos, wanted_of
from .extractor import Extractor

BYTES_OF_A_ROW = 8 + 8 + 4
"""Beside its float16 features: start, end, valid frames."""
SAMPLE_VIDEOS = 3
SAMPLE_SECONDS = 10.0
WARM_UP_SECONDS = 2.0


@dataclass(frozen=True)
class Probed:
    """What is in a video, and how many rows each profile will have of it."""

    video_id: str
    path: Path
    duration_seconds: float
    num_rows: dict[str, int]
    failures: dict[str, VideoError]
    """Why there will be none of the other profiles."""
    missing: str


def probe_videos(
    videos: Sequence[tuple[str, Path]], profiles: Sequence[Profile], num_processes: int
) -> Iterator[tuple[str, Probed | VideoError]]:
    """(id, what is in it or why it cannot be read) of each video, in the order in which they are done; ``num_processes`` at once."""
    left = list(videos)[::-1]
    busy: dict[DecodeProcess, _Probing] = {}
    try:
        while left or busy:
            while left and len(busy) < num_processes:
                process = DecodeProcess()
                busy[process] = _Probing(*left.pop(), profiles, process)
            ready = wait([process.connection for process in busy])
            for process in [p for p in busy if p.connection in ready]:
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
    """A video that a child looks at."""

    def __init__(self, video_id: str, path: Path, profiles: Sequence[Profile], process: DecodeProcess) -> None:
        self.video_id, self.path = video_id, path
        self.pictured = [profile for profile in profiles if profile.name != LOGMEL]
        self.sound = len(self.pictured) < len(profiles)
        self.heard = Probed(video_id, path, 0.0, {}, {}, "")
        process.start(path, [wanted_of(profile) for profile in self.pictured], sound=self.sound, only_probe=True)

    def take(self, process: DecodeProcess) -> Probed | VideoError | None:
        """The next thing that the child says; the answer, once it is whole."""
        try:
            message = process.receive()
        except VideoError as error:
            if not self.heard.num_rows:
                return error
            return replace(self.heard, failures={profile.name: error for profile in self.pictured})
        if isinstance(message, Unheard):
            self.heard = replace(self.heard, failures={LOGMEL: VideoError(message.kind, message.words)})
        elif isinstance(message, SoundProbed):
            self.heard = replace(
                self.heard, duration_seconds=message.duration_seconds, num_rows={LOGMEL: message.num_rows}
            )
            return None if self.pictured else self.heard
        elif isinstance(message, PicturesProbed):
            if len(message.num_frames) != len(self.pictured):
                return process.refused(Nonsense("frames of other features"))
            rows = {
                p.name: num_windows(n, p.window, p.stride)
                for p, n in zip(self.pictured, message.num_frames, strict=True)
            }
            seconds = message.duration_seconds
            return replace(
                self.heard, duration_seconds=seconds, num_rows=self.heard.num_rows | rows, missing=message.missing
            )
        return None


def measure_speed(videos: Sequence[Probed], extractors: Sequence[Extractor]) -> float:
    """Seconds of video that are extracted in a second, on the beginnings of a few of ``videos``."""
    places = sorted({len(videos) // 2, 0, len(videos) - 1})[:SAMPLE_VIDEOS]
    warm_up = Job("warm-up", videos[0].path, extractors, WARM_UP_SECONDS)
    jobs = [Job(videos[place].video_id, videos[place].path, extractors, SAMPLE_SECONDS) for place in places]
    started, seconds = None, 0.0
    for job, result in progress(
        extract_videos([warm_up, *jobs], extractors), total=1 + len(jobs), what="measuring", unit="videos"
    ):
        if job is warm_up:
            started = time.monotonic()
        elif not isinstance(result, VideoError):
            seconds += next(iter(result.features.values())).duration_seconds
    return seconds / max(time.monotonic() - (started or 0.0), 1e-9)


def planned_table(probed: Sequence[Probed], profiles: Sequence[Profile], needed: dict[str, set[str]]) -> list[str]:
    """Lines that say what each profile will give. ``needed``: {features: ids of the videos that they are still missing of}."""
    lines = [f"{'features':<16}{'videos':>10}{'hours':>10}{'rows':>14}{'MB':>12}"]
    for profile in profiles:
        chosen = [
            video for video in probed if video.video_id in needed[profile.name] and profile.name in video.num_rows
        ]
        rows = sum(video.num_rows[profile.name] for video in chosen)
        hours = sum(video.duration_seconds for video in chosen) / 3600
        megabytes = rows * (2 * profile.dimension + BYTES_OF_A_ROW) / 1e6
        lines.append(f"{profile.name:<16}{len(chosen):>10,}{hours:>10,.2f}{rows:>14,}{megabytes:>12,.1f}")
    return lines

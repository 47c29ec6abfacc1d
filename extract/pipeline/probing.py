"""Facts about videos, such as the number of their features, found by decoding as little as possible."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path

from ...storage.records import Profile
from ..decoding.errors import VideoError
from ..decoding.messages import InvalidMessage, Request, SoundFailed, SoundProbed, VideoProbed
from ..decoding.process import DecodeProcess
from ..decoding.sampling import num_windows
from .video_jobs import frame_spec_of

POLL_SECONDS = 1.0
"""Time between checks for silent decoders."""


@dataclass(frozen=True)
class ProbedVideo:
    """Facts about a video, and the number of its feature vectors for each profile."""

    video_id: str
    path: Path
    duration_seconds: float
    num_rows: dict[str, int]
    """{profile: number}; 1 for shots, whose number is known only after decoding."""
    failures: dict[str, VideoError]
    """{profile: reason why it has no feature vectors}."""
    missing: str
    """The parts that are missing in the file; empty if it is complete."""


def probe_videos(
    videos: Sequence[tuple[str, Path]], profiles: Sequence[Profile], num_processes: int
) -> Iterator[tuple[str, ProbedVideo | VideoError]]:
    """Yield (id, facts or failure) for each video, in order of completion.

    Args:
        videos: (id, path) of each video.
        profiles: The profiles whose feature vectors are counted.
        num_processes: Number of decoders that probe at once.
    """
    left = list(videos)[::-1]
    busy: dict[DecodeProcess, _Probing] = {}
    try:
        while left or busy:
            while left and len(busy) < num_processes:
                process = DecodeProcess()
                busy[process] = _Probing(*left.pop(), profiles, process)
            ready = wait([process.connection for process in busy], POLL_SECONDS)
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
        self._frame_profiles = [p for p in profiles if p.modality == "frames" and not p.is_shots]
        self._shots = [profile.name for profile in profiles if profile.is_shots]
        self._sound = next((profile.name for profile in profiles if profile.modality == "sound"), "")
        self._so_far = ProbedVideo(video_id, path, 0.0, {}, {}, "")
        specs = [frame_spec_of(profile) for profile in self._frame_profiles]
        process.start(Request(str(path), specs, sound=bool(self._sound), shots=bool(self._shots), only_probe=True))

    def take(self, process: DecodeProcess) -> ProbedVideo | VideoError | None:
        """Take the next message; return the answer once it is complete."""
        try:
            message = process.receive()
        except VideoError as error:
            if not self._so_far.num_rows:
                return error
            names = [*(profile.name for profile in self._frame_profiles), *self._shots]
            return replace(self._so_far, failures=dict.fromkeys(names, error))
        if isinstance(message, SoundFailed):
            failures = {self._sound: VideoError(message.kind, message.words)}
            self._so_far = replace(self._so_far, failures=failures)
        elif isinstance(message, SoundProbed):
            num_rows = {self._sound: message.num_rows}
            self._so_far = replace(self._so_far, duration_seconds=message.duration_seconds, num_rows=num_rows)
            return None if self._frame_profiles or self._shots else self._so_far
        elif isinstance(message, VideoProbed):
            return self._with_frame_counts(message, process)
        return None

    def _with_frame_counts(self, message: VideoProbed, process: DecodeProcess) -> ProbedVideo | VideoError:
        if len(message.num_frames) != len(self._frame_profiles):
            return process.refused(InvalidMessage("frames of other features"))
        rows = {
            profile.name: num_windows(num_frames, profile.window, profile.stride)
            for profile, num_frames in zip(self._frame_profiles, message.num_frames, strict=True)
        }
        rows |= dict.fromkeys(self._shots, 1)
        return replace(
            self._so_far,
            duration_seconds=message.duration_seconds,
            num_rows=self._so_far.num_rows | rows,
            missing=message.missing,
        )

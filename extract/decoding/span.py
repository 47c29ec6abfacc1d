"""The frames of a part of a video, read from its packets, for editors and for clip files.

The first frame is the one shown at the start: the last frame that is not later, or the first of the video. The end is
exclusive: a frame at the end time or later is not in the part.

    frames at 0, 0.04, 0.08, 0.12, 0.16, part 0.05 to 0.12  ->  frames at 0.04 and 0.08, shown until 0.12
"""

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.container import InputContainer

from .container import as_fraction, context_of, open_video, ticks_of_frame, video_stream
from .decode import SAME_SECONDS
from .errors import VideoError
from .images import is_image
from .probe import VideoInfo, probe_video
from .single_frame import ENTERED_CONTAINERS, OpenVideo, Start
from .webm_clip import SEEK_BACK_SECONDS

NOT_COPIED = "it has no earlier key frame, or no packets, that can be copied to another file; request an exact clip"
UNTIMED_CONTAINERS = {
    "avi",
    "h264",
    "hevc",
    "m4v",
    "mpegvideo",
    "dv",
    "yuv4mpegpipe",
    "gif",
    "apng",
    "obu",
    "ivf",
    "rm",
    "mxf",
}
"""Containers whose packets lack the display times of some frames."""
MP4_CODECS = {"h264", "hevc", "av1", "vp9", "mpeg4", "aac", "mp3", "ac3", "eac3", "opus", "flac", "alac"}
"""Codecs that players read from an MP4. Other codecs stay in a QuickTime movie or are copied into a Matroska file."""


@dataclass(frozen=True)
class SpanProbed:
    """The facts about a part of a video, and about the whole video, that editors need.

    Times are on the clock of feature vectors.
    """

    rate_numerator: int
    """Average frames a second that the file states, as a fraction over ``rate_denominator``."""
    rate_denominator: int
    zero_seconds: float
    """Time of the video's first frame."""
    start_seconds: float
    """Time of the part's first frame."""
    end_seconds: float
    """Time until which its last frame is shown."""
    num_frames: int
    shortest_seconds: float
    """The shortest and the longest time for which a frame of the part is shown."""
    longest_seconds: float
    duration_seconds: float
    """End of the video, from its packets or its header; at least the end of the part."""
    width: int
    """Width of the frames as stored."""
    height: int
    num_channels: int
    """Number of sound channels; 0 without sound."""
    sample_rate: int
    timecode: str
    """The timecode of the first frame, as the file states it; empty if it states none."""
    key_seconds: float
    """Time of the key frame at which a copy of the part begins."""
    copy_container: str
    """FFmpeg's name of the container of a copy, "mp4", "mov" or "matroska"; empty if the part cannot be copied."""


@dataclass(frozen=True)
class Span:
    """The frames of a part, in ticks from the video's time zero."""

    times: list[int]
    """Times of its frames, ascending."""
    end: int
    """Time until which the last frame is shown."""
    tick: Fraction
    """Length of a tick, in seconds."""
    start: Start
    """The place in the file from which packets were read, before the key frame of the first frame."""
    key: int | None
    """Time of the last key frame that is not after the first frame; None if none is known."""
    num_before_key: int
    """Packets of the video between ``start`` and the key frame."""
    num_packets: int
    """Number of video packets from the key frame to the last one that the part needs."""
    info: VideoInfo | None
    """The probed video, if all its packets had to be read; else None."""

    @property
    def seconds(self) -> tuple[Fraction, Fraction]:
        """Start and end."""
        return self.times[0] * self.tick, self.end * self.tick


def find_span(
    path: Path, start_seconds: float, end_seconds: float, heartbeat: Callable[[], None] = lambda: None
) -> Span:
    """Find the frames of a part.

    Args:
        path: The video.
        start_seconds: Start of the part, on the clock of stored feature vectors.
        end_seconds: Its end.
        heartbeat: Called for each packet.

    Raises:
        VideoError: The file cannot be read, or ends before the part begins.
    """
    if is_image(path):
        raise VideoError("no_video", "it is an image")
    with open_video(path) as container:
        names = set(container.format.name.split(","))
    if names & ENTERED_CONTAINERS and "avi" not in names:
        for back in SEEK_BACK_SECONDS:
            found = _by_packets(path, Start(back=back), start_seconds, end_seconds, heartbeat)
            if isinstance(found, Span):
                return found
            if found == "no times":
                break
    return _by_probing(path, start_seconds, end_seconds, names, heartbeat)


def _by_packets(path: Path, start: Start, start_seconds: float, end_seconds: float, heartbeat: Callable) -> Span | str:
    """Find a part from the packets after ``start``; return the reason if that is not possible."""
    with open_video(path) as container:
        video = OpenVideo(container, start, start_seconds)
        limit = _ticks(start_seconds, video.tick)
        end = _ticks_before(end_seconds, video.tick)
        stored: list[tuple[int, bool]] = []
        last_duration, after = 0, math.inf
        for packet in video.packets(heartbeat):
            if not packet.size:
                continue
            if packet.pts is None:
                return "no times"
            time = packet.pts - video.offset
            if packet.is_discard:  # cut away by an edit list
                stored.append((-1, False))
                continue
            stored.append((time, packet.is_keyframe))
            last_duration = packet.duration or last_duration
            after = min(after, time) if time >= end else after
            if packet.dts is not None and packet.dts - video.offset > after:
                break
        step = last_duration or ticks_of_frame(video.stream)
        return _span(stored, limit, end, step, video, start)


def _span(
    stored: list[tuple[int, bool]], limit: int, end: int, step: int, video: OpenVideo, start: Start
) -> Span | str:
    keys = [number for number, (_, is_key) in enumerate(stored) if is_key]
    if video.is_later:
        if not keys or stored[keys[0]][0] > limit:
            return "too late"
        stored = stored[keys[0] :]
        skipped, keys = keys[0], [number - keys[0] for number in keys]
    else:
        skipped = 0
    first_key_time = stored[keys[0]][0] if keys else -math.inf
    shown = sorted({time for time, _ in stored if time >= 0 and (not video.is_later or time >= first_key_time)})
    if not shown:
        return "no times"
    times, after = _part(shown, limit, end)
    before = [number for number in keys if stored[number][0] <= times[0]]
    key = before[-1] if before else None
    needed = [number for number, (time, _) in enumerate(stored) if times[0] <= time <= times[-1]]
    return Span(
        times=times,
        end=after if after is not None else times[-1] + step,
        tick=video.tick,
        start=start,
        key=None if key is None else stored[key][0],
        num_before_key=skipped + (key or 0),
        num_packets=max(needed) + 1 - (key or 0),
        info=None,
    )


def _part(shown: list[int], limit: int, end: int) -> tuple[list[int], int | None]:
    """Return (times of a part's frames, time of the next frame or None).

    Args:
        shown: Times of all frames, ascending.
        limit: The last tick that is not after the start.
        end: The first tick after the part.
    """
    first = max(sum(time <= limit for time in shown) - 1, 0)
    behind = max(sum(time < end for time in shown), first + 1)
    return shown[first:behind], shown[behind] if behind < len(shown) else None


def _by_probing(
    path: Path, start_seconds: float, end_seconds: float, names: set[str], heartbeat: Callable[[], None]
) -> Span:
    """Find a part from all packets of the file."""
    info = probe_video(path, heartbeat)
    tick = info.time_base
    limit, end = _ticks(start_seconds, tick), _ticks_before(end_seconds, tick)
    first = max(int(np.searchsorted(info.pts, limit, side="right")) - 1, 0)
    behind = max(int(np.searchsorted(info.pts, end, side="left")), first + 1)
    times = [int(time) for time in info.pts[first:behind]]
    after = int(info.pts[behind]) if behind < len(info.pts) else info.end
    key, num_before, num_packets = None, 0, 0
    if info.timed and not names & UNTIMED_CONTAINERS:
        key, num_before, num_packets = _key_before(path, times, heartbeat)
    return Span(times, after, tick, Start(), key, num_before, num_packets, info)


def _key_before(path: Path, times: list[int], heartbeat: Callable[[], None]) -> tuple[int | None, int, int]:
    """Return (time of the last key frame before a part, its packet's number, number of packets needed from there)."""
    key, number_of_key, last = None, 0, 0
    with open_video(path) as container:
        video = OpenVideo(container, Start(), 0)
        number = -1
        for packet in video.packets(heartbeat):
            if not packet.size:
                continue
            number += 1
            if packet.pts is None or packet.is_discard:
                continue
            time = packet.pts - video.offset
            if packet.is_keyframe and time <= times[0]:
                key, number_of_key = time, number
            if times[0] <= time <= times[-1]:
                last = number
            elif packet.dts is not None and packet.dts - video.offset > times[-1]:
                break
    return key, number_of_key, last + 1 - number_of_key


def _ticks(seconds: float, tick: Fraction) -> int:
    """Return the last tick that is not after a second."""
    return math.floor((Fraction(seconds) + SAME_SECONDS) / tick)


def _ticks_before(seconds: float, tick: Fraction) -> int:
    """Return the first tick that is not before a second."""
    return math.ceil((Fraction(seconds) - SAME_SECONDS) / tick)


def probe_span(
    path: Path, start_seconds: float, end_seconds: float, heartbeat: Callable[[], None] = lambda: None
) -> SpanProbed:
    """Return the facts about a part of a video, from its packets.

    Args:
        path: The video.
        start_seconds: Start of the part, on the clock of stored feature vectors.
        end_seconds: Its end.
        heartbeat: Called for each packet.

    Raises:
        VideoError: The file cannot be read, or it has no frames.
    """
    span = find_span(path, start_seconds, end_seconds, heartbeat)
    start, end = span.seconds
    steps = np.diff([*span.times, span.end]) * float(span.tick)
    with open_video(path) as container:
        video = OpenVideo(container, Start(), 0)
        stream = video.stream
        rate = as_fraction(stream.average_rate or stream.guessed_rate or 0)
        zero = (stream.start_time - video.offset) * video.tick if stream.start_time is not None else Fraction(0)
        if span.info is not None:
            zero = int(span.info.pts[0]) * span.tick
        declared = 0.0 if span.info is None else span.info.duration_seconds
        sound = next((each for each in container.streams.audio if context_of(each) is not None), None)
        return SpanProbed(
            rate_numerator=rate.numerator,
            rate_denominator=rate.denominator,
            zero_seconds=float(zero),
            start_seconds=float(start),
            end_seconds=float(end),
            num_frames=len(span.times),
            shortest_seconds=float(steps.min()),
            longest_seconds=float(steps.max()),
            duration_seconds=max(declared or (container.duration or 0) / 1_000_000, float(end)),
            width=stream.width,
            height=stream.height,
            num_channels=0 if sound is None else sound.codec_context.channels,
            sample_rate=0 if sound is None else sound.codec_context.sample_rate,
            timecode=_timecode(container),
            key_seconds=float(start if span.key is None else span.key * span.tick),
            copy_container="" if span.key is None else copy_container(container),
        )


def _timecode(container: InputContainer) -> str:
    """Return the timecode of the first frame, as the video stream, another stream or the file states it; else empty."""
    tracks = sorted(container.streams, key=lambda stream: stream.type != "video")
    for metadata in (*(stream.metadata for stream in tracks), container.metadata):
        for name, value in metadata.items():
            if name.lower() == "timecode":
                return str(value)[:32]
    return ""


def copy_container(container: InputContainer) -> str:
    """Return FFmpeg's name of the container that can hold a file's copied packets; empty if there is none."""
    streams = [video_stream(container), *container.streams.audio[:1]]
    contexts = [context for stream in streams if (context := context_of(stream)) is not None]
    codecs = {context.codec.canonical_name for context in contexts}
    if codecs <= MP4_CODECS:
        return "mp4"
    other = "mov" if "mov" in container.format.name.split(",") else "matroska"
    with av.open(io.BytesIO(), "w", format=other) as output:
        return other if codecs <= output.supported_codecs else ""

"""The times of a video's frames and the missing parts of its file, read from its packets.

Frames are decoded only if packets do not show whether their times are decoding times, or whether they hold fields.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.video.stream import VideoStream

from .container import (
    container_names,
    demuxed,
    first_frame,
    memory_error,
    open_video,
    start_second,
    ticks_of_frame,
    time_base_of,
    video_stream,
    video_streams,
)
from .errors import VideoError, short_reason
from .sampling import MAX_VIDEO_SECONDS
from .structure import edits_leave_out, has_broken_units, has_gif_image, structure_damage

MAX_FRAME_SECONDS = 300
"""Maximum duration of a frame. A longer one, unless the header confirms it, means a broken clock and hours of work on a
single frame.
"""
MAX_PROBED_FRAMES = 500
"""Maximum number of frames decoded to find out whether a file's times are decoding times or display times."""
HDR = {16: "PQ", 18: "HLG"}
"""Transfer characteristics (ITU-T H.273) that no profile maps to the range of other videos."""
TIMED_CONTAINERS = {"matroska", "mp4"}
"""Containers that state the display time of each frame, and whose structure shows a gap where frames are lost."""
WALKED_CONTAINERS = TIMED_CONTAINERS | {"gif", "apng", "ogg", "flv"}
"""Containers in which ``structure_damage`` or FFmpeg finds missing parts. In these, a pause is intended."""
PAUSE_FRAMES, PAUSE_SECONDS, CONSTANT_SHARE = 10, 0.3, 0.9
"""A gap counts as a pause if it has at least this many frames and seconds, and this share of the frames has a constant
rate.
"""


@dataclass(frozen=True, kw_only=True)
class VideoInfo:
    """Properties of a video's frames, read from its packets."""

    path: Path
    pts: np.ndarray
    """[T] presentation times of the frames, ascending, in ticks from the start of the file."""
    packet_bytes: np.ndarray
    """[T] size of each frame's packet."""
    end: int
    """End of the last frame, in ticks."""
    time_base: Fraction
    """Length of a tick, in seconds."""
    codec: str
    containers: frozenset[str]
    offset: int
    """Ticks subtracted from the file's own times to make them start at 0."""
    height: int
    width: int
    """Width as coded, before any rotation."""
    timed: bool
    """True if packets have presentation times. If not, frames follow each other in order."""
    delayed: bool = False
    """True if packets have only decoding times, as in AVI. A frame is then shown at the time of the packet with which
    the decoder returns it."""
    plain: bool
    """True if the video begins with a key frame and no edit list removes a part."""
    by_fields: bool = False
    """True if a packet may hold one field of an interlaced frame: there are then fewer frames than packets."""
    unordered: bool = False
    """True if frames are not in the order of their times; the decoder's estimate of their times is then used."""
    repeats: bool = False
    """True if several frames have the same time. The last of them is shown."""
    missing: str = ""
    """The parts that are missing in the file; empty if it is complete."""
    notes: tuple[str, ...] = ()
    """Peculiarities of the file, and how they are treated."""

    @property
    def duration_seconds(self) -> float:
        """End of the last frame, in seconds."""
        return float(self.end * self.time_base)


@dataclass
class _Packets:
    """Properties of a file's packets, collected from first to last."""

    stream: VideoStream
    time_base: Fraction
    pts: list[int | None] = field(default_factory=list)
    dts: list[int | None] = field(default_factory=list)
    num_bytes: list[int] = field(default_factory=list)
    last_duration: int = 0
    """Duration of the last frame. As in FFmpeg, this is the duration of the last packet in the file."""
    last_dts: int | None = None
    plain: bool = True
    num_packets: int = 0
    num_broken: int = 0
    incomplete: list[int] = field(default_factory=list)
    """Numbers of the packets that the container marks as incomplete."""
    first_of_parts: list[int] = field(default_factory=list)
    """Numbers of the packets before which the clock jumped; ``demuxed`` has joined the parts."""
    reached_seconds: float = 0.0
    """The latest time of any stream."""

    def add(self, packet: Packet) -> None:
        """Take the next packet of any stream. Raise ``VideoError`` if the clock jumps back."""
        if packet.dts is not None:
            end = (packet.dts + (packet.duration or 0)) * packet.time_base
            self.reached_seconds = max(self.reached_seconds, float(end))
        if packet.stream is self.stream:
            self._add_video(packet)

    def begins_part(self, packet: Packet) -> None:
        """Record that the clock jumped before the next packet."""
        if packet.stream is self.stream:
            self.first_of_parts.append(self.num_packets)

    @property
    def num_corrupt(self) -> int:
        """Number of damaged packets.

        Where parts are joined, the packets are not the ones that the container expects, and FFmpeg marks up to three
        as incomplete. These are not damaged.
        """
        at_joins = {number - back for number in self.first_of_parts for back in range(3)}
        return self.num_broken + len(set(self.incomplete) - at_joins)

    def _add_video(self, packet: Packet) -> None:
        context = self.stream.codec_context
        if packet.is_corrupt:
            self.incomplete.append(self.num_packets)
        self.num_packets += 1
        if not packet.size:  # it repeats the previous frame
            return
        if context.name == "gif" and not has_gif_image(bytes(packet)):
            return
        self.num_broken += not packet.is_corrupt and has_broken_units(bytes(packet), context.name, context.extradata)
        if packet.is_discard or (not self.pts and not packet.is_keyframe):
            self.plain = False
        if packet.is_discard:
            return
        if packet.dts is not None:
            if self.last_dts is not None and (back := (self.last_dts - packet.dts) * self.time_base) > 1:
                raise VideoError("bad_times", f"its timestamps jump back by {float(back):.0f} s")
            self.last_dts = packet.dts
        self.last_duration = packet.duration or self.last_duration
        self.pts.append(packet.pts)
        self.dts.append(packet.dts)
        self.num_bytes.append(packet.size)


@dataclass(frozen=True)
class _FrameTimes:
    """The display times of frames, computed from the times that the packets have."""

    times: np.ndarray
    """[T] ascending, in ticks from the start of the file."""
    order: np.ndarray
    """[T] index of each frame's packet."""
    end: int
    offset: int
    timed: bool
    delayed: bool


def probe_video(path: Path, heartbeat: Callable[[], None] = lambda: None) -> VideoInfo:
    """Read the packets of a video from first to last.

    Args:
        path: The file.
        heartbeat: Called for each packet.

    Raises:
        VideoError: The file cannot be read, has no frames, or its times make no sense.
    """
    with open_video(path) as container:
        stream = video_stream(container)
        time_base, containers = time_base_of(stream), container_names(container)
        # As in the ffmpeg program, the file starts at 0, whatever its first timestamp.
        offset = round(start_second(container, stream) / time_base)
        packets = _read_packets(container, stream, time_base, heartbeat)
        frames = _frame_times(path, packets, containers, offset)
        missing = (
            _missing_frames(path, container, packets, frames, containers)
            or (not _states_pauses(packets, containers) and pause(frames.times, time_base))
            or structure_damage(path, containers, heartbeat)
        )
        if packets.num_corrupt and not missing:
            missing = f"{packets.num_corrupt:,} of its packets are incomplete or damaged"
        declared_seconds = (container.duration or 0) / av.time_base
        is_stated = bool(containers & TIMED_CONTAINERS) and declared_seconds > frames.end * time_base - 1
        info = VideoInfo(
            path=path,
            pts=frames.times,
            packet_bytes=np.array(packets.num_bytes)[frames.order],
            end=frames.end,
            time_base=time_base,
            codec=stream.codec_context.name,
            containers=containers,
            offset=offset,
            height=stream.height,
            width=stream.width,
            timed=frames.timed,
            delayed=frames.delayed,
            plain=packets.plain,
            by_fields=_may_be_fields(path, stream),
            repeats=len(frames.times) < len(packets.pts),
            missing=missing,
            notes=tuple(_notes(container, packets, frames, containers, is_whole=not missing)),
        )
    _check_times(info, is_stated)
    return info


def _read_packets(
    container: InputContainer, stream: VideoStream, time_base: Fraction, heartbeat: Callable[[], None]
) -> _Packets:
    packets = _Packets(stream, time_base)
    try:
        streams = [s for s in container.streams if s.type in ("video", "audio", "subtitle")]
        for packet in demuxed(container, streams, packets.begins_part):
            heartbeat()
            packets.add(packet)
    except MemoryError as error:
        raise memory_error(error) from None
    except (FFmpegError, ValueError, UnicodeError) as error:
        if not packets.pts:
            raise VideoError("unreadable", short_reason(error)) from None
    if not packets.pts:
        raise VideoError("no_video", "its video stream has no frames")
    return packets


def _may_be_fields(path: Path, stream: VideoStream) -> bool:
    if stream.codec_context.name != "h264":
        return False
    first = first_frame(path)
    return first is not None and first.interlaced_frame


def _notes(
    container: InputContainer,
    packets: _Packets,
    frames: _FrameTimes,
    containers: frozenset[str],
    *,
    is_whole: bool,
) -> Iterator[str]:
    """Yield the peculiarities of an intact file and their treatment."""
    tracks, chosen = video_streams(container), packets.stream
    if chosen is not tracks[0]:
        number = tracks.index(chosen) + 1
        yield f"its video track {number} of {len(tracks)} is decoded: the first one is not marked as the default"
    if times := [packets.dts[number] for number in packets.first_of_parts if number < len(packets.dts)]:
        seconds = float(((times[0] or 0) - frames.offset) * packets.time_base)
        often = "once, at" if len(times) == 1 else f"{len(times):,} times, first at"
        yield f"its clock jumps {often} {seconds:.2f} s; the parts follow each other"
    if is_whole and _states_pauses(packets, containers) and (words := pause(frames.times, packets.time_base)):
        yield f"{words}; the frame before is shown for as long"
    if name := HDR.get(int(chosen.codec_context.color_trc)):
        yield f"its colours are HDR ({name}); they are not converted, as in published programs"


def _come_in_order(path: Path) -> bool:
    """Return whether the times of a video's first decoded frames ascend."""
    with open_video(path) as container:
        frames = container.decode(video_stream(container))
        try:
            times = [frame.pts for frame in itertools.islice(frames, MAX_PROBED_FRAMES)]
        except (FFmpegError, ValueError):
            return False
    known = [pts for pts in times if pts is not None]
    return len(known) == len(times) and known == sorted(known)


def _frame_times(path: Path, packets: _Packets, containers: frozenset[str], offset: int) -> _FrameTimes:
    stream, num_frames = packets.stream, len(packets.pts)
    pts, dts = [t for t in packets.pts if t is not None], [t for t in packets.dts if t is not None]
    depth = stream.codec_context.reorder_depth
    last_duration = packets.last_duration or ticks_of_frame(stream)
    # Some files, such as MXF, repeat the decoding times although frames are not stored in display order.
    repeats_dts = depth > 0 and num_frames > 2 and packets.pts == packets.dts and not _come_in_order(path)
    timed = len(pts) == num_frames and "avi" not in containers and not repeats_dts
    delayed = not timed and len(dts) == num_frames
    order = np.arange(num_frames)
    if timed:
        times, order = np.unique(np.array(pts[::-1], dtype=np.int64) - offset, return_index=True)
        order = num_frames - 1 - order  # of several at the same time, the last
    elif delayed:
        times = display_times(dts, depth, last_duration) - offset
    else:  # a bare stream has no times: its frames follow each other at the rate that it states
        step = ticks_of_frame(stream, stream.codec_context.framerate)
        last_duration = packets.last_duration or step
        times = np.arange(num_frames, dtype=np.int64) * step
    return _FrameTimes(times, order, int(times[-1]) + last_duration, offset, timed, delayed)


def _missing_frames(
    path: Path, container: InputContainer, packets: _Packets, frames: _FrameTimes, containers: frozenset[str]
) -> str:
    """Describe missing frames or missing time, compared with the container's header; empty if complete."""
    declared_frames, num_packets = packets.stream.frames, packets.num_packets
    # A number larger than the number of bytes means that the writer did not know it.
    is_stated = declared_frames <= (container.size or math.inf)
    if declared_frames > num_packets and is_stated and not _repeats_frames(packets, containers):
        if "mp4" in containers and edits_leave_out(path) and len(packets.stream.index_entries) <= num_packets:
            return ""
        return f"it has {num_packets:,} of its {declared_frames:,} declared frames"
    if declared_frames or not container.duration or packets.first_of_parts:  # the duration is wrong if the clock jumps
        return ""
    start, declared = (container.start_time or 0) / av.time_base, container.duration / av.time_base
    if containers & TIMED_CONTAINERS:  # the duration of Matroska and fragmented MP4 begins at 0
        start = min(start, 0.0)
    elif "asf" in containers:  # FFmpeg's writer adds the time before the first frame
        start -= float(frames.times[0] * packets.time_base)
    reached = packets.reached_seconds - start
    if not ends_early(reached, declared, longest_step(frames.times) * float(packets.time_base)):
        return ""
    return f"it ends at {reached:.2f} s of its declared {declared:.2f} s"


def _repeats_frames(packets: _Packets, containers: frozenset[str]) -> bool:
    """Return whether an AVI's header counts repeated frames, which its index does not."""
    if "avi" not in containers or len(packets.stream.index_entries) > packets.num_packets:
        return False
    dts = np.array([0, *(time for time in packets.dts if time is not None)])  # in frames
    return int(dts.max()) + max(longest_step(np.sort(dts)), 1) >= packets.stream.frames


def _states_pauses(packets: _Packets, containers: frozenset[str]) -> bool:
    """Return whether a stretch without frames is intended: a frame that is shown for long."""
    return bool(containers & WALKED_CONTAINERS) or _repeats_frames(packets, containers)


def display_times(dts: list[int], depth: int, step: int) -> np.ndarray:
    """Return the times, [T] in ticks, at which a decoder that holds back ``depth`` frames returns its frames.

    The first frame comes with packet ``depth``; the last ``depth`` frames come ``step`` ticks apart after the last
    packet.

    packets at 0, 1, 2, 5, depth 2, step 1  ->  frames at 2, 5, 6, 7

    Source: libavcodec, which calls these times ``best_effort_timestamp``.
    """
    ascending = np.sort(np.array(dts, dtype=np.int64))
    return np.append(ascending, ascending[-1] + step * np.arange(1, depth + 1))[depth:]


def ends_early(reached_seconds: float, declared_seconds: float, longest_step_seconds: float = 0.0) -> bool:
    """Return whether a file ends before its declared end by more than rounding explains.

    The duration of the last frame is often not stated. It may be as long as the longest other frame's.
    """
    return declared_seconds - reached_seconds > max(1.0, 2 * longest_step_seconds)


def longest_step(pts: np.ndarray) -> int:
    """Return the longest time between two successive frames, in ticks."""
    return int(np.diff(pts).max(initial=0))


def pause(pts: np.ndarray, time_base: Fraction) -> str:
    """Describe a stretch without frames in a video of constant rate; empty if there is none.

    Nothing else reveals packets that a damaged file hides from its reader.

    25 frames a second, each | is a frame; if it is shown for longer than 10 frames and 0.3 s, this is a pause:

        | | | | | | | | | | | | .  .  .  .  .  .  | | | |      0.52 s without frames: a pause
        | | | | | | | | | | | | .  .  | | | | | | | | | |      0.16 s: none
        | .  .  .  | .  .  .  .  .  | .  .  |                  no constant rate (below 90 %): none
    """
    steps = np.diff(pts)
    if len(steps) < PAUSE_FRAMES:
        return ""
    usual = np.median(steps)
    long = np.flatnonzero((steps > PAUSE_FRAMES * usual) & (steps * float(time_base) > PAUSE_SECONDS))
    if len(long) == 0 or np.mean(np.abs(steps - usual) <= 0.1 * usual) < CONSTANT_SHARE:
        return ""
    seconds = pts[long[0] : long[0] + 2] * float(time_base)
    more = f", and {len(long) - 1:,} more such pauses" if len(long) > 1 else ""
    return f"it has no frames between {seconds[0]:.2f} and {seconds[1]:.2f} s{more}"


def _check_times(info: VideoInfo, is_stated: bool) -> None:
    """Raise ``VideoError`` for impossible times.

    Args:
        info: The video.
        is_stated: Whether its header states at least this length; a frame that is shown for long is then intended.
    """
    late_seconds = float(info.pts[0] * info.time_base)
    if late_seconds > MAX_FRAME_SECONDS:
        raise VideoError(
            "bad_times", f"its frames begin {late_seconds:.0f} s after its start (limit: {MAX_FRAME_SECONDS} s)"
        )
    longest_seconds = float(np.diff(info.pts, append=info.end).max() * info.time_base)
    if longest_seconds > MAX_FRAME_SECONDS and not is_stated:
        raise VideoError("bad_times", f"one of its {len(info.pts)} frames would be shown for {longest_seconds:.0f} s")
    if info.duration_seconds > MAX_VIDEO_SECONDS:
        raise VideoError(
            "too_long",
            f"it lasts {info.duration_seconds / 3600:.1f} h; expected at most {MAX_VIDEO_SECONDS // 3600} h",
        )

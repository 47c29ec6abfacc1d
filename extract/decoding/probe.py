"""What is in a video file: the times of its frames, read from its packets alone. Nothing is decoded."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from .handed import HandedFile
from .structure import has_broken_units, structure_damage

# Containers that hold frames themselves. Playlists and concat scripts, which make FFmpeg open other files or addresses whatever
# their own name is, are none of these.
CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,gif,h264,hevc,ivf,wav,mp3,flac,"
    "mxf,dv,m4v,nut,rm,yuv4mpegpipe,apng,obu"
)
SAFE_OPENING = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file"}
LONGEST_FRAME_SECONDS = 300
"""A frame shown for longer means a destroyed clock, and hours of work on one picture."""
LONGEST_VIDEO_SECONDS = 12 * 3600
CLOCKS_OF_THEIR_OWN = {"mpegts", "mpeg"}
"""Containers whose clock starts anywhere. The ffmpeg program sets it to 0 where the first of the streams that it reads begins; of all
others, where the first stream of the file begins."""
LONGEST_SIDE = 10
"""Of a frame, in short sides: a 1-pixel strip brought to a short side of 224 would be hundreds of thousands of pixels long."""
PAUSE_FRAMES, PAUSE_SECONDS, CONSTANT_SHARE = 10, 0.3, 0.9
"""What counts as a pause: so many frames and seconds, where this share of the frames come at a constant rate."""
MOST_PIXELS = 50_000_000
"""Of a frame: 7680x4320 has 33 million."""


class VideoError(Exception):
    """A file that gives no features, or not with this decoder. ``kind``: missing, unreachable, refused, unreadable, no_video, no_sound,
    bad_times, too_long, too_large, timeout, out_of_memory or crashed."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    def __reduce__(self) -> tuple:  # it comes from other processes, too
        return VideoError, (self.kind, str(self))


@dataclass(frozen=True, kw_only=True)
class VideoInfo:
    path: Path
    pts: np.ndarray
    """[T] presentation times of the frames, ascending, in ticks from the start of the file."""
    packet_bytes: np.ndarray
    """[T] size of each frame's packet."""
    end: int
    """When the last frame ends, in ticks."""
    time_base: Fraction
    """Seconds of a tick."""
    codec: str
    containers: frozenset[str]
    offset: int
    """What was taken from the file's own times to make it start at 0, in ticks."""
    height: int
    width: int
    """As coded, before any rotation."""
    timed: bool
    """Whether the packets say when their frames are shown; where they do not, frames follow each other in order."""
    delayed: bool = False
    """Whether the packets only say when they are to be decoded, as in AVI. A frame is then shown when the packet comes with which the
    decoder gives it out."""
    plain: bool
    """Begins with a key frame, and nothing in it is cut away by an edit list."""
    missing: str = ""
    """What the file says that it has and has not; empty where it is whole."""

    @property
    def duration_seconds(self) -> float:
        return float(self.end * self.time_base)


def words_of(error: Exception) -> str:
    """A library's complaint in one line."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:300] or type(error).__name__


def memory_words(error: MemoryError) -> str:
    """While a file is opened and read, nothing but its index takes memory, and a true one takes little."""
    return f"its index is damaged: it declares more than memory holds ({words_of(error)})"


def open_video(path: Path) -> av.container.InputContainer:
    """Opens the file and nothing that it may name. Raises ``VideoError``."""
    try:
        file = HandedFile(path)
    except OSError:
        raise VideoError("missing", "no such file") from None
    try:
        return av.open(file, container_options=SAFE_OPENING | {"protocol_whitelist": ""}, metadata_errors="ignore")
    except MemoryError as error:
        raise VideoError("unreadable", memory_words(error)) from None
    except (av.FFmpegError, ValueError, UnicodeError) as error:
        raise VideoError("unreadable", words_of(error)) from None


def video_stream(container: av.container.InputContainer) -> av.video.stream.VideoStream:
    """The first video stream that is no cover picture."""
    streams = [s for s in container.streams.video if not s.disposition & av.stream.Disposition.attached_pic]
    if not streams:
        raise VideoError("no_video", "there is no video stream in it")
    stream = streams[0]
    if stream.codec_context is None:
        raise VideoError("unreadable", "its video is in a format that this FFmpeg does not know")
    check_size(stream.width, stream.height)
    return stream


def check_size(width: int, height: int) -> None:
    """Raises ``VideoError`` for frames that would take too much memory, as they are or scaled."""
    if width * height > MOST_PIXELS:
        raise VideoError("too_large", f"its frames are {width}x{height}; at most {MOST_PIXELS:,} pixels are taken")
    if max(width, height) > LONGEST_SIDE * max(min(width, height), 1):
        raise VideoError(
            "too_large", f"its frames are {width}x{height}: one side is over {LONGEST_SIDE} times the other"
        )


def ticks_of_frame(stream: av.video.stream.VideoStream, rate: Fraction | None = None) -> int:
    """How long a frame lasts where its packet does not say."""
    rate = rate or stream.average_rate or stream.guessed_rate or Fraction(25)
    return max(round(1 / (Fraction(rate) * Fraction(stream.time_base))), 1)


def probe_video(path: Path, beat: Callable[[], None] = lambda: None) -> VideoInfo:
    """Reads the packets from first to last; ``beat`` is called for each. Raises ``VideoError``."""
    with open_video(path) as container:
        stream = video_stream(container)
        time_base = Fraction(stream.time_base)
        # As the ffmpeg program does: the file starts at 0, whatever its first time stamp is.
        offset = round(first_second(container, stream) / time_base)
        usual = ticks_of_frame(stream)
        pts, dts, num_bytes, last_duration, last_dts, plain = [], [], [], 0, None, True
        name, extradata = stream.codec_context.name, stream.codec_context.extradata
        num_packets, num_corrupt, reached_seconds = 0, 0, 0.0
        try:
            for packet in container.demux([s for s in container.streams if s.type in ("video", "audio", "subtitle")]):
                beat()
                if packet.size == 0:
                    continue
                if packet.dts is not None:
                    reached_seconds = max(reached_seconds, float((packet.dts + packet.duration) * packet.time_base))
                if packet.stream is not stream:
                    continue
                num_packets += 1
                num_corrupt += packet.is_corrupt or has_broken_units(bytes(packet), name, extradata)
                if packet.is_discard or (not pts and not packet.is_keyframe):
                    plain = False
                if packet.is_discard:
                    continue
                if packet.dts is not None:
                    if last_dts is not None and (last_dts - packet.dts) * time_base > 1:
                        raise VideoError(
                            "bad_times", f"its clock jumps back by {float((last_dts - packet.dts) * time_base):.0f} s"
                        )
                    last_dts = packet.dts
                # As in FFmpeg, the last frame lasts as long as the packet that comes last in the file.
                last_duration = packet.duration or last_duration
                pts.append(packet.pts)
                dts.append(packet.dts)
                num_bytes.append(packet.size)
        except MemoryError as error:
            raise VideoError("unreadable", memory_words(error)) from None
        except (av.FFmpegError, ValueError, UnicodeError) as error:
            if not pts:
                raise VideoError("unreadable", words_of(error)) from None
        if not pts:
            raise VideoError("no_video", "its video stream has no frames")
        containers = frozenset(container.format.name.split(","))
        # Some files, of MXF for one, repeat the decoding times where frames are stored in another order than they are shown in.
        reordered = stream.codec_context.reorder_depth > 0 and len(pts) > 2
        timed = None not in pts and "avi" not in containers and not (reordered and pts == dts)
        delayed = not timed and None not in dts
        if timed:
            times, order = np.unique(np.array(pts, dtype=np.int64) - offset, return_index=True)
        elif delayed:
            order, times = (
                np.arange(len(pts)),
                times_given_out(dts, stream.codec_context.reorder_depth, last_duration or usual) - offset,
            )
        else:  # a bare stream has no times: its frames follow each other at the rate that it states
            usual = ticks_of_frame(stream, stream.codec_context.framerate)
            order, times = np.arange(len(pts)), np.arange(len(pts), dtype=np.int64) * usual
        missing = ""
        # An AVI counts the places in which the frame before stays, too; its index lists frames alone.
        stays = (
            "avi" in containers and (last_dts or 0) + 1 >= stream.frames and len(stream.index_entries) <= num_packets
        )
        if stream.frames > num_packets and not stays:  # what an MP4's or AVI's index lists
            missing = f"{num_packets:,} of the {stream.frames:,} frames that it should have are in it"
        elif not stream.frames and container.duration:
            start, declared = (container.start_time or 0) / av.time_base, container.duration / av.time_base
            if "matroska" in containers:  # its duration counts from 0, wherever its clock starts
                start = min(start, 0.0)
            if ends_early(reached_seconds - start, declared, longest_step(times) * float(time_base)):
                missing = f"it ends at {reached_seconds - start:.2f} s of the {declared:.2f} that it should have"
        missing = missing or pause(times, time_base) or structure_damage(path, containers, beat)
        if num_corrupt and not missing:
            missing = f"{num_corrupt:,} of its packets are incomplete or damaged"
        info = VideoInfo(
            path=path,
            pts=times,
            packet_bytes=np.array(num_bytes)[order],
            end=int(times[-1]) + (last_duration or usual),
            time_base=time_base,
            codec=stream.codec_context.name,
            containers=containers,
            offset=offset,
            height=stream.height,
            width=stream.width,
            timed=timed,
            delayed=delayed,
            plain=plain,
            missing=missing,
        )
    _check_times(info)
    return info


def first_second(container: av.container.InputContainer, stream: av.stream.Stream) -> Fraction:
    """Where the file's clock starts for one who reads ``stream``, in seconds."""
    if CLOCKS_OF_THEIR_OWN & set(container.format.name.split(",")) and stream.start_time is not None:
        return stream.start_time * Fraction(stream.time_base)
    return Fraction(container.start_time or 0, av.time_base)


def times_given_out(dts: list[int], depth: int, step: int) -> np.ndarray:
    """When a decoder gives out its frames, [T] in ticks, if it holds back ``depth`` of them: the first one comes with packet ``depth``,
    the last ones ``step`` ticks apart after the last packet. libavcodec calls these times ``best_effort_timestamp``."""
    dts = np.sort(np.array(dts, dtype=np.int64))
    return np.append(dts, dts[-1] + step * np.arange(1, depth + 1))[depth:]


def ends_early(reached_seconds: float, declared_seconds: float, longest_step_seconds: float = 0.0) -> bool:
    """Whether a file ends so long before it says that this is no rounding. How long its last frame is shown is often not stated: as long
    as any other, perhaps, and no reader learns that a frame was to be shown longer."""
    return declared_seconds - reached_seconds > max(1.0, 2 * longest_step_seconds)


def longest_step(pts: np.ndarray) -> int:
    """The ticks for which a frame is shown at most, the last one aside."""
    return int(np.diff(pts).max(initial=0))


def pause(pts: np.ndarray, time_base: Fraction) -> str:
    """A stretch without frames in a video that otherwise has them at a constant rate: nothing else tells of packets that a damaged
    file hides from its reader. Empty where there is none."""
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


def _check_times(info: VideoInfo) -> None:
    late_seconds = float(info.pts[0] * info.time_base)
    if late_seconds > LONGEST_FRAME_SECONDS:
        raise VideoError(
            "bad_times", f"its pictures begin {late_seconds:.0f} s after its start (limit: {LONGEST_FRAME_SECONDS} s)"
        )
    longest_seconds = float(np.diff(info.pts, append=info.end).max() * info.time_base)
    if longest_seconds > LONGEST_FRAME_SECONDS:
        raise VideoError("bad_times", f"one of its {len(info.pts)} frames would be shown for {longest_seconds:.0f} s")
    if info.duration_seconds > LONGEST_VIDEO_SECONDS:
        raise VideoError(
            "too_long",
            f"it lasts {info.duration_seconds / 3600:.1f} h; at most {LONGEST_VIDEO_SECONDS // 3600} h are taken",
        )

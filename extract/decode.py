"""Video files: what is in them, and their frames. decord reads what it reads well, PyAV the rest."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

try:
    import decord
except ImportError:  # no build for this processor
    decord = None

# Containers that hold frames themselves. Playlists and concat scripts, which make FFmpeg open other files or addresses whatever
# their own name is, are none of these.
CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,gif,h264,hevc,ivf"
DECORD_CONTAINERS = {"mov", "mp4", "matroska", "webm"}
DECORD_CODECS = {"h264", "vp8", "vp9", "mpeg4"}
FRAMES_AT_ONCE = 16
LONGEST_FRAME_SECONDS = 300
"""A frame shown for longer means a destroyed clock, and hours of work on one picture."""


class VideoError(Exception):
    """A file that gives no features. ``kind``: missing, unreadable, no_video or bad_times."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, kw_only=True)
class VideoInfo:
    path: Path
    pts: np.ndarray
    """[T] presentation times of the frames, ascending, in ticks from the start of the file."""
    end: int
    """When the last frame ends, in ticks."""
    time_base: Fraction
    """Seconds of a tick."""
    codec: str
    containers: frozenset[str]
    offset: int
    """What was taken from the file's own times to make it start at 0, in ticks."""

    @property
    def duration_seconds(self) -> float:
        return float(self.end * self.time_base)


def _open(path: Path) -> av.container.InputContainer:
    if not path.is_file():
        raise VideoError("missing", "no such file")
    try:
        # "file:" keeps a colon in a name from being read as a protocol.
        options = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file"}
        return av.open(f"file:{path}", container_options=options, metadata_errors="ignore")
    except (av.FFmpegError, ValueError, UnicodeError) as error:
        raise VideoError("unreadable", _words(error)) from None


def _words(error: Exception) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__


def _video_stream(container: av.container.InputContainer) -> av.video.stream.VideoStream:
    streams = [s for s in container.streams.video if not s.disposition & av.stream.Disposition.attached_pic]
    if not streams:
        raise VideoError("no_video", "there is no video stream in it")
    return streams[0]


def probe_video(path: Path) -> VideoInfo:
    """Times of all frames, from the packets alone: nothing is decoded. Raises ``VideoError``."""
    with _open(path) as container:
        stream = _video_stream(container)
        time_base = Fraction(stream.time_base)
        # As the ffmpeg program does: the file starts at 0, whatever its first time stamp is.
        offset = round(Fraction(container.start_time or 0, av.time_base) / time_base)
        rate = stream.average_rate or stream.guessed_rate or Fraction(25)
        ticks_of_frame = round(1 / (Fraction(rate) * time_base))
        pts, last_duration, last_dts = [], 0, None
        try:
            for packet in container.demux(stream):
                if packet.size == 0 or packet.is_discard:
                    continue
                if packet.dts is not None:
                    if last_dts is not None and (last_dts - packet.dts) * time_base > 1:
                        raise VideoError("bad_times", f"its clock jumps back by {float((last_dts - packet.dts) * time_base):.0f} s")
                    last_dts = packet.dts
                # A bare stream has no times: its frames follow each other at the rate that it states.
                time = packet.pts - offset if packet.pts is not None else len(pts) * ticks_of_frame
                if not pts or time >= max(pts[-1], time):
                    last_duration = packet.duration or last_duration
                pts.append(time)
        except av.FFmpegError as error:
            if not pts:
                raise VideoError("unreadable", _words(error)) from None
        if not pts:
            raise VideoError("no_video", "its video stream has no frames")
        times = np.sort(np.array(pts, dtype=np.int64))
        end = int(times[-1]) + (last_duration or ticks_of_frame)
        longest_seconds = float(np.diff(times, append=end).max() * time_base)
        if longest_seconds > LONGEST_FRAME_SECONDS:
            raise VideoError("bad_times", f"one of its {len(times)} frames would be shown for {longest_seconds:.0f} s")
        return VideoInfo(
            path=path,
            pts=times,
            end=end,
            time_base=time_base,
            codec=stream.codec_context.name,
            containers=frozenset(container.format.name.split(",")),
            offset=offset,
        )


def read_frames(info: VideoInfo, wanted: np.ndarray) -> tuple[str, Iterator[tuple[int, np.ndarray]]]:
    """The decoder's name and version, and (index, picture) for each of ``wanted``, which are ascending indices into ``info.pts``.

    Pictures are upright, uint8 [H, W, 3] RGB, at their own size. Raises ``VideoError``, also while iterating.
    """
    if decord is not None and info.codec in DECORD_CODECS and info.containers & DECORD_CONTAINERS:
        try:
            reader = decord.VideoReader(str(info.path), num_threads=1)
        except (decord.DECORDError, RuntimeError):
            reader = None
        # decord makes up frames where it cannot follow a file; counting them against the packets' times shows that.
        if reader is not None and len(reader) == len(info.pts):
            return f"decord {decord.__version__}", _decord_frames(reader, wanted)
    return f"PyAV {av.__version__}", _pyav_frames(info, wanted)


def _decord_frames(reader: "decord.VideoReader", wanted: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for first in range(0, len(wanted), FRAMES_AT_ONCE):
        indices = wanted[first : first + FRAMES_AT_ONCE]
        try:
            pictures = reader.get_batch(indices).asnumpy()
        except (decord.DECORDError, RuntimeError) as error:
            raise VideoError("unreadable", f"decord: {_words(error)[:200]}") from None
        yield from zip(indices.tolist(), pictures, strict=True)


def _pyav_frames(info: VideoInfo, wanted: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    left, index = wanted.tolist()[::-1], -1
    with _open(info.path) as container:
        try:
            for index, frame in enumerate(container.decode(_video_stream(container))):
                if left and index == left[-1]:
                    left.pop()
                    yield index, np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)
                if not left:
                    return
        except (av.FFmpegError, ValueError) as error:
            raise VideoError("unreadable", f"PyAV: {_words(error)}") from None
    raise VideoError("unreadable", f"it ends after {index + 1} of {len(info.pts)} frames")

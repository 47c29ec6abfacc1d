"""Opening a video file and picking its streams, with nothing that the file may refer to."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
from av.codec.context import CodecContext
from av.container import InputContainer
from av.error import FFmpegError
from av.stream import Disposition, Stream
from av.video.stream import VideoStream

from .errors import VideoError, short_reason
from .handed import HandedFile

# Containers that hold frames themselves. Playlists and concat scripts are left out: they make FFmpeg open other files
# or addresses, whatever the name of the file.
CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,gif,h264,hevc,ivf,wav,mp3,flac,"
    "mxf,dv,m4v,nut,rm,yuv4mpegpipe,apng,obu"
)
SAFE_OPENING = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file"}
# PyAV before 19 refuses a title that is not UTF-8 without this argument; PyAV 19 reads any bytes and refuses it.
METADATA: dict[str, Any] = {} if int(av.__version__.split(".")[0]) >= 19 else {"metadata_errors": "ignore"}
OWN_CLOCK_CONTAINERS = {"mpegts", "mpeg"}
"""Containers whose clock may start at any time. The ffmpeg program sets it to 0 at the first of the streams that it
reads; for other containers, at the first stream of the file."""
MAX_SIDE_RATIO = 10
"""Largest ratio of a frame's longer side to the shorter: a 1-pixel strip scaled to a short side of 224 would be
hundreds of thousands of pixels long."""
MAX_PIXELS = 50_000_000
"""Most pixels of a frame. 7680x4320 has 33 million."""


def memory_error(error: MemoryError) -> VideoError:
    """Return the error of a file that exhausts memory while it is opened or its packets are read.

    Only the index takes memory then, and a valid index takes little.
    """
    return VideoError("unreadable", f"its index is damaged: it declares more than memory holds ({short_reason(error)})")


def open_video(path: Path) -> InputContainer:
    """Open the file, and nothing that it refers to.

    Raises:
        VideoError: There is no such file, or FFmpeg cannot read it.
    """
    try:
        file = HandedFile(path)
    except OSError:
        raise VideoError("missing", "no such file") from None
    try:
        options = SAFE_OPENING | {"protocol_whitelist": ""}
        return av.open(file, "r", format=_format_of(file), container_options=options, **METADATA)
    except MemoryError as error:
        raise memory_error(error) from None
    except (FFmpegError, ValueError, UnicodeError) as error:
        raise VideoError("unreadable", short_reason(error)) from None


def _format_of(file: HandedFile) -> str | None:
    """Return "wav" for a WAV file; None where FFmpeg finds the format itself.

    FFmpeg 9 takes a WAV file whose samples repeat every 188 bytes, such as a pure tone, for MPEG-TS.
    """
    head = file.read(12)
    file.seek(0)
    return "wav" if head[:4] == b"RIFF" and head[8:] == b"WAVE" else None


def video_stream(container: InputContainer) -> VideoStream:
    """Return the first video stream that is not a cover picture.

    Raises:
        VideoError: There is none, its format is unknown, or its frames are too large.
    """
    streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
    if not streams:
        raise VideoError("no_video", "there is no video stream in it")
    stream = streams[0]
    if context_of(stream) is None:
        raise VideoError("unreadable", "its video is in a format that this FFmpeg does not know")
    check_size(stream.width, stream.height)
    return stream


def first_frame(path: Path) -> av.VideoFrame | None:
    """Return the first frame of a video as FFmpeg's own decoder gives it; None if there is none.

    Raises:
        VideoError: The file cannot be opened.
    """
    with open_video(path) as container:
        try:
            return next(container.decode(video_stream(container)), None)
        except (FFmpegError, ValueError):
            return None


def context_of(stream: Stream) -> CodecContext | None:
    """Return the decoder of a stream; None if this FFmpeg has none. (PyAV's annotations leave the None out.)"""
    return stream.codec_context


def check_size(width: int, height: int) -> None:
    """Raise ``VideoError`` for frames that would take too much memory, as they are or scaled."""
    if width * height > MAX_PIXELS:
        raise VideoError("too_large", f"its frames are {width}x{height}; expected at most {MAX_PIXELS:,} pixels")
    if max(width, height) > MAX_SIDE_RATIO * max(min(width, height), 1):
        raise VideoError(
            "too_large", f"its frames are {width}x{height}: one side is over {MAX_SIDE_RATIO} times the other"
        )


def container_names(container: InputContainer) -> frozenset[str]:
    """Return FFmpeg's names of the container format, such as {"mov", "mp4", ...}."""
    return frozenset(container.format.name.split(","))


def start_second(container: InputContainer, stream: Stream) -> Fraction:
    """Return where the file's clock starts for a reader of ``stream``, in seconds."""
    if OWN_CLOCK_CONTAINERS & container_names(container) and stream.start_time is not None:
        return stream.start_time * time_base_of(stream)
    return Fraction(container.start_time or 0, av.time_base)


def time_base_of(stream: Stream) -> Fraction:
    """Return the seconds of a tick of ``stream``."""
    if not stream.time_base:  # None before PyAV 19, 0/1 from then on
        raise VideoError("unreadable", "its stream has no time base")
    return Fraction(stream.time_base)

"""Open a video file and choose its streams, without opening other files that it refers to."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
from av.codec.context import CodecContext
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Disposition, Stream
from av.video.stream import VideoStream

from .errors import VideoError, short_reason
from .input_file import InputFile
from .sampling import MAX_SIDE_RATIO

# Containers that hold frames themselves. Playlists and concat scripts are excluded: they make FFmpeg open other files
# or addresses, whatever the name of the file.
CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,gif,h264,hevc,ivf,wav,mp3,flac,"
    "mxf,dv,m4v,nut,rm,yuv4mpegpipe,apng,obu"
)
SAFE_OPENING = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file"}
# PyAV before 19 refuses a title that is not UTF-8 without this argument; PyAV 19 reads any bytes and refuses it.
METADATA: dict[str, Any] = {} if int(av.__version__.split(".")[0]) >= 19 else {"metadata_errors": "ignore"}
SHORT_DELAY, SHOWN_DELAY = 1, 10
"""In 1/100 s: a GIF's frame with the first delay is shown for the second, as in browsers and FFmpeg 5.1."""
OWN_CLOCK_CONTAINERS = {"mpegts", "mpeg"}
"""Containers whose clock may start at any time. In these, the ffmpeg program sets time 0 at the first of the streams
that it reads; in others, at the first stream of the file.
"""
JOINED_CONTAINERS = OWN_CLOCK_CONTAINERS | {"ogg"}
"""Containers that may be put together from parts with clocks of their own. Ogg calls it chaining (RFC 3533, 4)."""
MAX_JUMP_SECONDS, MAX_STEP_BACK_SECONDS = 10, Fraction(1, 10)
"""In ``JOINED_CONTAINERS``, a jump or a step back of a stream's clock by more than this begins another part.

Source: fftools/ffmpeg.c (process_input).
"""
MAX_PIXELS = 50_000_000
"""Maximum number of pixels of a frame. 7680x4320 has 33 million."""


def memory_error(error: MemoryError) -> VideoError:
    """Return the error of a file that exhausts memory while it is opened or its packets are read.

    At that stage only the index takes memory, and a valid index takes little.
    """
    return VideoError("unreadable", f"its index is damaged: it declares more than memory holds ({short_reason(error)})")


def open_video(path: Path) -> InputContainer:
    """Open the file, but no other file that it refers to.

    Raises:
        VideoError: There is no such file, or FFmpeg cannot read it.
    """
    try:
        file = InputFile(path)
    except OSError:
        raise VideoError("missing", "no such file") from None
    try:
        options = SAFE_OPENING | {"protocol_whitelist": ""}
        return av.open(file, "r", format=_format_of(file), container_options=options, **METADATA)
    except MemoryError as error:
        raise memory_error(error) from None
    except (FFmpegError, ValueError, UnicodeError) as error:
        raise VideoError("unreadable", short_reason(error)) from None


def _format_of(file: InputFile) -> str | None:
    """Return "wav" for a WAV file; None where FFmpeg finds the format itself.

    FFmpeg 9 mistakes a WAV file for MPEG-TS if its samples repeat every 188 bytes, as in a pure tone.
    """
    head = file.read(12)
    file.seek(0)
    return "wav" if head[:4] == b"RIFF" and head[8:] == b"WAVE" else None


def video_streams(container: InputContainer) -> list[VideoStream]:
    """Return the video streams that are not cover images."""
    return [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]


def video_stream(container: InputContainer) -> VideoStream:
    """Return the first default video stream, or else the first video stream; cover images are ignored.

    Raises:
        VideoError: There is none, its format is unknown, or its frames are too large.
    """
    streams = video_streams(container)
    if not streams:
        raise VideoError("no_video", "it has no video stream")
    stream = next((s for s in streams if s.disposition & Disposition.default), streams[0])
    if context_of(stream) is None:
        raise VideoError("unreadable", "its video is in a format that this FFmpeg does not know")
    check_size(stream.width, stream.height)
    return stream


def demuxed(
    container: InputContainer, streams: Sequence[Stream], begins_part: Callable[[Packet], object] = lambda _: None
) -> Iterator[Packet]:
    """Yield the packets of some streams, in the order of the file.

    An empty packet marks a repeated frame; do not pass it to a decoder. If the clock of a stream may start at any time
    and jumps, the times after the jump continue the times before it.

    Args:
        container: The opened file.
        streams: Streams to read.
        begins_part: Called with the first packet after a jump, before it is yielded.
    """
    joins = bool(JOINED_CONTAINERS & container_names(container))
    clocks: dict[int, _JoinedClock | _GifClock] = {}
    if joins:
        clocks = {s.index: _JoinedClock(ticks_of_frame(s)) for s in streams if s.type in ("video", "audio")}
    elif "gif" in container_names(container):
        clocks = {s.index: _GifClock() for s in streams}
    theora = {s.index for s in streams if s.type == "video" and s.codec_context.name == "theora"}
    # PyAV raises IndexError after the last packet if a stream appeared after the file was opened.
    with contextlib.suppress(IndexError):
        for packet in container.demux(list(streams)):
            if not packet.size and packet.dts is None and packet.pts is None:
                continue  # PyAV's sign that a stream has ended
            if packet.stream.index in theora and packet.size and bytes(packet)[0] & 0x80:
                continue  # a header of the next part (Theora specification, 6.1)
            if (clock := clocks.get(packet.stream.index)) and clock.correct(packet):
                begins_part(packet)
            yield packet


class _GifClock:
    """Shows frames with a delay of 1/100 s for 1/10 s.

    frames at 0, 1, 6 with delays 1, 5, 1  ->  frames at 0, 10, 15 with delays 10, 5, 10 (in 1/100 s)
    """

    def __init__(self) -> None:
        self._shift = 0

    def correct(self, packet: Packet) -> bool:
        """Shift a packet's times; return False: the clock does not jump."""
        packet.pts, packet.dts = (None if time is None else time + self._shift for time in (packet.pts, packet.dts))
        if packet.duration == SHORT_DELAY:
            packet.duration = SHOWN_DELAY
            self._shift += SHOWN_DELAY - SHORT_DELAY
        return False


class _JoinedClock:
    """Shifts the times of a stream's packets so that each part follows the one before.

    1 packet a second at 7, 8, 9, 300, 301, 0, 1  ->  7, 8, 9, 10, 11, 12, 13; the jumps are before 300 and 0
    """

    def __init__(self, ticks_of_frame: int) -> None:
        self._ticks_of_frame = ticks_of_frame
        self._shift = 0
        self._last: int | None = None
        """Decoding time of the previous packet."""
        self._next = 0
        """Time at which that packet ends."""
        self._delay = 0
        """Time between decoding and display of the first packet."""

    def correct(self, packet: Packet) -> bool:
        """Shift a packet's times; return whether its clock jumped."""
        jumped = False
        if packet.dts is not None:
            dts = packet.dts + self._shift
            if self._last is not None:
                jump, back = ((dts - self._next) * packet.time_base, (self._last - dts) * packet.time_base)
                if jumped := abs(jump) > MAX_JUMP_SECONDS or back > MAX_STEP_BACK_SECONDS:
                    self._shift += self._next - dts
                    dts = self._next
            if packet.pts is not None:
                if self._last is None:
                    self._delay = packet.pts - dts
                elif abs(packet.pts + self._shift - dts) * packet.time_base > MAX_JUMP_SECONDS:
                    # The first packet of a part may have no decoding time, and FFmpeg continues the last part's.
                    packet.pts = dts + self._delay - self._shift
            self._last, self._next = dts, dts + (packet.duration or self._ticks_of_frame)
            packet.dts = dts
        if packet.pts is not None:
            packet.pts += self._shift
        return jumped


def ticks_of_frame(stream: Stream, rate: Any = None) -> int:
    """Return the duration, in ticks, of a frame if its packet does not state one."""
    stated = (rate, getattr(stream, "average_rate", None), getattr(stream, "guessed_rate", None), Fraction(25))
    given = next(value for value in stated if value)
    return max(round(1 / (as_fraction(given) * time_base_of(stream))), 1)


def first_frame(path: Path) -> av.VideoFrame | None:
    """Return the first frame of a video, decoded by FFmpeg's default decoder; None if there is none.

    Raises:
        VideoError: The file cannot be opened.
    """
    with open_video(path) as container:
        try:
            return next(container.decode(video_stream(container)), None)
        except (FFmpegError, ValueError):
            return None


def context_of(stream: Stream) -> CodecContext | None:
    """Return the decoder of a stream; None if this FFmpeg has none. (PyAV's annotations omit the None.)"""
    return stream.codec_context


def check_size(width: int, height: int) -> None:
    """Raise ``VideoError`` for frames that would take too much memory, before or after scaling."""
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
    """Return the length of a tick of ``stream``, in seconds."""
    if not stream.time_base:  # None before PyAV 19, 0/1 from then on
        raise VideoError("unreadable", "its stream has no time base")
    return as_fraction(stream.time_base)


def as_fraction(rational: Any) -> Fraction:
    """Return one of PyAV's rational numbers as a ``Fraction``; PyAV 19 and later have a type of their own."""
    return Fraction(rational)

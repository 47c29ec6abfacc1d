"""Decode packets into ordered frames with FFmpeg's libraries, and record damage."""

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeVar

import av
import av.logging
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from .container import demuxed, video_stream
from .errors import VideoError, short_reason
from .kernels import Size
from .probe import VideoInfo
from .scaling import Scaler, set_known_colours, upright_filters

LOGGING_CODECS = {"hevc"}
"""Codecs whose decoders log damage but do not mark the damaged frames."""
SKIPPING_CODECS = {"h264", "hevc", "mpeg4", "mpeg2video"}
"""Codecs whose decoders can skip frames that no other frame refers to, without changing other frames."""
DAMAGED_PACKET = (FFmpegError, ValueError, UnicodeError, AttributeError, IndexError)
"""Errors that PyAV raises for packets of damaged files; all of these were seen."""

Images = list[np.ndarray]
"""A frame as an upright image, [H, W, 3] RGB, in each of the sizes."""
Frame = TypeVar("Frame", av.VideoFrame, av.AudioFrame)


@dataclass(kw_only=True)
class DecodeProgress:
    """The progress of decoding, and the damage found."""

    heartbeat: Callable[[], None] = lambda: None
    """Called for each decoded frame."""
    num_damaged: int = 0
    """Frames that the decoder marks as corrupt; packets that it cannot decode, or logs errors about; 1 if the rest of
    the file cannot be read, and 1 for each flush that fails."""


@dataclass
class DecodePass(DecodeProgress):
    """One pass over a video's frames."""

    info: VideoInfo
    sizes: list[Size]
    """The sizes in which images are wanted."""
    strict: bool = True
    """Prefer a decoder that rejects damaged frames. If False, damaged frames are returned as they are."""
    delivered: "array[int]" = field(default_factory=lambda: array("q"))
    """Times of the decoded frames, in ticks."""

    def count(self, time: int) -> None:
        """Record a decoded frame at ``time``, in ticks."""
        self.delivered.append(time)
        self.heartbeat()


class _FrameTimestamps:
    """Timestamps of frames, in ticks of the video's time base: from PTS, else from DTS, else from the frame count."""

    def __init__(self, decoding: DecodePass, time_base: Fraction, offset: int) -> None:
        self._decoding, self._info = decoding, decoding.info
        self._time_base, self._offset = time_base, offset
        self._step = int(self._info.end - self._info.pts[-1])
        self._last_pts = self._last_dts = -(1 << 63)
        self._num_faulty_pts = self._num_faulty_dts = 0

    def time_of(self, frame: av.VideoFrame) -> int | None:
        """Return when a frame is shown; None if it should have a time and does not."""
        delivered = self._decoding.delivered
        if self._info.timed:
            time = self._best_effort(frame)
            return None if time is None else self._in_ticks(time)
        if not self._info.delayed:
            return len(delivered)
        if frame.dts is not None:
            return self._in_ticks(frame.dts)
        return delivered[-1] + self._step if delivered else 0  # after the last packet, at the usual step

    def _best_effort(self, frame: av.VideoFrame) -> int | None:
        """Return the frame's presentation time, or its decoding time if presentation times have gone back more often.

        Source: libavcodec/decode.c (guess_correct_pts).
        """
        pts, dts = frame.pts, frame.dts
        if dts is not None:
            self._num_faulty_dts += dts <= self._last_dts
        if pts is not None:
            self._num_faulty_pts += pts <= self._last_pts
        last_dts, last_pts = (pts if dts is None else dts), (dts if pts is None else pts)
        if last_dts is not None and last_pts is not None:
            self._last_dts, self._last_pts = last_dts, last_pts
        return dts if pts is None or (dts is not None and self._num_faulty_pts > self._num_faulty_dts) else pts

    def _in_ticks(self, time: int) -> int:
        time -= self._offset
        same = self._time_base == self._info.time_base
        return time if same else round(time * self._time_base / self._info.time_base)


def frames_in_order(
    decoding: DecodePass,
    wanted: np.ndarray,
    container: InputContainer,
    time_base: Fraction,
    offset: int,
    *,
    skip: bool,
    colours: tuple[int, int] | None = None,
    context: VideoCodecContext | None = None,
) -> Iterator[tuple[int, Images]]:
    """Yield (index, images) for each wanted frame that is decoded.

    Args:
        decoding: Counts frames and damage.
        wanted: Ascending indices into ``decoding.info.pts``.
        container: The opened video.
        time_base: Length of a tick of the container's times, in seconds.
        offset: The container's time at which the video starts, in its ticks.
        skip: Skip frames that are neither wanted nor referred to by other frames.
        colours: Matrix and range to use for each wanted frame, for sources whose frames state none or wrong ones.
        context: The decoder to use instead of FFmpeg's default.
    """
    info, scalers = decoding.info, [Scaler(size) for size in decoding.sizes]
    known = info.timed or info.delayed
    remaining = {int(info.pts[i]): i for i in wanted.tolist()} if known else {i: i for i in wanted.tolist()}
    last_wanted = max(remaining, default=-1)
    stream, timestamps = video_stream(container), _FrameTimestamps(decoding, time_base, offset)
    context = context or stream.codec_context
    context.thread_count = 1
    context.options = {"err_detect": "crccheck"}  # checksums of frames and slices, if the encoder wrote any
    skip = (
        skip
        and info.codec in SKIPPING_CODECS
        and len(wanted) < len(info.pts)
        and not (info.by_fields or info.unordered)
    )
    needed = {time + offset for time in remaining} if skip else None
    frames = _with_times(decoding, timestamps, decoded_frames(decoding, container, stream, context, needed))
    for time, frame in _last_of_each_time(frames) if info.repeats else frames:
        upright = upright_filters(frame)
        for scaler in scalers:
            scaler.see(frame, upright)
        if (index := remaining.pop(time, None)) is not None:
            if colours:
                frame.colorspace, frame.color_range = colours
            set_known_colours(frame)
            yield index, [scaler(frame, upright) for scaler in scalers]
        if time >= last_wanted and not remaining:
            # A reference frame may be displayed after the frames predicted from it: flush it and count is_corrupt.
            decoding.num_damaged += sum(frame.is_corrupt for frame in _flush(decoding, context.decode))
            return


def _with_times(
    decoding: DecodePass, timestamps: _FrameTimestamps, frames: Iterator[av.VideoFrame]
) -> Iterator[tuple[int, av.VideoFrame]]:
    """Count frames and their damage; skip frames that lack a required time."""
    for frame in frames:
        if (time := timestamps.time_of(frame)) is not None:
            decoding.num_damaged += frame.is_corrupt
            decoding.count(time)
            yield time, frame


def _last_of_each_time(frames: Iterator[tuple[int, av.VideoFrame]]) -> Iterator[tuple[int, av.VideoFrame]]:
    """Yield the last of consecutive frames with the same time.

    frames a, b, c, d at times 0, 1, 1, 2  ->  a, c, d
    """
    held = None
    for time, frame in frames:
        if held is not None and held[0] != time:
            yield held
        held = time, frame
    if held is not None:
        yield held


def decoded_frames(
    progress: DecodeProgress,
    container: InputContainer,
    stream: VideoStream,
    context: VideoCodecContext,
    needed: set[int] | None = None,
) -> Iterator[av.VideoFrame]:
    """Yield the frames of a video stream in order; count and skip packets that cannot be decoded.

    Args:
        progress: Counts damage.
        container: The opened video.
        stream: Its video.
        context: The decoder.
        needed: Times of the packets that are needed. If given, frames at other times are skipped where the decoder
            finds that no other frame refers to them.

    Raises:
        VideoError: Decoding ran out of memory.
    """
    yield from frames_of_packets(progress, demuxed(container, [stream]), context, needed)


def frames_of_packets(
    progress: DecodeProgress, packets: Iterator[Packet], context: VideoCodecContext, needed: set[int] | None = None
) -> Iterator[av.VideoFrame]:
    """Yield the frames of a video's packets in order, as ``decoded_frames`` does."""
    for packet in _packets(progress, packets):
        if packet is None:
            yield from _flush(progress, context.decode)
            continue
        if needed is not None and packet.pts is not None:
            context.skip_frame = "DEFAULT" if packet.pts in needed else "NONREF"
        yield from _decode(progress, context.name, context.decode, packet)


def decoded_sound(progress: DecodeProgress, container: InputContainer, stream: AudioStream) -> Iterator[av.AudioFrame]:
    """Yield the frames of a sound stream in order; count and skip packets that cannot be decoded.

    Raises:
        VideoError: Decoding ran out of memory.
    """
    context = stream.codec_context
    for packet in _packets(progress, demuxed(container, [stream])):
        if packet is None:
            yield from _flush(progress, context.decode)
        else:
            yield from _decode(progress, context.name, context.decode, packet)


def _packets(progress: DecodeProgress, packets: Iterator[Packet]) -> Iterator[Packet | None]:
    """Yield packets, then None to flush the decoder."""
    while True:
        try:
            packet = next(packets, None)
        except (FFmpegError, ValueError, UnicodeError):
            progress.num_damaged += 1  # the rest of the file cannot be read
            packet = None
        if packet is None:
            yield None
            return
        if packet.size:
            yield packet


def _decode(
    progress: DecodeProgress, codec: str, decode: Callable[[Packet | None], list[Frame]], packet: Packet
) -> list[Frame]:
    try:
        with _logged_errors(codec) as errors:
            frames = decode(packet)
        progress.num_damaged += bool(errors)
        return frames
    except MemoryError as error:
        raise VideoError("out_of_memory", short_reason(error)) from None
    except DAMAGED_PACKET:
        progress.num_damaged += 1
        progress.heartbeat()
        return []


@contextmanager
def _logged_errors(codec: str) -> Iterator[list[tuple[int, str, str]]]:
    """Yield a list that collects the log messages of a decoder in ``LOGGING_CODECS``; empty for other decoders."""
    if codec not in LOGGING_CODECS:
        yield []
        return
    av.logging.set_level(av.logging.ERROR)
    try:
        with av.logging.Capture() as errors:
            yield errors
    finally:
        av.logging.set_level(None)


def _flush(progress: DecodeProgress, decode: Callable[[Packet | None], list[Frame]]) -> list[Frame]:
    """Return the frames that the decoder still holds back."""
    try:
        return decode(None)
    except EOFError:
        return []
    except (FFmpegError, ValueError):
        progress.num_damaged += 1
        return []

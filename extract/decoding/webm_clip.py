"""A part of a video as a small WebM file, which browsers can play whatever the format of the video."""

import contextlib
import io
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Stream
from av.video.stream import VideoStream

from .container import as_fraction, check_size, context_of, open_video, time_base_of, video_stream
from .errors import VideoError
from .frames import DecodeProgress, decoded_frames, decoded_sound
from .images import is_image
from .scaling import set_known_colours, swaps_sides, upright_filters, upright_image
from .sound import time_zero

MAX_CLIP_SECONDS = 30.0
MAX_SIDE_PX = 640
"""Maximum length of the longer side in pixels."""
MAX_FPS = 30
BITS_PER_SECOND = 1_000_000
SOUND_RATE, SOUND_FRAME = 48_000, 960
"""Samples of Opus per second, and per packet."""
TICK = Fraction(1, 1000)
SEEK_BACK_SECONDS = 1.0, 10.0, 60.0, math.inf
"""Seconds before the start at which to seek a key frame, tried in this order: in some containers, a seek may end
between key frames.
"""


def webm_clip(
    path: Path, start_seconds: float, end_seconds: float, heartbeat: Callable[[], None] = lambda: None
) -> bytes:
    """Return the frames and the sound between two times as WebM (VP8 and Opus). Its time 0 is ``start_seconds``.

    Args:
        path: The video.
        start_seconds: Start of the clip, on the clock of stored feature vectors.
        end_seconds: Its end; a clip is cut at ``MAX_CLIP_SECONDS``.
        heartbeat: Called for each frame.

    Raises:
        VideoError: The video cannot be decoded, or has no frame between these times.
    """
    if is_image(path):
        raise VideoError("no_video", "it is an image")
    end_seconds = min(end_seconds, start_seconds + MAX_CLIP_SECONDS)
    content = io.BytesIO()
    with av.open(content, "w", format="webm") as output:
        video = output.add_stream("libvpx", rate=MAX_FPS, options={"deadline": "realtime", "cpu-used": "8"})
        sound = output.add_stream("libopus", rate=SOUND_RATE, layout="stereo") if _has_sound(path) else None
        packets = list(_video_packets(path, start_seconds, end_seconds, video, heartbeat))
        if sound is not None:
            with contextlib.suppress(VideoError):  # a clip without sound is better than nothing
                packets.extend(_sound_packets(path, start_seconds, end_seconds, sound, heartbeat))
        output.mux(sorted(packets, key=lambda packet: (packet.dts or 0) * packet.time_base))
    return content.getvalue()


def _has_sound(path: Path) -> bool:
    with open_video(path) as container:
        return bool(container.streams.audio) and context_of(container.streams.audio[0]) is not None


def go_to(container: InputContainer, stream: Stream, zero: Fraction, seconds: float) -> bool:
    """Seek to a key frame before ``seconds``; return False if reading starts at the beginning of the file instead."""
    if seconds <= 0:
        return False
    try:
        container.seek(int((float(zero) + seconds) / time_base_of(stream)), stream=stream)
    except FFmpegError:  # it has no index
        return False
    return True


def _frames_from(
    path: Path, seconds: float, heartbeat: Callable[[], None]
) -> Iterator[tuple[float, av.VideoFrame, VideoStream]]:
    """Yield (second, frame, its stream) from a key frame before ``seconds`` on."""
    for seek_back in SEEK_BACK_SECONDS:
        with open_video(path) as container:
            stream, zero = video_stream(container), time_zero(container)
            stream.codec_context.thread_count = 1
            is_later = go_to(container, stream, zero, seconds - seek_back)
            for number, frame in enumerate(
                decoded_frames(DecodeProgress(heartbeat=heartbeat), container, stream, stream.codec_context)
            ):
                heartbeat()
                ticks = frame.dts if frame.pts is None else frame.pts
                if ticks is None:
                    continue
                time = float(ticks * time_base_of(stream) - zero)
                if number == 0 and is_later and time > seconds:
                    break
                yield time, frame, stream
            else:
                return


def _video_packets(
    path: Path, start_seconds: float, end_seconds: float, encoded: VideoStream, heartbeat: Callable[[], None]
) -> Iterator[Packet]:
    last = -math.inf
    for seconds, frame, stream in _frames_from(path, start_seconds, heartbeat):
        if seconds >= end_seconds:
            break
        if seconds < start_seconds - TICK / 2 or seconds - last < 0.97 / MAX_FPS:
            continue
        if math.isinf(last):
            _set_up(encoded, frame, as_fraction(stream.sample_aspect_ratio or 1))
        last = seconds
        upright = _upright(frame, encoded.width, encoded.height)
        upright.pts, upright.time_base = max(round((seconds - start_seconds) / TICK), 0), TICK
        yield from encoded.encode(upright)
    if math.isinf(last):
        raise VideoError("no_video", "it has no frame between these times")
    yield from encoded.encode(None)


def shown_size(frame: av.VideoFrame, aspect: Fraction) -> tuple[int, int]:
    """Return the even (width, height) of an upright frame with square pixels, at most ``MAX_SIDE_PX``.

    Raises:
        VideoError: The frame is too large.
    """
    check_size(frame.width, frame.height)
    width, height = frame.width * float(aspect), float(frame.height)
    if swaps_sides(upright_filters(frame)):
        width, height = height, width
    scale = min(MAX_SIDE_PX / max(width, height), 1.0)
    return max(2 * round(width * scale / 2), 2), max(2 * round(height * scale / 2), 2)


def upright_rgb(frame: av.VideoFrame, width: int, height: int) -> np.ndarray:
    """Return a frame as an upright image, uint8 [height, width, 3] RGB."""
    set_known_colours(frame)
    filters = upright_filters(frame)
    size = (height, width) if swaps_sides(filters) else (width, height)
    return upright_image(frame.reformat(*size, "rgb24").to_ndarray(), filters)


def _set_up(encoded: VideoStream, frame: av.VideoFrame, aspect: Fraction) -> None:
    """Set the size of the clip, and how it is encoded."""
    encoded.width, encoded.height = shown_size(frame, aspect)
    encoded.pix_fmt = "yuv420p"
    encoded.bit_rate = BITS_PER_SECOND
    encoded.codec_context.time_base = TICK
    encoded.codec_context.thread_count = 1


def _upright(frame: av.VideoFrame, width: int, height: int) -> av.VideoFrame:
    set_known_colours(frame)
    filters = upright_filters(frame)
    if not filters:
        return frame.reformat(width, height, "yuv420p")
    image = upright_rgb(frame, width, height)
    return av.VideoFrame.from_ndarray(np.ascontiguousarray(image, np.uint8), "rgb24").reformat(format="yuv420p")


def _sound_packets(
    path: Path, start_seconds: float, end_seconds: float, encoded: AudioStream, heartbeat: Callable[[], None]
) -> Iterator[Packet]:
    resampler = av.AudioResampler("flt", "stereo", SOUND_RATE, SOUND_FRAME)
    with open_video(path) as container:
        stream = container.streams.audio[0]
        zero = time_zero(container)
        go_to(container, stream, zero, start_seconds - SEEK_BACK_SECONDS[0])
        for frame in decoded_sound(DecodeProgress(heartbeat=heartbeat), container, stream):
            heartbeat()
            if frame.pts is None:
                continue
            seconds = float(frame.pts * time_base_of(stream) - zero)
            if seconds >= end_seconds:
                break
            if seconds < start_seconds:
                continue
            frame.pts = round((seconds - start_seconds) * SOUND_RATE)
            frame.time_base = Fraction(1, SOUND_RATE)
            for resampled in resampler.resample(frame):
                yield from encoded.encode(resampled)
    yield from encoded.encode(None)

"""A part of a video as a file for editors and players: its packets copied, or its frames encoded again.

    copy    unchanged packets, from the key frame before the part: the file begins earlier than the part
    exact   H.264 and AAC: the file begins and ends with the part's first and last frame

Both are written from front to back, apart from their headers, and delivered in parts: a whole clip is never in memory.
"""

import io
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.video.frame import PictureType
from av.video.stream import VideoStream

from .container import as_fraction, context_of, demuxed, open_video, time_base_of, video_stream
from .errors import VideoError, short_reason
from .frames import DecodeProgress, decoded_sound, frames_of_packets
from .scaling import Filters, set_known_colours, swaps_sides, upright_filters, upright_image
from .single_frame import OpenVideo
from .sound import MAX_DRIFT_SECONDS, time_zero
from .span import NOT_COPIED, Span, copy_container, find_span
from .webm_clip import SEEK_BACK_SECONDS, go_to

MAX_CLIP_BYTES = 8 << 30
"""Maximum size of a clip."""
PART_BYTES = 1 << 20
"""Maximum size of a delivered part."""
HEADER_BYTES, PACKET_HEADER_BYTES = 1 << 16, 64
"""Bytes reserved for the header at the start of an MP4: a fixed number, plus a number for each packet. Players can then
start before the whole file has arrived.
"""
SOUND_FRAME = 1024
"""Samples in a packet of AAC."""
SOUND_RATES = {8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000}
OTHER_RATE = 48_000
"""Sample rate of AAC if the file's own rate is not in ``SOUND_RATES``."""
X264 = {"crf": "18", "preset": "veryfast"}
"""Encoder options. The result looks the same as its source."""
Heartbeat = Callable[[], None]
TakePart = Callable[[int, bytes], None]
"""Takes (offset, bytes) of the file."""


@dataclass(frozen=True)
class ClipWritten:
    """Summary of a complete clip."""

    num_bytes: int
    start_seconds: float
    """Time in the video of the clip's first frame, on the clock of the stored feature vectors."""
    end_seconds: float
    """Time in the video until which the clip's last frame is shown."""
    num_frames: int


class PartWriter(io.RawIOBase):
    """A file object that delivers the written bytes in parts."""

    def __init__(self, take: TakePart) -> None:
        self._take, self._part, self._start, self._place = take, bytearray(), 0, 0
        self.num_bytes = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def write(self, content: bytes) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take bytes at the current position."""
        if self._place != self._start + len(self._part):
            self.flush()
            self._start = self._place
        self._part += content
        self._place += len(content)
        self.num_bytes = max(self.num_bytes, self._place)
        if self.num_bytes > MAX_CLIP_BYTES:
            raise VideoError("too_large", f"the clip has more than {MAX_CLIP_BYTES >> 30} GiB; request a shorter one")
        if len(self._part) >= PART_BYTES:
            self.flush()
        return len(content)

    def flush(self) -> None:
        """Deliver the bytes written so far."""
        for first in range(0, len(self._part), PART_BYTES):
            self._take(self._start + first, bytes(self._part[first : first + PART_BYTES]))
        self._start, self._part = self._place, bytearray()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position; return it."""
        self._place = offset + (0, self._place, self.num_bytes)[whence]
        return self._place

    def tell(self) -> int:
        """Return the position."""
        return self._place


def write_clip(
    path: Path,
    start_seconds: float,
    end_seconds: float,
    kind: str,
    take: TakePart,
    heartbeat: Heartbeat = lambda: None,
    on_duration: Callable[[float], None] = lambda _: None,
) -> ClipWritten:
    """Write a part of a video as a file.

    Args:
        path: The video.
        start_seconds: Start of the part, on the clock of the stored feature vectors; ``span`` defines its frames.
        end_seconds: Its end.
        kind: "copy", or "exact".
        take: Receives the parts of the file.
        heartbeat: Called for each packet and frame.
        on_duration: Called with the seconds of video that have to be decoded.

    Raises:
        VideoError: The part cannot be read, or cannot be copied.
    """
    span = find_span(path, start_seconds, end_seconds, heartbeat)
    file = PartWriter(take)
    try:
        if kind == "copy":
            shown = _copy(path, span, file, heartbeat)
        else:
            start, end = span.seconds
            on_duration(float(end if span.info is not None else end - start))
            shown = _encode(path, span, file, heartbeat)
    except (FFmpegError, ValueError) as error:
        raise VideoError("unreadable", f"the clip cannot be written ({short_reason(error)})") from None
    file.flush()
    return ClipWritten(file.num_bytes, float(shown[0]), float(shown[1]), shown[2])


Shown = tuple[Fraction, Fraction, int]
"""Start, end and number of frames of a clip."""


def _open_output(file: PartWriter, container: str, num_packets: int) -> OutputContainer:
    options = {"moov_size": str(HEADER_BYTES + PACKET_HEADER_BYTES * num_packets)}
    return av.open(file, "w", format=container, options={} if container == "matroska" else options)


# Copies


def _copy(path: Path, span: Span, file: PartWriter, heartbeat: Heartbeat) -> Shown:
    if span.key is None:
        raise VideoError("unreadable", NOT_COPIED)
    with open_video(path) as container:
        streams = [video_stream(container), *container.streams.audio[:1]]
        streams = [stream for stream in streams if context_of(stream) is not None]
        video, key_seconds = OpenVideo(container, span.start, float(span.seconds[0])), span.key * span.tick
        num_sound = sum(1 for _ in streams[1:]) * int((span.end * span.tick - key_seconds) * 400 + 100)
        num_packets = span.num_packets + num_sound
        times: list[int] = []
        last = 0
        with _open_output(file, copy_container(container), num_packets) as output:
            copies = {stream.index: output.add_stream_from_template(stream, opaque=True) for stream in streams}
            shift = {
                stream.index: round((key_seconds + time_zero(container)) / time_base_of(stream)) for stream in streams
            }
            for packet in _packets_of_copy(container, span, video, streams, heartbeat):
                if packet.stream is video.stream and packet.pts is not None:
                    times.append(packet.pts - video.offset)
                    last = packet.duration or last
                by = shift[packet.stream.index]
                packet.pts, packet.dts = (None if time is None else time - by for time in (packet.pts, packet.dts))
                packet.stream = copies[packet.stream.index]
                output.mux(packet)
    end = max(times) + last if max(times) > span.times[-1] or not last else span.end
    return key_seconds, max(end * span.tick, span.end * span.tick), len(times)


def _packets_of_copy(
    container: InputContainer, span: Span, video: OpenVideo, streams: list, heartbeat: Heartbeat
) -> Iterator[Packet]:
    """Yield the packets of a copy, in the order of the file.

    Frames that are stored after the key frame but shown before it need earlier frames, and are left out.
    """
    assert span.key is not None
    start, number, is_done = span.key * span.tick, -1, set()
    for packet in demuxed(container, streams):
        heartbeat()
        if not packet.size or packet.pts is None:
            continue
        if packet.stream is video.stream:
            number += 1
            place = number - span.num_before_key
            if 0 <= place < span.num_packets and packet.pts - video.offset >= span.key:
                yield packet
            elif place >= span.num_packets:
                is_done.add(packet.stream.index)
        else:
            seconds = packet.pts * time_base_of(packet.stream) - video.offset * video.tick
            if start <= seconds < span.end * span.tick:
                yield packet
            elif seconds >= span.end * span.tick:
                is_done.add(packet.stream.index)
        if len(is_done) == len(streams):
            return


# Exact clips


def _encode(path: Path, span: Span, file: PartWriter, heartbeat: Heartbeat) -> Shown:
    with open_video(path) as container:
        sound = next((stream for stream in container.streams.audio if context_of(stream) is not None), None)
        rate = 0 if sound is None else _sound_rate(sound)
        frame_rate = as_fraction(video_stream(container).average_rate or 25)
    start, end = span.seconds
    num_sound = int((end - start) * rate) // SOUND_FRAME + 10 if rate else 0
    frames = _frames(path, span, heartbeat)
    first = next(frames, None)
    if first is None:
        raise VideoError("unreadable", "none of its frames there can be decoded")
    with _open_output(file, "mp4", len(span.times) + num_sound) as output:
        video = _video_encoder(output, first[1], span.tick, frame_rate, first[2])
        encoded_sound = output.add_stream("aac", rate=rate, layout=_layout(sound)) if sound is not None else None
        written = _Written()
        parts = [_video_packets(itertools.chain([first], frames), video, span, written)]
        if encoded_sound is not None:
            parts.append(_sound_packets(path, start, end, encoded_sound, heartbeat))
        for packet in _interleaved(parts):
            output.mux(packet)
    return start, end, written.num_frames


@dataclass
class _Written:
    num_frames: int = 0


def _interleaved(parts: list[Iterator[Packet]]) -> Iterator[Packet]:
    """Yield the packets of several encoders in the order of their decoding times."""
    queues = [(iter(part), deque()) for part in parts]
    while True:
        for part, queue in queues:
            if not queue and (packet := next(part, None)) is not None:
                queue.append(packet)
        filled = [queue for _, queue in queues if queue]
        if not filled:
            return
        yield min(filled, key=lambda queue: (queue[0].dts or 0) * queue[0].time_base).popleft()


def _frames(path: Path, span: Span, heartbeat: Heartbeat) -> Iterator[tuple[int, av.VideoFrame, Fraction]]:
    """Yield (tick from the video's time zero, frame, pixel aspect) of the part's frames that can be decoded."""
    backs = [span.start.back, *(back for back in SEEK_BACK_SECONDS if back > span.start.back)]
    for back in backs:
        with open_video(path) as container:
            video = OpenVideo(container, type(span.start)(back=back), float(span.seconds[0]))
            aspect = as_fraction(video.stream.sample_aspect_ratio or 1)
            video.by_dts = video.by_dts or (span.info is not None and span.info.delayed)
            last, number, yielded = None, -1, -1
            decoded = frames_of_packets(
                DecodeProgress(heartbeat=heartbeat), video.packets(heartbeat), video.stream.codec_context
            )
            for frame in decoded:
                heartbeat()
                number += 1
                last = time = _time_of(frame, video, span, last, number)
                if time is None:
                    continue
                if yielded < 0 and video.is_later and time > span.times[0]:
                    break  # the seek went too far, or decoding cannot start at its key frame
                if time > span.times[-1]:
                    return
                if time >= span.times[0] and time > yielded:
                    yielded = time
                    yield time, frame, aspect
            else:
                return


def _time_of(frame: av.VideoFrame, video: OpenVideo, span: Span, last: int | None, number: int) -> int | None:
    """Return when a frame is shown, in ticks from the video's time zero."""
    info = span.info
    if info is not None and not info.timed and not info.delayed:  # a bare stream: its frames follow each other
        return int(info.pts[min(number, len(info.pts) - 1)]) if number < len(info.pts) else None
    time = video.time_of(frame, None if last is None else last + video.offset)
    return None if time is None else time - video.offset


def _video_encoder(
    output: OutputContainer, frame: av.VideoFrame, tick: Fraction, rate: Fraction, aspect: Fraction
) -> VideoStream:
    """Return the encoder of a clip, with the size of the upright ``frame`` and, if it is not turned, its colours."""
    video = output.add_stream("libx264", rate=rate, options=X264)
    width, height = _even(frame.width), _even(frame.height)
    if swaps_sides(upright_filters(frame)):
        width, height, aspect = height, width, 1 / aspect
    video.width, video.height, video.pix_fmt = width, height, "yuv420p"
    context = video.codec_context
    context.sample_aspect_ratio = aspect
    context.time_base = tick
    context.thread_count = 1
    if not upright_filters(frame):
        context.colorspace, context.color_range = frame.colorspace, frame.color_range
        context.color_primaries, context.color_trc = frame.color_primaries, frame.color_trc
    return video


def _even(side: int) -> int:
    return max(side - side % 2, 2)


def _video_packets(
    frames: Iterator[tuple[int, av.VideoFrame, Fraction]], encoded: VideoStream, span: Span, written: _Written
) -> Iterator[Packet]:
    turns: Filters | None = None
    for time, frame, _ in frames:
        # The side data of a frame keep the frame in memory: only the side data of the first frame are read.
        turns = upright_filters(frame) if turns is None else turns
        ready = _ready(frame, encoded.width, encoded.height, turns)
        ready.pts, ready.time_base = time - span.times[0], span.tick
        written.num_frames += 1
        yield from encoded.encode(ready)
    yield from encoded.encode(None)


def _ready(frame: av.VideoFrame, width: int, height: int, turns: Filters) -> av.VideoFrame:
    """Return a frame as the encoder takes it: upright, with even sides."""
    if turns:
        set_known_colours(frame)
        size = (height, width) if swaps_sides(turns) else (width, height)
        image = upright_image(frame.reformat(*size, "rgb24").to_ndarray(), turns)
        image = np.ascontiguousarray(image, np.uint8)
        return av.VideoFrame.from_ndarray(image, "rgb24").reformat(format="yuv420p")
    if (frame.width, frame.height, frame.format.name) == (width, height, "yuv420p"):
        frame.pict_type = PictureType.NONE  # the encoder chooses its own key frames
        return frame
    return frame.reformat(width, height, "yuv420p")


def _sound_rate(stream: AudioStream) -> int:
    rate = stream.codec_context.sample_rate
    return rate if rate in SOUND_RATES else OTHER_RATE


def _layout(stream: AudioStream) -> str:
    return "mono" if stream.codec_context.channels == 1 else "stereo"


def _sound_packets(
    path: Path, start: Fraction, end: Fraction, encoded: AudioStream, heartbeat: Heartbeat
) -> Iterator[Packet]:
    """Yield the sound between two times, exact to the sample, with silence in gaps."""
    rate, layout = encoded.codec_context.sample_rate, encoded.codec_context.layout.name
    num_samples, place = round((end - start) * rate), 0
    fifo = av.AudioFifo()

    def encode(samples: np.ndarray) -> Iterator[Packet]:
        nonlocal place
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), "fltp", layout)
        frame.sample_rate, frame.pts, frame.time_base = rate, place, Fraction(1, rate)
        place += samples.shape[1]
        fifo.write(frame)
        while (block := fifo.read(SOUND_FRAME)) is not None:
            yield from encoded.encode(block)

    num_channels, drift = (1 if layout == "mono" else 2), MAX_DRIFT_SECONDS * rate
    for first, samples in _samples(path, start, rate, layout, heartbeat):
        allowed = drift if place else 0  # the first sample is placed exactly
        if first > place + allowed:
            yield from encode(np.zeros((num_channels, min(first, num_samples) - place), np.float32))
        skipped = place - first if place - first > allowed else 0
        samples = samples[:, skipped:][:, : num_samples - place]
        if samples.shape[1]:
            yield from encode(samples)
        if place >= num_samples:
            break
    while place < num_samples:  # one second of silence at a time
        yield from encode(np.zeros((num_channels, min(num_samples - place, rate)), np.float32))
    if (block := fifo.read(0, partial=True)) is not None:
        yield from encoded.encode(block)
    yield from encoded.encode(None)


def _samples(
    path: Path, start: Fraction, rate: int, layout: str, heartbeat: Heartbeat
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first sample's position relative to ``start``, samples [C, T]) of a sound, from before ``start`` on."""
    resampler = av.AudioResampler("fltp", layout, rate)
    with open_video(path) as container:
        stream = next(each for each in container.streams.audio if context_of(each) is not None)
        zero = time_zero(container)
        go_to(container, stream, zero, float(start) - SEEK_BACK_SECONDS[0])
        for frame in decoded_sound(DecodeProgress(heartbeat=heartbeat), container, stream):
            heartbeat()
            if frame.pts is None:
                continue
            first = round((frame.pts * time_base_of(stream) - zero - start) * rate)
            if first + frame.samples * rate // max(frame.sample_rate, 1) < -rate:
                continue
            frame.pts = None
            for resampled in resampler.resample(frame):
                yield first, resampled.to_ndarray()
                first += resampled.samples

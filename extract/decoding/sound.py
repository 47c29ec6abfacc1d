"""The sound of a video file as log-mel rows or samples, one block at a time."""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError
from av.stream import Discard

from .container import context_of, demuxed, open_video, start_second, time_base_of, video_stream
from .errors import VideoError, short_reason
from .frames import DecodeProgress, decoded_sound
from .log_mel import HOP, RATE, RowBlocks
from .probe import MAX_FRAME_SECONDS, PAUSE_SECONDS, ends_early, probe_video
from .sampling import MAX_VIDEO_SECONDS

MAX_DRIFT_SECONDS = 0.015
"""Timestamps that differ from the count of samples by more than this are followed. Smaller differences are due to
rounding in containers, and each correction would be audible as a click."""
MAX_BLOCK_SAMPLES = 1 << 18
"""Samples in a block; about 16 s."""
MAX_BACK_SECONDS = 1.0
"""Overlaps up to this are cut away. A longer one is an error, as for frames: the clock jumps back."""


@dataclass(frozen=True)
class SoundFinished:
    """Summary of the sound, after its last block."""

    decoder: str
    first_row: int
    """Number of the first row. Row i begins i * ``HOP / RATE`` seconds after the video's time zero."""
    num_rows: int
    duration_seconds: float
    """End of the sound."""
    partial: str
    """The parts that are missing or damaged, with numbers; empty if none are."""


@dataclass(frozen=True)
class SamplesFinished:
    """Summary of the sound as samples, after its last block."""

    decoder: str
    num_samples: int
    """Counted from the video's time zero, ``RATE`` a second."""
    partial: str
    """The parts that are missing or damaged, with numbers; empty if none are."""


@dataclass(frozen=True)
class _End:
    """Summary of a signal, after its last samples."""

    seconds: float
    partial: str


def sound_stream(container: InputContainer) -> AudioStream:
    """Return the first sound stream, and make the demuxer skip all other streams if the container allows it.

    Raises:
        VideoError: There is none, or its format is unknown.
    """
    if not container.streams.audio:
        raise VideoError("no_sound", "it has no sound stream")
    stream = container.streams.audio[0]
    if context_of(stream) is None:
        raise VideoError("unreadable", "its sound is in a format that this FFmpeg does not know")
    for other in container.streams:
        if other is not stream:
            other.discard = Discard.all
    return stream


def time_zero(container: InputContainer) -> Fraction:
    """Return the second of the file's clock from which frames and sound are counted.

    It is ``VideoInfo.offset``, in seconds.
    """
    try:
        video = video_stream(container)
    except VideoError:
        return Fraction(container.start_time or 0, av.time_base)
    tick = time_base_of(video)
    return round(start_second(container, video) / tick) * tick


def declared_seconds(path: Path) -> float:
    """Return the duration that the file declares; 0 if it declares none.

    Raises:
        VideoError: The file cannot be opened.
    """
    with open_video(path) as container:
        return max((container.duration or 0) / av.time_base, 0.0)


def planned_sound(path: Path, heartbeat: Callable[[], None] = lambda: None) -> tuple[int, float]:
    """Estimate (number of rows, end of the sound in seconds) from packets, without decoding.

    Raises:
        VideoError: The file cannot be opened, or has no sound.
    """
    first = last = None
    with open_video(path) as container:
        stream, zero = sound_stream(container), time_zero(container)
        try:
            for packet in demuxed(container, [stream]):
                heartbeat()
                if packet.size and packet.pts is not None and not packet.is_discard:
                    first = packet.pts if first is None else first
                    last = packet.pts + (packet.duration or 0)
        except (FFmpegError, ValueError, UnicodeError):
            pass  # the rest of the file cannot be read
        if first is None or last is None:
            raise VideoError("no_sound", "its sound stream is empty")
        tick = time_base_of(stream)
        begins, ends = (max(float(time * tick - zero), 0.0) for time in (first, last))
    return math.ceil(ends * RATE / HOP) - int(begins * RATE / HOP), ends


class _Signal:
    """Mono samples at ``RATE`` from time zero, placed by the timestamps of their frames.

    At most one frame is in memory.
    """

    def __init__(self, time_base: Fraction, zero: Fraction, limit: int) -> None:
        self.first: int | None = None
        """The first sample; None before the first frame."""
        self.end = 0
        self.limit = limit
        self.pauses: list[tuple[float, float]] = []
        self._time_base, self._zero = time_base, zero
        self._rate = self._taken = self._num_skipped = 0
        self._begun = 0.0
        self._resampler: av.AudioResampler | None = None

    def add(self, frame: av.AudioFrame) -> Iterator[tuple[np.ndarray, bool]]:
        """Yield samples in order, each with True if they come from the file, False for the silence of a pause."""
        expected = self._begun + self._taken / self._rate if self._rate else 0.0
        seconds = expected if frame.pts is None else float(frame.pts * self._time_base - self._zero)
        if frame.sample_rate != self._rate or abs(seconds - expected) > MAX_DRIFT_SECONDS:
            yield from self.finish()
            yield from self._go_to(seconds, expected)
            self._rate, self._begun, self._taken = frame.sample_rate, seconds, 0
            self._resampler = av.AudioResampler("fltp", "mono", RATE) if self._rate != RATE else None
        self._taken += frame.samples
        samples = mean_of_channels(frame)
        if self._resampler is None:
            yield from self._give(samples)
            return
        mono = av.AudioFrame.from_ndarray(samples[None], "fltp", "mono")
        mono.sample_rate = self._rate
        for resampled in self._resampler.resample(mono):
            yield from self._give(resampled.to_ndarray()[0])

    def finish(self) -> Iterator[tuple[np.ndarray, bool]]:
        """Yield the samples that are still in the resampler."""
        for resampled in self._resampler.resample(None) if self._resampler else ():
            yield from self._give(resampled.to_ndarray()[0])
        self._resampler = None

    def _go_to(self, seconds: float, expected: float) -> Iterator[tuple[np.ndarray, bool]]:
        sample = round(seconds * RATE)
        if self.first is None:
            self.first = self.end = max(sample, 0)
        elif expected - seconds > MAX_BACK_SECONDS:
            raise VideoError("bad_times", f"the clock of its sound jumps back by {expected - seconds:.0f} s")
        elif seconds - expected > MAX_FRAME_SECONDS:
            raise VideoError("bad_times", f"its sound would pause for {seconds - expected:.0f} s")
        pause = sample - self.end
        if pause > PAUSE_SECONDS * RATE:
            self.pauses.append((self.end / RATE, sample / RATE))
        self._num_skipped = max(-pause, 0)
        if pause > 0:
            yield from self._cut(np.broadcast_to(np.float32(0), pause), False)

    def _give(self, samples: np.ndarray) -> Iterator[tuple[np.ndarray, bool]]:
        part = samples[self._num_skipped :]
        self._num_skipped -= len(samples) - len(part)
        yield from self._cut(part, True)

    def _cut(self, samples: np.ndarray, real: bool) -> Iterator[tuple[np.ndarray, bool]]:
        samples = samples[: max(self.limit - self.end, 0)]
        self.end += len(samples)
        if self.end > MAX_VIDEO_SECONDS * RATE:
            raise VideoError("too_long", f"its sound lasts over {MAX_VIDEO_SECONDS / 3600:g} h")
        if len(samples):
            yield samples, real


def mean_of_channels(frame: av.AudioFrame) -> np.ndarray:
    """Return mono float32 [N] of -1..1, from samples of any type and any number of channels."""
    samples = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, frame.layout.nb_channels).T
    mono = samples.mean(axis=0, dtype=np.float64)
    if samples.dtype.kind == "u":
        mono = (mono - 128) / 128
    elif samples.dtype.kind == "i":
        mono /= 1 << (8 * samples.dtype.itemsize - 1)
    return mono.astype(np.float32)


def sound_rows(
    path: Path, *, seconds: float | None = None, heartbeat: Callable[[], None] = lambda: None
) -> Iterator[np.ndarray | SoundFinished]:
    """Yield blocks [rows] of ``log_mel.ROW``, in order, then ``SoundFinished``.

    There is a row for each hop from the sound's start to its end, regardless of the frames: none before a late start of
    the sound, and some after an early end of the frames. Missing samples of a window, at either end or in a pause, are
    silence and are not counted in ``valid``. Sound before time zero is skipped. Values beyond -1..1, as in clipped
    recordings, stay as they are.

    Args:
        path: The file.
        seconds: If given, only the first part of the file.
        heartbeat: Called for each decoded frame.

    Raises:
        VideoError: Of kind no_sound, unreadable, bad_times or too_long, or the file cannot be opened.
    """
    blocks = None
    for part in _signal(path, seconds, heartbeat):
        if not isinstance(part, _End):
            first, samples, real = part
            blocks = blocks or RowBlocks(first)
            yield from blocks.add(samples, real=real)
        elif blocks is not None:
            yield from blocks.finish()
            yield SoundFinished(f"PyAV {av.__version__}", blocks.first_row, blocks.num_rows, part.seconds, part.partial)


def sound_samples(path: Path, heartbeat: Callable[[], None] = lambda: None) -> Iterator[np.ndarray | SamplesFinished]:
    """Yield blocks int16 [N] of mono samples at ``RATE``, in order, then ``SamplesFinished``.

    The first sample is at the video's time zero. Gaps are filled with silence. Values beyond -1..1 are clipped.

    Args:
        path: The file.
        heartbeat: Called for each decoded frame.

    Raises:
        VideoError: As for ``sound_rows``.
    """
    num_samples = 0
    for part in _signal(path, None, heartbeat):
        if isinstance(part, _End):
            yield SamplesFinished(f"PyAV {av.__version__}", num_samples, part.partial)
            return
        first, samples, _ = part
        if not num_samples:
            num_samples = first
            yield from _blocks(np.broadcast_to(np.float32(0), first))
        num_samples += len(samples)
        yield from _blocks(samples)


def _blocks(samples: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(samples), MAX_BLOCK_SAMPLES):
        block = np.nan_to_num(samples[start : start + MAX_BLOCK_SAMPLES])
        yield (block.clip(-1, 1) * np.iinfo(np.int16).max).round().astype(np.int16)


def _signal(
    path: Path, seconds: float | None, heartbeat: Callable[[], None]
) -> Iterator[tuple[int, np.ndarray, bool] | _End]:
    """Yield (position of the signal's first sample, samples, whether they come from the file), in order, then ``_End``.

    Raises:
        VideoError: As for ``sound_rows``.
    """
    progress, num_given = DecodeProgress(heartbeat=heartbeat), 0
    with open_video(path) as container:
        stream = sound_stream(container)
        limit = sys.maxsize if seconds is None else max(int(seconds * RATE), 1)
        signal = _Signal(time_base_of(stream), time_zero(container), limit)
        try:
            for samples, real in _pieces(signal, progress, container, stream):
                num_given += 1
                yield signal.first or 0, samples, real
        except (FFmpegError, ValueError) as error:
            raise VideoError("unreadable", f"its sound cannot be decoded ({short_reason(error)})") from None
        if not num_given and progress.num_damaged:
            raise VideoError(
                "unreadable", f"none of its sound can be decoded; {progress.num_damaged:,} packets are damaged"
            )
        if not num_given:
            raise VideoError("no_sound", "its sound stream is empty")
        partial = _pauses(signal)
        if seconds is None and (missing := _missing(path, container, stream, signal.end / RATE, heartbeat)):
            partial.append(missing)
        if progress.num_damaged:
            partial.append(f"{progress.num_damaged:,} packets of its sound are damaged, as the decoder reports")
        yield _End(signal.end / RATE, "; ".join(partial))


def _pieces(
    signal: _Signal, progress: DecodeProgress, container: InputContainer, stream: AudioStream
) -> Iterator[tuple[np.ndarray, bool]]:
    stream.codec_context.thread_count = 1
    for frame in decoded_sound(progress, container, stream):
        progress.heartbeat()
        progress.num_damaged += frame.is_corrupt
        yield from signal.add(frame)
        if signal.end >= signal.limit:
            return
    yield from signal.finish()


def _pauses(signal: _Signal) -> list[str]:
    if not signal.pauses:
        return []
    more = f", and {len(signal.pauses) - 1:,} more such pauses" if len(signal.pauses) > 1 else ""
    return ["it has no sound between {:.2f} and {:.2f} s".format(*signal.pauses[0]) + more]


def _missing(
    path: Path, container: InputContainer, stream: AudioStream, end_seconds: float, heartbeat: Callable[[], None]
) -> str:
    """Describe sound that the file declares but lacks; empty if complete.

    If only the file's total duration is known, the frames may be longer than the sound.
    """
    if stream.duration:
        end_time = (stream.start_time or 0) + stream.duration
        declared = float(end_time * time_base_of(stream) - time_zero(container))
    else:
        declared = (container.duration or 0) / av.time_base
    if not ends_early(end_seconds, declared):
        return ""
    if not stream.duration:
        try:
            if not probe_video(path, heartbeat).missing:
                return ""
        except VideoError:
            pass
    return f"its sound ends at {end_seconds:.2f} s of its declared {declared:.2f} s"

"""The sound of a video -> log-mel rows, a block of them at a time. Runs in the decoding child process.

CMCM (appendix B) states 40 mel bands, windows of 25 ms and a hop of 10 ms. The rest is that of the code it stands on
(wnhsu/ResDAVEnet-VQ dataloaders/utils.py, roudimit/AVLnet audio_to_spectrograms.py, which use librosa): mono at 16 kHz by the mean of
the channels, pre-emphasis of 0.97 over the whole signal, a symmetric Hamming window, an FFT as long as the window, power, triangles of
equal area on Slaney's mel scale from 20 to 8000 Hz, decibels of at least 1e-10. Three things there are not those of a row alone, and
are left to who reads the rows:

- Decibels there are of each file's maximum, cut 80 below it. Here they are of full scale; ``np.maximum(rows - rows.max(), -80)`` of
  a file's rows gives theirs.
- They subtract the mean of the whole file first, which is known only at its end. Pre-emphasis leaves 3 % of it.
- Their windows are centred on multiples of the hop, and what is before the first sample is a mirror of what follows. Here a window
  begins at a multiple of the hop, so that a row is of the seconds that the store says, and what is not there is silence.
"""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .backends import Tally, decoded_frames
from .probe import (
    LONGEST_FRAME_SECONDS,
    LONGEST_VIDEO_SECONDS,
    PAUSE_SECONDS,
    VideoError,
    ends_early,
    first_second,
    open_video,
    probe_video,
    video_stream,
    words_of,
)

RATE, WINDOW, HOP, NUM_BANDS = 16000, 400, 160, 40
"""As in the profile ``logmel``, which a child process has no time to import."""
LOWEST_HZ, HIGHEST_HZ = 20, 8000
PREEMPHASIS = 0.97
LEAST_POWER = 1e-10
MOST_DRIFT_SECONDS = 0.015
"""Times of frames that differ from the count of samples by more are put right. Less is what containers round by, and each correction
is a click."""
MOST_BACK_SECONDS = 1.0
"""Overlaps up to this are cut away; beyond, as for pictures, the clock jumps back."""
BLOCK_ROWS = 1000
ROW = np.dtype([("features", np.float32, NUM_BANDS), ("valid", np.int32)])
"""A row, and how many samples of its window are the file's own."""


@dataclass(frozen=True)
class Heard:
    """What came of the sound, after its last block."""

    decoder: str
    first_row: int
    """Row i begins i * ``HOP / RATE`` seconds after the video's time zero."""
    num_rows: int
    duration_seconds: float
    """When the sound ends."""
    partial: str
    """What is not there or damaged, with figures; empty where all is well."""


# Samples -> rows


def mel_to_hz(mels: np.ndarray) -> np.ndarray:
    """Slaney's scale: 200/3 Hz a mel up to 1000 Hz (15 mels), beyond that a factor of 6.4 every 27 mels."""
    return np.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))


def mel_filters() -> np.ndarray:
    """[WINDOW // 2 + 1, NUM_BANDS]: triangles, each of which reaches from the peak before it to the one after it, of equal area."""
    lowest, highest = LOWEST_HZ * 3 / 200, 15 + 27 * math.log(HIGHEST_HZ / 1000) / math.log(6.4)
    edges = mel_to_hz(np.linspace(lowest, highest, NUM_BANDS + 2))
    left, peak, right = edges[:-2], edges[1:-1], edges[2:]
    frequencies = np.linspace(0, RATE / 2, WINDOW // 2 + 1)[:, None]
    triangles = np.minimum((frequencies - left) / (peak - left), (right - frequencies) / (right - peak))
    return np.maximum(triangles, 0) * 2 / (right - left)


HAMMING, FILTERS = np.hamming(WINDOW), mel_filters()


def log_mel(samples: np.ndarray, *, before: float = 0.0) -> np.ndarray:
    """Samples [N] of -1..1 at ``RATE``, the one before them -> decibels, float32 [rows, NUM_BANDS], of each window that is whole."""
    samples = samples.astype(np.float64)
    emphasised = samples - PREEMPHASIS * np.concatenate([[before], samples[:-1]])
    spectrum = np.fft.rfft(sliding_window_view(emphasised, WINDOW)[::HOP] * HAMMING)
    bands = (spectrum.real**2 + spectrum.imag**2) @ FILTERS
    return (10 * np.log10(np.maximum(bands, LEAST_POWER))).astype(np.float32)


def log_mel_of_all(samples: np.ndarray) -> np.ndarray:
    """As ``log_mel``, a row for each hop that has begun: what the last windows lack is silence."""
    num_rows = math.ceil(len(samples) / HOP)
    return log_mel(np.pad(samples, (0, WINDOW)))[:num_rows]


def row_times(first_row: int, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Start and end seconds, [num_rows] each."""
    starts = (first_row + np.arange(num_rows)) * HOP / RATE
    return starts, starts + WINDOW / RATE


class _Rows:
    """Cuts samples that come in pieces of any length into windows. Holds one block."""

    def __init__(self, first_sample: int) -> None:
        """``first_sample``: counted from time zero."""
        self.first_row = first_sample // HOP
        self.num_rows = 0
        self._samples = np.zeros(1 + (BLOCK_ROWS - 1) * HOP + WINDOW, dtype=np.float32)
        self._real = np.zeros(len(self._samples), dtype=bool)
        self._filled = (
            1 + first_sample - self.first_row * HOP
        )  # the sample before the first window, and what its hop lacks
        self._end = self._filled - 1

    def add(self, samples: np.ndarray, *, real: bool) -> Iterator[np.ndarray]:
        """Blocks [rows] of ``ROW``, as they fill. ``real``: whether the samples are the file's own."""
        self._end += len(samples)
        yield from self._add(samples, real)

    def _add(self, samples: np.ndarray, real: bool) -> Iterator[np.ndarray]:
        while len(samples):
            part = samples[: len(self._samples) - self._filled]
            self._samples[self._filled :][: len(part)] = part
            self._real[self._filled :][: len(part)] = real
            self._filled += len(part)
            samples = samples[len(part) :]
            if self._filled == len(self._samples):
                yield self._block()
                kept = self._filled - BLOCK_ROWS * HOP
                for column in (self._samples, self._real):
                    column[:kept] = column[-kept:]
                self._filled = kept

    def _block(self) -> np.ndarray:
        before, samples, real = self._samples[0], self._samples[1 : self._filled], self._real[1 : self._filled]
        if not np.isfinite(samples).all():
            raise VideoError("unreadable", "its sound has values that are no numbers")
        rows = np.empty((len(samples) - WINDOW) // HOP + 1, dtype=ROW)
        rows["features"] = log_mel(samples, before=before)
        rows["valid"] = sliding_window_view(real, WINDOW)[::HOP].sum(axis=1)
        self.num_rows += len(rows)
        return rows

    def finish(self) -> Iterator[np.ndarray]:
        """The rest: a row for each hop that has begun."""
        yield from self._add(np.zeros(WINDOW, dtype=np.float32), False)
        rows = self._block()
        too_many = max(self.num_rows - math.ceil(self._end / HOP), 0)
        self.num_rows -= too_many
        yield rows[: len(rows) - too_many]


# Files -> samples


def sound_stream(container: av.container.InputContainer) -> av.audio.stream.AudioStream:
    """The first one; all others are passed over, unread where the container allows it. Raises ``VideoError``."""
    if not container.streams.audio:
        raise VideoError("no_sound", "there is no sound stream in it")
    stream = container.streams.audio[0]
    if stream.codec_context is None:
        raise VideoError("unreadable", "its sound is in a format that this FFmpeg does not know")
    for other in container.streams:
        if other is not stream:
            other.discard = av.stream.Discard.all
    return stream


def time_zero(container: av.container.InputContainer) -> Fraction:
    """The second of the file's own clock that pictures and sound are counted from: ``VideoInfo.offset``, to the picture's tick."""
    try:
        pictures = video_stream(container)
    except VideoError:
        return Fraction(container.start_time or 0, av.time_base)
    tick = Fraction(pictures.time_base)
    return round(first_second(container, pictures) / tick) * tick


def declared_seconds(path: Path) -> float:
    """How long the file says that it is; 0 where it does not. Raises ``VideoError``."""
    with open_video(path) as container:
        return max((container.duration or 0) / av.time_base, 0.0)


def planned_sound(path: Path, beat: Callable[[], None] = lambda: None) -> tuple[int, float]:
    """About how many rows its sound will give and when it ends, in seconds, by its packets alone. Raises ``VideoError``."""
    first = last = None
    with open_video(path) as container:
        stream, zero = sound_stream(container), time_zero(container)
        try:
            for packet in container.demux(stream):
                beat()
                if packet.size and packet.pts is not None and not packet.is_discard:
                    first = packet.pts if first is None else first
                    last = packet.pts + (packet.duration or 0)
        except (av.FFmpegError, ValueError, UnicodeError):
            pass  # the rest of the file cannot be read
        if first is None:
            raise VideoError("no_sound", "its sound stream is empty")
        begins, ends = (max(float(time * stream.time_base - zero), 0.0) for time in (first, last))
    return math.ceil(ends * RATE / HOP) - int(begins * RATE / HOP), ends


class _Signal:
    """Mono samples at ``RATE``, counted from time zero: each is where its frame's time says. Holds one frame."""

    def __init__(self, time_base: Fraction, zero: Fraction, limit: int) -> None:
        self.first: int | None = None
        self.end = 0
        self.limit = limit
        self.pauses: list[tuple[float, float]] = []
        self._time_base, self._zero = time_base, zero
        self._rate = self._taken = self._left_out = 0
        self._begun = 0.0
        self._resampler: av.AudioResampler | None = None

    def add(self, frame: av.AudioFrame) -> Iterator[tuple[np.ndarray, bool]]:
        """Samples in order, and whether they are the file's own or the silence of a pause."""
        expected = self._begun + self._taken / self._rate if self._rate else 0.0
        seconds = expected if frame.pts is None else float(frame.pts * self._time_base - self._zero)
        if frame.sample_rate != self._rate or abs(seconds - expected) > MOST_DRIFT_SECONDS:
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
        """What the resampler still holds."""
        for resampled in self._resampler.resample(None) if self._resampler else ():
            yield from self._give(resampled.to_ndarray()[0])
        self._resampler = None

    def _go_to(self, seconds: float, expected: float) -> Iterator[tuple[np.ndarray, bool]]:
        place = round(seconds * RATE)
        if self.first is None:
            self.first = self.end = max(place, 0)
        elif expected - seconds > MOST_BACK_SECONDS:
            raise VideoError("bad_times", f"the clock of its sound jumps back by {expected - seconds:.0f} s")
        elif seconds - expected > LONGEST_FRAME_SECONDS:
            raise VideoError("bad_times", f"its sound would pause for {seconds - expected:.0f} s")
        pause = place - self.end
        if pause > PAUSE_SECONDS * RATE:
            self.pauses.append((self.end / RATE, place / RATE))
        self._left_out = max(-pause, 0)
        if pause > 0:
            yield from self._cut(np.broadcast_to(np.float32(0), pause), False)

    def _give(self, samples: np.ndarray) -> Iterator[tuple[np.ndarray, bool]]:
        part = samples[self._left_out :]
        self._left_out -= len(samples) - len(part)
        yield from self._cut(part, True)

    def _cut(self, samples: np.ndarray, real: bool) -> Iterator[tuple[np.ndarray, bool]]:
        samples = samples[: max(self.limit - self.end, 0)]
        self.end += len(samples)
        if self.end > LONGEST_VIDEO_SECONDS * RATE:
            raise VideoError("too_long", f"its sound lasts over {LONGEST_VIDEO_SECONDS / 3600:g} h")
        if len(samples):
            yield samples, real


def mean_of_channels(frame: av.AudioFrame) -> np.ndarray:
    """float32 [N] of -1..1, from samples of any type and any number of channels."""
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
    path: Path, *, seconds: float | None = None, beat: Callable[[], None] = lambda: None
) -> Iterator[np.ndarray | Heard]:
    """Blocks [rows] of ``ROW``, in order, and ``Heard``. ``seconds``: only the first part of the file.

    There is a row for each hop from the one in which the sound begins to the one in which it ends, whatever the pictures do: none
    before sound that begins late, and some after pictures that end early. What a window lacks, at either end or in a pause, is silence
    and not counted in ``valid``. Sound before time zero is left out. Values beyond -1..1, such as clipped recordings give, stay as they
    are.

    Raises ``VideoError``: no_sound, unreadable, bad_times, too_long, or what opening a file may give.
    """
    tally = Tally(beat=beat)
    with open_video(path) as container:
        stream = sound_stream(container)
        limit = sys.maxsize if seconds is None else max(int(seconds * RATE), 1)
        signal = _Signal(stream.time_base, time_zero(container), limit)
        rows = None
        try:
            for samples, real in _pieces(signal, tally, container, stream):
                rows = rows or _Rows(signal.first)
                yield from rows.add(samples, real=real)
        except (av.FFmpegError, ValueError) as error:
            raise VideoError("unreadable", f"its sound cannot be decoded ({words_of(error)})") from None
        if rows is None and tally.num_damaged:
            raise VideoError(
                "unreadable", f"none of its sound can be decoded; {tally.num_damaged:,} packets are damaged"
            )
        if rows is None:
            raise VideoError("no_sound", "its sound stream is empty")
        yield from rows.finish()
        partial = _pauses(signal)
        if seconds is None and (missing := _missing(path, container, stream, signal.end / RATE, beat)):
            partial.append(missing)
        if tally.num_damaged:
            partial.append(f"{tally.num_damaged:,} packets of its sound are damaged, says the decoder")
        yield Heard(f"PyAV {av.__version__}", rows.first_row, rows.num_rows, signal.end / RATE, "; ".join(partial))


def _pieces(
    signal: _Signal, tally: Tally, container: av.container.InputContainer, stream: av.audio.stream.AudioStream
) -> Iterator[tuple[np.ndarray, bool]]:
    stream.codec_context.thread_count = 1
    for frame in decoded_frames(tally, container, stream):
        tally.beat()
        tally.num_damaged += frame.is_corrupt
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
    path: Path,
    container: av.container.InputContainer,
    stream: av.audio.stream.AudioStream,
    end_seconds: float,
    beat: Callable[[], None],
) -> str:
    """What a file says that it has of sound and has not. Where only its whole length is known, pictures may last longer."""
    if stream.duration:
        declared = float(((stream.start_time or 0) + stream.duration) * stream.time_base - time_zero(container))
    else:
        declared = (container.duration or 0) / av.time_base
    if not ends_early(end_seconds, declared):
        return ""
    if not stream.duration:
        try:
            if not probe_video(path, beat).missing:
                return ""
        except VideoError:
            pass
    return f"its sound ends at {end_seconds:.2f} s of the {declared:.2f} that it should have"

"""Samples of sound -> log-mel rows, a block at a time.

CMCM (appendix B) states 40 mel bands, windows of 25 ms and a hop of 10 ms. The rest follows the code that it builds on
(wnhsu/ResDAVEnet-VQ dataloaders/utils.py, roudimit/AVLnet audio_to_spectrograms.py, which use librosa): mono at 16 kHz
by the mean of the channels, pre-emphasis of 0.97 over the whole signal, a symmetric Hamming window, an FFT as long as
the window, power, triangles of equal area on Slaney's mel scale from 20 to 8000 Hz, decibels of at least 1e-10. Three
steps of that code need more than one row. They are not done here:

- Its decibels are relative to each file's maximum, clipped 80 below it. Here they are relative to full scale;
  ``np.maximum(rows - rows.max(), -80)`` over a file's rows gives the same.
- It first subtracts the mean of the whole file, which is known only at its end. Pre-emphasis reduces it to 3 %.
- Its windows are centred on multiples of the hop, with mirrored samples before the first. Here a window begins at a
  multiple of the hop: a row covers the seconds that the store states. Missing samples are silence.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .errors import VideoError

RATE, WINDOW, HOP, NUM_BANDS = 16000, 400, 160, 40
"""Values of the profile ``logmel``, repeated here: importing profiles would slow down each child process."""
LOWEST_HZ, HIGHEST_HZ = 20, 8000
PREEMPHASIS = 0.97
MIN_POWER = 1e-10
BLOCK_ROWS = 1000
ROW = np.dtype([("features", np.float32, NUM_BANDS), ("valid", np.int32)])
"""A row, and the number of its window's samples that come from the file."""


def mel_to_hz(mels: np.ndarray) -> np.ndarray:
    """Return the frequencies of points on Slaney's mel scale.

    It is 200/3 Hz per mel up to 1000 Hz (15 mels); beyond that, a factor of 6.4 every 27 mels.
    """
    return np.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))


def mel_filters() -> np.ndarray:
    """Return triangles [WINDOW // 2 + 1, NUM_BANDS] of equal area, each from the previous peak to the next."""
    lowest, highest = LOWEST_HZ * 3 / 200, 15 + 27 * math.log(HIGHEST_HZ / 1000) / math.log(6.4)
    edges = mel_to_hz(np.linspace(lowest, highest, NUM_BANDS + 2))
    left, peak, right = edges[:-2], edges[1:-1], edges[2:]
    frequencies = np.linspace(0, RATE / 2, WINDOW // 2 + 1)[:, None]
    triangles = np.minimum((frequencies - left) / (peak - left), (right - frequencies) / (right - peak))
    return np.maximum(triangles, 0) * 2 / (right - left)


HAMMING, FILTERS = np.hamming(WINDOW), mel_filters()


def log_mel(samples: np.ndarray, *, before: float = 0.0) -> np.ndarray:
    """Compute the decibels of each complete window.

    Args:
        samples: [N] of -1..1, at ``RATE``.
        before: The sample before ``samples``.

    Returns:
        float32 [rows, NUM_BANDS].
    """
    samples = samples.astype(np.float64)
    emphasised = samples - PREEMPHASIS * np.concatenate([[before], samples[:-1]])
    spectrum = np.fft.rfft(sliding_window_view(emphasised, WINDOW)[::HOP] * HAMMING)
    bands = (spectrum.real**2 + spectrum.imag**2) @ FILTERS
    return (10 * np.log10(np.maximum(bands, MIN_POWER))).astype(np.float32)


def log_mel_of_all(samples: np.ndarray) -> np.ndarray:
    """Compute a row for each started hop, like ``log_mel``; samples after the end are silence."""
    num_rows = math.ceil(len(samples) / HOP)
    return log_mel(np.pad(samples, (0, WINDOW)))[:num_rows]


def row_times(first_row: int, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the start and end seconds of rows, [num_rows] each."""
    starts = (first_row + np.arange(num_rows)) * HOP / RATE
    return starts, starts + WINDOW / RATE


class RowBlocks:
    """Cut samples that arrive in blocks of any length into windows. At most one block of rows is in memory."""

    def __init__(self, first_sample: int) -> None:
        """Begin at ``first_sample``, counted from time zero."""
        self.first_row = first_sample // HOP
        self.num_rows = 0
        self._samples = np.zeros(1 + (BLOCK_ROWS - 1) * HOP + WINDOW, dtype=np.float32)
        self._real = np.zeros(len(self._samples), dtype=bool)
        # The sample before the first window, and the missing samples at the start of its hop.
        self._filled = 1 + first_sample - self.first_row * HOP
        self._end = self._filled - 1

    def add(self, samples: np.ndarray, *, real: bool) -> Iterator[np.ndarray]:
        """Yield blocks [rows] of ``ROW`` as they fill. ``real``: whether the samples come from the file."""
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
                num_left = self._filled - BLOCK_ROWS * HOP
                for column in (self._samples, self._real):
                    column[:num_left] = column[-num_left:]
                self._filled = num_left

    def _block(self) -> np.ndarray:
        before, samples, real = self._samples[0], self._samples[1 : self._filled], self._real[1 : self._filled]
        if not np.isfinite(samples).all():
            raise VideoError("unreadable", "its sound contains non-finite values")
        rows = np.empty((len(samples) - WINDOW) // HOP + 1, dtype=ROW)
        rows["features"] = log_mel(samples, before=before)
        rows["valid"] = sliding_window_view(real, WINDOW)[::HOP].sum(axis=1)
        self.num_rows += len(rows)
        return rows

    def finish(self) -> Iterator[np.ndarray]:
        """Yield the remaining rows: one for each started hop."""
        blocks = list(self._add(np.zeros(WINDOW, dtype=np.float32), False))
        if self._filled > WINDOW:  # otherwise a full block has taken the last window
            blocks.append(self._block())
        rows = np.concatenate(blocks)
        surplus = max(self.num_rows - math.ceil(self._end / HOP), 0)
        self.num_rows -= surplus
        if len(rows) > surplus:
            yield rows[: len(rows) - surplus]

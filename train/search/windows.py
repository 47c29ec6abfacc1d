"""Windows: the parts of a video that are searched."""

import math

import numpy as np

WINDOW_SECONDS = (4.0, 8.0, 16.0)
"""Lengths of windows. Those of one length overlap by half."""
ROUNDING_SECONDS = 1e-6


def plan_windows(duration_seconds: float, lengths: tuple[float, ...] = WINDOW_SECONDS) -> np.ndarray:
    """Return the windows of a video: the whole, then those of each length that is shorter than it, by start.

    The last window of a length ends with the video.

    >>> plan_windows(7.0, (4.0, 8.0)).tolist()
    [[0.0, 7.0], [0.0, 4.0], [2.0, 6.0], [3.0, 7.0]]

    Args:
        duration_seconds: When the video ends.
        lengths: Lengths of windows in seconds, ascending.

    Returns:
        Start and end of each in seconds, float64 [W, 2].
    """
    windows = [np.array([[0.0, duration_seconds]])]
    for length in lengths:
        if length >= duration_seconds - ROUNDING_SECONDS:
            break
        stride = length / 2
        num_inside = math.floor((duration_seconds - length) / stride + ROUNDING_SECONDS) + 1
        starts = stride * np.arange(num_inside)
        if starts[-1] + length < duration_seconds - ROUNDING_SECONDS:
            starts = np.append(starts, duration_seconds - length)
        windows.append(np.stack([starts, starts + length], axis=1))
    return np.concatenate(windows)

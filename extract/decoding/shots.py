"""The shots of a video, as the profile ``shots`` describes them. ``shot_finder`` finds them."""

from dataclasses import dataclass

import numpy as np

from .kernels import Size

SIZE = Size(144)
"""The size of the frames that are compared."""
MIN_SHOT_SECONDS, MIN_RATIO, MIN_CHANGE, NEIGHBOURS = 0.6, 3.0, 15.0, 2
"""Values of the profile ``shots``, repeated here: importing profiles would slow down each child process."""
ROW = np.dtype(
    [("start_seconds", np.float64), ("end_seconds", np.float64), ("features", np.float32, 2), ("num_frames", np.int32)]
)
"""A shot: its features are the change and the ratio of its first frame; both are 0 for the first shot. The change is
the mean difference in hue, saturation and value from the frame before, 0 to 255; the ratio is this change divided by
the mean change of the two frames before and after, at most 255.
"""


@dataclass(frozen=True)
class ShotsFound:
    """The shots of a video, sent after all of its frames."""

    rows: np.ndarray
    """[N] of ``ROW``, at least one. Shots cover the video from time zero to its end without gaps."""
    detector: str
    """Name and version of the library that found them."""

"""Which frames are taken, and at which size. Pure functions of numbers."""

from fractions import Fraction

import numpy as np


def round_half_away(values: np.ndarray, ratio: Fraction) -> np.ndarray:
    """``values * ratio`` to the nearest integer, halves away from zero, in exact integer arithmetic (FFmpeg's AV_ROUND_NEAR_INF)."""
    doubled = 2 * np.abs(values.astype(np.int64)) * ratio.numerator + ratio.denominator
    return np.sign(values) * (doubled // (2 * ratio.denominator))


def sample_frames(pts: np.ndarray, end: int, time_base: Fraction, fps: int) -> np.ndarray:
    """The frames that ``ffmpeg -i FILE -filter_complex fps=... -f rawvideo`` would give, as indices [N] into ``pts``.

    ``pts`` [T]: presentation times in ticks of ``time_base`` seconds, ascending; ``end``: when the last frame ends.
    Output slot k shows the last frame whose time, rounded to slots, is not after k (libavfilter/vf_fps.c, round=near,
    eof_action=round); there are slots from 0 up to the rounded end. A frame may come twice or not at all. Slots before the first frame
    show what the first frame's slot shows: raw video has a constant rate, so the program repeats its first picture (fftools/ffmpeg.c,
    VSYNC_CFR). Frames before time 0 are left out.

    25 frames a second, 2 s, fps 1  ->  frames 12 and 37 (at 0.48 and 1.48 s), not 0 and 25

    Where the program gives no frame at all (a video shorter than half a slot), the first one is taken: no video is silently empty.
    """
    if len(pts) == 0:
        raise ValueError("no frames to choose from")
    slots = round_half_away(pts, time_base * fps)
    last_slot = int(round_half_away(np.array([end]), time_base * fps)[0])
    if last_slot <= slots[0]:
        return np.zeros(max(last_slot, 1), dtype=np.int64)
    return np.searchsorted(slots, np.maximum(np.arange(last_slot), slots[0]), side="right") - 1


def scaled_size(height: int, width: int, short_side_px: int) -> tuple[int, int]:
    """(height, width) with the short side given and the other in proportion, cut to whole pixels, not rounded.

    480x640, short side 224  ->  224x298
    """
    if height >= width:
        return int(height * short_side_px / width), short_side_px
    return short_side_px, int(width * short_side_px / height)


def centre_crop(height: int, width: int, crop_px: int) -> tuple[int, int]:
    """(top, left) of the middle square."""
    return (height - crop_px) // 2, (width - crop_px) // 2


def num_windows(num_frames: int, window: int, stride: int) -> int:
    """How many windows, of which one begins every ``stride`` frames, it takes to reach the last frame; none begins behind that.

    40 frames, window 16, stride 16  ->  3;  stride 8  ->  4;  stride 20  ->  2;  36 frames, stride 20  ->  2
    """
    to_reach_the_end = 1 + -(-max(num_frames - window, 0) // stride)
    return min(to_reach_the_end, -(-num_frames // stride))


def window_times(
    num_frames: int, first_slot: int, window: int, fps: int, duration_seconds: float, *, stride: int
) -> tuple[np.ndarray, ...]:
    """Start seconds, end seconds and number of real frames, [T] each, of the windows that ``num_frames`` sampled frames fill.

    40 frames, window 16, stride 16, 24 fps, 1.7 s  ->  starts 0, 0.667, 1.333; ends 0.667, 1.333, 1.7; 16, 16 and 8 real frames
    """
    firsts = stride * np.arange(num_windows(num_frames, window, stride))
    starts = (firsts + first_slot) / fps
    ends = np.minimum(starts + window / fps, max(duration_seconds, (first_slot + num_frames) / fps))
    return starts, ends, np.minimum(num_frames - firsts, window)

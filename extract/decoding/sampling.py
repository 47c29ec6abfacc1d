"""Choice of frames and of their size. Pure functions of numbers."""

from fractions import Fraction

import numpy as np

MOST_EARLY_SLOTS = 2
"""Slots before time 0 that the ffmpeg program outputs at most: those whose end is at most 1.1 slots behind."""


def round_half_away(values: np.ndarray, ratio: Fraction) -> np.ndarray:
    """Return ``values * ratio`` as the nearest integers, halves away from zero, in exact integer arithmetic.

    Source: FFmpeg's AV_ROUND_NEAR_INF.
    """
    doubled = 2 * np.abs(values.astype(np.int64)) * ratio.numerator + ratio.denominator
    return np.sign(values) * (doubled // (2 * ratio.denominator))


def sample_frames(pts: np.ndarray, end: int, time_base: Fraction, fps: float) -> np.ndarray:
    """Choose the frames that ``ffmpeg -i FILE -filter_complex fps=... -f rawvideo`` would output.

    Output slot k shows the last frame whose time, rounded to slots, is not after k; slots run from 0 to the rounded
    end. A frame may be repeated or left out. Slots before the first frame show what the first frame's slot shows: raw
    video has a constant rate, so the program repeats its first picture. Where frames begin before time 0, the program
    first outputs the last two slots before it, so that all others come two slots later, and leaves earlier ones out. If
    the program would output no frame at all (a video shorter than half a slot), the first frame is taken: no video is
    silently empty.

    25 frames a second, 2 s, fps 1  ->  frames 12 and 37 (at 0.48 and 1.48 s), not 0 and 25

    Args:
        pts: [T] presentation times in ticks, ascending.
        end: When the last frame ends, in ticks.
        time_base: Seconds of a tick.
        fps: Frames to take per second, exactly: 7.5 rather than 29.97.

    Returns:
        [N] indices into ``pts``, ascending.

    Raises:
        ValueError: There are no frames.

    Source: libavfilter/vf_fps.c (round=near, eof_action=round), fftools/ffmpeg.c (VSYNC_CFR).
    """
    if len(pts) == 0:
        raise ValueError("no frames to choose from")
    slots_of_tick = time_base * Fraction(fps)
    slots = round_half_away(pts, slots_of_tick)
    last_slot = int(round_half_away(np.array([end]), slots_of_tick)[0])
    if last_slot <= slots[0]:
        return np.zeros(max(last_slot, 1), dtype=np.int64)
    first_slot = min(max(slots[0], -MOST_EARLY_SLOTS), 0)
    return np.searchsorted(slots, np.maximum(np.arange(first_slot, last_slot), slots[0]), side="right") - 1


def spread_frames(num_frames: int, window: int) -> np.ndarray:
    """Choose frames that are spread evenly over a video; some are repeated if it has fewer.

    10 frames, window 4  ->  0, 2, 5, 7;  2 frames, window 4  ->  0, 0, 1, 1

    Args:
        num_frames: Frames of the video.
        window: Frames to choose.

    Returns:
        [window] indices, ascending.

    Source: transformers, ``video_utils.default_sample_indices_fn``.
    """
    return np.arange(window) * num_frames // window


def scaled_size(height: int, width: int, short_side_px: int) -> tuple[int, int]:
    """Return (height, width) with the given short side and the other in proportion, truncated to whole pixels.

    480x640, short side 224  ->  224x298
    """
    if height >= width:
        return int(height * short_side_px / width), short_side_px
    return short_side_px, int(width * short_side_px / height)


def centre_crop(height: int, width: int, crop_px: int, *, to_even: bool = False) -> tuple[int, int]:
    """Return (top, left) of the centre square.

    5x9, crop 2  ->  (1, 3); to even  ->  (2, 4)

    Args:
        height: Of the picture.
        width: Of the picture.
        crop_px: Side of the square.
        to_even: Where two pixels are equally near, take the even one (torchvision's ``center_crop``), not the lower.
    """
    if to_even:
        return round((height - crop_px) / 2), round((width - crop_px) / 2)
    return (height - crop_px) // 2, (width - crop_px) // 2


def num_windows(num_frames: int, window: int, stride: int) -> int:
    """Return how many windows, one every ``stride`` frames, reach the last frame; none begins after it.

    40 frames, window 16, stride 16  ->  3;  stride 8  ->  4;  stride 20  ->  2;  36 frames, stride 20  ->  2
    """
    to_reach_the_end = 1 + -(-max(num_frames - window, 0) // stride)
    return min(to_reach_the_end, -(-num_frames // stride))


def window_times(
    num_frames: int, first_slot: int, window: int, fps: float | None, duration_seconds: float, *, stride: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the start seconds, end seconds and number of real frames of each window, [T] each.

    40 frames, window 16, stride 16, 24 fps, 1.7 s  ->  starts 0, 0.667, 1.333; ends 0.667, 1.333, 1.7; 16, 16 and 8
    frames

    Args:
        num_frames: Number of sampled frames.
        first_slot: Slot of the first sampled frame.
        window: Frames of a window.
        fps: Sampled frames per second; None for one window whose frames are spread over the whole video.
        duration_seconds: Length of the video, at which the last window ends if it is not full.
        stride: Frames from the start of one window to the start of the next.
    """
    if fps is None:
        return np.zeros(1), np.array([duration_seconds]), np.array([window])
    firsts = stride * np.arange(num_windows(num_frames, window, stride))
    starts = (firsts + first_slot) / fps
    ends = np.minimum(starts + window / fps, max(duration_seconds, (first_slot + num_frames) / fps))
    return starts, ends, np.minimum(num_frames - firsts, window)

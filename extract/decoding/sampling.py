"""Choose the frames that a profile takes of a video, and assemble them into windows. Tests need no video."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .kernels import LIBSWSCALE, Kernel, Size, centre_crop

MAX_VIDEO_SECONDS = 12 * 3600
MAX_SIDE_RATIO = 10
"""Largest ratio of a frame's longer side to the shorter: a 1-pixel strip scaled to a short side of 224 would be
hundreds of thousands of pixels long."""
MAX_EARLY_SLOTS = 2
"""Maximum number of slots that the ffmpeg program outputs before time 0: slots that end at most 1.1 slots before the
current one.
"""


def round_half_away(values: np.ndarray, ratio: Fraction) -> np.ndarray:
    """Return ``values * ratio`` as the nearest integers, halves away from zero, in exact integer arithmetic.

    Source: FFmpeg's AV_ROUND_NEAR_INF.
    """
    doubled = 2 * np.abs(values.astype(np.int64)) * ratio.numerator + ratio.denominator
    return np.sign(values) * (doubled // (2 * ratio.denominator))


def sample_frames(pts: np.ndarray, end: int, time_base: Fraction, fps: float) -> np.ndarray:
    """Choose the frames that ``ffmpeg -i FILE -filter_complex fps=... -f rawvideo`` would output.

    Output slot k shows the last frame whose time, rounded to slots, is not after k; slots run from 0 to the rounded
    end. A frame may be repeated or skipped. Slots before the first frame show what the first frame's slot shows: raw
    video has a constant rate, so the program repeats its first frame. If frames begin before time 0, the program
    first outputs the last two slots before time 0, which shifts all others by two slots, and drops earlier slots. If
    the program would output no frame at all (a video shorter than half a slot), the first frame is taken: no video is
    silently empty.

    25 frames a second, 2 s, fps 1  ->  frames 12 and 37 (at 0.48 and 1.48 s), not 0 and 25
    2 frames a second, 2 s, fps 4   ->  frames 0 0 1 1 2 2 3 3: each is repeated
    frames at 0.0, 0.1, 1.5 s to 2 s, fps 2  ->  frames 1 1 1 2: the pause shows the frame before it
    frames at 1.0, 1.5 s to 2 s, fps 2       ->  frames 0 0 0 1: the first is shown from time 0 on

    Args:
        pts: [T] presentation times in ticks, ascending.
        end: When the last frame ends, in ticks.
        time_base: Length of a tick, in seconds.
        fps: Frames to take per second, a number that a float holds exactly: 7.5 rather than 29.97.

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
    first_slot = min(max(slots[0], -MAX_EARLY_SLOTS), 0)
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


def num_windows(num_frames: int, window: int, stride: int) -> int:
    """Return the number of windows, one every ``stride`` frames, until a window reaches the end or the next would start
    after the end.

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


# Windows

Allocate = Callable[[int, tuple[int, ...], np.dtype], np.ndarray]
"""Returns the memory for the next window of a profile, from the profile's index, the shape and the type of the window.
Its content is arbitrary. The profile's previous window stays valid."""


def new_array(_: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return new memory for a window."""
    return np.empty(shape, dtype)


def _last_second(num_frames: int, window: int, fps: float) -> np.ndarray:
    second = round(fps)
    whole = -(-num_frames // second) * second
    places = np.arange(num_frames, window)
    again = np.where(places < whole, num_frames - 1, whole - second + (places - whole) % second)
    return np.minimum(again, num_frames - 1)


TAILS: dict[str, Callable[[int, int, float], np.ndarray] | None] = {
    "black frames": None,
    "loop": lambda num_frames, window, _: np.arange(num_frames, window) % num_frames,
    "last frame to a whole second, then that second": _last_second,
}
"""{tail rule of a profile: function from (frames in the last window, window length, frames a second) to the indices of
the frames that fill this window; None for black frames}

Example: a last window of 8 at 4 frames a second has only the frames a b c:

    black frames   a b c - - - - -
    loop           a b c a b c a b
    last frame ..  a b c c a b c c     the last frame to a whole second, then that second again
"""


@dataclass(frozen=True)
class FrameSpec:
    """The part of a profile that decoding needs. The fields have the same meaning as in ``Profile``."""

    fps: float | None
    """None for one window whose frames are spread over the whole video."""
    window: int
    short_side_px: int
    crop_px: int | None
    tail: str
    resize: str = LIBSWSCALE
    stride: int | None = None
    """None for the length of the window."""

    def __post_init__(self) -> None:
        if self.window > 1 and self.tail not in TAILS:
            raise ValueError(f"tail rule {self.tail!r}: expected {' or '.join(TAILS)}")

    @property
    def size(self) -> Size:
        """The size to which frames are scaled."""
        return Size(self.short_side_px, self.resize)

    def sample(self, pts: np.ndarray, end: int, time_base: Fraction) -> np.ndarray:
        """Return the frames to take of a video: [N] indices into ``pts``, ascending. See ``sample_frames``."""
        if self.fps is None:
            return spread_frames(len(pts), self.window)
        return sample_frames(pts, end, time_base, self.fps)

    @property
    def max_windows(self) -> int:
        """Number of windows of the longest video."""
        if self.fps is None:
            return 1
        num_frames = math.ceil(self.fps * (MAX_VIDEO_SECONDS + 1)) + self.window
        return num_windows(num_frames, self.window, self.stride or self.window) + 1

    @property
    def max_window_bytes(self) -> int:
        """Size of a window of frames with the largest ratio of sides."""
        kernel = Kernel.of(self.resize)
        long_side_px = self.short_side_px * (1 if kernel.to_square else MAX_SIDE_RATIO)
        num_pixels = self.crop_px**2 if self.crop_px else self.short_side_px * long_side_px
        return self.window * num_pixels * 3 * np.dtype(kernel.dtype).itemsize


@dataclass(frozen=True)
class Window:
    """The frames of one feature vector: [window, H, W, 3], or [H, W, 3] if the window is one frame."""

    spec_index: int
    """Index of the profile."""
    frames: np.ndarray


class WindowAssembler:
    """Assemble the frames that one profile samples into windows.

    frames 0 to 9, window 4:

        stride 4   0123 4567 89..               the tail rule fills the last
        stride 2   0123 2345 4567 6789          each frame is in two windows
        stride 6   0123      6789               4 and 5 are in none
    """

    def __init__(self, spec_index: int, spec: FrameSpec, indices: np.ndarray, allocate: Allocate = new_array) -> None:
        """Begin with the first window.

        Args:
            spec_index: Index of the profile, for ``Window``.
            spec: Its windows.
            indices: Sampled frames, ascending; a frame may be repeated.
            allocate: Returns the memory for each window.
        """
        self._spec_index, self._spec, self._indices, self._allocate = spec_index, spec, indices, allocate
        self._window, self._stride = spec.window, spec.stride or spec.window
        self._cuts_to_even = Kernel.of(spec.resize).cuts_to_even
        self._next = 0
        """Index into ``indices`` of the next sampled frame."""
        self._frames = np.zeros(0, dtype=np.uint8)
        """The current window, or else the previous one; its memory is allocated at its first frame."""
        self._num_frames = 0
        self._num_new = 0
        """Frames of the window that were in no window before."""
        self._num_to_skip = 0
        """Number of frames to skip before the next window."""

    def add(self, index: int, image: np.ndarray) -> Iterator[Window]:
        """Add a frame, sampled zero or more times in a row; yield complete windows."""
        repeats = int(np.searchsorted(self._indices, index, side="right")) - self._next
        if repeats <= 0:
            return
        self._next += repeats
        if self._spec.crop_px is not None:
            height, width, _ = image.shape
            top, left = centre_crop(height, width, self._spec.crop_px, to_even=self._cuts_to_even)
            image = image[top : top + self._spec.crop_px, left : left + self._spec.crop_px]
        for _ in range(repeats):
            if self._num_to_skip:
                self._num_to_skip -= 1
            elif self._window == 1:
                frames = self._allocate(self._spec_index, image.shape, image.dtype)
                frames[:] = image
                yield Window(self._spec_index, frames)
                self._num_to_skip = self._stride - 1
            else:
                yield from self._append(image)

    def _append(self, image: np.ndarray) -> Iterator[Window]:
        if self._num_new == 0:
            before = self._frames
            self._frames = self._allocate(self._spec_index, (self._window, *image.shape), image.dtype)
            if self._num_frames:  # windows overlap
                self._frames[: self._num_frames] = before[-self._num_frames :]
        self._frames[self._num_frames] = image
        self._num_frames += 1
        self._num_new += 1
        if self._num_frames == self._window:
            yield Window(self._spec_index, self._frames)
            self._num_frames, self._num_new = max(self._window - self._stride, 0), 0
            self._num_to_skip = max(self._stride - self._window, 0)

    def finish(self) -> Iterator[Window]:
        """Yield the last window, filled by the profile's tail rule, if any frame of it is new."""
        if self._num_new == 0:
            return
        filling, rest = TAILS[self._spec.tail], self._frames[self._num_frames :]
        if filling is None:
            rest[:] = 0
        else:
            rest[:] = self._frames[filling(self._num_frames, self._window, self._spec.fps or 0)]
        yield Window(self._spec_index, self._frames)

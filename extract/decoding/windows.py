"""Frames in order -> the windows of a profile."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .sampling import centre_crop

Place = Callable[[int, tuple[int, ...], np.dtype], np.ndarray]
"""Returns the memory for the next window of a profile, from the profile's index, the shape and the type of the window.
Its content is arbitrary. The profile's window before is still in its own memory."""


def new_place(_: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
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
"""{tail rule of a profile: which frames fill a last window, from (its frames, the window's length, frames a second)}"""


@dataclass(frozen=True)
class Row:
    """The frames of one feature: [window, H, W, 3], or [H, W, 3] if the window is one frame."""

    wanted: int
    """Index of the profile."""
    frames: np.ndarray


class Windows:
    """Assemble one profile's frames into windows."""

    def __init__(
        self,
        wanted: int,
        indices: np.ndarray,
        *,
        window: int,
        stride: int,
        crop_px: int | None,
        tail: str,
        fps: float,
        cuts_to_even: bool = False,
        place: Place = new_place,
    ) -> None:
        """Take a profile's window settings.

        Args:
            wanted: Index of the profile, for ``Row``.
            indices: Sampled frames, ascending; a frame may be repeated.
            window: Frames of a window.
            stride: Frames from the start of one window to the start of the next.
            crop_px: Side of the centre crop; None keeps the whole frame.
            tail: Rule for a last window that is not full: one of ``TAILS``, or any if the window is one frame.
            fps: Frames per second.
            cuts_to_even: As for ``centre_crop``.
            place: Returns the memory for each window.
        """
        self._place = place
        self._cuts_to_even = cuts_to_even
        self._wanted, self._indices, self._crop_px = wanted, indices, crop_px
        self._window, self._stride, self._tail, self._fps = window, stride, tail, fps
        self._next = 0
        """Index into ``indices`` of the next sampled frame."""
        self._frames = np.zeros(0, dtype=np.uint8)
        """The window that is being filled, or else the one before; its memory is taken when its first frame comes."""
        self._num_frames = 0
        self._num_new = 0
        """Frames of the window that were in no window before."""
        self._num_to_skip = 0
        """Frames still to come between two windows."""

    def add(self, index: int, picture: np.ndarray) -> Iterator[Row]:
        """Take a frame, which may have been sampled never, once, or several times in a row; yield complete windows."""
        repeats = int(np.searchsorted(self._indices, index, side="right")) - self._next
        if repeats <= 0:
            return
        self._next += repeats
        if self._crop_px is not None:
            height, width, _ = picture.shape
            top, left = centre_crop(height, width, self._crop_px, to_even=self._cuts_to_even)
            picture = picture[top : top + self._crop_px, left : left + self._crop_px]
        for _ in range(repeats):
            if self._num_to_skip:
                self._num_to_skip -= 1
            elif self._window == 1:
                frames = self._place(self._wanted, picture.shape, picture.dtype)
                frames[:] = picture
                yield Row(self._wanted, frames)
                self._num_to_skip = self._stride - 1
            else:
                yield from self._append(picture)

    def _append(self, picture: np.ndarray) -> Iterator[Row]:
        if self._num_new == 0:
            before = self._frames
            self._frames = self._place(self._wanted, (self._window, *picture.shape), picture.dtype)
            if self._num_frames:  # windows overlap
                self._frames[: self._num_frames] = before[-self._num_frames :]
        self._frames[self._num_frames] = picture
        self._num_frames += 1
        self._num_new += 1
        if self._num_frames == self._window:
            yield Row(self._wanted, self._frames)
            self._num_frames, self._num_new = max(self._window - self._stride, 0), 0
            self._num_to_skip = max(self._stride - self._window, 0)

    def finish(self) -> Iterator[Row]:
        """Yield the last window, filled by the profile's tail rule, if any frame of it is new."""
        if self._num_new == 0:
            return
        filling, rest = TAILS[self._tail], self._frames[self._num_frames :]
        if filling is None:
            rest[:] = 0
        else:
            rest[:] = self._frames[filling(self._num_frames, self._window, self._fps)]
        yield Row(self._wanted, self._frames)

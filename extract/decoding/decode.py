"""One video, or image -> the pictures that feature profiles want of it, in one pass over its frames.

This runs in a child process (``decode_process.py``), which imports neither torch nor anything else that is slow to start.
"""

import io
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace

import av
import numpy as np
import PIL
from PIL import Image

from . import backends
from .backends import LIBSWSCALE, Decoding, NotTrusted, Size
from .images import IMAGE
from .probe import VideoError, VideoInfo
from .sampling import centre_crop, sample_frames

THUMBNAIL_PLACES = (0.1, 0.5, 0.9)
THUMBNAIL_HEIGHT_PX = 90
BACKENDS = {
    "decord": backends.decord_pictures,
    "PyAV": backends.pyav_pictures,
    "ffmpeg": backends.ffmpeg_pictures,
    "Pillow": backends.pillow_pictures,
}

SILENT_BACKENDS = {"decord"}
"""They paint over what they cannot decode, and say nothing of it."""


TAILS = "black frames", "loop"
"""What fills a last window that is not full."""


@dataclass(frozen=True)
class Wanted:
    """What a profile wants of a video; fields as in ``Profile``."""

    fps: int
    window: int
    short_side_px: int
    crop_px: int | None
    tail: str
    resize: str = LIBSWSCALE
    stride: int | None = None
    """None: as long as the window."""

    def __post_init__(self) -> None:
        if self.window > 1 and self.tail not in TAILS:
            raise ValueError(f"tail rule {self.tail!r}: expected {' or '.join(TAILS)}")

    @property
    def size(self) -> Size:
        return Size(self.short_side_px, self.resize)


@dataclass(frozen=True)
class Row:
    """The frames of one feature: uint8 [window, H, W, 3], or [H, W, 3] where the window is one frame."""

    wanted: int
    """Index of the profile."""
    frames: np.ndarray


@dataclass(frozen=True)
class Picture:
    """A small JPEG of the video."""

    seconds: float
    jpeg: bytes


@dataclass(frozen=True)
class Started:
    """A decoder begins with the first frame: what came before is void."""

    decoder: str


@dataclass(frozen=True)
class Finished:
    decoder: str
    """Its name and version."""
    duration_seconds: float
    partial: str
    """What is not there or damaged, with figures; empty where all is well."""
    num_frames: list[int]
    """Frames that were sampled, for each profile."""


Part = Row | Picture | Started | Finished


def choose_backends(info: VideoInfo, sizes: list[Size]) -> list[str]:
    """The decoders to try, in turn; for images, Pillow alone. PyAV comes first: it says what it could not decode, and is no slower."""
    if IMAGE in info.containers:
        return ["Pillow"]
    trusted = backends.decord_reads_well(info, sizes)
    return ["PyAV", *(["decord"] if trusted else []), *(["ffmpeg"] if backends.ffmpeg_program() else [])]


def version_of(backend: str) -> str:
    if backend == "ffmpeg":
        return f"ffmpeg {backends.ffmpeg_version()}"
    if backend == "Pillow":
        return f"Pillow {PIL.__version__}"
    return f"decord {backends.decord.__version__}" if backend == "decord" else f"PyAV {av.__version__}"


def decode_video(
    info: VideoInfo, wanted: list[Wanted], *, without: tuple[str, ...] = (), beat: Callable[[], None] = lambda: None
) -> Iterator[Part]:
    """The rows of each of ``wanted``, in order; a few pictures; and ``Finished``. Frames are held for one window only.

    ``without``: decoders not to use. Raises ``VideoError`` where no decoder gets a picture out of the file.
    """
    plan = _Plan(info, wanted)
    failures: list[VideoError] = []
    for backend in choose_backends(info, plan.sizes):
        if backend in without:
            continue
        try:
            yield Started(backend)
            yield from _decode_with(backend, plan, beat)
            return
        except NotTrusted:
            continue
        except VideoError as error:
            failures.append(error)
    raise (
        failures[0]
        if failures
        else VideoError("unreadable", f"no decoder is left to try ({', '.join(without)} failed)")
    )


class _Plan:
    """Which frames are taken, for whom, and in which sizes."""

    def __init__(self, info: VideoInfo, wanted: list[Wanted], strict: bool = True) -> None:
        self.info = info
        self.strict = strict
        self.wanted = wanted
        self.samples = [sample_frames(info.pts, info.end, info.time_base, w.fps) for w in wanted]
        self.indices = np.unique(np.concatenate(self.samples))
        self.sizes = sorted({w.size for w in wanted}, reverse=True)
        self.pictured = {int(self.indices[int(place * (len(self.indices) - 1) + 0.5)]) for place in THUMBNAIL_PLACES}


def _decode_with(backend: str, plan: _Plan, beat: Callable[[], None]) -> Iterator[Part]:
    partial = [plan.info.missing] if plan.info.missing else []
    decoding, num_absent = yield from _pass(backend, plan, beat)
    num_damaged = decoding.num_damaged
    if num_damaged and backend == "PyAV" and plan.info.codec in backends.STRICT_DECODERS:
        # A strict decoder finds damage, and shows nothing from there to the next key frame: another one shows what it can.
        plan.strict = False
        yield Started(backend)
        decoding, num_absent = yield from _pass(backend, plan, beat)
    if num_absent:
        # Some frames are not what their packets promised. Which ones do come is known only after a pass over all of them; the
        # rule of frame choice then applies to those.
        info, counting = plan.info, Decoding(plan.info, [], plan.strict, beat=beat)
        for _ in BACKENDS[backend](counting, np.arange(len(info.pts))):
            pass
        known = info.timed or info.delayed
        there = (
            np.unique(np.array(counting.delivered, dtype=np.int64)) if known else info.pts[: len(counting.delivered)]
        )
        if len(there) == 0:
            raise VideoError("unreadable", f"none of its {len(info.pts):,} frames can be decoded ({backend})")
        if len(there) < len(info.pts):
            partial.append(f"{len(there):,} of {len(info.pts):,} frames could be decoded")
        later = info.pts[info.pts > there[-1]]
        end = min(int(later[0]), int(there[-1] + np.median(np.diff(info.pts)))) if len(later) else info.end
        plan = _Plan(replace(info, pts=there, end=end), plan.wanted, plan.strict)
        yield Started(backend)
        decoding, num_absent = yield from _pass(backend, plan, beat)
        if num_absent:
            raise VideoError("unreadable", f"{backend} gives other frames each time that it is read")
    if num_damaged := max(num_damaged, decoding.num_damaged):
        partial.append(f"{num_damaged:,} frames or packets are damaged, says the decoder")
    if backend in SILENT_BACKENDS:
        partial.append(f"{backend} decoded it, which does not say what is damaged; no other decoder could")
    yield Finished(
        decoder=version_of(backend),
        duration_seconds=plan.info.duration_seconds,
        partial="; ".join(partial),
        num_frames=[len(indices) for indices in plan.samples],
    )


def _pass(backend: str, plan: _Plan, beat: Callable[[], None]) -> Generator[Part, None, tuple[Decoding, int]]:
    """The rows and pictures of one pass; returns how it went, and how many of the frames that were wanted did not come."""
    decoding = Decoding(plan.info, plan.sizes, plan.strict, beat=beat)
    windows = [_Windows(place, plan.wanted[place], indices) for place, indices in enumerate(plan.samples)]
    num_absent = len(plan.indices)
    for index, pictures in BACKENDS[backend](decoding, plan.indices):
        num_absent -= 1
        for window in windows:
            yield from window.add(index, pictures[plan.sizes.index(window.wanted.size)])
        if index in plan.pictured:
            yield Picture(float(plan.info.pts[index] * plan.info.time_base), _jpeg(pictures[-1]))
    for window in windows:
        yield from window.finish()
    return decoding, num_absent


class _Windows:
    """Puts one profile's frames together to windows."""

    def __init__(self, place: int, wanted: Wanted, indices: np.ndarray) -> None:
        self.place = place
        self.wanted = wanted
        self.indices = indices
        self._next = 0
        self._stride = wanted.stride or wanted.window
        self._frames: np.ndarray | None = None
        self._num_frames = 0
        self._num_new = 0
        """Of the frames in the window, those that were in none before."""
        self._num_passed_over = 0
        """Frames between two windows that are still to come."""

    def add(self, index: int, picture: np.ndarray) -> Iterator[Row]:
        """A frame that may be wanted never, once, or several times in a row."""
        times = int(np.searchsorted(self.indices, index, side="right")) - self._next
        if times <= 0:
            return
        self._next += times
        if self.wanted.crop_px is not None:
            side = self.wanted.crop_px
            top, left = centre_crop(*picture.shape[:2], side)
            picture = picture[top : top + side, left : left + side]
        window, stride = self.wanted.window, self._stride
        for _ in range(times):
            if self._num_passed_over:
                self._num_passed_over -= 1
                continue
            if window == 1:
                yield Row(self.place, np.ascontiguousarray(picture))
                self._num_passed_over = stride - 1
                continue
            if self._frames is None:
                self._frames = np.zeros((window, *picture.shape), dtype=np.uint8)
            self._frames[self._num_frames] = picture
            self._num_frames += 1
            self._num_new += 1
            if self._num_frames == window:
                yield Row(self.place, self._frames)
                self._num_frames, self._num_new = max(window - stride, 0), 0
                self._frames[: self._num_frames] = self._frames[window - self._num_frames :]
                self._num_passed_over = max(stride - window, 0)

    def finish(self) -> Iterator[Row]:
        """The last window, filled up by the profile's tail rule."""
        if self._num_new == 0:
            return
        if self.wanted.tail == "loop":
            places = np.arange(self._num_frames, self.wanted.window)
            self._frames[places] = self._frames[places % self._num_frames]
        else:
            self._frames[self._num_frames :] = 0
        yield Row(self.place, self._frames)


def _jpeg(picture: np.ndarray) -> bytes:
    image = Image.fromarray(np.ascontiguousarray(picture))
    image.thumbnail((4 * THUMBNAIL_HEIGHT_PX, THUMBNAIL_HEIGHT_PX))
    packed = io.BytesIO()
    image.save(packed, "JPEG", quality=80)
    return packed.getvalue()


def cut(info: VideoInfo, seconds: float) -> VideoInfo:
    """The first part of a video, of ``seconds``, or its first frame."""
    end = max(int(seconds / info.time_base), int(info.pts[0]) + 1)
    if end >= info.end:
        return info
    return replace(info, pts=info.pts[info.pts < end], packet_bytes=info.packet_bytes[info.pts < end], end=end)

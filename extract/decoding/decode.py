"""One video or image -> the frames that feature profiles need, in one pass.

This runs in a child process (``process.py``), which imports no slow libraries such as torch.
"""

import io
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from .backends import BACKENDS, SILENT_BACKENDS, choose_backends, version_of
from .errors import DecoderRejected, VideoError
from .frames import DecodePass
from .kernels import PILLOW, Size
from .nvdec_backend import is_in_use
from .probe import VideoInfo
from .pyav_backend import STRICT_DECODERS
from .sampling import MAX_VIDEO_SECONDS, Allocate, FrameSpec, Window, WindowAssembler, new_array
from .shots import SIZE as SIZE_OF_SHOTS
from .shots import ShotsFound

if TYPE_CHECKING:
    from .shot_finder import ShotFinder

THUMBNAIL_POSITIONS = (0.1, 0.5, 0.9)
THUMBNAIL_HEIGHT_PX = 90
MAX_DENSE_THUMBNAILS, MAX_DENSE_BYTES = MAX_VIDEO_SECONDS + 2, 256 << 20
"""Maximum number and size of a video's thumbnails: one for each second of the longest video, 6 kB each. An extraction
holds them in memory until it writes them.
"""


SAME_SECONDS = Fraction(1, 1_000_000)
"""A time that is less than this before a frame's time is taken as the frame's, since floats are rounded."""


@dataclass(frozen=True)
class DecodedThumbnail:
    """A thumbnail of the video."""

    seconds: float
    """A time at which the video shows this frame."""
    jpeg: bytes


@dataclass(frozen=True)
class DecodingStarted:
    """A decoder begins with the first frame. All windows and thumbnails sent before are invalid."""

    decoder: str


@dataclass(frozen=True)
class DecodingFinished:
    """The last event: all windows and thumbnails were yielded."""

    decoder: str
    """Name and version."""
    duration_seconds: float
    partial: str
    """The parts that are missing or damaged, with numbers; empty if none are."""
    num_frames: list[int]
    """Number of sampled frames, for each profile."""
    fallback_reason: str = ""
    """Reason why the profile's decoder was replaced by another; empty if it was not."""
    note: str = ""
    """Peculiarities of an intact file and their treatment; empty if there are none."""


DecodeEvent = Window | DecodedThumbnail | ShotsFound | DecodingStarted | DecodingFinished


def decode_video(
    info: VideoInfo,
    specs: list[FrameSpec],
    *,
    excluded_decoders: Sequence[str] = (),
    thumbnails_every: float | None = None,
    shots: bool = False,
    heartbeat: Callable[[], None] = lambda: None,
    allocate: Allocate = new_array,
) -> Iterator[DecodeEvent]:
    """Yield the windows of each of ``specs`` in order, thumbnails, shots and, last, ``DecodingFinished``.

    At most one window of frames is in memory.

    Args:
        info: The probed video.
        specs: The frames that each profile needs.
        excluded_decoders: Decoders not to use.
        thumbnails_every: Seconds between thumbnails; None for three thumbnails (``THUMBNAIL_POSITIONS``).
        shots: Also detect shots, which needs all frames.
        heartbeat: Called for each decoded frame.
        allocate: Returns the memory for each window.

    Raises:
        VideoError: No decoder gets a frame out of the file.
    """
    plan = _Plan(info, specs, allocate, thumbnails_every=thumbnails_every, shots=shots)
    failures: list[VideoError] = []
    fallback_reason = "it failed on the file" if "NVDEC" in excluded_decoders and is_in_use() else ""
    for backend in choose_backends(info, plan.sizes, excluded_decoders):
        try:
            yield DecodingStarted(backend)
            yield from _decode_with(backend, plan, heartbeat, fallback_reason)
            return
        except DecoderRejected as error:
            if backend == "NVDEC":
                fallback_reason = str(error)
        except VideoError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    raise VideoError("unreadable", f"no decoder is left to try ({', '.join(excluded_decoders)} failed)")


class _Plan:
    """The frames to take from a video, with their profiles, sizes and memory."""

    def __init__(
        self,
        info: VideoInfo,
        specs: list[FrameSpec],
        allocate: Allocate,
        strict: bool = True,
        thumbnails_every: float | None = None,
        shots: bool = False,
    ) -> None:
        self.info = info
        self.shots = shots
        self.thumbnails_every = thumbnails_every
        self.allocate = allocate
        self.strict = strict
        self.specs = specs
        self.samples = [spec.sample(info.pts, info.end, info.time_base) for spec in specs]
        of_shots = np.arange(len(info.pts) if shots else 0)
        self.indices = np.unique(np.concatenate([*self.samples, of_shots]))
        sizes = {spec.size for spec in specs} | ({SIZE_OF_SHOTS} if shots else set[Size]())
        self.sizes = sorted(sizes, reverse=True)
        if not any(size.suits_thumbnails for size in self.sizes):
            self.sizes.append(Size(THUMBNAIL_HEIGHT_PX, PILLOW))  # scales from RGB, like the kernels of the other sizes
        self.size_of_thumbnails = max(i for i, size in enumerate(self.sizes) if size.suits_thumbnails)
        self.thumbnails = self._times_of_thumbnails()
        """{index of a frame: seconds of the thumbnails that show it}"""
        if thumbnails_every is not None:
            self.indices = np.union1d(self.indices, np.array(list(self.thumbnails)))
        self.num_thumbnail_bytes = self.num_without_room = 0

    def _times_of_thumbnails(self) -> dict[int, list[float]]:
        """Return {frame: seconds of its thumbnails}, for frames spread over the video or one every few seconds."""
        info = self.info
        if self.thumbnails_every is None:
            last = len(self.indices) - 1
            chosen = {int(self.indices[int(position * last + 0.5)]) for position in THUMBNAIL_POSITIONS}
            return {index: [float(info.pts[index] * info.time_base)] for index in chosen}
        seconds = np.arange(0, info.duration_seconds, self.thumbnails_every).tolist()
        last_second = float(info.pts[-1] * info.time_base)
        if last_second - seconds[-1] > self.thumbnails_every / 2:  # otherwise the end would be farther from a thumbnail
            seconds.append(last_second)
        shown: dict[int, list[float]] = {}
        for second in seconds:
            tick = math.floor((Fraction(second) + SAME_SECONDS) / info.time_base)
            index = max(int(np.searchsorted(info.pts, tick, side="right")) - 1, 0)
            shown.setdefault(index, []).append(second)
        return shown

    def with_info(self, info: VideoInfo) -> "_Plan":
        """Return the plan for other frames of the same video."""
        return _Plan(info, self.specs, self.allocate, self.strict, self.thumbnails_every, self.shots)

    def thumbnails_of(self, index: int, images: Sequence[np.ndarray]) -> Iterator[DecodedThumbnail]:
        """Yield the thumbnails of a frame, until the video's thumbnails reach ``MAX_DENSE_BYTES``."""
        if index not in self.thumbnails:
            return
        jpeg = _jpeg(images[self.size_of_thumbnails])
        for seconds in self.thumbnails[index]:
            if self.num_thumbnail_bytes + len(jpeg) > MAX_DENSE_BYTES:
                self.num_without_room += 1
                continue
            self.num_thumbnail_bytes += len(jpeg)
            yield DecodedThumbnail(seconds, jpeg)


def _decode_with(
    backend: str, plan: _Plan, heartbeat: Callable[[], None], fallback_reason: str
) -> Iterator[DecodeEvent]:
    partial = [plan.info.missing] if plan.info.missing else []
    decoding, num_absent = yield from _pass(backend, plan, heartbeat)
    num_damaged = decoding.num_damaged
    if num_damaged and backend == "PyAV" and plan.info.codec in STRICT_DECODERS:
        # After damage, a strict decoder returns no frame until the next key frame. Another decoder returns some.
        plan.strict = False
        yield DecodingStarted(backend)
        decoding, num_absent = yield from _pass(backend, plan, heartbeat)
    if num_absent:
        plan, missing = _plan_for_delivered(backend, plan, heartbeat)
        partial += missing
        yield DecodingStarted(backend)
        decoding, num_absent = yield from _pass(backend, plan, heartbeat)
        if num_absent:
            raise VideoError("unreadable", f"{backend} returns different frames each time it reads the file")
    if num_damaged := max(num_damaged, decoding.num_damaged):
        partial.append(f"{num_damaged:,} frames or packets are damaged, as the decoder reports")
    if backend in SILENT_BACKENDS:
        partial.append(f"only {backend} could decode it, which does not report damage")
    notes = list(plan.info.notes)
    if plan.num_without_room:
        notes.append(f"{plan.num_without_room:,} thumbnails skipped: the others fill {MAX_DENSE_BYTES >> 20} MiB")
    yield DecodingFinished(
        decoder=version_of(backend),
        duration_seconds=plan.info.duration_seconds,
        partial="; ".join(partial),
        num_frames=[len(indices) for indices in plan.samples],
        fallback_reason=fallback_reason,
        note="; ".join(notes),
    )


def _plan_for_delivered(backend: str, plan: _Plan, heartbeat: Callable[[], None]) -> tuple[_Plan, list[str]]:
    """Choose frames again, from the decoded frames only; return the plan and descriptions of missing frames.

    Packets do not always announce frames correctly. Only a pass over the whole video shows which frames exist.

    A packet of interlaced H.264 may hold a whole frame (F) or one of a frame's two fields (f):

        packets   f f   f f   F   f f      ``by_fields``, nothing damaged
        frames     0     1    2    3       4 of 7, at least half: none is missing

        packets   F   F   x   F   F        x: damaged, or gone
        frames    0   1       3   4        4 of 5: the video is partial
    """
    info, counting = plan.info, DecodePass(plan.info, [], plan.strict, heartbeat=heartbeat)
    for _ in BACKENDS[backend](counting, np.arange(len(info.pts))):
        pass
    if info.timed or info.delayed:
        delivered = np.array(counting.delivered, dtype=np.int64)
        pts = np.unique(delivered)
        info = replace(info, unordered=bool((np.diff(delivered) < 0).any()) or not np.isin(pts, info.pts).all())
    else:
        pts = info.pts[: len(counting.delivered)]
    if len(pts) == 0:
        raise VideoError("unreadable", f"none of its {len(info.pts):,} frames can be decoded ({backend})")
    missing = []
    if info.by_fields and not counting.num_damaged and 2 * len(pts) >= len(info.pts):
        end = info.end if info.timed or info.delayed else int(pts[-1] + info.pts[1] - info.pts[0])
        return plan.with_info(replace(info, pts=pts, end=end)), missing
    num_came = len(counting.delivered) if info.unordered else len(pts)
    if num_came < np.sum(info.pts >= 0):
        missing.append(f"{num_came:,} of {len(info.pts):,} frames could be decoded")
    later = info.pts[info.pts > pts[-1]]
    end = min(int(later[0]), int(pts[-1] + np.median(np.diff(info.pts)))) if len(later) else info.end
    return plan.with_info(replace(info, pts=pts, end=end)), missing


def _pass(
    backend: str, plan: _Plan, heartbeat: Callable[[], None]
) -> Generator[DecodeEvent, None, tuple[DecodePass, int]]:
    """Yield the windows, thumbnails and shots of one pass.

    Returns:
        The pass, and the number of wanted frames that were not decoded.
    """
    plan.num_thumbnail_bytes = plan.num_without_room = 0
    decoding = DecodePass(plan.info, plan.sizes, plan.strict, heartbeat=heartbeat)
    windows = [
        WindowAssembler(index, spec, indices, plan.allocate)
        for index, (spec, indices) in enumerate(zip(plan.specs, plan.samples, strict=True))
    ]
    size_indices = [plan.sizes.index(spec.size) for spec in plan.specs]
    finder = _shot_finder(plan.info) if plan.shots else None
    num_absent = len(plan.indices)
    for index, images in BACKENDS[backend](decoding, plan.indices):
        num_absent -= 1
        for window, size_index in zip(windows, size_indices, strict=True):
            yield from window.add(index, images[size_index])
        if finder:
            finder.add(int(plan.info.pts[index]), images[plan.sizes.index(SIZE_OF_SHOTS)])
        yield from plan.thumbnails_of(index, images)
    for window in windows:
        yield from window.finish()
    if finder:
        yield finder.finish()
    return decoding, num_absent


def _shot_finder(info: VideoInfo) -> "ShotFinder":
    from .shot_finder import ShotFinder  # its library may not be installed

    return ShotFinder(info)


def _jpeg(frame: np.ndarray) -> bytes:
    image = Image.fromarray(np.ascontiguousarray(frame))
    image.thumbnail((4 * THUMBNAIL_HEIGHT_PX, THUMBNAIL_HEIGHT_PX))
    encoded = io.BytesIO()
    image.save(encoded, "JPEG", quality=80)
    return encoded.getvalue()


def cut(info: VideoInfo, seconds: float) -> VideoInfo:
    """Return the first ``seconds`` of a video, at least one frame."""
    end = max(int(seconds / info.time_base), int(info.pts[0]) + 1)
    if end >= info.end:
        return info
    return replace(info, pts=info.pts[info.pts < end], packet_bytes=info.packet_bytes[info.pts < end], end=end)

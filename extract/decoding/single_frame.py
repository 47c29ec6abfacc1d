"""The frame that a video shows at a given time, as a JPEG or as pixels. Decoding starts at the key frame before it.

The frame is the one that feature vectors of that time use: the last frame that is not later, or else the first frame.
The way to its key frame depends on the file:

    MP4, Matroska, AVI, ...      the container seeks to a place before the time
    MPEG-TS, MPEG-PS, Ogg        packets are read from the start, since the clock may jump; decoded from the key frame
    bare streams, GIF, MXF, ...  the whole file is probed and decoded from the start, as for features
"""

import io
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.container import InputContainer
from av.packet import Packet
from PIL import Image

from .container import (
    JOINED_CONTAINERS,
    as_fraction,
    container_names,
    demuxed,
    open_video,
    ticks_of_frame,
    time_base_of,
    video_stream,
)
from .decode import SAME_SECONDS
from .errors import VideoError
from .frames import SKIPPING_CODECS, DecodePass, DecodeProgress, frames_of_packets
from .images import is_image, read_image
from .kernels import LIBSWSCALE, Size
from .probe import probe_video
from .pyav_backend import decode_with_pyav
from .sound import time_zero
from .webm_clip import MAX_SIDE_PX, SEEK_BACK_SECONDS, go_to, shown_size, upright_rgb

JPEG_QUALITY = 85
ENTERED_CONTAINERS = {"mp4", "matroska", "avi", "flv", "asf", "nut"}
"""Containers that can seek to a place before a second without reading all packets before it."""
NUM_FIRST_PACKETS = 32
"""Packets at the start of a file that show whether packets have times."""
Heartbeat = Callable[[], None]


@dataclass(frozen=True)
class _Decoded:
    """A frame that was found."""

    seconds: float
    image: np.ndarray
    """[H, W, 3] RGB, upright, with square pixels, at most ``MAX_SIDE_PX`` a side."""


def jpeg_at(path: Path, seconds: float, heartbeat: Heartbeat = lambda: None) -> tuple[float, bytes]:
    """Return the frame that a video shows at a second, as (its time in seconds, JPEG).

    Args:
        path: The video, or an image, whose only frame is at 0 s.
        seconds: Second of the video, on the clock of its stored feature vectors; after the end, the last frame is
            returned.
        heartbeat: Called for each packet and frame.

    Raises:
        VideoError: The video cannot be decoded there.
    """
    found_seconds, image = pixels_at(path, seconds, heartbeat)
    encoded = io.BytesIO()
    Image.fromarray(image).save(encoded, "JPEG", quality=JPEG_QUALITY)
    return found_seconds, encoded.getvalue()


def pixels_at(path: Path, seconds: float, heartbeat: Heartbeat = lambda: None) -> tuple[float, np.ndarray]:
    """Return the frame that ``jpeg_at`` returns as (its time in seconds, uint8 [H, W, 3] RGB)."""
    found = _image_file(path) if is_image(path) else _frame_at(path, seconds, heartbeat)
    return found.seconds, np.ascontiguousarray(found.image, np.uint8)


def _image_file(path: Path) -> _Decoded:
    image = Image.fromarray(read_image(path))
    image.thumbnail((MAX_SIDE_PX, MAX_SIDE_PX))
    return _Decoded(0.0, np.asarray(image))


def _frame_at(path: Path, seconds: float, heartbeat: Heartbeat) -> _Decoded:
    with open_video(path) as container:
        names, packets = container_names(container), demuxed(container, [video_stream(container)])
        has_times = "avi" in names or all(
            packet.pts is not None for packet in itertools.islice(packets, NUM_FIRST_PACKETS) if packet.size
        )
    if has_times and names & ENTERED_CONTAINERS:
        for back in SEEK_BACK_SECONDS:
            start = Start(back=back)
            if found := _from(start, _survey(start, path, seconds, heartbeat), path, seconds, heartbeat):
                return found
    elif has_times and names & JOINED_CONTAINERS:
        survey = _survey(Start(), path, seconds, heartbeat)
        for num_skipped in (survey.num_before_key, 0):
            if found := _from(Start(num_skipped=num_skipped), survey, path, seconds, heartbeat):
                return found
    return _by_probing(path, seconds, heartbeat)


@dataclass(frozen=True)
class Start:
    """The place in a file at which decoding starts."""

    back: float = math.inf
    """How many seconds before the wanted one to seek a key frame; ``inf`` for the start of the file."""
    num_skipped: int = 0
    """Packets that are read and not decoded."""


class OpenVideo:
    """A video opened at a place from which it is decoded, with its clock."""

    def __init__(self, container: InputContainer, start: Start, seconds: float) -> None:
        self.container, self.stream = container, video_stream(container)
        self.stream.codec_context.thread_count = 1
        self.tick, zero = time_base_of(self.stream), time_zero(container)
        self.offset = round(zero / self.tick)
        self.limit = math.floor((Fraction(seconds) + SAME_SECONDS) / self.tick) + self.offset
        """The wanted second, in the file's own ticks."""
        self.is_later = go_to(container, self.stream, zero, seconds - start.back) or start.num_skipped > 0
        """True if reading starts after the file's start: frames before the first key frame may be missing."""
        self.by_dts = "avi" in container_names(container)
        """AVI states only when a frame is decoded: it is shown when the decoder returns it."""
        self._num_skipped = start.num_skipped

    def packets(self, heartbeat: Heartbeat) -> Iterator[Packet]:
        for number, packet in enumerate(demuxed(self.container, [self.stream])):
            heartbeat()
            if number >= self._num_skipped:
                yield packet

    def time_of(self, frame: av.VideoFrame, last: int | None) -> int | None:
        """Return the time of a frame, given the previous frame's time ``last``, in the file's own ticks."""
        if not self.by_dts:
            return frame.pts
        if frame.dts is None and last is not None:  # after the last packet, at the usual step
            return last + ticks_of_frame(self.stream)
        return frame.dts

    def decoded(self, time: int, frame: av.VideoFrame) -> _Decoded:
        width, height = shown_size(frame, as_fraction(self.stream.sample_aspect_ratio or 1))
        return _Decoded(float((time - self.offset) * self.tick), upright_rgb(frame, width, height))


@dataclass(frozen=True)
class _Survey:
    """Properties of the wanted frame, read from the packets up to it."""

    is_late: bool = False
    """True if the packets begin after the wanted frame."""
    wanted: int | None = None
    """Time of the wanted frame, in the file's own ticks; None if packets do not state it."""
    num_before_key: int = 0
    """Packets before the last key frame that is not after the wanted second."""


def _survey(start: Start, path: Path, seconds: float, heartbeat: Heartbeat) -> _Survey:
    first_key, wanted, num_before_key = None, None, 0
    with open_video(path) as container:
        video = OpenVideo(container, start, seconds)
        if video.by_dts:
            return _Survey()
        for number, packet in enumerate(video.packets(heartbeat)):
            if not packet.size or packet.is_discard:
                continue
            if packet.pts is None:
                return _Survey()
            if packet.dts is not None and packet.dts > video.limit:
                break  # no later packet is shown before it is decoded
            if packet.is_keyframe:
                first_key = packet.pts if first_key is None else first_key
                num_before_key = number if packet.pts <= video.limit else num_before_key
            is_whole = not video.is_later or (first_key is not None and packet.pts >= first_key)
            if is_whole and packet.pts <= video.limit:
                wanted = max(packet.pts, packet.pts if wanted is None else wanted)
        return _Survey(wanted is None and video.is_later, wanted, num_before_key)


def _from(start: Start, survey: _Survey, path: Path, seconds: float, heartbeat: Heartbeat) -> _Decoded | None:
    """Decode the wanted frame from ``start``; return None if ``start`` was too late."""
    if survey.is_late:
        return None
    for skips in (True, False):
        with open_video(path) as container:
            video = OpenVideo(container, start, seconds)
            if skips and (survey.wanted is None or video.stream.codec_context.name not in SKIPPING_CODECS):
                continue
            found = _last_frame(video, heartbeat, survey.wanted if skips else None)
            if found is not None and (not skips or found[0] == survey.wanted):
                return video.decoded(*found)
    return None


def _last_frame(video: OpenVideo, heartbeat: Heartbeat, needed: int | None) -> tuple[int, av.VideoFrame] | None:
    """Return (time, frame) of the last frame that is not after the limit; None if there is none after the start.

    Args:
        video: Video opened at a place before the frame.
        heartbeat: Called for each packet and frame.
        needed: Time of the wanted frame, which lets the decoder skip others; None to decode all.
    """
    last, begun = None, not video.is_later
    packets, context = video.packets(heartbeat), video.stream.codec_context
    needed_times = None if needed is None else {needed}
    for frame in frames_of_packets(DecodeProgress(heartbeat=heartbeat), packets, context, needed_times):
        heartbeat()
        time = video.time_of(frame, last and last[0])
        begun = begun or frame.key_frame
        if time is None or not begun:
            continue
        if time > video.limit:
            return last if last or video.is_later else (time, frame)
        last = time, frame
        if time == needed:
            break
    return last


def _by_probing(path: Path, seconds: float, heartbeat: Heartbeat) -> _Decoded:
    """Decode the wanted frame from the start of the file, like the frames of feature vectors."""
    info = probe_video(path, heartbeat)
    limit = math.floor((Fraction(seconds) + SAME_SECONDS) / info.time_base)
    index = max(int(np.searchsorted(info.pts, limit, side="right")) - 1, 0)
    short_side_px = max(round(min(info.height, info.width) * min(MAX_SIDE_PX / max(info.height, info.width), 1)), 1)
    decoding = DecodePass(info, [Size(short_side_px, LIBSWSCALE)], heartbeat=heartbeat)
    for _, images in decode_with_pyav(decoding, np.array([index])):
        return _Decoded(float(info.pts[index] * info.time_base), images[0])
    raise VideoError("unreadable", "its frame of that second cannot be decoded")

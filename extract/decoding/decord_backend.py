"""Frames by decord, for files that it is known to read well: it is silently wrong on some others."""

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from .container import first_frame
from .errors import DecoderRejected, short_reason
from .frames import DecodePass, Images
from .kernels import LIBSWSCALE, Size, scaled_size
from .probe import VideoInfo
from .scaling import upright_filters

if TYPE_CHECKING:
    import decord
else:
    try:
        import decord
    except ImportError:  # no build for this processor
        decord = None

DECORD_CONTAINERS = {"mov", "mp4", "matroska", "webm"}
DECORD_CODECS = {"h264", "vp8", "vp9"}
FRAMES_AT_ONCE = 16
STILL_PACKET_SHARE, STILL_PACKET_BYTES = 0.1, 100
"""Maximum size of an encoded frame that repeats the previous one: this share of the median packet, or this many
bytes if that is more."""


def has_decord() -> bool:
    """Return whether decord is installed."""
    return decord is not None


def decord_reads_well(info: VideoInfo, sizes: list[Size]) -> bool:
    """Return whether decord reads a file correctly, judging by its packets and first frame.

    decord scales to one size only, with its own kernel.
    """
    if not has_decord() or info.codec not in DECORD_CODECS or not info.containers & DECORD_CONTAINERS:
        return False
    if [size.resize for size in sizes] != [LIBSWSCALE] or not info.timed or not info.plain:
        return False
    if info.missing or info.by_fields:
        return False
    steps = np.diff(info.pts)
    if len(steps) and steps.max() > 1.5 * np.median(steps):
        return False
    first = first_frame(info.path)
    return first is not None and not upright_filters(first) and first.format.name in ("yuv420p", "yuvj420p")


def decode_with_decord(decoding: DecodePass, wanted: np.ndarray) -> Iterator[tuple[int, Images]]:
    """Yield (index, images) for each wanted frame, like ``decode_with_pyav``, in one size.

    Raises:
        DecoderRejected: decord's frames do not match the packets.
    """
    info = decoding.info
    height, width = scaled_size(info.height, info.width, decoding.sizes[0].short_side_px)
    try:
        reader = decord.VideoReader(str(info.path.absolute()), num_threads=1, height=height, width=width)
        if len(reader) != len(info.pts):
            raise DecoderRejected(f"decord finds {len(reader)} frames, the packets are {len(info.pts)}")
        _compare_times(reader, info)
        still_bytes = max(STILL_PACKET_SHARE * np.median(info.packet_bytes), STILL_PACKET_BYTES)
        last_index, last_image = -2, np.empty(0)
        for first in range(0, len(wanted), FRAMES_AT_ONCE):
            indices = wanted[first : first + FRAMES_AT_ONCE]
            for index, image in zip(indices.tolist(), reader.get_batch(indices).asnumpy(), strict=True):
                # decord returns the previous frame instead of a frame that it cannot decode, without an error.
                follows = last_index == index - 1
                if follows and info.packet_bytes[index] > still_bytes and np.array_equal(image, last_image):
                    raise DecoderRejected(f"decord repeats frame {index - 1} instead of frame {index}")
                last_index, last_image = index, image
                decoding.heartbeat()
                yield index, [image]
    except (decord.DECORDError, RuntimeError, UnicodeError) as error:
        raise DecoderRejected(f"decord: {short_reason(error)}") from None
    decoding.delivered = array("q", info.pts.tolist())


def _compare_times(reader: "decord.VideoReader", info: VideoInfo) -> None:
    """Raise ``DecoderRejected`` if decord's times, relative to the first frame, differ from the packets' times."""
    seconds = reader.get_frame_timestamp(np.arange(len(info.pts)))[:, 0].astype(float)
    expected = info.pts.astype(float) * float(info.time_base)
    worst = np.abs((seconds - seconds[0]) - (expected - expected[0])).max()
    if worst > 0.5 * info.duration_seconds / len(info.pts):
        raise DecoderRejected(f"decord's times are up to {worst:.2f} s off")

"""Frames by PyAV, the preferred decoder, since it reports damage."""

from collections.abc import Iterator

import av
import numpy as np
from av.error import FFmpegError
from av.video.codeccontext import VideoCodecContext

from .container import first_frame, open_video
from .frames import DecodePass, Images, frames_in_order
from .probe import VideoInfo
from .scaling import upright_filters

STRICT_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
"""Decoders that reject damaged frames, by codec. FFmpeg's own decoders of these codecs return them damaged."""


def decode_with_pyav(decoding: DecodePass, wanted: np.ndarray) -> Iterator[tuple[int, Images]]:
    """Yield (index, images) for each wanted frame.

    Frames that are neither wanted nor referred to by other frames are not decoded. Frames that cannot be decoded are
    skipped; ``decoding.delivered`` lists the decoded ones.

    Args:
        decoding: The video, the sizes, and the counts.
        wanted: Ascending indices into ``decoding.info.pts``.

    Raises:
        VideoError: The file cannot be decoded.
    """
    info = decoding.info
    strict, colours = _strict_decoder(info) if decoding.strict else (None, None)
    with open_video(info.path) as container:
        yield from frames_in_order(
            decoding, wanted, container, info.time_base, info.offset, skip=info.timed, colours=colours, context=strict
        )


def _strict_decoder(info: VideoInfo) -> tuple[VideoCodecContext | None, tuple[int, int] | None]:
    """Return libvpx and the colours that FFmpeg's decoder finds; (None, None) if libvpx cannot decode the video.

    libvpx rejects frames that end before or after their data does.
    """
    if info.codec not in STRICT_DECODERS:
        return None, None
    first = first_frame(info.path)
    try:
        strict = av.CodecContext.create(STRICT_DECODERS[info.codec], "r")
    except (FFmpegError, ValueError):
        return None, None
    if (
        first is None
        or upright_filters(first)
        or first.format.name != "yuv420p"
        or not isinstance(strict, VideoCodecContext)
    ):
        return None, None
    return strict, (int(first.colorspace), int(first.color_range))

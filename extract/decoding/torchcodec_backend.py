"""Frames by torchcodec, for profiles that scale RGB frames themselves.

torchcodec converts frames to RGB at their own size, as FFmpeg's ``scale`` filter does. But it scales in RGB, where the
filter scales before the conversion. It is therefore exact for Pillow's and torchvision's kernels only. It imports
torch, which takes seconds and gigabytes of address space; its process ends after the video.
"""

import importlib
import importlib.metadata
import importlib.util
import mmap
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...storage.common.system import limit
from .container import first_frame, open_video, video_stream
from .errors import DecoderRejected, short_reason
from .frames import DecodePass, Images
from .input_file import InputFile
from .kernels import BY_FFMPEG, Kernel, Size
from .probe import VideoInfo
from .scaling import TURNS, upright_filters

if TYPE_CHECKING:
    from torchcodec.decoders import VideoDecoder  # pyright: ignore[reportPrivateImportUsage]

FRAMES_AT_ONCE = 16
PLAIN_FORMATS = {"yuv420p", "yuvj420p"}
"""Pixel formats that torchcodec and the filter convert to the same RGB. Some others differ: yuv420p10le by up to 36 of
255.
"""


GROWING_CONTAINERS = {"flv", "mpegts", "mpeg"}
"""Containers in which a stream may appear after the file was opened: torchcodec 0.17 then writes beyond its memory."""


def has_torchcodec() -> bool:
    """Return whether torchcodec is installed. ``load`` checks whether it finds FFmpeg's libraries."""
    return importlib.util.find_spec("torchcodec") is not None


def can_scale(resizes: Iterable[str]) -> bool:
    """Return whether all kernels, values of ``Profile.resize``, scale from RGB frames of the video's own size."""
    return all(Kernel.of(resize).by != BY_FFMPEG for resize in resizes)


def load(memory_bytes: int) -> bool:
    """Import torchcodec and FFmpeg's libraries, before this process loses the right to open files.

    Args:
        memory_bytes: Address space for decoding, in addition to the libraries'.

    Returns:
        False if FFmpeg's libraries are not found.
    """
    limit("RLIMIT_AS", None)
    try:
        importlib.import_module("torchcodec.decoders")
    except (ImportError, OSError, RuntimeError):
        return False
    finally:
        limit("RLIMIT_AS", addresses_bytes() + memory_bytes)
    return True


def addresses_bytes() -> int:
    """Return the size of this process's address space; 0 where the system neither reports nor limits it."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[0]) * mmap.PAGESIZE if statm.exists() else 0


def torchcodec_reads_well(info: VideoInfo, sizes: list[Size]) -> bool:
    """Return whether torchcodec can be trusted with a file, judged by its packets and first frame."""
    if not has_torchcodec() or not can_scale(size.resize for size in sizes):
        return False
    if not info.timed or info.missing or info.containers & GROWING_CONTAINERS:
        return False
    first = first_frame(info.path)
    if first is None or upright_filters(first) not in TURNS:
        return False
    is_rgb = int(first.colorspace) == 0  # invalid for 4:2:0: decoders then use different matrices
    return first.format.name in PLAIN_FORMATS and not first.interlaced_frame and not is_rgb


def decode_with_torchcodec(decoding: DecodePass, wanted: np.ndarray) -> Iterator[tuple[int, Images]]:
    """Yield (index, images) for each wanted frame, like ``decode_with_pyav``.

    Raises:
        DecoderRejected: torchcodec fails, or its frames do not match the file's packets.
    """
    kernels = [Kernel.of(size.resize) for size in decoding.sizes]
    with failures_as_distrust():
        for index, frame in rgb_frames(open_decoder(decoding.info), decoding, wanted):
            sides = [size.shape(*frame.shape[:2]) for size in decoding.sizes]
            yield index, [kernel.scaled(frame, *side) for kernel, side in zip(kernels, sides, strict=True)]
    decoding.delivered = array("q", decoding.info.pts.tolist())


@contextmanager
def failures_as_distrust() -> Iterator[None]:
    """Raise ``DecoderRejected`` for an error of torchcodec."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError, UnicodeError) as error:
        raise DecoderRejected(f"torchcodec: {short_reason(error)}") from None


def open_decoder(info: VideoInfo, device: str = "cpu") -> "VideoDecoder":
    """Open a file.

    Args:
        info: The probed video.
        device: Device that decodes: "cpu", "cuda" or "cuda:N".

    Raises:
        DecoderRejected: The number of frames differs from the number of packets, or torchcodec would ignore a rotation.
    """
    from torchcodec.decoders import VideoDecoder, set_cuda_backend  # pyright: ignore[reportPrivateImportUsage]

    with open_video(info.path) as container:
        stream_index = video_stream(container).index
    # torchcodec's own GPU backend overwrites frames that were not fetched yet: of 40 frames of H.264 with B-frames as
    # references, frame 34 had the content of frame 37 (torchcodec 0.17, on an H200). FFmpeg's backend does not.
    with nullcontext() if device == "cpu" else set_cuda_backend("ffmpeg"):
        decoder = VideoDecoder(InputFile(info.path), stream_index=stream_index, dimension_order="NHWC", device=device)
    if len(decoder) != len(info.pts):
        raise DecoderRejected(f"torchcodec finds {len(decoder)} frames, the packets are {len(info.pts)}")
    first = first_frame(info.path)
    if first is not None and upright_filters(first) and not decoder.metadata.rotation:
        raise DecoderRejected("its frames state a rotation that its container does not, which torchcodec ignores")
    return decoder


def rgb_frames(decoder: "VideoDecoder", decoding: DecodePass, wanted: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (index, frame), [H, W, 3] RGB of the video's own size, for each wanted frame.

    Raises:
        DecoderRejected: The frames have other times than the packets.
    """
    start_seconds = decoder.get_frame_at(0).pts_seconds
    for first in range(0, len(wanted), FRAMES_AT_ONCE):
        indices = wanted[first : first + FRAMES_AT_ONCE]
        batch = decoder.get_frames_at(indices.tolist())
        _compare_times(batch.pts_seconds.cpu().numpy() - start_seconds, decoding.info, indices)
        for index, frame in zip(indices.tolist(), batch.data.cpu().numpy(), strict=True):
            decoding.heartbeat()
            yield index, frame


def torchcodec_version() -> str:
    """Return the version of the installed package."""
    return importlib.metadata.version("torchcodec")


def _compare_times(seconds: np.ndarray, info: VideoInfo, indices: np.ndarray) -> None:
    """Raise ``DecoderRejected`` if frames' times, relative to the first frame, differ from the packets' times."""
    expected = (info.pts[indices] - info.pts[0]) * float(info.time_base)
    worst = np.abs(seconds - expected).max()
    if worst > float(info.time_base):
        raise DecoderRejected(f"torchcodec's times are up to {worst:.2f} s off")

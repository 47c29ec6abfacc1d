"""The decoders, in the order in which they are tried. All give the same frames.

PyAV is tried first. If it fails, decord is tried on the files that it reads well, then the ffmpeg program, then
torchcodec. torchcodec takes seconds to start and reports no damage. Each scales frames with FFmpeg's ``scale`` filter,
or converts them to RGB at their own size and scales them with another library's kernel. Images are decoded by Pillow
and scaled in the same way.

If a profile requests NVIDIA's video engine, it is tried before all others. Its frames are nearly the same.
"""

from collections.abc import Callable, Iterator, Sequence

import av
import numpy as np
import PIL

from .decord_backend import decode_with_decord, decord, decord_reads_well
from .ffmpeg_backend import can_use_ffmpeg, decode_with_ffmpeg, ffmpeg_version
from .frames import DecodePass, Images
from .images import IMAGE, decode_with_pillow
from .kernels import Size
from .nvdec_backend import decode_with_nvdec, is_in_use, nvdec_version
from .probe import VideoInfo
from .pyav_backend import decode_with_pyav
from .torchcodec_backend import decode_with_torchcodec, torchcodec_reads_well, torchcodec_version

BACKENDS: dict[str, Callable[[DecodePass, np.ndarray], Iterator[tuple[int, Images]]]] = {
    "decord": decode_with_decord,
    "PyAV": decode_with_pyav,
    "ffmpeg": decode_with_ffmpeg,
    "torchcodec": decode_with_torchcodec,
    "NVDEC": decode_with_nvdec,
    "Pillow": decode_with_pillow,
}
SILENT_BACKENDS = {"decord", "torchcodec"}
"""Decoders that conceal damaged frames without reporting them."""


def choose_backends(info: VideoInfo, sizes: list[Size], excluded_decoders: Sequence[str] = ()) -> list[str]:
    """Return the decoders to try, in order; for images, only Pillow.

    Args:
        info: The probed video.
        sizes: The sizes in which frames are wanted.
        excluded_decoders: Decoders not to use.
    """
    if IMAGE in info.containers:
        return [name for name in ["Pillow"] if name not in excluded_decoders]
    can_read = {
        "NVDEC": is_in_use,
        "PyAV": lambda: True,
        "decord": lambda: decord_reads_well(info, sizes),
        # Versions of the program differ in how long they show a GIF's frames.
        "ffmpeg": lambda: info.codec != "gif" and can_use_ffmpeg(),
        "torchcodec": lambda: torchcodec_reads_well(info, sizes),
    }
    return [name for name, can in can_read.items() if name not in excluded_decoders and can()]


def version_of(backend: str) -> str:
    """Return a decoder's name and version, as stores record it."""
    if backend == "ffmpeg":
        return f"ffmpeg {ffmpeg_version()}"
    if backend == "Pillow":
        return f"Pillow {PIL.__version__}"
    if backend == "NVDEC":
        return nvdec_version()
    if backend == "torchcodec":
        return f"torchcodec {torchcodec_version()}"
    return f"decord {decord.__version__}" if backend == "decord" else f"PyAV {av.__version__}"

"""The decoders, in the order in which they are tried. All give the same pictures.

PyAV comes first. If it fails, decord is tried on what it reads well, then the ffmpeg program. Each decodes frames in
order and scales them with FFmpeg's ``scale`` filter, or with Pillow's bicubic kernel from the frame in RGB at its own
size. Images are decoded by Pillow and scaled alike.
"""

from collections.abc import Callable, Iterator

import av
import numpy as np
import PIL

from .decord_backend import decord, decord_pictures, decord_reads_well
from .ffmpeg_backend import ffmpeg_pictures, ffmpeg_program, ffmpeg_version
from .frames import Decoding, Pictures
from .images import IMAGE, pillow_pictures
from .probe import VideoInfo
from .pyav_backend import pyav_pictures
from .scaling import Size

BACKENDS: dict[str, Callable[[Decoding, np.ndarray], Iterator[tuple[int, Pictures]]]] = {
    "decord": decord_pictures,
    "PyAV": pyav_pictures,
    "ffmpeg": ffmpeg_pictures,
    "Pillow": pillow_pictures,
}
SILENT_BACKENDS = {"decord"}
"""They paint over what they cannot decode and do not say so."""


def choose_backends(info: VideoInfo, sizes: list[Size]) -> list[str]:
    """Return the decoders to try, in order; for images, only Pillow."""
    if IMAGE in info.containers:
        return ["Pillow"]
    trusts_decord = decord_reads_well(info, sizes)
    return ["PyAV", *(["decord"] if trusts_decord else []), *(["ffmpeg"] if ffmpeg_program() else [])]


def version_of(backend: str) -> str:
    """Return a decoder's name and version, as stores record it."""
    if backend == "ffmpeg":
        return f"ffmpeg {ffmpeg_version()}"
    if backend == "Pillow":
        return f"Pillow {PIL.__version__}"
    return f"decord {decord.__version__}" if backend == "decord" else f"PyAV {av.__version__}"

"""Still images: JPEG, PNG, WebP and AVIF files, each a video of one frame.

Pillow decodes them, as the loaders of image-caption data do (dharwath/DAVEnet-pytorch,
dataloaders/image_caption_dataset.py). FFmpeg is not used, since its image reader treats a name such as ``img%03d.jpg``
as a sequence of files. EXIF orientation is applied, as rotation is for videos; transparent parts become white, as in
viewers. The first image of a file with several is read (an animated PNG or WebP, a camera's multi-picture JPEG). A
truncated file is rejected; damage that libjpeg conceals is not reported.
"""

import struct
import warnings
import zlib
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import ExifTags, Image

from ...storage.dataset.media_types import IMAGE_SUFFIXES
from .container import MAX_PIXELS, check_size
from .errors import VideoError, short_reason
from .frames import DecodePass, Images
from .input_file import num_bytes_of, open_file
from .probe import VideoInfo
from .scaling import Scaler

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF")
"""Pillow's names of the formats that are read."""
KINDS = "JPEG, PNG, WebP or AVIF image"
IMAGE = "image"
"""Name of an image's container."""
TIME_BASE = Fraction(1, 25)
"""Duration of an image, as in FFmpeg. An image is one frame at any rate of a profile: at 16 to 30 frames a second its
duration is rounded to 1 slot; at 1 frame a second it is rounded to 0, and the first frame is used.
"""
_OF_PYTHON = (OSError, SyntaxError, ValueError, EOFError, TypeError, LookupError, OverflowError, RuntimeError)
DAMAGED = (*_OF_PYTHON, struct.error, zlib.error)
"""Errors that Pillow raises for files that are not images, or are damaged."""
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""{EXIF orientation: the operation that makes the image upright}"""


def is_image(path: Path) -> bool:
    """Return whether a file is treated as an image. Only its name decides: FFmpeg never gets such a file."""
    return path.suffix.lower() in IMAGE_SUFFIXES


def probe_image(path: Path) -> VideoInfo:
    """Read the header of an image.

    Raises:
        VideoError: The file is missing, too large, or not an image.
    """
    with _open_image(path) as image, open_file(path) as file:
        return VideoInfo(
            path=path,
            pts=np.zeros(1, dtype=np.int64),
            packet_bytes=np.array([num_bytes_of(file.fileno())]),
            end=1,
            time_base=TIME_BASE,
            codec=(image.format or "").lower(),
            containers=frozenset({IMAGE}),
            offset=0,
            height=image.height,
            width=image.width,
            timed=True,
            plain=True,
        )


def read_image(path: Path) -> np.ndarray:
    """Return the upright image, uint8 [H, W, 3] RGB.

    Raises:
        VideoError: The file is missing, too large, damaged, or not an image.
    """
    with _open_image(path) as image:
        try:
            image.load()
            upright = _upright(image)
            if upright.mode.startswith("I"):  # 16-bit grey: Pillow's own conversion makes all values above 255 white
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            return np.asarray(_over_white(upright) if upright.has_transparency_data else upright.convert("RGB"))
        except DAMAGED as error:
            raise _unreadable(error) from None


def decode_with_pillow(decoding: DecodePass, wanted: np.ndarray) -> Iterator[tuple[int, Images]]:
    """Yield the only frame of an image, like ``decode_with_pyav``.

    Raises:
        VideoError: The image cannot be read.
    """
    frame = av.VideoFrame.from_ndarray(read_image(decoding.info.path), "rgb24")
    decoding.count(0)
    yield 0, [Scaler(size)(frame, ()) for size in decoding.sizes]


def _upright(image: Image.Image) -> Image.Image:
    try:
        turn = UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except DAMAGED:  # only the EXIF block is damaged: treat it as missing
        turn = None
    return image if turn is None else image.transpose(turn)


def _over_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    page = Image.new("RGB", image.size, "white")
    page.paste(image, mask=image)
    return page


def _unreadable(error: Exception) -> VideoError:
    """Return the error for an image that Pillow could not open or decode; Pillow's own message is for programmers."""
    is_of_system = isinstance(error, OSError) and error.errno is not None
    damaged = "the image is damaged or cut off; copy or save it again"
    return VideoError("unreadable", short_reason(error) if is_of_system else damaged)


def _open_image(path: Path) -> Image.Image:
    try:
        file = open_file(path)
    except OSError:
        raise VideoError("missing", "no such file") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(file, formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise VideoError(
            "too_large", f"it has over {Image.MAX_IMAGE_PIXELS:,} pixels; expected at most {MAX_PIXELS:,}"
        ) from None
    except Image.UnidentifiedImageError:
        is_empty = not num_bytes_of(file.fileno())
        problem = f"the file is empty; expected a {KINDS}" if is_empty else f"not a {KINDS}; convert it to one"
        raise VideoError("unreadable", problem) from None
    except DAMAGED as error:
        raise _unreadable(error) from None
    try:
        check_size(image.width, image.height)
    except VideoError:
        image.close()
        raise
    return image

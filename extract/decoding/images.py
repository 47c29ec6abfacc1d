"""Still images: JPEG and PNG files, each a video of one frame.

They are decoded by Pillow, as the loaders of image-caption data do (dharwath/DAVEnet-pytorch, dataloaders/image_caption_dataset.py), and
never by FFmpeg: its reader of images takes a name such as ``img%03d.jpg`` for a whole sequence of files. An image lies as its EXIF
orientation says, as rotated recordings do; its transparency is left out. Of a file with several pictures (an animated PNG, a camera's
multi-picture JPEG) the first one is taken. A file that was cut off is no image; what libjpeg conceals within one goes unsaid.
"""

import struct
import warnings
import zlib
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

from ...storage.files import IMAGE_SUFFIXES
from .handed import open_file
from .probe import MOST_PIXELS, VideoError, VideoInfo, check_size, words_of

IMAGE = "image"
"""What stands for a container's name."""
TIME_BASE = Fraction(1, 25)
"""How long an image lasts, as for FFmpeg. It is one frame at any rate of a profile: rounding gives 1 slot at 16 to 30 frames a second,
and none, which stands for the first frame, at 1."""
DAMAGED = (OSError, SyntaxError, ValueError, EOFError, TypeError, LookupError, OverflowError, struct.error, zlib.error)
"""What Pillow raises for files that are no images, or broken ones."""
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""{EXIF's orientation: what makes the picture upright}"""


def is_image(path: Path) -> bool:
    """By its name alone: no such file gets to FFmpeg."""
    return path.suffix.lower() in IMAGE_SUFFIXES


def probe_image(path: Path) -> VideoInfo:
    """Reads the header. Raises ``VideoError``."""
    with _open_image(path) as image:
        return VideoInfo(
            path=path,
            pts=np.zeros(1, dtype=np.int64),
            packet_bytes=np.array([path.stat().st_size]),
            end=1,
            time_base=TIME_BASE,
            codec=image.format.lower(),
            containers=frozenset({IMAGE}),
            offset=0,
            height=image.height,
            width=image.width,
            timed=True,
            plain=True,
        )


def read_image(path: Path) -> np.ndarray:
    """The upright picture, uint8 [H, W, 3] RGB. Raises ``VideoError``."""
    with _open_image(path) as image:
        try:
            image.load()
            upright = _upright(image)
            if upright.mode.startswith(
                "I"
            ):  # 16 bits of grey, which Pillow's own conversion would make white above 255
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            return np.asarray(upright.convert("RGB"))
        except DAMAGED as error:
            raise VideoError("unreadable", words_of(error)) from None


def _upright(image: Image.Image) -> Image.Image:
    try:
        turn = UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation))
    except DAMAGED:  # of the EXIF block alone, which is then as if it were not there
        turn = None
    return image if turn is None else image.transpose(turn)


def _open_image(path: Path) -> Image.Image:
    try:
        file = open_file(path)
    except OSError:
        raise VideoError("missing", "no such file") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(file, formats=("JPEG", "PNG"))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise VideoError(
            "too_large", f"it has over {Image.MAX_IMAGE_PIXELS:,} pixels; at most {MOST_PIXELS:,} are taken"
        ) from None
    except Image.UnidentifiedImageError:
        raise VideoError("unreadable", "its name is that of an image, but it is neither a JPEG nor a PNG") from None
    except DAMAGED as error:
        raise VideoError("unreadable", words_of(error)) from None
    try:
        check_size(image.width, image.height)
    except VideoError:
        image.close()
        raise
    return image

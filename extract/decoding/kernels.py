"""The kernels that scale images, as named in ``Profile.resize``, and a port of torch's arithmetic.

torchvision scales bytes with torch's kernel, which has integer weights. The result differs from Pillow's by 1 in a few
of a thousand pixels. Decoders do not import torch: in each of them, it would take seconds and gigabytes of address
space.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from PIL import Image

from ...storage.records import SQUARE

BY_FFMPEG, BY_PILLOW, BY_TORCHVISION = "libswscale", "Pillow", "torchvision"
UNROUNDED = ", not rounded"
"""Suffix of a kernel's name: images are float32. Some processors scale to 0..1 before they resize."""
CUT_TO_EVEN = ", cut like torchvision"
"""Suffix of a kernel's name. A crop that cannot be centred starts at the even one of the two middle pixels; without the
suffix, at the lower one.
"""
LIBSWSCALE, LIBSWSCALE_BICUBIC, PILLOW = "bilinear, libswscale", "bicubic, libswscale", "bicubic, Pillow"
NAMES = "bilinear", "bicubic", "lanczos"
KERNELS = (
    LIBSWSCALE,
    LIBSWSCALE_BICUBIC,
    *(
        f"{name}, {by}{square}{unrounded}{cut}"
        for name in NAMES
        for by in (BY_PILLOW, BY_TORCHVISION)
        for square in ("", SQUARE)
        for unrounded in (("", UNROUNDED) if by == BY_TORCHVISION else ("",))
        for cut in ("", CUT_TO_EVEN)
    ),
)
"""The values of ``Profile.resize`` that can be computed."""
KERNELS_HELP = (
    f"{LIBSWSCALE!r} or {LIBSWSCALE_BICUBIC!r}; or {', '.join(NAMES)} with ', {BY_PILLOW}' or ', {BY_TORCHVISION}', "
    f"then any of {SQUARE!r}, {UNROUNDED!r} ({BY_TORCHVISION} only) and {CUT_TO_EVEN!r}, in this order"
)

_PILLOW = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
BLOCK = 32
"""Number of output rows computed together, from the few input rows that they need."""


class Kernel(NamedTuple):
    """A value of ``Profile.resize`` in parts."""

    name: str
    by: str
    """The library that scales: ``BY_FFMPEG``, ``BY_PILLOW`` or ``BY_TORCHVISION``."""
    to_square: bool
    is_rounded: bool
    cuts_to_even: bool

    @classmethod
    def of(cls, resize: str) -> "Kernel":
        """Parse a value of ``Profile.resize``. Raises ``ValueError`` if it is not in ``KERNELS``."""
        if resize not in KERNELS:
            raise ValueError(f"resize {resize!r}: expected {KERNELS_HELP}")
        uncut = resize.removesuffix(CUT_TO_EVEN)
        rounded = uncut.removesuffix(UNROUNDED)
        name, by = rounded.removesuffix(SQUARE).split(", ")
        return cls(name, by, rounded.endswith(SQUARE), rounded == uncut, uncut != resize)

    @property
    def dtype(self) -> type[np.generic]:
        """Type of the scaled images. Their values are 0 to 255 in either type."""
        return np.uint8 if self.is_rounded else np.float32

    def scaled(self, image: np.ndarray, height: int, width: int) -> np.ndarray:
        """Scale an image by Pillow's or torch's arithmetic: uint8 [H, W, 3] -> [height, width, 3] of ``dtype``."""
        if self.by == BY_PILLOW:
            return np.asarray(Image.fromarray(image).resize((width, height), _PILLOW[self.name]))
        for axis, size in ((1, width), (0, height)):
            if image.shape[axis] != size:
                rows = _scaled_rows(np.moveaxis(image, axis, 0), size, self.name, is_rounded=self.is_rounded)
                image = np.moveaxis(rows, 0, axis)
        return np.ascontiguousarray(image, dtype=self.dtype)


def scaled_size(height: int, width: int, short_side_px: int) -> tuple[int, int]:
    """Return (height, width) with the given short side and the other in proportion, truncated to whole pixels.

    480x640, short side 224  ->  224x298
    """
    if height >= width:
        return int(height * short_side_px / width), short_side_px
    return short_side_px, int(width * short_side_px / height)


def centre_crop(height: int, width: int, crop_px: int, *, to_even: bool = False) -> tuple[int, int]:
    """Return (top, left) of the centre square.

    5x9, crop 2  ->  (1, 3); to even  ->  (2, 4)

    Args:
        height: Height of the image.
        width: Width of the image.
        crop_px: Side of the square.
        to_even: If two start pixels are equally near the centre, use the even one (torchvision's ``center_crop``), not
            the lower.
    """
    if to_even:
        return round((height - crop_px) / 2), round((width - crop_px) / 2)
    return (height - crop_px) // 2, (width - crop_px) // 2


class Size(NamedTuple):
    """The shorter side of an image in pixels, and the kernel that scales to it."""

    short_side_px: int
    resize: str = LIBSWSCALE

    @property
    def suits_thumbnails(self) -> bool:
        """True if images keep their shape and are bytes, as thumbnails must."""
        kernel = Kernel.of(self.resize)
        return kernel.is_rounded and not kernel.to_square

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """Return the scaled (height, width) of an upright frame of ``height`` and ``width``."""
        side = self.short_side_px
        return (side, side) if Kernel.of(self.resize).to_square else scaled_size(height, width, side)


# The arithmetic


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(x: np.ndarray) -> np.ndarray:
    x, a = np.abs(x), -0.5
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


_FILTERS: dict[str, tuple[int, Callable[[np.ndarray], np.ndarray]]] = {
    "bilinear": (1, _triangle),
    "bicubic": (2, _cubic),
    "lanczos": (3, _lanczos),
}
"""{kernel: (its half width in output pixels, the function that gives its value at a distance)}"""


class _Weights(NamedTuple):
    """The integer weights of each output row, and the number of bits to shift by."""

    values: np.ndarray
    """float64 [rows out, rows in]."""
    bits: int
    first: np.ndarray
    """First input row of each output row."""
    last: np.ndarray
    """End (exclusive) of each output row's input rows."""


@lru_cache(maxsize=16)
def _weights(num_in: int, num_out: int, name: str, *, is_rounded: bool) -> _Weights:
    """Source: PyTorch, aten/src/ATen/native/cpu/UpSampleKernel.cpp, ``_compute_index_ranges_int16_weights``."""
    support, kernel = _FILTERS[name]
    real = np.float64 if is_rounded else np.float32  # as in PyTorch
    scale = real(num_in) / real(num_out)
    wider = max(scale, real(1))
    centres = scale * (np.arange(num_out, dtype=real) + real(0.5))
    first = np.maximum((centres - support * wider + 0.5).astype(np.int64), 0)
    last = np.minimum((centres + support * wider + 0.5).astype(np.int64), num_in)
    weights = np.zeros((num_out, num_in))
    for row, (start, end) in enumerate(zip(first, last, strict=True)):
        values = kernel((np.arange(start, end, dtype=real) - centres[row] + real(0.5)) * (real(1) / wider))
        weights[row, start:end] = values / np.cumsum(values)[-1]  # summed one by one, as torch does
    if not is_rounded:
        return _Weights(weights, 0, first, last)
    bits = 0
    while bits < 22 and math.floor(0.5 + weights.max() * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    return _Weights(np.trunc(weights * (1 << bits) + np.where(weights < 0, -0.5, 0.5)), bits, first, last)


def _scaled_rows(rows: np.ndarray, num_out: int, name: str, *, is_rounded: bool) -> np.ndarray:
    """Scale [N, M, 3] to [num_out, M, 3]: uint8, or float64 without rounding.

    In float64, sums of whole numbers are exact.
    """
    weights = _weights(len(rows), num_out, name, is_rounded=is_rounded)
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
    scaled = np.empty((num_out, flat.shape[1]), dtype=np.uint8 if is_rounded else np.float64)
    for start in range(0, num_out, BLOCK):
        end = min(start + BLOCK, num_out)
        low, high = weights.first[start], weights.last[end - 1]
        sums = weights.values[start:end, low:high] @ flat[low:high].astype(np.float64)
        if is_rounded:
            sums = np.clip(np.floor((sums + (1 << weights.bits >> 1)) / (1 << weights.bits)), 0, 255)
        scaled[start:end] = sums
    return scaled.reshape(num_out, *rows.shape[1:])

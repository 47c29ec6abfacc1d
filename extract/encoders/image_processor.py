"""Translate the preprocessing of a model's own processor into a profile: size, kernel, crop, mean and deviation.

The values are read from the processor and then checked: its pixels of a few images must equal ours. A processor that
does not fit a profile is refused.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...storage.common.errors import reason_of
from ..decoding.kernels import (
    BY_PILLOW,
    BY_TORCHVISION,
    CUT_TO_EVEN,
    SQUARE,
    UNROUNDED,
    Kernel,
    centre_crop,
    scaled_size,
)
from .profile_checks import MAX_SIDE_PX

SHAPES = (270, 480), (480, 271), (131, 257), (60, 301)
"""(height, width) of the images that are compared."""
NEAR = 1e-4
"""Maximum difference of equal normalised pixels; one step of a byte is at least 40 times as much."""
RESAMPLING = {1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""{Pillow's number of a kernel: its name}"""

Rgb = tuple[float, float, float]


@dataclass(frozen=True)
class Preprocessing:
    """Preparation of images from frames. The fields have the same meaning as in ``Profile``; values are in 0..1."""

    short_side_px: int
    crop_px: int | None
    resize: str
    mean: Rgb
    std: Rgb

    def of(self, frame: np.ndarray) -> np.ndarray:
        """Return the normalised image of a frame: uint8 [H, W, 3] -> float32 [3, H', W']."""
        kernel, side = Kernel.of(self.resize), self.short_side_px
        height, width = (side, side) if kernel.to_square else scaled_size(frame.shape[0], frame.shape[1], side)
        image = kernel.scaled(frame, height, width)
        if self.crop_px is not None:
            top, left = centre_crop(height, width, self.crop_px, to_even=kernel.cuts_to_even)
            image = image[top : top + self.crop_px, left : left + self.crop_px]
        mean, std = (np.asarray(values, dtype=np.float32) for values in (self.mean, self.std))
        return ((image.astype(np.float32) / 255 - mean) / std).transpose(2, 0, 1)


def preprocessing_of(processor: Any, processed: Callable[[np.ndarray], np.ndarray]) -> Preprocessing:
    """Return the preprocessing of a processor.

    Args:
        processor: An image or video processor of transformers.
        processed: Returns the processor's image of a frame: uint8 [H, W, 3] -> float [3, H', W'].

    Raises:
        ValueError: Its preprocessing cannot be reproduced here. The message states the reason.
    """
    name = type(processor).__name__
    if (side := max(_stated_sides(processor), default=0)) > MAX_SIDE_PX:
        raise ValueError(f"{name} makes images of {side:,} px; expected at most {MAX_SIDE_PX:,}")
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in SHAPES]
    try:
        expected = [processed(frame) for frame in frames]
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError, AttributeError) as error:
        raise ValueError(f"{name} cannot process a frame ({reason_of(error)})") from None
    if any(pixels.ndim != 3 or len(pixels) != 3 for pixels in expected):
        raise ValueError(f"{name} returns {list(expected[0].shape)} for a frame, expected an image [3, height, width]")
    nearest = np.inf
    for preprocessing in declared_preprocessings(processor):
        ours = [preprocessing.of(frame) for frame in frames]
        if [o.shape for o in ours] != [e.shape for e in expected]:
            continue
        difference = max(float(np.abs(o - e).max()) for o, e in zip(ours, expected, strict=True))
        if difference < NEAR:
            return preprocessing
        nearest = min(nearest, difference)
    found = "other sizes" if nearest == np.inf else f"pixels that differ by up to {nearest:.3g}"
    raise ValueError(f"{name} makes {found}, compared with the resizing, cropping and normalising that it states")


def declared_preprocessings(processor: Any) -> Iterator[Preprocessing]:
    """Yield possible meanings of a processor's configuration, the most likely first."""
    if (config := getattr(processor, "data_config", None)) is not None:
        yield from _declared_by_timm(config)
        return
    kernel = _kernel_name(getattr(processor, "resample", None))
    for by, end in ((BY_TORCHVISION, ""), (BY_PILLOW, ""), (BY_TORCHVISION, UNROUNDED)):
        for mean, std in _ranges(processor):
            for short, crop, is_square in _sizes(processor):
                yield Preprocessing(short, crop, f"{kernel}, {by}{SQUARE if is_square else ''}{end}", mean, std)


def _declared_by_timm(config: dict[str, Any]) -> Iterator[Preprocessing]:
    """Yield the preprocessing that timm's data configuration defines. Source: timm, ``transforms_imagenet_eval``."""
    _, height, width = config["input_size"]
    if height != width:
        return
    squares = {"center": "", "squash": SQUARE}
    if config["interpolation"] in RESAMPLING.values() and config["crop_mode"] in squares:
        kernel = f"{config['interpolation']}, {BY_PILLOW}{squares[config['crop_mode']]}{CUT_TO_EVEN}"
        side = math.floor(height / config["crop_pct"])
        yield Preprocessing(side, height, kernel, _three(config["mean"]), _three(config["std"]))


def _stated_sides(processor: Any) -> Iterator[int]:
    """Yield the sides of images, in px, that a processor states."""
    for preprocessing in declared_preprocessings(processor):
        yield max(preprocessing.short_side_px, preprocessing.crop_px or 0)
    for name in ("size", "crop_size", "pad_size"):
        sizes = dict(getattr(processor, name, None) or {})
        yield from (sizes[edge] for edge in ("height", "width", "shortest_edge") if sizes.get(edge))


def _kernel_name(resample: Any) -> str:
    """Return the name of a kernel from Pillow's number or torchvision's mode; else bilinear, transformers' default."""
    if isinstance(resample, int):
        return RESAMPLING.get(int(resample), "bilinear")
    value = getattr(resample, "value", resample)
    return value if value in RESAMPLING.values() else "bilinear"


def _sizes(processor: Any) -> Iterator[tuple[int, int | None, bool]]:
    """Yield (short side, crop, whether frames are squeezed into squares)."""
    if not getattr(processor, "do_resize", False):
        return
    size, crop = (dict(getattr(processor, name, None) or {}) for name in ("size", "crop_size"))
    crop_px = crop.get("height") if getattr(processor, "do_center_crop", False) else None
    edge, height, width = (size.get(name) for name in ("shortest_edge", "height", "width"))
    if height and height == width:
        yield int(height), crop_px, True
    if edge:
        yield int(edge), crop_px, False
        if (part := getattr(processor, "crop_pct", None)) is not None:  # ConvNeXt's
            yield int(edge / part), int(edge), False
            yield int(edge), None, True


def _ranges(processor: Any) -> Iterator[tuple[Rgb, Rgb]]:
    """Yield (mean, standard deviation) of values in 0..1."""
    factor = getattr(processor, "rescale_factor", 1 / 255) if getattr(processor, "do_rescale", False) else 1.0
    mean: Rgb = (0.0, 0.0, 0.0)
    std: Rgb = (1.0, 1.0, 1.0)
    if getattr(processor, "do_normalize", False):
        mean, std = _three(processor.image_mean), _three(processor.image_std)
    scale = 255 * factor
    if abs(scale - 1) < 1e-6:
        yield mean, std
    yield _divided(mean, scale), _divided(std, scale)
    yield _divided(_plus_one(mean), scale), _divided(std, scale)  # ViViT's processors first subtract 1


def _three(values: Any) -> Rgb:
    red, green, blue = [float(value) for value in values] if hasattr(values, "__len__") else [float(values)] * 3
    return red, green, blue


def _divided(values: Rgb, by: float) -> Rgb:
    return values[0] / by, values[1] / by, values[2] / by


def _plus_one(values: Rgb) -> Rgb:
    return values[0] + 1, values[1] + 1, values[2] + 1

"""Preprocessing of processors: pixels are the processor's own, and what cannot be made here is refused in one line."""

import numpy as np
import pytest
import transformers
from helpers.hub_models import CROPPED, SQUARE, WIDER
from helpers.needs import PACKAGE, missing_lanczos, need
from vlalign.extract.encoders.image_processor import preprocessing_of

SHAPES = (97, 143), (143, 97), (40, 33), (32, 32), (31, 200)
WIDE = {"height": 40, "width": 40}
OFFSET = {"do_normalize": False, "rescale_factor": 1 / 127.5, "rescale_offset": True, "include_top": False}
MADE = {
    "resized, cropped": ("CLIPImageProcessor", CROPPED),
    "squeezed": ("CLIPImageProcessor", {"size": SQUARE, "do_center_crop": False}),
    "not cropped": ("CLIPImageProcessor", {"size": WIDER, "do_center_crop": False}),
    "not normalised": ("CLIPImageProcessor", CROPPED | {"do_normalize": False}),
    "not rescaled": ("CLIPImageProcessor", CROPPED | {"do_rescale": False}),
    "another mean": ("CLIPImageProcessor", CROPPED | {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}),
    "Lanczos": ("CLIPImageProcessor", CROPPED | {"resample": 1}),
    "Pillow": ("CLIPImageProcessorPil", CROPPED),
    "squeezed, cropped": ("DeiTImageProcessor", {"size": {"height": 36, "width": 36}, "crop_size": SQUARE}),
    "a share cropped": ("ConvNextImageProcessor", {"size": {"shortest_edge": 32}}),
    "1 subtracted": ("EfficientNetImageProcessor", OFFSET | {"size": SQUARE, "resample": 2}),
    "RGB": ("MobileViTImageProcessor", CROPPED | {"do_flip_channel_order": False}),
}
OTHER_PIXELS, OTHER_SIZES = r" \d+\.?\d*,? ", r"^\w+ [^0-9]+$"
"""By how much pixels differ is stated; if the sizes differ, no number is."""
REFUSED = {
    "BGR": ("MobileViTImageProcessor", CROPPED, OTHER_PIXELS),
    "nearest pixels": ("CLIPImageProcessor", CROPPED | {"resample": 0}, OTHER_PIXELS),
    "normalised twice": ("EfficientNetImageProcessor", {"size": SQUARE}, OTHER_PIXELS),
    "padded to a square": ("Owlv2ImageProcessor", {"size": SQUARE}, OTHER_PIXELS),
    "padded": (
        "CLIPImageProcessor",
        CROPPED | {"do_pad": True, "pad_size": {"height": 40, "width": 40}},
        OTHER_SIZES,
    ),
    "not resized": ("CLIPImageProcessor", {"do_resize": False, "crop_size": SQUARE}, OTHER_SIZES),
    "no square": (
        "CLIPImageProcessor",
        {"size": {"height": 32, "width": 40}, "do_center_crop": False},
        OTHER_SIZES,
    ),
    "in patches": ("Siglip2ImageProcessor", {"patch_size": 8}, r"\[\d+, "),
}


def processor_of(name, settings):
    processor = getattr(transformers, name)(**settings)

    def processed(frame):
        made = processor(images=frame, return_tensors="np", input_data_format="channels_last")
        return np.asarray(made["pixel_values"], dtype=np.float32)[0]

    return processor, processed


@pytest.mark.parametrize("what", MADE)
def test_pixels_are_the_processors_own(what):
    """For other frames than those that they were proved with."""
    if what == "Lanczos":
        need(PACKAGE, missing_lanczos())
    processor, processed = processor_of(*MADE[what])
    preprocessing = preprocessing_of(processor, processed)
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        frame = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
        expected = processed(frame)
        np.testing.assert_allclose(preprocessing.of(frame), expected, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("what", REFUSED)
def test_pictures_that_cannot_be_made_are_refused(what):
    name, settings, words = REFUSED[what]
    with pytest.raises(ValueError, match=words) as refused:
        preprocessing_of(*processor_of(name, settings))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "sizes",
    [
        {"size": {"shortest_edge": 1 << 20}},
        {"size": SQUARE, "do_center_crop": True, "crop_size": {"height": 1 << 20, "width": 1 << 20}},
        {"size": {"height": 1 << 20, "width": 8}, "do_center_crop": False},
        {"size": SQUARE, "do_pad": True, "pad_size": {"height": 1 << 20, "width": 1 << 20}},
    ],
)
def test_sides_are_limited_before_an_image_is_made(sizes):
    processor, _ = processor_of("CLIPImageProcessor", sizes)

    def processed(frame):
        raise AssertionError("it would take gigabytes")

    with pytest.raises(ValueError, match=r"makes images of 1,048,576 px; expected at most 4,320"):
        preprocessing_of(processor, processed)

"""Kernels: torchvision's and Pillow's own pictures, to the last bit."""

import io

import numpy as np
import pytest
import torch
from helpers.decoding import take, want
from helpers.needs import needs_lanczos
from helpers.numbered import HEIGHT, WIDTH
from helpers.videos import scene
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional
from vlalign.extract.decoding.kernels import KERNELS, NAMES, Kernel
from vlalign.extract.videos.demo import render_video

sides = st.integers(8, 300)


def noise(height: int, width: int, seed: int, *, extreme: bool) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return np.where(values < 128, 0, 255).astype(np.uint8) if extreme else values


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_lanczos if name == "lanczos" else ()) for name in NAMES]
)
@settings(max_examples=60, deadline=None)
@given(sides, sides, sides, sides, st.integers(0, 2**32 - 1), st.booleans())
def test_bytes_are_torchvisions_and_pillows(name, height, width, to_height, to_width, seed, extreme):
    picture = noise(height, width, seed, extreme=extreme)
    by_torch = functional.resize(
        torch.from_numpy(picture).permute(2, 0, 1).contiguous(),
        [to_height, to_width],
        interpolation=InterpolationMode(name),
        antialias=True,
    )
    ours = Kernel.of(f"{name}, torchvision").scaled(picture, to_height, to_width)
    np.testing.assert_array_equal(ours, by_torch.permute(1, 2, 0))
    by_pillow = Image.fromarray(picture).resize((to_width, to_height), getattr(Image.Resampling, name.upper()))
    np.testing.assert_array_equal(Kernel.of(f"{name}, Pillow").scaled(picture, to_height, to_width), by_pillow)


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("size", "to_size"), [((90, 161), (40, 40)), ((33, 20), (70, 55)), ((480, 640), (224, 298))])
def test_pictures_that_are_not_rounded_are_torchvisions(name, size, to_size):
    picture = noise(*size, 0, extreme=False)
    expected = functional.resize(
        torch.from_numpy(picture).permute(2, 0, 1).float() / 255,
        list(to_size),
        interpolation=InterpolationMode(name),
        antialias=True,
    )
    ours = Kernel.of(f"{name}, torchvision, not rounded").scaled(picture, *to_size)
    assert ours.dtype == np.float32 and not np.array_equal(ours, ours.round())
    np.testing.assert_allclose(ours / 255, expected.permute(1, 2, 0), atol=2e-6)


def test_a_picture_of_the_right_size_stays_as_it_is():
    picture = noise(20, 30, 0, extreme=False)
    np.testing.assert_array_equal(Kernel.of("bicubic, torchvision").scaled(picture, 20, 30), picture)


def test_unknown_kernels_are_refused():
    for resize in ("nearest, Pillow", "bilinear", "lanczos, libswscale", "bilinear, Pillow, not rounded", ""):
        assert resize not in KERNELS
        with pytest.raises(ValueError, match=f"resize {resize!r}.*'bilinear, libswscale'"):
            Kernel.of(resize)


def test_squeezed_pictures_are_not_the_thumbnails(tmp_path):
    """Thumbnails are for people: they keep the shape of the video, and are bytes."""
    render_video(scene(2.0, width=160, height=80), tmp_path / "x.mp4")
    for resize in ("bicubic, Pillow, to a square", "bilinear, torchvision, not rounded"):
        taken = take(tmp_path / "x.mp4", want(1, 32, resize=resize))
        assert taken.frames.shape[1:] == ((32, 32, 3) if "square" in resize else (32, 64, 3))
        pictures = [np.asarray(Image.open(io.BytesIO(p.jpeg))) for p in taken.pictures]
        assert {picture.shape for picture in pictures} == {(90, 180, 3)}


def test_squares_and_plain_pictures_of_one_size_come_together(tmp_path):
    render_video(scene(1.0, width=WIDTH, height=HEIGHT), tmp_path / "x.mp4")
    kinds = [want(1, 32, resize=f"bilinear, torchvision{end}") for end in ("", ", to a square", ", not rounded")]
    plain, square, unrounded = (np.stack(rows) for rows in take(tmp_path / "x.mp4", *kinds).rows)
    assert square.shape[1:] == (32, 32, 3) != plain.shape[1:]
    np.testing.assert_allclose(unrounded, plain, atol=1.01)  # two roundings of half a byte

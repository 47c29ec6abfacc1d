"""The feature profiles: frozen, named, one row each. What published features were made with, and where that is read, stands in
the comments; a change to any value is another profile.

Frames are scaled as FFmpeg's ``scale`` filter with ``flags=bilinear`` does: that was its kernel under ffmpeg-python when the
features below were published (before FFmpeg's commit 9f14396a)."""

from dataclasses import replace

from .console import UserError
from .records import Profile

# S3D-G of MIL-NCE (Miech et al. 2020): antoine77340/S3D_HowTo100M, README.md:33 (values in 0..1, nothing subtracted).
S3D = Profile(
    name="s3d",
    model="S3D-G",
    weights="s3d_howto100m.pth",
    fps=24,
    window=16,
    stride=16,
    short_side_px=224,
    crop_px=224,
    resize="bilinear, libswscale",
    value_range="0..1",
    mean=(0.0, 0.0, 0.0),
    std=(1.0, 1.0, 1.0),
    tail="black frames",
    layer="mixed_5c, mean over time and space",
    dimension=1024,
)

PROFILES = {
    profile.name: profile
    for profile in (
        # 2D features of HowTo100M (Miech et al. 2019) and of TACo, SSML: antoine77340/video_feature_extractor, extract.py:34-36,
        # preprocessing.py:18, model.py:16-38. Its weights are torchvision's first ones; the newer V2 ones give other features.
        Profile(
            name="resnet152",
            model="ResNet-152",
            weights="resnet152-394f9c45.pth",
            fps=1,
            window=1,
            stride=1,
            short_side_px=224,
            crop_px=None,
            resize="bilinear, libswscale",
            value_range="0..1",
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            tail="none",
            layer="layer4, mean over space",
            dimension=2048,
        ),
        # 3D features of HowTo100M (Miech et al. 2019): antoine77340/video_feature_extractor, extract.py:34-36, preprocessing.py:20-36.
        # Black frames are appended before the mean is subtracted. The network's authors subtract ActivityNet's mean instead.
        Profile(
            name="i3d_resnext101",
            model="3D ResNeXt-101",
            weights="resnext101.pth",
            fps=24,
            window=16,
            stride=16,
            short_side_px=112,
            crop_px=112,
            resize="bilinear, libswscale",
            value_range="0..255",
            mean=(110.6, 103.2, 96.3),
            std=(1.0, 1.0, 1.0),
            tail="black frames",
            layer="layer4, mean over time and space",
            dimension=2048,
        ),
        # Hara et al. 2020: kenshohara/3D-ResNets-PyTorch, main.py:264-277; mean and deviation are its defaults for Kinetics. A last
        # window that is not full goes on with its own frames from its first (LoopPadding).
        Profile(
            name="i3d_resnet152",
            model="3D ResNet-152",
            weights="r3d152_K_200ep.pth",
            fps=24,
            window=16,
            stride=16,
            short_side_px=112,
            crop_px=112,
            resize="bilinear, libswscale",
            value_range="0..1",
            mean=(0.4345, 0.4051, 0.3775),
            std=(0.2768, 0.2713, 0.2737),
            tail="loop",
            layer="layer4, mean over time and space",
            dimension=2048,
        ),
        S3D,
        # The features of UniVL: ArrowLuo/VideoFeatureExtractor, extract.py:16-19,82.
        replace(S3D, name="s3d_univl", fps=16),
    )
}

ALIASES = {"i3d": "i3d_resnext101"}
"""Other names that ``--features`` takes."""


def find_profile(name: str) -> Profile:
    """By its name or an alias. Raises ``UserError`` with those that there are."""
    name = ALIASES.get(name, name)
    if name not in PROFILES:
        raise UserError(f"features {name!r}: not known; expected {', '.join(PROFILES)} or {', '.join(ALIASES)}")
    return PROFILES[name]

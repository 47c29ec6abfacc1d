"""The feature profiles: frozen, named, one row each. What published features were made with, and where that is read, stands in
the comments; a change to any value is another profile."""

from ..storage.records import Profile

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
            resize="bilinear, antialiased",
            value_range="0..1",
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            tail="none",
            layer="layer4, mean over space",
            dimension=2048,
        ),
        # S3D-G of MIL-NCE (Miech et al. 2020): antoine77340/S3D_HowTo100M, README.md:33 (values in 0..1, nothing subtracted).
        Profile(
            name="s3d",
            model="S3D-G",
            weights="s3d_howto100m.pth",
            fps=24,
            window=16,
            stride=16,
            short_side_px=224,
            crop_px=224,
            resize="bilinear, antialiased",
            value_range="0..1",
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
            tail="black frames",
            layer="mixed_5c, mean over time and space",
            dimension=1024,
        ),
    )
}

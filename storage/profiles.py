"""The feature profiles: frozen, named, one row each. What published features were made with, and where that is read, stands in
the comments; a change to any value is another profile.

Pictures are scaled as FFmpeg's ``scale`` filter with ``flags=bilinear`` does: that was its kernel under ffmpeg-python when most of the
features below were published (before FFmpeg's commit 9f14396a). CLIP's go through Pillow, as its authors' do."""

from collections.abc import Collection
from dataclasses import replace

from .common.errors import UserError
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

# Radford et al. 2021, as NCL and CMCM use it through ArrowLuo/CLIP4Clip (dataloaders/rawvideo_util.py): frames in RGB at their own
# size, then Pillow's bicubic kernel, the middle, and CLIP's mean and deviation. Where one pixel more is cut away on one side than on the
# other, it is the side that transformers' CLIPImageProcessor takes, too. CLIP4Clip reads 1 frame a second and draws 12 of those (64 of
# ActivityNet's videos); which is for training to do.
CLIP = Profile(
    name="clip_vit_b32",
    model="CLIP ViT-B/32",
    weights="clip-vit-base-patch32.bin",
    fps=1,
    window=1,
    stride=1,
    short_side_px=224,
    crop_px=224,
    resize="bicubic, Pillow",
    value_range="0..1",
    mean=(0.48145466, 0.4578275, 0.40821073),
    std=(0.26862954, 0.26130258, 0.27577711),
    tail="none",
    layer="class token, projected (image_embeds)",
    dimension=512,
)

FRAME_MAPS = {"clip_vit_b32_map": (7, 7, 512)}
"""{features: (height, width, channels)}, where a row is a frame's map, flat: ``rows.reshape(-1, *FRAME_MAPS[name])`` is [T, H, W, C]."""

LOGMEL = "logmel"
"""The features that are of the sound, and of no network."""

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
        CLIP,
        # For CMCM's codes, which have a place in the frame (section 2.2, Figure 4): what CLIP4Clip makes of all tokens of a frame.
        replace(
            CLIP, name="clip_vit_b32_map", layer="7 x 7 patch tokens, each projected, row by row", dimension=7 * 7 * 512
        ),
        # Motion features of Support-Set Bottlenecks (Patrick et al. 2021), which NCL trains on (its appendix C); neither says which
        # frames. These are those of the weights' publisher: moabitcoin/ig65m-pytorch, ig65m/cli/extract.py (32 frames, short side 128,
        # the middle 112, Kinetics' mean and deviation), which takes a video's own frames, scales them without antialiasing and leaves out
        # a last window that is not full. Here they are 30 a second, so that a feature does not depend on the recording's rate, are scaled
        # as all others are, and such a window sees its own frames again.
        Profile(
            name="r2plus1d",
            model="R(2+1)D-34",
            weights="r2plus1d_34_clip32_ig65m_from_scratch-449a7af9.pth",
            fps=30,
            window=32,
            stride=32,
            short_side_px=128,
            crop_px=112,
            resize="bilinear, libswscale",
            value_range="0..1",
            mean=(0.43216, 0.394666, 0.37645),
            std=(0.22803, 0.22145, 0.216989),
            tail="loop",
            layer="layer4, mean over time and space",
            dimension=512,
        ),
        # The sound's log-mel spectrogram: CMCM, appendix B; what is not stated there, and why it is so, in extract/decoding/sound.py.
        Profile(
            name=LOGMEL,
            model="log-mel spectrogram",
            weights="none",
            fps=16000,
            window=400,
            stride=160,
            short_side_px=0,
            crop_px=None,
            resize="mean of the channels, libswresample",
            value_range="-1..1",
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
            tail="silence",
            layer="pre-emphasis 0.97, Hamming, power, 40 bands of Slaney's mel scale from 20 to 8000 Hz, dB of at least 1e-10",
            dimension=40,
        ),
    )
}

ALIASES = {"i3d": "i3d_resnext101"}
"""Other names that ``--features`` takes."""


def split_features(text: str, own: Collection[str] = ()) -> list[str]:
    """The names in ``text``, separated by commas or +, each once, in their order; aliases are resolved, but for names in ``own``.

    ``i3d, s3d+i3d``  ->  ``i3d_resnext101``, ``s3d``
    """
    names = (name.strip() for name in text.replace("+", ",").split(","))
    return list(dict.fromkeys(name if name in own else ALIASES.get(name, name) for name in names))


def find_profile(name: str) -> Profile:
    """By its name or an alias. Raises ``UserError`` with those that there are."""
    name = ALIASES.get(name, name)
    if name not in PROFILES:
        raise UserError(f"features {name!r}: not known; expected {', '.join(PROFILES)} or {', '.join(ALIASES)}")
    return PROFILES[name]

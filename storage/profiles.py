"""The feature profiles, one row for each.

Comments describe how published features were made, with sources. Never change a value of a profile; add another profile
instead.

Frames are resized like FFmpeg's ``scale`` filter with ``flags=bilinear``. That was its kernel under ffmpeg-python when
most of the features below were published (before FFmpeg's commit 9f14396a). Frames for CLIP are resized by Pillow, as
its authors do.
"""

import math
from collections import ChainMap
from collections.abc import Collection, Mapping
from dataclasses import replace

from .common.errors import UserError
from .hub.names import FRAMES, is_hub_name, read_hub_name
from .records import FRAMES_LAYER, SHOTS_LAYER, Profile

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

# Radford et al. 2021, as NCL and CMCM use it through ArrowLuo/CLIP4Clip (dataloaders/rawvideo_util.py): RGB frames at
# their own size, Pillow's bicubic kernel, centre crop, and CLIP's mean and std. If the crop cannot be centred exactly,
# it is off by one pixel to the same side as in transformers' CLIPImageProcessor. CLIP4Clip reads 1 frame a second and
# samples 12 of them (64 for ActivityNet). Sampling is left to training.
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

# The motion features of moment retrieval (QVHighlights and later work), one for every 2 seconds:
# linjieli222/HERO_Video_Feature_Extractor, slowfast/extract_feature (extract.py:57-63,108,185; preprocessing.py:91-162;
# its clip_len is 3/2 for HERO, and 2 for QVHighlights). It uses PySlowFast's weights of the same network;
# pytorchvideo's weights are from another training. For recordings with less than 30 frames a second, it takes the 32
# frames from only a part of the window. Here all recordings are treated as recordings with 30.
SLOWFAST = Profile(
    name="slowfast",
    model="SlowFast R50 8x8",
    weights="SLOWFAST_8x8_R50.pyth",
    fps=30,
    window=60,
    stride=60,
    short_side_px=224,
    crop_px=224,
    resize="bilinear, libswscale",
    value_range="0..1",
    mean=(0.45, 0.45, 0.45),
    std=(0.225, 0.225, 0.225),
    tail="last frame to a whole second, then that second",
    layer="last stage of both pathways, mean over time and space",
    dimension=2304,
)

# The features of HowTo100M (Miech et al. 2019) that TACo and SSML call 2D: antoine77340/video_feature_extractor,
# extract.py:34-36, preprocessing.py:18, model.py:16-38. It uses torchvision's V1 weights; V2 gives other features.
RESNET152 = Profile(
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
)
# For the codes of CMCM on S-MiT (its section 4.1, Table 3), which have a position in the frame. The paper does not
# state how frames are prepared.
RESNET152_MAP = replace(
    RESNET152, name="resnet152_map", crop_px=224, layer="layer4, 7 x 7 cells, row by row", dimension=7 * 7 * 2048
)

FRAME_MAPS = {
    "clip_vit_b32_map": (7, 7, 512),
    "resnet152_map": (7, 7, 2048),
    "resnet50_map": (7, 7, 2048),
    "tsm_resnet50_map": (7, 7, 2048),
}
"""(height, width, channels) of features whose rows are flattened maps of a frame: ``rows.reshape(-1,
*FRAME_MAPS[name])`` is [T, H, W, C].

``tsm_resnet50_map`` has no profile here, as its weights (TSM ResNet-50, trained on Multi-Moments in Time: CMCM, Table
3) come with no library. Its features are imported: layer 4, for each second of a clip.
"""

LOGMEL = "logmel"
"""The features of sound. No network computes them."""

SHOTS = "shots"
"""The shots of videos. No network computes them."""

PROFILES = {
    profile.name: profile
    for profile in (
        RESNET152,
        RESNET152_MAP,
        # The images of CMCM on Places (its section 4.1, Table 3): wnhsu/ResDAVEnet-VQ, dataloaders/
        # image_caption_dataset.py (256, centre 224, as for its evaluation; in training it crops at random).
        replace(
            RESNET152_MAP, name="resnet50_map", model="ResNet-50", weights="resnet50-0676ba61.pth", short_side_px=256
        ),
        # 3D features of HowTo100M (Miech et al. 2019): antoine77340/video_feature_extractor, extract.py:34-36,
        # preprocessing.py:20-36. Black frames are appended before the mean is subtracted. The network's authors
        # subtract ActivityNet's mean instead.
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
        # Hara et al. 2020: kenshohara/3D-ResNets-PyTorch, main.py:264-277; mean and std are its defaults for Kinetics.
        # An incomplete last window repeats its own frames from the first one (LoopPadding).
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
        # For the codes of CMCM, which have a position in the frame (section 2.2, Figure 4): all tokens of a frame, as
        # CLIP4Clip projects them.
        replace(
            CLIP, name="clip_vit_b32_map", layer="7 x 7 patch tokens, each projected, row by row", dimension=7 * 7 * 512
        ),
        # Motion features of Support-Set Bottlenecks (Patrick et al. 2021), which NCL trains on (its appendix C).
        # Neither paper states the frames. This profile follows the publisher of the weights: moabitcoin/ig65m-pytorch,
        # ig65m/cli/extract.py (32 frames, short side 128, centre 112, mean and std of Kinetics). That code takes the
        # frames at the video's own rate, resizes without antialiasing, and drops an incomplete last window. Here there
        # are 30 frames a second: a feature does not depend on the frame rate of the recording. Frames are resized as
        # for other profiles, and an incomplete last window repeats its own frames.
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
        SLOWFAST,
        # The features of Ego4D: facebookresearch/Ego4d, ego4d/features/models/slowfast.py and
        # configs/slowfast_r101_8x8.yaml. There, a last window that is not full begins earlier, and frames are resized
        # by torch after the mean was subtracted.
        replace(
            SLOWFAST,
            name="slowfast_r101",
            model="SlowFast R101 8x8",
            weights="SLOWFAST_8x8_R101.pyth",
            window=32,
            stride=16,
            short_side_px=256,
            crop_px=256,
            tail="loop",
        ),
        # Log-mel spectrogram of the sound: CMCM, appendix B. extract/decoding/log_mel.py explains the choices that the
        # paper does not state.
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
            layer="pre-emphasis 0.97, Hamming, power, 40 bands of Slaney's mel scale from 20 to 8000 Hz, "
            "dB of at least 1e-10",
            dimension=40,
        ),
        # PySceneDetect's AdaptiveDetector with its defaults, on every frame (extract/decoding/shot_finder.py). Its
        # threshold is the minimum ratio, its min_content_val the minimum change, its window_width the number of frames
        # on each side. min_scene_len is in seconds: it does not depend on the frame rate.
        Profile(
            name=SHOTS,
            model="PySceneDetect 0.7 AdaptiveDetector: ratio 3, change 15, 2 frames on each side, 0.6 s or longer",
            weights="none",
            fps=None,
            window=1,
            stride=1,
            short_side_px=144,
            crop_px=None,
            resize="bilinear, libswscale",
            value_range="0..255",
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
            tail="none",
            layer=SHOTS_LAYER,
            dimension=2,
        ),
    )
}


def frames_of(profile: Profile, name: str) -> Profile:
    """Return the profile of the input frames of a profile's network.

    >>> frames_of(CLIP, "clip_vit_b32_frames").frame_shape
    (1, 224, 224, 3)

    Args:
        profile: Profile of features.
        name: Name of the new profile.

    Raises:
        ValueError: The frames have no common size.
    """
    return replace(
        profile,
        name=name,
        model="none",
        weights="none",
        value_range="0..255",
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        layer=FRAMES_LAYER,
        dimension=math.prod(profile.frame_shape),
        precision="fp32",
    )


FRAME_PROFILES = {
    name: frames_of(profile, name)
    for profile in PROFILES.values()
    if profile.side_px is not None
    for name in [f"{profile.name}_{FRAMES}"]
}
"""Profiles of input frames of the networks in ``PROFILES``: ``rows.reshape(-1, *profile.frame_shape)``, uint8. No
network computes the frames; training tunes a network on them."""
BUILT_IN: Mapping[str, Profile] = ChainMap(PROFILES, FRAME_PROFILES)
"""All profiles by name."""
WITHOUT_NETWORK = (LOGMEL, SHOTS, *FRAME_PROFILES)
"""Names of profiles whose stores are made without a network."""

ALIASES = {
    "i3d": "i3d_resnext101",
    "clip_vit_l14": "hf:openai/clip-vit-large-patch14",
    "siglip2": "hf:google/siglip2-base-patch16-224",
    "dinov3": "hf:facebook/dinov3-vits16-pretrain-lvd1689m",
    "videomae": "hf:MCG-NJU/videomae-base-finetuned-kinetics",
    "timesformer": "hf:facebook/timesformer-base-finetuned-k400",
    "xclip": "hf:microsoft/xclip-base-patch32",
    "vjepa2": "hf:facebook/vjepa2-vitl-fpc64-256:mean",
    "videoprism": "hf:google/videoprism-base-f16r288:mean",
}
"""Other names that ``--features`` takes."""


def split_encoders(text: str, known: Collection[str] = ()) -> list[str]:
    """Return the distinct encoders in ``text``, in order, with aliases resolved: names of profiles, or ``hf:...``.

    >>> split_encoders("i3d, hf:facebook/dinov2-base")
    ['i3d_resnext101', 'hf:facebook/dinov2-base']

    Args:
        text: Names separated by commas or +.
        known: Names that are not aliases, such as those of existing stores.
    """
    names = (name.strip() for name in text.replace("+", ",").split(","))
    return list(dict.fromkeys(name if name in known else ALIASES.get(name, name) for name in names))


def split_features(text: str, known: Collection[str] = ()) -> list[str]:
    """Return the distinct names of stores in ``text``, in order, with aliases resolved.

    >>> split_features("i3d, s3d+i3d+hf:facebook/dinov2-base")
    ['i3d_resnext101', 's3d', 'facebook--dinov2-base']

    Args:
        text: Names separated by commas or +.
        known: Names that are not aliases, such as those of existing stores.

    Raises:
        SettingError: An ``hf:`` name is malformed.
    """
    encoders = split_encoders(text, known)
    return list(dict.fromkeys(read_hub_name(name).store if is_hub_name(name) else name for name in encoders))


def find_profile(name: str) -> Profile:
    """Return a profile by its name or alias. Raises ``UserError`` that lists all names if it is unknown."""
    name = ALIASES.get(name, name)
    if name not in BUILT_IN:
        expected = f"{', '.join(PROFILES)}, one of these with _{FRAMES} at its end, or {', '.join(ALIASES)}"
        raise UserError(f"features {name!r}: unknown; expected {expected}")
    return BUILT_IN[name]

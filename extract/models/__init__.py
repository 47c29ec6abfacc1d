"""The networks. A class here has ``left_out`` (prefixes of entries in its published file that it does without), ``classifier``
(the layer that is as wide as its data set has classes; None: it has none), ``batch_sizes`` by device, ``random_gain`` (of random
weights), ``fold()`` (to be called once the weights are in, before ``to()`` and ``forward``) and ``forward``: float or bfloat16
[B, 3, H, W] or [B, 3, T, H, W] -> float32 [B, D]."""

from . import resnet3d
from .clip import ClipViTB32, ClipViTB32Map
from .r2plus1d import R2Plus1D34
from .resnet152 import ResNet152
from .s3d import S3D

MODELS = {
    "resnet152": ResNet152,
    "i3d_resnext101": resnet3d.ResNeXt101,
    "i3d_resnet152": resnet3d.ResNet152,
    "s3d": S3D,
    "s3d_univl": S3D,
    "clip_vit_b32": ClipViTB32,
    "clip_vit_b32_map": ClipViTB32Map,
    "r2plus1d": R2Plus1D34,
}

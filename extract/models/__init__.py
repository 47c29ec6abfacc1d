"""The networks, by the name of their features. Each states where its weights are published."""

from .clip import ClipViTB32, ClipViTB32Map
from .network import Network, PublishedFile
from .r2plus1d import R2Plus1D34
from .resnet import ResNet3D152, ResNet50Map, ResNet152, ResNet152Map, ResNeXt3D101
from .s3d import S3D
from .slowfast import SlowFastR50, SlowFastR101

MODELS: dict[str, type[Network]] = {
    "resnet152": ResNet152,
    "resnet152_map": ResNet152Map,
    "resnet50_map": ResNet50Map,
    "i3d_resnext101": ResNeXt3D101,
    "i3d_resnet152": ResNet3D152,
    "s3d": S3D,
    "s3d_univl": S3D,
    "clip_vit_b32": ClipViTB32,
    "clip_vit_b32_map": ClipViTB32Map,
    "r2plus1d": R2Plus1D34,
    "slowfast": SlowFastR50,
    "slowfast_r101": SlowFastR101,
}
PUBLISHED: dict[str, PublishedFile] = {
    name: file for network in MODELS.values() for name, file in network.published.items()
}
"""{name of the file: where it is published}"""

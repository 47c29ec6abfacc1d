"""The networks. A class here has ``left_out`` (prefixes of entries in its published file that it does without), ``batch_sizes``
by device, ``random_gain`` (of random weights), ``fold()`` and ``forward``: float [B, 3, H, W] or [B, 3, T, H, W] -> [B, D]."""

from .resnet152 import ResNet152
from .s3d import S3D

MODELS = {
    "resnet152": ResNet152,
    "s3d": S3D,
}

"""The 3D ResNets of Hara et al., with their names.

``ResNeXt101`` is the one of 2018 (kenshohara/3D-ResNets-PyTorch, branch CVPR2018; the same in antoine77340/video_feature_extractor);
the newer master builds another network under that name (its issue 231).
"""

from typing import ClassVar

from .resnet import ResNet


class ResNeXt101(ResNet):
    """Cardinality 32, expansion 2."""

    batch_sizes: ClassVar = {"cpu": 4, "cuda": 32}

    def __init__(self) -> None:
        super().__init__(3, (3, 4, 23, 3), width=128, groups=32, num_classes=400)


class ResNet152(ResNet):
    batch_sizes: ClassVar = {"cpu": 4, "cuda": 32}

    def __init__(self) -> None:
        super().__init__(3, (3, 8, 36, 3), width=64, groups=1, num_classes=700)

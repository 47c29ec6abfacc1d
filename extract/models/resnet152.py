"""ResNet-152 as trained on ImageNet, with torchvision's names."""

from typing import ClassVar

from .resnet import ResNet


class ResNet152(ResNet):
    batch_sizes: ClassVar = {"cpu": 8, "cuda": 64}

    def __init__(self) -> None:
        super().__init__(2, (3, 8, 36, 3), width=64, groups=1, num_classes=1000)

"""ResNet-152 as trained on ImageNet, with torchvision's names."""

from typing import ClassVar

from .network import PublishedFile
from .resnet import ResNet


class ResNet152(ResNet):
    """ResNet-152 over pictures."""

    published: ClassVar = {
        # The name contains the beginning of the hash (``check_hash`` of torch.hub); several owners of the file state
        # all of it.
        "resnet152-394f9c45.pth": PublishedFile(
            ("https://download.pytorch.org/models/resnet152-394f9c45.pth",),
            sha256="394f9c45966e3651a89bbb78a48410a6755854ce4a5ab64927cf1c7247f85e58",
            page="https://docs.pytorch.org/vision/stable/models/generated/torchvision.models.resnet152.html "
            "(IMAGENET1K_V1)",
        ),
    }
    batch_sizes: ClassVar = {"cpu": 8, "cuda": 64}

    def __init__(self) -> None:
        super().__init__(2, (3, 8, 36, 3), width=64, groups=1, num_classes=1000)

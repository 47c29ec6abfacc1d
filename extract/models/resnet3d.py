"""The 3D ResNets of Hara et al., with their names.

``ResNeXt101`` is the one of 2018 (kenshohara/3D-ResNets-PyTorch, branch CVPR2018; the same in
antoine77340/video_feature_extractor). The newer master builds another network under that name (its issue 231).
"""

from typing import ClassVar

from .network import PublishedFile
from .resnet import ResNet


class ResNeXt101(ResNet):
    """3D ResNeXt-101 of cardinality 32 and expansion 2."""

    published: ClassVar = {
        "resnext101.pth": PublishedFile(
            ("https://www.rocq.inria.fr/cluster-willow/amiech/howto100m/models/resnext101.pth",),
            page="https://github.com/antoine77340/video_feature_extractor",
        ),
    }
    batch_sizes: ClassVar = {"cpu": 4, "cuda": 32}

    def __init__(self) -> None:
        super().__init__(3, (3, 4, 23, 3), width=128, groups=32, num_classes=400)


class ResNet152(ResNet):
    """3D ResNet-152."""

    published: ClassVar = {
        "r3d152_K_200ep.pth": PublishedFile(
            (),
            page="https://drive.google.com/drive/folders/1xbYbZ7rpyjftI_KCk6YuL-XrfQDz7Yd4 "
            "(of kenshohara/3D-ResNets-PyTorch)",
        ),
    }
    batch_sizes: ClassVar = {"cpu": 4, "cuda": 32}

    def __init__(self) -> None:
        super().__init__(3, (3, 8, 36, 3), width=64, groups=1, num_classes=700)

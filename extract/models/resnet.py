"""ResNets of bottleneck blocks for images or videos, with the parameter names of torchvision and Hara et al.

``ResNeXt3D101`` is the network of 2018 (kenshohara/3D-ResNets-PyTorch, branch CVPR2018; also in
antoine77340/video_feature_extractor). The newer branch master builds another network under that name (issue 231).
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import folded, mean
from .network import Network, PublishedFile

CONV = {2: nn.Conv2d, 3: nn.Conv3d}
NORM = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
MEMORY_FORMAT = {2: torch.channels_last, 3: torch.channels_last_3d}


def fold_pair(parent: nn.Module, conv: str, norm: str, *, relu: bool = True) -> None:
    """Replace a convolution and its batch norm with one ``FoldedConv``."""
    setattr(parent, conv, folded(parent.get_submodule(conv), parent.get_submodule(norm), relu=relu))
    delattr(parent, norm)


class Bottleneck(nn.Module):
    """Three convolutions: pointwise, 3x3(x3) with the stride, pointwise.

    If the shape changes, the shortcut is a pointwise convolution (type "B").
    """

    def __init__(
        self, dimensions: int, num_in: int, num_inside: int, num_out: int, *, stride: int, groups: int
    ) -> None:
        super().__init__()
        conv, norm = CONV[dimensions], NORM[dimensions]
        self.conv1 = conv(num_in, num_inside, 1, bias=False)
        self.bn1 = norm(num_inside)
        self.conv2 = conv(num_inside, num_inside, 3, stride=stride, padding=1, groups=groups, bias=False)
        self.bn2 = norm(num_inside)
        self.conv3 = conv(num_inside, num_out, 1, bias=False)
        self.bn3 = norm(num_out)
        self.downsample = None
        if stride != 1 or num_in != num_out:
            self.downsample = nn.Sequential(conv(num_in, num_out, 1, stride=stride, bias=False), norm(num_out))

    def fold(self) -> None:
        """Fold batch norms into convolutions."""
        for i in "123":
            fold_pair(self, f"conv{i}", f"bn{i}")
        if self.downsample is not None:
            fold_pair(self.downsample, "0", "1", relu=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, num_out, (T',) H', W']."""
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.conv3(self.conv2(self.conv1(x)), shortcut)


class ResNet(Network):
    """A ResNet over images or videos.

    ``forward``: normalised float [B, 3, (T,) H, W] of any size -> layer 4, mean over (time and) space [B, 2048],
    float32.
    """

    classifier = "fc"
    layer1: nn.Sequential
    layer2: nn.Sequential
    layer3: nn.Sequential
    layer4: nn.Sequential

    def __init__(
        self, dimensions: int, num_blocks: tuple[int, int, int, int], *, width: int, groups: int, num_classes: int
    ) -> None:
        """Build the layers.

        Args:
            dimensions: 2 for images, 3 for videos.
            num_blocks: Blocks of each layer.
            width: Channels inside the blocks of layer 1; they double from layer to layer.
            groups: Groups of the middle convolutions.
            num_classes: Width of the classifier.
        """
        super().__init__()
        self.dimensions = dimensions
        if dimensions == 2:
            self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        else:
            self.conv1 = nn.Conv3d(3, 64, 7, stride=(1, 2, 2), padding=3, bias=False)
        self.bn1 = NORM[dimensions](64)
        num_in = 64
        for i, depth in enumerate(num_blocks):
            num_inside, num_out = width << i, 256 << i
            layer = nn.Sequential()
            for j in range(depth):
                stride = 2 if i > 0 and j == 0 else 1
                layer.append(Bottleneck(dimensions, num_in, num_inside, num_out, stride=stride, groups=groups))
                num_in = num_out
            self.add_module(f"layer{i + 1}", layer)
        self.fc = nn.Linear(num_in, num_classes)

    def fold(self) -> "ResNet":
        """Fold batch norms into convolutions and drop the classifier; return self."""
        fold_pair(self, "conv1", "bn1")
        for module in self.modules():
            if isinstance(module, Bottleneck):
                module.fold()
        del self.fc
        return self

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        x = self.layer_4(x)
        return mean(x, tuple(range(2, x.ndim)))

    def layer_4(self, x: Tensor) -> Tensor:
        """Return the output of layer 4, [B, 2048, (T',) H', W']."""
        x = self.conv1(x.contiguous(memory_format=MEMORY_FORMAT[self.dimensions]))
        max_pool = F.max_pool2d if self.dimensions == 2 else F.max_pool3d
        return self.layer4(self.layer3(self.layer2(self.layer1(max_pool(x, 3, stride=2, padding=1)))))


class ResNet152(ResNet):
    """ResNet-152 over images, as trained on ImageNet, with torchvision's parameter names."""

    published: ClassVar = {
        # The name contains the beginning of the hash (``check_hash`` of torch.hub); several people who have the file
        # published the whole hash.
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


def _map_of(x: Tensor) -> Tensor:
    """Flatten maps [B, C, H, W] to feature vectors [B, H W C], float32."""
    return x.movedim(1, -1).flatten(1).to(torch.promote_types(x.dtype, torch.float32))


class ResNet152Map(ResNet152):
    """The 7 x 7 cells of layer 4 instead of their mean, for CMCM's fine-grained codes (its Table 3).

    ``forward``: normalised float [B, 3, 224, 224] -> [B, 100352], float32: 7 rows of 7 cells of 2,048 channels
    (``storage.profiles.FRAME_MAPS``).
    """

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return _map_of(self.layer_4(x))


class ResNet50Map(ResNet):
    """The 7 x 7 cells of layer 4 of ResNet-50 over images, as trained on ImageNet, with torchvision's parameter names;
    see ``ResNet152Map``."""

    published: ClassVar = {
        # As for ResNet-152.
        "resnet50-0676ba61.pth": PublishedFile(
            ("https://download.pytorch.org/models/resnet50-0676ba61.pth",),
            sha256="0676ba61b6795bbe1773cffd859882e5e297624d384b6993f7c9e683e722fb8a",
            page="https://docs.pytorch.org/vision/stable/models/generated/torchvision.models.resnet50.html "
            "(IMAGENET1K_V1)",
        ),
    }
    batch_sizes: ClassVar = {"cpu": 8, "cuda": 64}

    def __init__(self) -> None:
        super().__init__(2, (3, 4, 6, 3), width=64, groups=1, num_classes=1000)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return _map_of(self.layer_4(x))


class ResNeXt3D101(ResNet):
    """3D ResNeXt-101 of cardinality 32 and expansion 2 (Hara et al. 2018), with its authors' parameter names."""

    published: ClassVar = {
        "resnext101.pth": PublishedFile(
            ("https://www.rocq.inria.fr/cluster-willow/amiech/howto100m/models/resnext101.pth",),
            page="https://github.com/antoine77340/video_feature_extractor",
        ),
    }
    batch_sizes: ClassVar = {"cpu": 4, "cuda": 32}

    def __init__(self) -> None:
        super().__init__(3, (3, 4, 23, 3), width=128, groups=32, num_classes=400)


class ResNet3D152(ResNet):
    """3D ResNet-152 (Hara et al. 2020), with its authors' parameter names."""

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

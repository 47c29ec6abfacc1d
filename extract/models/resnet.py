"""ResNets of bottleneck blocks over pictures or videos, under the entries' names that torchvision and Hara et al. share."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import folded, mean

CONV = {2: nn.Conv2d, 3: nn.Conv3d}
NORM = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
MEMORY_FORMAT = {2: torch.channels_last, 3: torch.channels_last_3d}


def fold_pair(parent: nn.Module, conv: str, norm: str, *, relu: bool = True) -> None:
    """Puts one ``FoldedConv`` in the place of a convolution and its batch norm."""
    setattr(parent, conv, folded(parent.get_submodule(conv), parent.get_submodule(norm), relu=relu))
    delattr(parent, norm)


class Bottleneck(nn.Module):
    """Pointwise, 3x3(x3) with the stride, pointwise; the shortcut is a pointwise convolution where the shape changes ("B")."""

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
        for i in "123":
            fold_pair(self, f"conv{i}", f"bn{i}")
        if self.downsample is not None:
            fold_pair(self.downsample, "0", "1", relu=False)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.conv3(self.conv2(self.conv1(x)), shortcut)


class ResNet(nn.Module):
    """Run ``fold()`` once the weights are in.

    ``forward``: normalised float [B, 3, (T,) H, W] of any size -> layer 4, mean over (time and) space [B, 2048], float32.
    """

    left_out = ()
    classifier = "fc"
    random_gain = 1.0  # residual branches add up

    def __init__(
        self, dimensions: int, num_blocks: tuple[int, int, int, int], *, width: int, groups: int, num_classes: int
    ) -> None:
        """``width``: channels inside the blocks of layer 1; they double from layer to layer."""
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
        fold_pair(self, "conv1", "bn1")
        for module in self.modules():
            if isinstance(module, Bottleneck):
                module.fold()
        del self.fc
        return self

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x.contiguous(memory_format=MEMORY_FORMAT[self.dimensions]))
        max_pool = F.max_pool2d if self.dimensions == 2 else F.max_pool3d
        x = self.layer4(self.layer3(self.layer2(self.layer1(max_pool(x, 3, stride=2, padding=1)))))
        return mean(x, tuple(range(2, x.ndim)))

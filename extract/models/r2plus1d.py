"""R(2+1)D-34 (Tran et al. 2018) as trained on IG-65M (Ghadiyaram et al. 2019), built from torchvision's blocks, with
their parameter names.

The published weights are Caffe2's, converted by moabitcoin/ig65m-pytorch. As its ``ig65m/models.py`` shows, Caffe2's
network differs from torchvision's in two ways. In layers 2 to 4, the second convolution of the first block has the same
middle width as the layer's others (288, 576, 1152, not 230, 460, 921). Batch norms have an eps of 1e-3.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from .layers import folded, mean
from .network import Network, PublishedFile

BATCH_NORM_EPS = 1e-3


class FoldedBlock(nn.Module):
    """A ``BasicBlock`` of torchvision: convolutions over space, time, space and time.

    The shortcut is added before the last ReLU.
    """

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        first, second, downsample = block.get_submodule("conv1"), block.get_submodule("conv2"), block.downsample
        assert isinstance(first, nn.Sequential) and isinstance(second, nn.Sequential)
        self.convs = nn.Sequential(*folded_pair(*first[:2]), *folded_pair(*second))
        self.shortcut = folded(*downsample, relu=False) if isinstance(downsample, nn.Sequential) else None

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, C, T', H', W']."""
        shortcut = x if self.shortcut is None else self.shortcut(x)
        return self.convs[3](self.convs[:3](x), shortcut)


def folded_pair(conv: nn.Module, norm: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Fold a ``Conv2Plus1D`` and the norm after it."""
    assert isinstance(conv, nn.Sequential)
    over_space, space_norm, _, over_time = conv
    return folded(over_space, space_norm), folded(over_time, norm)


class R2Plus1D34(Network):
    """R(2+1)D-34.

    ``forward``: normalised float [B, 3, T, H, W] of any size -> layer 4, mean over time and space [B, 512], float32.
    """

    published: ClassVar = {
        # Neither the authors' code nor ours checks the file by the hash at the end of its name.
        "r2plus1d_34_clip32_ig65m_from_scratch-449a7af9.pth": PublishedFile(
            (
                "https://github.com/moabitcoin/ig65m-pytorch/releases/download/v1.0.0/"
                "r2plus1d_34_clip32_ig65m_from_scratch-449a7af9.pth",
            ),
            page="https://github.com/moabitcoin/ig65m-pytorch",
        ),
    }
    classifier = "fc"
    batch_sizes: ClassVar = {"cpu": 2, "cuda": 16}
    stem: nn.Sequential

    def __init__(self) -> None:
        # Slow to import.
        from torchvision.models.video.resnet import BasicBlock, Conv2Plus1D, R2Plus1dStem, VideoResNet

        super().__init__()
        network = VideoResNet(BasicBlock, [Conv2Plus1D] * 4, [3, 4, 6, 3], R2Plus1dStem, num_classes=487)
        for layer, width in ((network.layer2, 128), (network.layer3, 256), (network.layer4, 512)):
            convolution = layer[0].get_submodule("conv2")
            assert isinstance(convolution, nn.Sequential)
            convolution[0] = Conv2Plus1D(width, width, 9 * width // 4)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm3d):
                module.eps = BATCH_NORM_EPS
        assert isinstance(network.stem, nn.Sequential)
        self.stem = network.stem
        self.fc = network.fc
        self.layer1, self.layer2 = network.layer1, network.layer2
        self.layer3, self.layer4 = network.layer3, network.layer4

    def fold(self) -> "R2Plus1D34":
        """Fold batch norms into convolutions and drop the classifier; return self."""
        over_space, space_norm, _, over_time, time_norm, _ = self.stem
        self.stem = nn.Sequential(folded(over_space, space_norm), folded(over_time, time_norm))
        for name in ("layer1", "layer2", "layer3", "layer4"):
            setattr(self, name, nn.Sequential(*map(FoldedBlock, self.get_submodule(name).children())))
        del self.fc
        return self

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        x = self.stem(x.contiguous(memory_format=torch.channels_last_3d))
        return mean(self.layer4(self.layer3(self.layer2(self.layer1(x)))), (2, 3, 4))

"""ResNet-152 up to its last residual block, from torchvision."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torchvision.models.resnet import Bottleneck, ResNet


class ResNet152(ResNet):
    """torchvision's ResNet-152 with its entries' names. Run ``fold()`` once the weights are in.

    ``forward``: normalised float [B, 3, H, W] of any size -> layer 4, mean over space [B, 2048].
    """

    left_out = ()
    batch_sizes: ClassVar = {"cpu": 8, "cuda": 64}
    random_gain = 1.0  # residual branches add up

    def __init__(self) -> None:
        super().__init__(Bottleneck, [3, 8, 36, 3])

    def fold(self) -> "ResNet152":
        for module in list(self.modules()):
            children = dict(module.named_children())
            for conv, norm in (("conv1", "bn1"), ("conv2", "bn2"), ("conv3", "bn3"), ("0", "1")):
                if isinstance(children.get(norm), nn.BatchNorm2d):
                    module.add_module(conv, fuse_conv_bn_eval(children[conv], children[norm]))
                    module.add_module(norm, nn.Identity())
        return self.to(memory_format=torch.channels_last)

    def forward(self, frames_BCHW: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(frames_BCHW.contiguous(memory_format=torch.channels_last)))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean(dim=(2, 3))

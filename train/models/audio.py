"""The residual 1-D audio encoder of Harwath et al. (ResDAVEnet), which CMCM has on both of its audio data sets (Table 3).

As in wnhsu/ResDAVEnet-VQ, models/AudioModels.py ``ResDavenet`` (roudimit/AVLnet model_davenet.py is the same): all bands of a row go
into one convolution, and four layers of two basic blocks with kernels of 9 follow, each of which halves the time. 16 rows of 10 ms
become one token. Modules and their values are called as there; of its ``batchnorm1`` nothing is made there either, and it is left out.

Letters: B clips, T rows, D values of a row, C channels, L tokens.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from ..workers import current_workers

KERNEL = 9
WIDTHS = (128, 128, 256, 512, 1024)
BLOCKS = 2
"""In each layer."""


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv1d:
    conv = nn.Conv1d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.normal_(conv.weight, 0.0, math.sqrt(2 / (kernel * outputs)))
    return conv


class RowNorm(nn.BatchNorm1d):
    """Batch normalisation over the rows of all clips of a batch, of all processes, but not over padding."""

    def forward(self, x_BCT: Tensor, mask_B1T: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x_BCT)
        own = x_BCT.float()
        number, mean_C, variance_C = current_workers().statistics(own.transpose(1, 2)[mask_B1T[:, 0].bool()])
        with torch.no_grad():
            self.running_mean.lerp_(mean_C, self.momentum)
            self.running_var.lerp_(variance_C * (number / (number - 1).clamp(min=1)), self.momentum)
            self.num_batches_tracked += 1
        scale_C = self.weight * (variance_C + self.eps).rsqrt()
        return ((own - mean_C[:, None]) * scale_C[:, None] + self.bias[:, None]).to(x_BCT.dtype)


class BasicBlock(nn.Module):
    """[B, C, T] -> [B, C', T / stride]; where ``mask`` [B, 1, T / stride] is 0, so is the result, and nothing of it is seen."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, outputs, KERNEL, stride), RowNorm(outputs)
        self.conv2, self.bn2 = _conv(outputs, outputs, KERNEL), RowNorm(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.ModuleList([_conv(inputs, outputs, 1, stride), RowNorm(outputs)])

    def forward(self, x_BCT: Tensor, mask_B1T: Tensor) -> Tensor:
        y_BCT = self.bn1(self.conv1(x_BCT), mask_B1T).relu() * mask_B1T
        y_BCT = self.bn2(self.conv2(y_BCT), mask_B1T)
        if self.downsample is not None:
            conv, norm = self.downsample
            x_BCT = norm(conv(x_BCT), mask_B1T)
        return (y_BCT + x_BCT).relu() * mask_B1T


class AudioEncoder(nn.Module):
    """Log-mel rows [B, T, D] and which of them are a clip's own, mask [B, T], from the first on -> tokens [B, L, 1024] and their mask
    [B, L], L = ceil(T / 16).

    A clip's tokens are the same however much padding stands behind it, and in training in however many processes its batch is computed:
    unlike in the published code, each layer sees zeros there, as behind the end of a clip that is alone, and padding has no part in
    batch norm's statistics.
    """

    def __init__(self, num_bands: int = 40) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(num_bands, WIDTHS[0], 1), RowNorm(WIDTHS[0])
        nn.init.normal_(
            self.conv1.weight, 0.0, math.sqrt(2 / (num_bands * WIDTHS[0]))
        )  # there, bands are the kernel's height
        for number, (inputs, outputs) in enumerate(pairwise(WIDTHS), start=1):
            blocks = [
                BasicBlock(inputs if first else outputs, outputs, 2 if first else 1)
                for first in [True] + [False] * (BLOCKS - 1)
            ]
            setattr(self, f"layer{number}", nn.ModuleList(blocks))

    def forward(self, rows_BTD: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        mask_B1T = mask_BT[:, None].to(rows_BTD.dtype)
        x_BCT = self.bn1(self.conv1(rows_BTD.transpose(1, 2)), mask_B1T).relu() * mask_B1T
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            mask_B1T = mask_B1T[:, :, ::2]  # a token is a clip's own where the row in its middle is
            for block in layer:
                x_BCT = block(x_BCT, mask_B1T)
        return x_BCT.transpose(1, 2), mask_B1T[:, 0].bool()

"""The residual 1-D audio encoder of Harwath et al. (ResDAVEnet), which CMCM uses on both of its audio data sets (Table
3).

Source: wnhsu/ResDAVEnet-VQ, models/AudioModels.py ``ResDavenet`` (roudimit/AVLnet model_davenet.py is the same). All
bands of a row go into one convolution. Four layers follow, of two basic blocks with kernels of 9; each layer
halves the time, so that 16 rows of 10 ms become one token. Modules have the published names; ``batchnorm1``, which
is unused there, is left out.

Letters: B clips, T rows, D values of a row, C channels, L tokens.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from ..distributed import current_workers
from .layers import compiled_once
from .tokens import lengths_of, nonzero

KERNEL = 9
WIDTHS = (128, 128, 256, 512, 1024)
BLOCKS_PER_LAYER = 2
MOMENTUM = 0.1
"""Momentum of the running mean and variance, as in torch's BatchNorm1d."""


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv1d:
    conv = nn.Conv1d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.normal_(conv.weight, 0.0, math.sqrt(2 / (kernel * outputs)))
    return conv


class RowNorm(nn.BatchNorm1d):
    """Synchronised batch normalisation: over the batch's rows in all processes, without padding.

    ``codebook.TokenNorm`` has no learned scale and keeps the biased variance; this is torch's BatchNorm1d, as
    published.
    """

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]: needs to know the rows
        self, x_BCT: Tensor, rows_R: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Normalise rows. ``rows_R``: clip and place of each row that is no padding."""
        if not self.training:
            return super().forward(x_BCT)
        x_float = x_BCT.float()
        num_rows, mean_C, variance_C = current_workers().statistics(x_float.transpose(1, 2)[rows_R])
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        with torch.no_grad():
            self.running_mean.lerp_(mean_C, MOMENTUM)
            self.running_var.lerp_(variance_C * (num_rows / (num_rows - 1).clamp(min=1)), MOMENTUM)
            self.num_batches_tracked.add_(1)
        scale_C = self.weight * (variance_C + self.eps).rsqrt()
        return ((x_float - mean_C[:, None]) * scale_C[:, None] + self.bias[:, None]).to(x_BCT.dtype)


class BasicBlock(nn.Module):
    """Two convolutions with a shortcut, [B, C, T] -> [B, C', T / stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, outputs, KERNEL, stride), RowNorm(outputs)
        self.conv2, self.bn2 = _conv(outputs, outputs, KERNEL), RowNorm(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.ModuleList([_conv(inputs, outputs, 1, stride), RowNorm(outputs)])

    def forward(self, x_BCT: Tensor, mask_B1T: Tensor, rows_R: tuple[Tensor, Tensor]) -> Tensor:
        """Apply the block.

        Args:
            x_BCT: Its input.
            mask_B1T: 1 for a row of the result, 0 for padding, which becomes 0.
            rows_R: Clip and place of each row of the result.
        """
        y_BCT = self.bn1(self.conv1(x_BCT), rows_R).relu() * mask_B1T
        y_BCT = self.bn2(self.conv2(y_BCT), rows_R)
        if self.downsample is not None:
            conv, norm = self.downsample
            x_BCT = norm(conv(x_BCT), rows_R)
        return (y_BCT + x_BCT).relu() * mask_B1T


def _layer(inputs: int, outputs: int) -> nn.ModuleList:
    first = BasicBlock(inputs, outputs, 2)  # made first: a seed draws the same weights as in earlier versions
    return nn.ModuleList([first, *(BasicBlock(outputs, outputs, 1) for _ in range(BLOCKS_PER_LAYER - 1))])


class AudioEncoder(nn.Module):
    """Encodes log-mel rows [B, T, D] as tokens [B, L, 1024], L = ceil(T / 16).

    A clip's tokens do not depend on how much padding follows it, nor on the number of processes that share a batch.
    Unlike in the published code, each layer sees zeros in padding, as after the end of a single clip, and padding
    is left out of batch normalisation.
    """

    compiled: Callable[..., Tensor] | None = None

    def __init__(self, num_bands: int = 40) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(num_bands, WIDTHS[0], 1), RowNorm(WIDTHS[0])
        # In the published code, the bands are the kernel's height.
        nn.init.normal_(self.conv1.weight, 0.0, math.sqrt(2 / (num_bands * WIDTHS[0])))
        self.layer1, self.layer2, self.layer3, self.layer4 = (_layer(*widths) for widths in pairwise(WIDTHS))

    def compile_layers(self) -> None:
        """Compile the layers. Numbers of rows are computed outside the compiled code, as they depend on values."""
        self.compiled = compiled_once(self._layers)

    def forward(
        self, rows_BTD: Tensor, mask_BT: Tensor, lengths_B: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Encode clips.

        Args:
            rows_BTD: Log-mel rows, anything at padding.
            mask_BT: True for a row; rows come first.
            lengths_B: Number of rows of each clip, on the CPU; None: known only from the mask.

        Returns:
            The tokens, their mask [B, L], and the number of tokens of each clip [B], on the CPU.
        """
        masks, lengths = [mask_BT], [lengths_of(mask_BT, lengths_B)]
        for _ in range(len(WIDTHS) - 1):
            masks.append(masks[-1][:, ::2].contiguous())  # a token is padding if the row in its middle is
            lengths.append((lengths[-1] + 1) // 2)
        places = [nonzero(mask, of_mask) for mask, of_mask in zip(masks, lengths, strict=True)]
        run = self._layers if self.compiled is None else self.compiled
        return run(rows_BTD, masks, places), masks[-1], lengths[-1]

    def _layers(self, rows_BTD: Tensor, masks: list[Tensor], places: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the tokens, given the mask of each layer's rows and their places (``RowNorm``)."""
        mask_B1T = masks[0][:, None].to(rows_BTD.dtype)
        x_BCT = self.bn1(self.conv1(rows_BTD.transpose(1, 2)), places[0]).relu() * mask_B1T
        layers = (self.layer1, self.layer2, self.layer3, self.layer4)
        for layer, mask_BT, rows_R in zip(layers, masks[1:], places[1:], strict=True):
            mask_B1T = mask_BT[:, None].to(rows_BTD.dtype)
            for block in layer:
                x_BCT = block(x_BCT, mask_B1T, rows_R)
        return x_BCT.transpose(1, 2)

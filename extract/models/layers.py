"""What the networks share. All of it is for running them only: batch norm is folded into the convolutions."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

ONE_CALL_TYPES = {
    torch.float32: torch.backends.mkldnn.is_available(),
    torch.bfloat16: torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported(),
}


def fold(conv: nn.Module, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Weight [O, I, ...] and bias [O] of ``norm(conv(x))`` in evaluation mode."""
    weight, bias = fuse_conv_bn_weights(
        conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
    )
    return weight.detach(), bias.detach()


def mean(x: Tensor, dim: tuple[int, ...]) -> Tensor:
    """The mean over ``dim`` (not the first) in float32 at least: a feature must not be rounded to bfloat16's 8 bits."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    if (
        x.device.type == "cpu" and x.dtype != dtype
    ):  # where a float32 copy is made of the whole: one by one these stay in the cache
        return torch.stack([part.mean([d - 1 for d in dim], dtype=dtype) for part in x])
    return x.mean(dim, dtype=dtype)


class FoldedConv(nn.Module):
    """``relu(conv(x) + bias + residual)`` of [B, C, H, W] or [B, C, T, H, W] in channels_last memory; may overwrite ``residual``.

    On a CPU that computes in its type (``ONE_CALL_TYPES``) it is one call of oneDNN with weights in oneDNN's own order. Left to itself,
    PyTorch would bring them into that order in every call, and run over the result again for the sum and for the ReLU: a sixth to a half
    of the time in all.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        *,
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        groups: int = 1,
        relu: bool = True,
    ) -> None:
        super().__init__()
        memory_format = torch.channels_last if weight.ndim == 4 else torch.channels_last_3d
        self.register_buffer("weight", weight.contiguous(memory_format=memory_format), persistent=False)
        self.register_buffer("bias", bias, persistent=False)
        self.stride, self.padding, self.groups, self.relu = stride, padding, groups, relu
        self.packed: tuple[Tensor, Tensor] | None = None

    def __getstate__(self) -> dict:
        return self.__dict__ | {"packed": None}  # such a tensor can be neither copied nor pickled

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if x.device.type == "cpu" and ONE_CALL_TYPES.get(x.dtype, False):
            return self._in_one_call(x, residual)
        conv = F.conv2d if self.weight.ndim == 4 else F.conv3d
        y = conv(x, self.weight, self.bias, self.stride, self.padding, 1, self.groups)
        if residual is not None:
            y += residual
        return y.relu_() if self.relu else y

    def _in_one_call(self, x: Tensor, residual: Tensor | None) -> Tensor:
        weight = self._packed_for(list(x.shape))
        geometry = self.padding, self.stride, (1,) * len(self.stride), self.groups
        relu = "relu" if self.relu else "none"
        if residual is None:
            return torch.ops.mkldnn._convolution_pointwise(x, weight, self.bias, *geometry, relu, [], "")
        return torch.ops.mkldnn._convolution_pointwise_.binary(
            residual, x, weight, self.bias, *geometry, "add", 1.0, relu, [], ""
        )

    def _packed_for(self, shape: list[int]) -> Tensor:
        """Packed once, for the first input's shape; others run with it, too. ``to()`` makes a new weight, and that a new packing."""
        if self.packed is None or self.packed[0] is not self.weight:
            reorder = (
                torch._C._nn.mkldnn_reorder_conv2d_weight
                if self.weight.ndim == 4
                else torch._C._nn.mkldnn_reorder_conv3d_weight
            )
            plain = self.weight.contiguous().to_mkldnn()
            packed = reorder(plain, self.padding, self.stride, (1,) * len(self.stride), self.groups, shape)
            self.packed = self.weight, packed
        return self.packed[1]


def folded(conv: nn.Module, norm: nn.Module, *, relu: bool = True) -> FoldedConv:
    """A convolution and its batch norm in one."""
    weight, bias = fold(conv, norm)
    return FoldedConv(weight, bias, stride=conv.stride, padding=conv.padding, groups=conv.groups, relu=relu)

"""Layers that networks share, with batch norm folded into the convolutions."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.fusion import fuse_conv_bn_weights

ONE_CALL_TYPES = {
    torch.float32: torch.backends.mkldnn.is_available(),
    torch.bfloat16: torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported(),
}


def fold(conv: nn.Module, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the weight [O, I, ...] and bias [O] of ``norm(conv(x))`` in evaluation mode."""
    assert isinstance(conv, _ConvNd) and isinstance(norm, _BatchNorm)
    assert norm.running_mean is not None and norm.running_var is not None
    weight, bias = fuse_conv_bn_weights(
        conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
    )
    return weight.detach(), bias.detach()


def mean(x: Tensor, dim: tuple[int, ...]) -> Tensor:
    """Return the mean over ``dim`` (not the first) in at least float32.

    Features must not be rounded to bfloat16's 8 bits.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    if x.device.type == "cpu" and x.dtype != dtype:  # the float32 copy of one item fits into the cache
        return torch.stack([part.mean([d - 1 for d in dim], dtype=dtype) for part in x])
    return x.mean(dim, dtype=dtype)


class FoldedConv(nn.Module):
    """``relu(conv(x) + bias + residual)`` of [B, C, H, W] or [B, C, T, H, W] in channels_last memory; may overwrite
    ``residual``.

    On a CPU that computes in the input's type (``ONE_CALL_TYPES``), it is one call of oneDNN with weights in oneDNN's
    own order. PyTorch's own layers reorder the weights in every call and need further passes for the sum and the ReLU:
    together, a sixth to a half of the time. The oneDNN call has no gradient: trained weights (``make_trainable``) do
    not use it.
    """

    weight: Tensor
    bias: Tensor

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

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"packed": None}  # a packed tensor can be neither copied nor pickled

    def make_trainable(self) -> None:
        """Turn weight and bias into parameters, which are also saved."""
        for name in ("weight", "bias"):
            value = getattr(self, name)
            delattr(self, name)
            setattr(self, name, nn.Parameter(value))

    def make_fixed(self) -> None:
        """Undo ``make_trainable``."""
        for name in ("weight", "bias"):
            value = getattr(self, name).detach()
            delattr(self, name)
            self.register_buffer(name, value, persistent=False)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return [B, C', (T',) H', W']."""
        is_fixed = not isinstance(self.weight, nn.Parameter)
        one_call = x.device.type == "cpu" and ONE_CALL_TYPES.get(x.dtype, False)
        if is_fixed and one_call and not torch.compiler.is_compiling():
            return self._in_one_call(x, residual)
        conv = F.conv2d if self.weight.ndim == 4 else F.conv3d
        geometry = self.stride, self.padding, 1, self.groups
        if x.device.type == "cpu" and not ONE_CALL_TYPES.get(x.dtype, True):
            # PyTorch's own bfloat16 kernels are up to 30 times as slow; they also add in float32 and round the sum.
            y = conv(x.float(), self.weight.float(), self.bias.float(), *geometry).to(x.dtype)
        else:
            y = conv(x, self.weight, self.bias, *geometry)
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
        """Return the weights, packed for the shape of the first input; they work for other shapes as well.

        They are packed again if ``weight`` was replaced.
        """
        if self.packed is None or self.packed[0] is not self.weight:
            kernels = torch._C._nn  # pyright: ignore[reportAttributeAccessIssue] (missing in torch's stubs)
            conv_2d = self.weight.ndim == 4
            reorder = kernels.mkldnn_reorder_conv2d_weight if conv_2d else kernels.mkldnn_reorder_conv3d_weight
            plain = torch.Tensor.to_mkldnn(self.weight.contiguous())
            packed: Tensor = reorder(plain, self.padding, self.stride, (1,) * len(self.stride), self.groups, shape)
            self.packed = self.weight, packed
        return self.packed[1]


def folded(conv: nn.Module, norm: nn.Module, *, relu: bool = True) -> FoldedConv:
    """Return a convolution and its batch norm as one layer."""
    weight, bias = fold(conv, norm)
    assert isinstance(conv, _ConvNd) and not isinstance(conv.padding, str)
    # pytorchvideo's strides are NumPy integers, which torch.compile cannot guard.
    stride, padding = tuple(map(int, conv.stride)), tuple(map(int, conv.padding))
    return FoldedConv(weight, bias, stride=stride, padding=padding, groups=conv.groups, relu=relu)

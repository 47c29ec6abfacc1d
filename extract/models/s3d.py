"""S3D-G as trained on HowTo100M (Miech et al. 2020), with its parameter names, computed with 2D convolutions.

Every convolution of S3D is spatial (1xkxk), temporal (kx1x1) or pointwise, and so is every pooling. Frames are stored
as [B*T, C, H, W] in channels_last memory. The same bytes can be viewed as [B, C, T, H*W], where a temporal convolution
is a 2D one with a (k, 1) kernel. On a CPU, libraries are far faster at 2D than at 3D convolutions.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import FoldedConv, fold, mean
from .network import Network, PublishedFile

# (in; b0, b1 reduce, b1, b2 reduce, b2, b3) of each Inception block
INCEPTION_WIDTHS = {
    "mixed_3b": (192, 64, 96, 128, 16, 32, 32),
    "mixed_3c": (256, 128, 128, 192, 32, 96, 64),
    "mixed_4b": (480, 192, 96, 208, 16, 48, 64),
    "mixed_4c": (512, 160, 112, 224, 24, 64, 64),
    "mixed_4d": (512, 128, 128, 256, 24, 64, 64),
    "mixed_4e": (512, 112, 144, 288, 32, 64, 64),
    "mixed_4f": (528, 256, 160, 320, 32, 128, 128),
    "mixed_5b": (832, 256, 160, 320, 32, 128, 128),
    "mixed_5c": (832, 384, 192, 384, 48, 128, 128),
}


def _over_time(x_NCHW: Tensor, num_frames: int) -> Tensor:
    """View [B*T, C, H, W] in channels_last memory as [B, C, T, H*W], without a copy."""
    n, c, h, w = x_NCHW.shape
    return x_NCHW.permute(0, 2, 3, 1).reshape(n // num_frames, num_frames, h * w, c).permute(0, 3, 1, 2)


def _over_space(x_BCTP: Tensor, height: int) -> Tensor:
    """Undo ``_over_time``."""
    b, c, t, p = x_BCTP.shape
    return x_BCTP.permute(0, 2, 3, 1).reshape(b * t, height, p // height, c).permute(0, 3, 1, 2)


class STConv3D(nn.Module):
    """Convolution, batch norm and ReLU; if ``separable``, first over space, then again over time."""

    def __init__(self, num_in: int, num_out: int, kernel: tuple[int, int, int], *, separable: bool = False) -> None:
        super().__init__()
        self.separable = separable
        self.conv1 = nn.Conv3d(num_in, num_out, (1, *kernel[1:]) if separable else kernel, bias=False)
        self.bn1 = nn.BatchNorm3d(num_out)
        if separable:
            self.conv2 = nn.Conv3d(num_out, num_out, (kernel[0], 1, 1), bias=False)
            self.bn2 = nn.BatchNorm3d(num_out)

    def fold(self) -> None:
        """Replace convolutions and norms by folded convolutions."""
        weight, bias = fold(self.conv1, self.bn1)
        if weight.shape[2] == 2:  # conv1 of the network: see S3D.stem
            weight = torch.cat([weight[:, :, 0], weight[:, :, 1]], dim=1)[:, :, None]
        self.spatial = FoldedConv(weight.squeeze(2), bias, stride=(1, 1), padding=((weight.shape[-1] - 1) // 2,) * 2)
        del self.conv1, self.bn1
        if self.separable:
            weight, bias = fold(self.conv2, self.bn2)
            self.temporal = FoldedConv(weight.squeeze(-1), bias, stride=(1, 1), padding=(weight.shape[2] // 2, 0))
            del self.conv2, self.bn2

    def forward(self, x_NCHW: Tensor, num_frames: int) -> Tensor:
        """Return [B*T, C', H, W]."""
        x_NCHW = self.spatial(x_NCHW)
        if not self.separable:
            return x_NCHW
        return _over_space(self.temporal(_over_time(x_NCHW, num_frames)), x_NCHW.shape[2])


class SelfGating(nn.Module):
    """Weights channels by sigmoid(fc(mean over time and space)): the G of S3D-G."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x_NCHW: Tensor, num_frames: int) -> Tensor:
        """Return the weighted [B*T, C, H, W]; overwrites its input if no gradient needs it."""
        mean_BC = mean(x_NCHW, (2, 3)).unflatten(0, (-1, num_frames)).mean(dim=1)
        # Not in bfloat16: its steps are coarse where a sigmoid is steep. The cost is negligible.
        logits_BC = F.linear(mean_BC, self.fc.weight.to(mean_BC.dtype), self.fc.bias.to(mean_BC.dtype))
        gate_NC = torch.sigmoid(logits_BC).to(x_NCHW.dtype).repeat_interleave(num_frames, dim=0)
        gate_NC11 = gate_NC[:, :, None, None]
        return x_NCHW * gate_NC11 if x_NCHW.requires_grad else x_NCHW.mul_(gate_NC11)


class InceptionBlock(nn.Module):
    """Four branches, each with its gating, side by side."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        num_in, b0, b1_a, b1_b, b2_a, b2_b, b3 = widths
        self.conv_b0 = STConv3D(num_in, b0, (1, 1, 1))
        self.conv_b1_a = STConv3D(num_in, b1_a, (1, 1, 1))
        self.conv_b1_b = STConv3D(b1_a, b1_b, (3, 3, 3), separable=True)
        self.conv_b2_a = STConv3D(num_in, b2_a, (1, 1, 1))
        self.conv_b2_b = STConv3D(b2_a, b2_b, (3, 3, 3), separable=True)
        self.conv_b3_b = STConv3D(num_in, b3, (1, 1, 1))
        self.gating_b0 = SelfGating(b0)
        self.gating_b1 = SelfGating(b1_b)
        self.gating_b2 = SelfGating(b2_b)
        self.gating_b3 = SelfGating(b3)

    def forward(self, x_NCHW: Tensor, num_frames: int) -> Tensor:
        """Return [B*T, C', H, W]."""
        t = num_frames
        pooled = _pool_of_3(x_NCHW, (2, 3))
        pooled = _over_space(_pool_of_3(_over_time(pooled, t), (2,)), x_NCHW.shape[2])
        branches = [
            self.gating_b0(self.conv_b0(x_NCHW, t), t),
            self.gating_b1(self.conv_b1_b(self.conv_b1_a(x_NCHW, t), t), t),
            self.gating_b2(self.conv_b2_b(self.conv_b2_a(x_NCHW, t), t), t),
            self.gating_b3(self.conv_b3_b(pooled, t), t),
        ]
        return torch.cat(branches, dim=1)


def _pool_of_3(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Max-pool [B, C, H, W] along ``dims`` (2, 3 or both), with kernel 3, stride 1 and padding 1."""
    if x.device.type == "cpu" and not x.requires_grad and not torch.compiler.is_compiling():
        for dim in reversed(dims):
            x = _max_of_3(x, dim)
        return x
    kernel = [3 if dim in dims else 1 for dim in (2, 3)]  # one GPU kernel instead of four for each dimension
    return F.max_pool2d(x, kernel, stride=1, padding=[size // 2 for size in kernel])


def _max_of_3(x: Tensor, dim: int) -> Tensor:
    """Max-pool along ``dim``. On a CPU, this is twice as fast as PyTorch's pooling, which keeps indices."""
    size = x.shape[dim]
    if size == 1:
        return x
    pairs, out = torch.maximum(x.narrow(dim, 0, size - 1), x.narrow(dim, 1, size - 1)), torch.empty_like(x)
    torch.maximum(pairs.narrow(dim, 0, size - 2), pairs.narrow(dim, 1, size - 2), out=out.narrow(dim, 1, size - 2))
    out.select(dim, 0).copy_(pairs.select(dim, 0))
    out.select(dim, size - 1).copy_(pairs.select(dim, size - 2))
    return out


def _max_pool_tf(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Max-pool with TensorFlow's SAME padding: zeros (not -inf) at the ends, then ``ceil_mode``.

    Inputs are never negative here.

    All kernels are as large as the stride or larger by one, so at most one zero is added. ``ceil_mode`` covers the end
    of an even size; with an odd size, the zero makes room for one more window.
    """
    pads = [int(k > s and size % s == 1) for k, s, size in zip(kernel, stride, x.shape[2:], strict=True)]
    if any(pads):
        x = F.pad(x, (0, pads[1], 0, pads[0]))
    return F.max_pool2d(x, kernel, stride, ceil_mode=True)


class S3D(Network):
    """The video encoder of s3d_howto100m.pth, with its parameter names.

    ``forward``: float [B, 3, T, H, W] in [0, 1], T, H and W even -> ``mixed_5c`` [B, 1024], the mean over time and
    space. ``video_embedding``: ``fc`` of this mean, [B, 512].
    """

    published: ClassVar = {
        # Issue 14 of the page reports the source dead since June 2024, and names copies; other people recorded this
        # size.
        "s3d_howto100m.pth": PublishedFile(
            ("https://www.rocq.inria.fr/cluster-willow/amiech/howto100m/s3d_howto100m.pth",),
            size_bytes=125_031_128,
            page="https://github.com/antoine77340/S3D_HowTo100M (its issue 14 names copies of the file)",
        ),
    }
    ignored_entries = ("text_module.",)
    without_features = ("fc",)
    batch_sizes: ClassVar = {"cpu": 2, "cuda": 16}
    has_many_kernels = True
    random_gain = 4.0  # self-gating halves the activations

    mixed_3b: InceptionBlock
    mixed_3c: InceptionBlock
    mixed_5b: InceptionBlock
    mixed_5c: InceptionBlock

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = STConv3D(24, 64, (2, 4, 4))
        self.conv_2b = STConv3D(64, 64, (1, 1, 1))
        self.conv_2c = STConv3D(64, 192, (3, 3, 3), separable=True)
        self.gating = SelfGating(192)
        for name, widths in INCEPTION_WIDTHS.items():
            self.add_module(name, InceptionBlock(widths))
        self.fc = nn.Linear(1024, 512)

    def fold(self) -> "S3D":
        """Fold batch norms into convolutions; return self."""
        for module in self.modules():
            if isinstance(module, STConv3D):
                module.fold()
        return self

    def stem(self, video_BCTHW: Tensor) -> tuple[Tensor, int]:
        """Compute space to depth, then conv1: (2, 4, 4), padded (1, 2, 2), first row of each axis dropped.

        This is TensorFlow's SAME padding. The remaining temporal kernel covers frames t and t + 1 (zeros after the
        last), which become channels of one 2D convolution. The remaining spatial kernel needs one zero before and two
        after: ``conv1`` pads by one, and the second one is added here.
        """
        b, c, t, h, w = video_BCTHW.shape
        t, h, w = t // 2, h // 2, w // 2
        cells = video_BCTHW.reshape(b, c, t, 2, h, 2, w, 2).permute(0, 2, 4, 6, 3, 5, 7, 1)
        x_BTHWC = video_BCTHW.new_zeros(b, t, h + 1, w + 1, 16 * c)
        x_BTHWC[:, :, :h, :w, : 8 * c].unflatten(4, (2, 2, 2, c)).copy_(cells)
        x_BTHWC[:, :-1, :h, :w, 8 * c :].unflatten(4, (2, 2, 2, c)).copy_(cells[:, 1:])
        return self.conv1(x_BTHWC.flatten(0, 1).permute(0, 3, 1, 2), t), t

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        x, t = self.stem(x)
        x = _max_pool_tf(x, (3, 3), (2, 2))
        x = self.gating(self.conv_2c(self.conv_2b(x, t), t), t)
        x = _max_pool_tf(x, (3, 3), (2, 2))
        x = self.mixed_3c(self.mixed_3b(x, t), t)
        x, t = self._pool_time(_max_pool_tf(x, (3, 3), (2, 2)), t, 3)
        for name in ("mixed_4b", "mixed_4c", "mixed_4d", "mixed_4e", "mixed_4f"):
            x = self.get_submodule(name)(x, t)
        x, t = self._pool_time(_max_pool_tf(x, (2, 2), (2, 2)), t, 2)
        x = self.mixed_5c(self.mixed_5b(x, t), t)
        return mean(x.unflatten(0, (-1, t)), (1, 3, 4))

    @staticmethod
    def _pool_time(x_NCHW: Tensor, num_frames: int, kernel: int) -> tuple[Tensor, int]:
        pooled = _max_pool_tf(_over_time(x_NCHW, num_frames), (kernel, 1), (2, 1))
        return _over_space(pooled, x_NCHW.shape[2]), pooled.shape[2]

    def video_embedding(self, mixed_5c_BD: Tensor) -> Tensor:
        """Project features [B, 1024] to the [B, 512] space that S3D shares with texts."""
        return F.linear(mixed_5c_BD, self.fc.weight.to(mixed_5c_BD.dtype), self.fc.bias.to(mixed_5c_BD.dtype))

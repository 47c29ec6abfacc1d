"""The published networks, written plainly, and the values that they give."""

import functools
import math

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from pytorchvideo.models.hub.slowfast import slowfast_r50, slowfast_r101
from torchvision.models.video.resnet import BasicBlock, Conv2Plus1D, R2Plus1dStem, VideoResNet
from transformers import CLIPConfig, CLIPModel

from helpers.golden import fill, golden_rows, golden_shapes

RESNETS_3D = ["i3d_resnext101", "i3d_resnet152"]


STORED_GOLDEN = ["resnet152", *RESNETS_3D, "s3d"]


class PlainS3D:
    """S3D-G, straight from the entries of its checkpoint, with the 3D operations of its authors' description."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self.state = state

    def conv(self, x, conv, norm, padding):
        x = F.conv3d(x, self.state[f"{conv}.weight"], padding=padding)
        mean, var, weight, bias = (
            self.state[f"{norm}.{leaf}"] for leaf in ("running_mean", "running_var", "weight", "bias")
        )
        return F.relu(F.batch_norm(x, mean, var, weight, bias, training=False, eps=1e-5))

    def point(self, x, name):
        return self.conv(x, f"{name}.conv1", f"{name}.bn1", 0)

    def separable(self, x, name):
        x = self.conv(x, f"{name}.conv1", f"{name}.bn1", (0, 1, 1))
        return self.conv(x, f"{name}.conv2", f"{name}.bn2", (1, 0, 0))

    def gate(self, x, name):
        gate = torch.sigmoid(
            F.linear(x.mean(dim=(2, 3, 4)), self.state[f"{name}.fc.weight"], self.state[f"{name}.fc.bias"])
        )
        return x * gate[:, :, None, None, None]

    def pool(self, x, kernel, stride):
        """TensorFlow's SAME: padded with the value 0, the smaller half before."""
        pads = []
        for k, s in zip(reversed(kernel), reversed(stride), strict=True):
            pads += [max(k - s, 0) // 2, math.ceil(max(k - s, 0) / 2)]
        return F.max_pool3d(F.pad(x, pads, value=0.0), kernel, stride, ceil_mode=True)

    def inception(self, x, name):
        branches = [
            self.point(x, f"{name}.conv_b0"),
            self.separable(self.point(x, f"{name}.conv_b1_a"), f"{name}.conv_b1_b"),
            self.separable(self.point(x, f"{name}.conv_b2_a"), f"{name}.conv_b2_b"),
            self.point(F.max_pool3d(x, 3, stride=1, padding=1), f"{name}.conv_b3_b"),
        ]
        return torch.cat([self.gate(branch, f"{name}.gating_b{i}") for i, branch in enumerate(branches)], dim=1)

    def __call__(self, video):
        b, c, t, h, w = video.shape
        x = video.view(b, c, t // 2, 2, h // 2, 2, w // 2, 2).permute(0, 3, 5, 7, 1, 2, 4, 6)
        x = x.reshape(b, 8 * c, t // 2, h // 2, w // 2)
        x = self.conv(x, "conv1.conv1", "conv1.bn1", (1, 2, 2))[:, :, 1:, 1:, 1:]
        x = self.pool(x, (1, 3, 3), (1, 2, 2))
        x = self.gate(self.separable(self.point(x, "conv_2b"), "conv_2c"), "gating")
        x = self.pool(x, (1, 3, 3), (1, 2, 2))
        x = self.inception(self.inception(x, "mixed_3b"), "mixed_3c")
        x = self.pool(x, (3, 3, 3), (2, 2, 2))
        for letter in "bcdef":
            x = self.inception(x, f"mixed_4{letter}")
        x = self.pool(x, (2, 2, 2), (2, 2, 2))
        x = self.inception(self.inception(x, "mixed_5b"), "mixed_5c")
        return x.mean(dim=(2, 3, 4))


class PlainResNet3D:
    """Hara's 3D ResNets, straight from the entries of their checkpoints: as many blocks, groups and classes as these
    have."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self.state = state

    def conv(self, x, conv, norm, **geometry):
        weight = self.state[f"{conv}.weight"]
        x = F.conv3d(x, weight, groups=x.shape[1] // weight.shape[1], **geometry)
        mean, var, weight, bias = (
            self.state[f"{norm}.{leaf}"] for leaf in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(x, mean, var, weight, bias, training=False, eps=1e-5)

    def block(self, x, name, stride):
        y = F.relu(self.conv(x, f"{name}.conv1", f"{name}.bn1"))
        y = F.relu(self.conv(y, f"{name}.conv2", f"{name}.bn2", stride=stride, padding=1))
        y = self.conv(y, f"{name}.conv3", f"{name}.bn3")
        if f"{name}.downsample.0.weight" in self.state:
            x = self.conv(x, f"{name}.downsample.0", f"{name}.downsample.1", stride=stride)
        return F.relu(x + y)

    def __call__(self, video):
        x = F.relu(self.conv(video, "conv1", "bn1", stride=(1, 2, 2), padding=3))
        x = F.max_pool3d(x, 3, stride=2, padding=1)
        for layer, num_blocks in enumerate(self.num_blocks(), start=1):
            for i in range(num_blocks):
                x = self.block(x, f"layer{layer}.{i}", stride=2 if layer > 1 and i == 0 else 1)
        return x.mean(dim=(2, 3, 4))

    def num_blocks(self):
        return [
            sum(name.startswith(f"layer{i}.") and name.endswith(".conv1.weight") for name in self.state)
            for i in (1, 2, 3, 4)
        ]


GOLDEN = {
    "resnet152": ("resnet152/224/pool", 1.0, (2, 224, 224, 3)),
    "i3d_resnext101": ("i3d_resnext101/16x112/pool", 1.0, (2, 16, 112, 112, 3)),
    "i3d_resnet152": ("i3d_resnet152/16x112/pool", 1.0, (2, 16, 112, 112, 3)),
    "s3d": ("s3d_howto100m/16x224/mixed_5c", 4.0, (2, 16, 224, 224, 3)),
}
"""Entry, gain of the weights, shape of the pixels."""


@functools.lru_cache(maxsize=1)  # large, and wanted once for each wrapping
def golden_state(name: str) -> dict[str, torch.Tensor]:
    return fill(published_shapes(name), GOLDEN[name][1])


def published_shapes(name: str) -> dict[str, list[int]]:
    if name == "resnet152":
        with torch.device("meta"):
            return {n: list(v.shape) for n, v in torchvision.models.resnet152(weights=None).state_dict().items()}
    if name in RESNET_MAPS:
        with torch.device("meta"):
            return {n: list(v.shape) for n, v in RESNET_MAPS[name](weights=None).state_dict().items()}
    if name in SLOWFASTS:
        with torch.device("meta"):
            return {n: list(v.shape) for n, v in SLOWFASTS[name]().state_dict().items()}
    if name == "r2plus1d" or name in CLIPS:
        with torch.device("meta"):
            plain = plain_r2plus1d() if name == "r2plus1d" else CLIPModel(CLIPConfig())
            return {n: list(v.shape) for n, v in plain.state_dict().items()}
    return golden_shapes("s3d_howto100m" if name == "s3d" else name)


CLIPS = ["clip_vit_b32", "clip_vit_b32_map"]
RESNET_MAPS = {"resnet152_map": torchvision.models.resnet152, "resnet50_map": torchvision.models.resnet50}
"""{network: torchvision's own}"""


def plain_r2plus1d(num_classes: int = 487) -> VideoResNet:
    """torchvision's network, with what the publisher of the weights changes in it (moabitcoin/ig65m-pytorch,
    ig65m/models.py)."""
    plain = VideoResNet(BasicBlock, [Conv2Plus1D] * 4, [3, 4, 6, 3], R2Plus1dStem, num_classes=num_classes)
    plain.layer2[0].conv2[0] = Conv2Plus1D(128, 128, 288)
    plain.layer3[0].conv2[0] = Conv2Plus1D(256, 256, 576)
    plain.layer4[0].conv2[0] = Conv2Plus1D(512, 512, 1152)
    for module in plain.modules():
        if isinstance(module, torch.nn.BatchNorm3d):
            module.eps = 1e-3
    return plain.eval().requires_grad_(False)


GOLDEN_TOLERANCE = 1e-3
"""Of the largest magnitude in a row, on every element."""


SLOWFASTS = {"slowfast": slowfast_r50, "slowfast_r101": slowfast_r101}
"""{network: pytorchvideo's own}"""


NETWORKS = [*STORED_GOLDEN, *RESNET_MAPS, "clip_vit_b32", "clip_vit_b32_map", "r2plus1d", *SLOWFASTS]
"""Each once; ``s3d_univl`` is ``s3d`` at another frame rate."""


def random_state(model: torch.nn.Module, gain: float, seed: int = 0) -> dict[str, torch.Tensor]:
    """Entries as a trained network might have them: batch norms are far from the identity."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, value in model.state_dict().items():
        if name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(7)
            continue
        noise = torch.randn(value.shape, generator=generator)
        if name.endswith("running_var"):
            noise = 0.5 + noise.abs()
        elif value.ndim == 1:
            noise = 0.3 * noise + (1.0 if name.endswith("weight") else 0.0)
        else:
            noise *= math.sqrt(gain / value[0].numel())
        state[name] = noise
    return state


def assert_golden(rows: torch.Tensor, entry: str) -> None:
    expected = golden_rows(entry)
    assert rows.shape == expected.shape
    error = np.abs(rows.numpy() - expected).max(axis=1) / np.abs(expected).max(axis=1)
    assert (error < GOLDEN_TOLERANCE).all(), error

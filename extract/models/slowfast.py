"""SlowFast networks (Feichtenhofer et al. 2019), built by pytorchvideo, with its parameter names."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import folded, mean
from .network import Network, PublishedFile

ZOO = "https://dl.fbaipublicfiles.com/pytorchvideo/model_zoo/kinetics"
PAGE = "https://pytorchvideo.readthedocs.io/en/latest/model_zoo.html"
NUM_FAST, NUM_SLOW = 32, 8
"""Number of frames of each pathway: "8 x 8" means 8 frames at a distance of 8."""
POOL = 7
"""Side of the squares that pytorchvideo's head takes the mean of."""


class FoldedBlock(nn.Module):
    """A residual block of pytorchvideo: three convolutions; the shortcut is added before the last ReLU."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        branch, shortcut = block.get_submodule("branch2"), block.branch1_conv
        self.a, self.b, self.c = (
            folded(branch.get_submodule(f"conv_{letter}"), branch.get_submodule(f"norm_{letter}")) for letter in "abc"
        )
        self.shortcut = None
        if isinstance(shortcut, nn.Module):
            self.shortcut = folded(shortcut, block.get_submodule("branch1_norm"), relu=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, C, T, H', W']."""
        shortcut = x if self.shortcut is None else self.shortcut(x)
        return self.c(self.b(self.a(x)), shortcut)


class FoldedStem(nn.Module):
    """The first convolution of a pathway, and its pooling over space."""

    def __init__(self, stem: nn.Module) -> None:
        super().__init__()
        self.conv = folded(stem.get_submodule("conv"), stem.get_submodule("norm"))

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, C, T, H / 4, W / 4]."""
        return F.max_pool3d(self.conv(x), (1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1))


class FoldedStage(nn.Module):
    """A stage of both pathways; the fast pathway's output is joined to the slow pathway's."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        slow, fast = stage.get_submodule("multipathway_blocks").children()
        self.slow, self.fast = folded_pathway(slow), folded_pathway(fast)
        fusion = stage.get_submodule("multipathway_fusion")
        last = not hasattr(fusion, "conv_fast_to_slow")
        self.fuse = None if last else folded(fusion.get_submodule("conv_fast_to_slow"), fusion.get_submodule("norm"))

    def forward(self, slow: Tensor, fast: Tensor) -> tuple[Tensor, Tensor]:
        """Return both pathways."""
        slow, fast = self.slow(slow), self.fast(fast)
        return (slow if self.fuse is None else torch.cat([slow, self.fuse(fast)], dim=1)), fast


def folded_pathway(pathway: nn.Module) -> nn.Module:
    """Fold the batch norms of one pathway of a stage, in its stem or its blocks."""
    if hasattr(pathway, "conv"):
        return FoldedStem(pathway)
    return nn.Sequential(*map(FoldedBlock, pathway.get_submodule("res_blocks").children()))


class SlowFast(Network):
    """SlowFast 8 x 8.

    ``forward``: normalised float [B, 3, T, H, W] -> the last stage of both pathways, each averaged over time and space,
    concatenated [B, 2304], float32: 2,048 values of the slow one, 256 of the fast one.
    """

    depth: ClassVar[int]
    fusion_frames: ClassVar[int]
    """Temporal kernel size of the convolutions from the fast to the slow pathway."""
    ignored_entries = ("blocks.6.proj.",)
    batch_sizes: ClassVar = {"cpu": 2, "cuda": 16}
    blocks: nn.ModuleList

    def __init__(self) -> None:
        from pytorchvideo.models.slowfast import create_slowfast  # slow to import

        super().__init__()
        build: Any = create_slowfast  # its annotations reject valid arguments
        kernel = (self.fusion_frames, 1, 1)
        self.blocks = build(model_depth=self.depth, slowfast_fusion_conv_kernel_size=kernel, head=None).blocks

    def fold(self) -> "SlowFast":
        """Fold batch norms into convolutions; return self."""
        stages = [FoldedStage(stage) for stage in self.blocks if hasattr(stage, "multipathway_blocks")]
        self.blocks = nn.ModuleList(stages)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        fast = self.sampled(x).contiguous(memory_format=torch.channels_last_3d)
        slow = fast[:, :, slow_frames(x.device)].contiguous(memory_format=torch.channels_last_3d)
        for stage in self.blocks:
            slow, fast = stage(slow, fast)
        return torch.cat([pooled(slow), pooled(fast)], dim=1)

    def sampled(self, x: Tensor) -> Tensor:
        """Return the frames of a window that the fast pathway sees."""
        return x


def pooled(x: Tensor) -> Tensor:
    """Return [B, C] of [B, C, T, H, W]: the mean over time and all squares of 7 x 7, in at least float32.

    With 224 pixels there is one square; with 256 there are four, and the centre has more weight.
    """
    return F.avg_pool2d(mean(x, (2,)), POOL, stride=1).mean((2, 3))


def slow_frames(device: torch.device) -> Tensor:
    """Return the indices of the fast pathway's frames that the slow one uses (PySlowFast's ``pack_pathway_output``)."""
    return torch.linspace(0, NUM_FAST - 1, NUM_SLOW, device=device).long()


class SlowFastR50(SlowFast):
    """SlowFast R50 on windows of two seconds: 32 frames, every other one of 64.

    A window has only 60 frames, so the last indices repeat the last frame. Source:
    linjieli222/HERO_Video_Feature_Extractor, slowfast/extract_feature/preprocessing.py, ``temporal_sampling``, for a
    recording of 30 frames a second.
    """

    depth, fusion_frames = 50, 7
    published: ClassVar = {"SLOWFAST_8x8_R50.pyth": PublishedFile((f"{ZOO}/SLOWFAST_8x8_R50.pyth",), page=PAGE)}

    def sampled(self, x: Tensor) -> Tensor:
        """See the class."""
        num_frames = x.shape[2]
        frames = torch.linspace(0, 2 * NUM_FAST - 1, NUM_FAST, device=x.device).clamp(max=num_frames - 1).long()
        return x[:, :, frames]


class SlowFastR101(SlowFast):
    """SlowFast R101 on windows of 32 frames (facebookresearch/Ego4d, ego4d/features/models/slowfast.py)."""

    depth, fusion_frames = 101, 5
    published: ClassVar = {"SLOWFAST_8x8_R101.pyth": PublishedFile((f"{ZOO}/SLOWFAST_8x8_R101.pyth",), page=PAGE)}

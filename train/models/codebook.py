"""CMCM's shared codebook."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...storage.common.device import on_device
from ..distributed import Workers
from ..losses import code_distances
from .tokens import TextTokens, VideoTokens, lengths_of, nonzero

DECAY = 0.99  # gamma of CMCM's appendix A
IDLE_STEPS = 100
"""A codeword that replaced no token for this many steps is reset (appendix A)."""
MOMENTUM = 0.1
"""Momentum of the running mean and variance, which are used when the model does not train."""
Side = Literal["text", "video"]
SIDES: tuple[Side, Side] = ("text", "video")


class TokenNorm(nn.Module):
    """Batch normalisation over the tokens of a batch, of all processes, without padding and without learned scale.

    Unlike ``audio.RowNorm``, which is torch's BatchNorm1d, it has the biased running variance.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, x_BLD: Tensor, index_T: tuple[Tensor, Tensor], workers: Workers) -> Tensor:
        """Normalise tokens. ``index_T``: rows and columns of those that are no padding."""
        if not self.training:
            return (x_BLD - self.mean) / (self.variance + 1e-5).sqrt()
        _, mean, variance = workers.statistics(x_BLD[index_T])
        with torch.no_grad():
            self.mean.lerp_(mean, MOMENTUM)
            self.variance.lerp_(variance, MOMENTUM)
        return (x_BLD - mean) / (variance + 1e-5).sqrt()


class SharedCodebook(nn.Module):
    """CMCM's discrete space, which the tokens of clips and of captions share (section 2.2), and the vectors made with
    it.

    A vector is f_high of the encoder's summary (a clip's mean, a caption's [CLS]) plus f_code of the mean of the
    codewords that replace the tokens. f, f_high and f_code are linear layers of each side (section 4.1 and Table 3).
    """

    codewords: Tensor
    sums: Tensor
    counts: Tensor
    idle: Tensor

    def __init__(self, width: int, size: int) -> None:
        """Make a codebook of ``size`` random codewords [width]. With ``size`` 0, vectors are f_high alone, CMCM's
        baseline."""
        super().__init__()
        self.high = nn.ModuleDict({side: nn.Linear(width, width) for side in SIDES})
        self.size, self.in_use = size, 0
        if size:
            self.project = nn.ModuleDict({side: nn.Linear(width, width) for side in SIDES})
            self.norm = nn.ModuleDict({side: TokenNorm(width) for side in SIDES})
            self.code = nn.ModuleDict({side: nn.Linear(width, width) for side in SIDES})
            # Eq. 3 of appendix A.
            self.register_buffer("codewords", torch.randn(size, width))
            self.register_buffer("sums", self.codewords.clone())
            self.register_buffer("counts", torch.ones(size))
            self.register_buffer("idle", torch.zeros(size, dtype=torch.int64))

    def tokens(self, side: Side, tokens_BLD: Tensor, index_T: tuple[Tensor, Tensor], workers: Workers) -> Tensor:
        """Return f of a side's tokens, normalised. ``index_T``: rows and columns of those that are no padding."""
        return self.norm[side](self.project[side](tokens_BLD), index_T, workers)

    def nearest(self, tokens_BLD: Tensor) -> Tensor:
        """Return the index of the codeword that replaces each token, [B, L]; the first of equally near ones."""
        return code_distances(tokens_BLD, self.codewords).argmin(dim=-1)

    def vector(self, side: Side, summary_BD: Tensor, tokens_BLD: Tensor | None, mask_BL: Tensor) -> Tensor:
        """Return z of a side [B, D].

        Args:
            side: "text" or "video".
            summary_BD: The encoder's summaries.
            tokens_BLD: What ``tokens`` gave, None without codewords.
            mask_BL: True for a token, False for padding.
        """
        high_BD = self.high[side](summary_BD)
        if tokens_BLD is None:
            return high_BD
        replaced_BLD = self.codewords[self.nearest(tokens_BLD)]
        straight_through = tokens_BLD + (replaced_BLD - tokens_BLD).detach()
        mask_BL1 = mask_BL[:, :, None].to(straight_through.dtype)
        return high_BD + self.code[side]((straight_through * mask_BL1).sum(dim=1) / mask_BL1.sum(dim=1))

    @torch.no_grad()
    def update(self, tokens_TD: Tensor, workers: Workers, generator: torch.Generator) -> int:
        """Move the codewords towards the tokens that they replaced (Eq. 4 of appendix A).

        Args:
            tokens_TD: This step's tokens of both sides, of this process.
            workers: The processes that train together.
            generator: The same in every process, so that their codebooks stay the same.

        Returns:
            The number of codewords that replaced a token in this step, also set as ``in_use``.
        """
        nearest_T = self.nearest(tokens_TD)
        ones_T = torch.ones_like(nearest_T, dtype=self.counts.dtype)
        counts = workers.sum(torch.zeros_like(self.counts).index_add_(0, nearest_T, ones_T))
        sums = workers.sum(torch.zeros_like(self.sums).index_add_(0, nearest_T, tokens_TD.to(self.sums)))
        self.counts.mul_(DECAY).add_(counts, alpha=1 - DECAY)
        self.sums.mul_(DECAY).add_(sums, alpha=1 - DECAY)
        self.codewords = self.sums / self.counts[:, None]  # a new tensor: the gradient still needs the old one
        used = counts > 0
        self.idle.copy_(torch.where(used, 0, self.idle + 1))
        used_or_dead = torch.stack([used, self.idle >= IDLE_STEPS]).cpu()  # the only wait for the device
        alive, dead = (which.nonzero().flatten() for which in used_or_dead)
        if len(dead):
            chosen = alive[torch.randint(len(alive), (len(dead),), generator=generator)]
            chosen, dead = on_device(torch.stack([chosen, dead]), used.device)
            # With the count and sum of a new codeword; with its old ones, it would move back at once.
            self.codewords[dead] = self.sums[dead] = self.codewords[chosen]
            self.counts[dead], self.idle[dead] = 1.0, 0
        self.in_use = len(alive)
        return self.in_use


@dataclass(frozen=True)
class Coded:
    """One side of a batch in CMCM's space."""

    vector_BD: Tensor
    code_tokens_BLD: Tensor | None
    """Tokens in the space of the codewords; None without codewords."""
    mask_BL: Tensor
    """True for a token, False for padding."""
    index_T: tuple[Tensor, Tensor]
    """Rows and columns of all tokens."""

    @property
    def tokens_BLD(self) -> Tensor:
        """Tokens in the space of the codewords."""
        assert self.code_tokens_BLD is not None, "a codebook of size 0 has no codewords"
        return self.code_tokens_BLD

    @property
    def tokens_TD(self) -> Tensor:
        """Tokens in the space of the codewords, without padding."""
        return self.tokens_BLD[self.index_T]


def quantize(codebook: SharedCodebook, encoded: TextTokens | VideoTokens, workers: Workers) -> Coded:
    """Return encoded texts or videos in CMCM's space. ``workers``: the processes that share the batch."""
    if isinstance(encoded, TextTokens):
        side, summary_BD, tokens_BLD, mask_BL = "text", encoded.sentence_BD, encoded.tokens_BND, encoded.mask_BN
    else:
        side, summary_BD, tokens_BLD, mask_BL = "video", encoded.mean_BD, encoded.tokens_BMD, encoded.mask_BM
    index_T = nonzero(mask_BL, lengths_of(mask_BL, encoded.lengths_B))
    code_tokens_BLD = codebook.tokens(side, tokens_BLD, index_T, workers) if codebook.size else None
    return Coded(codebook.vector(side, summary_BD, code_tokens_BLD, mask_BL), code_tokens_BLD, mask_BL, index_T)

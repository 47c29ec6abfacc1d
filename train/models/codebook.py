"""CMCM's shared codebook."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ...storage.common.device import on_device
from ..distributed import Workers
from ..losses import code_distances
from .tokens import TextTokens, TokenSizes, VideoTokens, lengths_of, masked_mean, nonzero

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
        """Normalise tokens. ``index_T``: (rows, columns) of the tokens that are not padding."""
        if not self.training:
            return (x_BLD - self.mean) / (self.variance + 1e-5).sqrt()
        _, mean, variance = workers.statistics(x_BLD[index_T])
        with torch.no_grad():
            self.mean.lerp_(mean, MOMENTUM)
            self.variance.lerp_(variance, MOMENTUM)
        return (x_BLD - mean) / (variance + 1e-5).sqrt()


DEPTH = 3  # section 4.1, Video-Text
KERNEL = 3


class GridConvolutions(nn.Module):
    """CMCM's "4D-Convolutions for video with a depth of 3" (section 4.1): over the time, height and width of a clip's
    grid, with all channels. The paper gives neither the kernel size (3 here) nor the activation (ReLU here).
    """

    def __init__(self, from_width: int, to_width: int, grid: tuple[int, int, int]) -> None:
        super().__init__()
        self.grid = grid
        widths = [from_width, *[to_width] * DEPTH]
        self.layers = nn.ModuleList(
            nn.Conv3d(widths[i], widths[i + 1], KERNEL, padding=KERNEL // 2) for i in range(DEPTH)
        )

    def forward(self, tokens_BLD: Tensor, lengths_B: Tensor) -> Tensor:
        """Return a token for each cell, [B, L, D']. Missing cells, as of a clip without rows, are 0."""
        del lengths_B
        num_cells, num_tokens = self.grid[0] * self.grid[1] * self.grid[2], tokens_BLD.shape[1]
        x = F.pad(tokens_BLD, (0, 0, 0, num_cells - num_tokens)).transpose(1, 2).unflatten(2, self.grid)
        for number, layer in enumerate(self.layers):
            x = layer(x.relu() if number else x)
        return x.flatten(2).transpose(1, 2)[:, :num_tokens]


class BidirectionalLstm(nn.Module):
    """CMCM's "BiLSTMs for text, also with a depth of 3" (section 4.1): half of the width in each direction."""

    def __init__(self, from_width: int, to_width: int) -> None:
        super().__init__()
        self.width = to_width
        self.lstm = nn.LSTM(from_width, -(-to_width // 2), num_layers=DEPTH, bidirectional=True, batch_first=True)

    def forward(self, tokens_BLD: Tensor, lengths_B: Tensor) -> Tensor:
        """Return a token for each token, [B, L, D'], 0 at padding. ``lengths_B``: on the CPU."""
        packed = pack_padded_sequence(tokens_BLD, lengths_B, batch_first=True, enforce_sorted=False)
        tokens, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=tokens_BLD.shape[1])
        return tokens[:, :, : self.width]


@dataclass(frozen=True)
class CodebookParts:
    """The parts of a ``SharedCodebook``."""

    summary_layer: bool = True
    """f_high ends in a linear layer; False: the encoder's summary is f_high."""
    convolutions: bool = False
    """f and f_code are convolutions for clips and LSTMs for texts; False: linear layers."""
    summary: bool = True
    """A vector includes f_high; False: it is f_code alone (Table 4, h)."""
    quantized: bool = True
    """f_code sees codewords. If false, it sees the vectors before quantisation, and there are no codewords (Table 4,
    f).
    """


class SharedCodebook(nn.Module):
    """CMCM's discrete space, which the tokens of clips and of captions share (section 2.2), and the vectors made with
    it.

    A vector is f_high of the encoder's summary (a clip's mean, or its whole vector if a video tower gives one; a
    caption's [CLS]) plus f_code of the codewords that replace the tokens. f, f_high and f_code are layers of each side
    (section 4.1 and Table 3).
    """

    codewords: Tensor
    sums: Tensor
    counts: Tensor
    idle: Tensor

    def __init__(self, sizes: TokenSizes, size: int, parts: CodebookParts = CodebookParts()) -> None:
        """Make a codebook of ``size`` random codewords [width].

        With ``size`` 0, vectors are f_high alone, CMCM's baseline.
        """
        super().__init__()
        width, of_tokens = sizes.width, {"text": sizes.text, "video": sizes.video}
        self.parts, self.width = parts, width
        self.has_code = size > 0
        self.size, self.in_use = size if parts.quantized else 0, 0

        def layer(side: Side, from_width: int) -> nn.Module:
            if not parts.convolutions:
                return nn.Linear(from_width, width)
            if side == "text":
                return BidirectionalLstm(from_width, width)
            assert sizes.grid is not None, "settings are checked"
            return GridConvolutions(from_width, width, sizes.grid)

        if parts.summary and parts.summary_layer:
            self.high = nn.ModuleDict({side: nn.Linear(width, width) for side in SIDES})
        if self.has_code:
            self.project = nn.ModuleDict({side: layer(side, of_tokens[side]) for side in SIDES})
            self.norm = nn.ModuleDict({side: TokenNorm(width) for side in SIDES})
            self.code = nn.ModuleDict({side: layer(side, width) for side in SIDES})
        if self.size:
            # Eq. 3 of appendix A.
            self.register_buffer("codewords", torch.randn(size, width))
            self.register_buffer("sums", self.codewords.clone())
            self.register_buffer("counts", torch.ones(size))
            self.register_buffer("idle", torch.zeros(size, dtype=torch.int64))

    def tokens(
        self, side: Side, tokens_BLD: Tensor, lengths_B: Tensor, index_T: tuple[Tensor, Tensor], workers: Workers
    ) -> Tensor:
        """Return f of a side's tokens, normalised.

        Args:
            side: "text" or "video".
            tokens_BLD: The encoder's tokens.
            lengths_B: Number of tokens of each sequence, on the CPU.
            index_T: Rows and columns of the tokens that are not padding.
            workers: The processes that share the batch.
        """
        layer = self.project[side]
        projected = layer(tokens_BLD, lengths_B) if self.parts.convolutions else layer(tokens_BLD)
        return self.norm[side](projected, index_T, workers)

    def nearest(self, tokens_BLD: Tensor) -> Tensor:
        """Return the index of the codeword that replaces each token, [B, L]; the first of equally near ones."""
        return code_distances(tokens_BLD, self.codewords).argmin(dim=-1)

    def vector(
        self, side: Side, summary_BD: Tensor, tokens_BLD: Tensor | None, mask_BL: Tensor, lengths_B: Tensor
    ) -> Tensor:
        """Return z of a side [B, D].

        Args:
            side: "text" or "video".
            summary_BD: The encoder's summaries.
            tokens_BLD: The result of ``tokens``; None for CMCM's baseline.
            mask_BL: True for a token, False for padding.
            lengths_B: Number of tokens of each sequence, on the CPU.
        """
        high_BD = summary_BD
        if self.parts.summary and self.parts.summary_layer:
            high_BD = self.high[side](summary_BD)
        if tokens_BLD is None:
            return high_BD
        code_BD = self._code(side, tokens_BLD, mask_BL, lengths_B)
        return high_BD + code_BD if self.parts.summary else code_BD

    def _code(self, side: Side, tokens_BLD: Tensor, mask_BL: Tensor, lengths_B: Tensor) -> Tensor:
        """Return f_code of a side [B, D]: the mean over its tokens."""
        replaced_BLD = tokens_BLD
        if self.size:
            replaced_BLD = tokens_BLD + (self.codewords[self.nearest(tokens_BLD)] - tokens_BLD).detach()
        if self.parts.convolutions:
            return masked_mean(self.code[side](replaced_BLD, lengths_B), mask_BL)
        return self.code[side](masked_mean(replaced_BLD, mask_BL))

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
        summary_BD = encoded.mean_BD if encoded.whole_BD is None else encoded.whole_BD
        side, tokens_BLD, mask_BL = "video", encoded.tokens_BMD, encoded.mask_BM
    lengths_B = lengths_of(mask_BL, encoded.lengths_B)
    index_T = nonzero(mask_BL, lengths_B)
    code_tokens_BLD = codebook.tokens(side, tokens_BLD, lengths_B, index_T, workers) if codebook.has_code else None
    vector_BD = codebook.vector(side, summary_BD, code_tokens_BLD, mask_BL, lengths_B)
    return Coded(vector_BD, code_tokens_BLD, mask_BL, index_T)

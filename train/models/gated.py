"""A clip and a caption as one vector each: SSML's gated embeddings, NCL's queues of queries, CMCM's shared codebook."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..losses import code_distances
from ..workers import Workers
from .transformer import TextTokens, VideoTokens, autocast

DECAY = 0.99  # gamma of CMCM's appendix A
IDLE_STEPS = 100
"""A codeword that no token was replaced by for so many steps begins anew (appendix A)."""
MOMENTUM = 0.1
"""Of the mean and variance that the batch normalisation keeps for when nothing is trained."""


class GatedEmbedding(nn.Module):
    """(W1 x + b1) o sigmoid(W2 (W1 x + b1) + b2), SSML section 5.1."""

    def __init__(self, from_width: int, to_width: int) -> None:
        super().__init__()
        self.embed, self.gate = nn.Linear(from_width, to_width), nn.Linear(to_width, to_width)

    def forward(self, x: Tensor) -> Tensor:
        embedded = self.embed(x)
        return embedded * torch.sigmoid(self.gate(embedded))


class GatedPair(nn.Module):
    """SSML's encoders, of a clip's features and a caption's words, each already one vector. Where others give tokens, it gives one."""

    fusion = None

    def __init__(self, feature_dim: int, word_dim: int, size: int) -> None:
        super().__init__()
        self.video, self.text = GatedEmbedding(feature_dim, size), GatedEmbedding(word_dim, size)
        self.in_bfloat16 = False
        self.width = size
        self.queries: QueryQueue | None = None
        self.codebook = None
        self.head: nn.Module | None = None

    def set_precision(self, precision: str) -> None:
        """``bf16``: the embeddings are computed in bfloat16 while training."""
        self.in_bfloat16 = precision == "bf16"

    def compile_layers(self) -> None:
        self.video.compile(dynamic=True)
        self.text.compile(dynamic=True)

    def encode_videos(self, features_B1F: Tensor, mask_B1: Tensor) -> VideoTokens:
        return VideoTokens(self._embed(self.video, features_B1F), mask_B1)

    def encode_texts(self, vectors: Tensor) -> TextTokens:
        mask_B1 = torch.ones(len(vectors), 1, dtype=torch.bool, device=vectors.device)
        return TextTokens(
            self._embed(self.text, vectors[:, None]), mask_B1, torch.zeros_like(mask_B1, dtype=vectors.dtype)
        )

    def _embed(self, layer: GatedEmbedding, x: Tensor) -> Tensor:
        with autocast(self, x.device):
            embedded = layer(x)
        return embedded.to(x.dtype)


class QueryQueue(nn.Module):
    """The last training queries of each kind (NCL section 3.4), kept with the model: at test time they stand for the unknown ones."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.register_buffer("texts", torch.zeros(length, width))
        self.register_buffer("videos", torch.zeros(length, width))
        self.register_buffer("pushed", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def push(self, text_BD: Tensor, video_BD: Tensor) -> None:
        number = min(len(text_BD), len(self.texts))
        places = (self.pushed + torch.arange(number, device=self.texts.device)) % len(self.texts)
        self.texts[places], self.videos[places] = text_BD[-number:].to(self.texts), video_BD[-number:].to(self.videos)
        self.pushed += number

    def kept(self) -> tuple[Tensor, Tensor]:
        """Texts and videos [K, D]; fewer than the queue holds until it is full."""
        number = min(int(self.pushed), len(self.texts))
        return self.texts[:number], self.videos[:number]


class TokenNorm(nn.Module):
    """Batch normalisation over the tokens of all sequences of a batch, of all processes, but not over padding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, x_BLD: Tensor, mask_BL: Tensor, workers: Workers) -> Tensor:
        if not self.training:
            return (x_BLD - self.mean) / (self.variance + 1e-5).sqrt()
        _, mean, variance = workers.statistics(x_BLD[mask_BL])
        with torch.no_grad():
            self.mean.lerp_(mean, MOMENTUM)
            self.variance.lerp_(variance, MOMENTUM)
        return (x_BLD - mean) / (variance + 1e-5).sqrt()


class SharedCodebook(nn.Module):
    """CMCM's discrete space, which the tokens of clips and of captions share (section 2.2), and the vectors that are made with it.

    A vector is f_high of the summary that the encoder gives (a clip's mean, a caption's [CLS]) plus f_code of the mean of the codewords
    that replace the tokens. f, f_high and f_code are linear layers of each side (section 4.1 and Table 3). ``size`` 0: f_high alone, the
    baseline.
    """

    SIDES = "text", "video"

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.high = nn.ModuleDict({side: nn.Linear(width, width) for side in self.SIDES})
        self.size, self.in_use = size, 0
        if size:
            self.project = nn.ModuleDict({side: nn.Linear(width, width) for side in self.SIDES})
            self.norm = nn.ModuleDict({side: TokenNorm(width) for side in self.SIDES})
            self.code = nn.ModuleDict({side: nn.Linear(width, width) for side in self.SIDES})
            # Eq. 3 of appendix A.
            self.register_buffer("codewords", torch.randn(size, width))
            self.register_buffer("sums", self.codewords.clone())
            self.register_buffer("counts", torch.ones(size))
            self.register_buffer("idle", torch.zeros(size, dtype=torch.int64))

    def tokens(self, side: str, tokens_BLD: Tensor, mask_BL: Tensor, workers: Workers) -> Tensor:
        """f of a side's tokens, normalised."""
        return self.norm[side](self.project[side](tokens_BLD), mask_BL, workers)

    def nearest(self, tokens_BLD: Tensor) -> Tensor:
        """The number of the codeword that replaces each token [B, L]; of equally near ones the first."""
        return code_distances(tokens_BLD, self.codewords).argmin(dim=-1)

    def vector(self, side: str, summary_BD: Tensor, tokens_BLD: Tensor | None, mask_BL: Tensor) -> Tensor:
        """z of a side [B, D], from its summary and from what ``tokens`` gave (None without a codebook)."""
        high_BD = self.high[side](summary_BD)
        if tokens_BLD is None:
            return high_BD
        replaced_BLD = self.codewords[self.nearest(tokens_BLD)]
        straight_through = tokens_BLD + (replaced_BLD - tokens_BLD).detach()
        mask_BL1 = mask_BL[:, :, None].to(straight_through.dtype)
        return high_BD + self.code[side]((straight_through * mask_BL1).sum(dim=1) / mask_BL1.sum(dim=1))

    @torch.no_grad()
    def update(self, tokens_TD: Tensor, workers: Workers, generator: torch.Generator) -> int:
        """Eq. 4 of appendix A, with this step's tokens of both sides of this process; returns how many codewords are in use, and keeps
        that as ``in_use``.

        ``generator`` is the same in every process, so that their codebooks stay the same.
        """
        found_T = self.nearest(tokens_TD)
        counts = workers.sum(torch.bincount(found_T, minlength=self.size).to(self.counts))
        sums = workers.sum(torch.zeros_like(self.sums).index_add_(0, found_T, tokens_TD.to(self.sums)))
        self.counts.mul_(DECAY).add_(counts, alpha=1 - DECAY)
        self.sums.mul_(DECAY).add_(sums, alpha=1 - DECAY)
        self.codewords = self.sums / self.counts[:, None]  # a new tensor: the old one is still needed for the gradient
        used = counts > 0
        self.idle.copy_(torch.where(used, 0, self.idle + 1))
        dead, alive = (self.idle >= IDLE_STEPS).nonzero().flatten(), used.nonzero().flatten()
        if len(dead):
            chosen = alive[torch.randint(len(alive), (len(dead),), generator=generator).to(alive.device)]
            # With the mass and the sum of a fresh one: else what it was before would draw it back at once.
            self.codewords[dead] = self.sums[dead] = self.codewords[chosen]
            self.counts[dead], self.idle[dead] = 1.0, 0
        self.in_use = int(used.sum())
        return self.in_use


def unit(vectors_BD: Tensor) -> Tensor:
    """Of length 1."""
    return F.normalize(vectors_BD, dim=-1)

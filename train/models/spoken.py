"""Clips and spoken captions: the encoders that CMCM has on S-MiT and Places (its section 4.1, Table 3 and appendix B)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ...storage.feature_store import FeatureStore
from ...storage.records import Caption
from ..data.pairs import pad_rows
from .audio import AudioEncoder
from .gated import GatedEmbedding
from .transformer import TextTokens, VideoTokens, autocast, masked_mean

WIDTH = 1024
"""Of the audio encoder's tokens."""
ROWS_OF_TOKEN = 16
DYNAMIC_RANGE = 80.0
"""In dB: what is quieter than a recording's loudest value by more is as quiet, as in the family of code that CMCM stands on."""


class Recordings:
    """Spoken captions as the audio encoder takes them: rows of 10 ms of their recordings, the loudest value of each at 0 dB."""

    def __init__(self, store: FeatureStore, max_tokens: int) -> None:
        self.store, self.max_rows = store, ROWS_OF_TOKEN * max_tokens

    def __call__(self, captions: Sequence[Caption]) -> dict[str, Tensor]:
        found = self.store.get_clips([(caption.recording, None, None) for caption in captions])
        rows = [_levelled(recording.features[: self.max_rows]) for recording in found]
        rows_BTD, mask_BT = pad_rows(rows, self.store.profile.dimension)
        return {"rows_BTD": rows_BTD, "mask_BT": mask_BT}

    def save(self, folder: Path) -> None:
        """Nothing: the recordings stay in their store."""


def _levelled(rows_TD: np.ndarray) -> np.ndarray:
    return np.maximum(rows_TD - rows_TD.max(initial=-np.inf), -DYNAMIC_RANGE) if len(rows_TD) else rows_TD


@dataclass(frozen=True)
class SpokenTokens(TextTokens):
    """Of 160 ms each; no token is of more interest than another."""

    summary_BD: Tensor | None = None

    @property
    def sentence_BD(self) -> Tensor:
        """f_high of Table 3."""
        return self.summary_BD


@dataclass(frozen=True)
class SeenTokens(VideoTokens):
    summary_BD: Tensor | None = None

    @property
    def mean_BD(self) -> Tensor:
        """f_high of Table 3."""
        return self.summary_BD


class SpokenPair(nn.Module):
    """Table 3's encoders for clips, or pictures, and recordings. f_fine: a linear layer on the features' rows, and the residual network;
    f_high: "Max Pooling + GLU" of clips, and "Avg. Pooling + GLU" of still pictures (Places) and of recordings.
    """

    fusion = None

    def __init__(self, feature_dim: int, *, still: bool = False) -> None:
        super().__init__()
        self.still = still
        self.register_buffer("feature_mean", torch.zeros(feature_dim))
        self.register_buffer("feature_std", torch.ones(feature_dim))
        self.project, self.audio = nn.Linear(feature_dim, WIDTH), AudioEncoder()
        self.seen_summary, self.spoken_summary = GatedEmbedding(WIDTH, WIDTH), GatedEmbedding(WIDTH, WIDTH)
        self.width, self.in_bfloat16 = WIDTH, False
        self.queries: nn.Module | None = None
        self.codebook: nn.Module | None = None
        self.head: nn.Module | None = None

    def set_precision(self, precision: str) -> None:
        """``bf16``: the encoders compute in bfloat16 while training."""
        self.in_bfloat16 = precision == "bf16"

    def compile_layers(self) -> None:
        self.audio.compile(dynamic=True)

    def encode_videos(self, features_BMF: Tensor, mask_BM: Tensor) -> SeenTokens:
        with autocast(self, mask_BM.device):
            tokens_BMD = self.project((features_BMF - self.feature_mean) / self.feature_std)
            if self.still:
                pooled_BD = masked_mean(tokens_BMD, mask_BM)
            else:
                pooled_BD = tokens_BMD.masked_fill(~mask_BM[:, :, None], -torch.inf).amax(dim=1)
            summary_BD = self.seen_summary(pooled_BD)
        return SeenTokens(tokens_BMD.to(self.feature_mean.dtype), mask_BM, summary_BD.to(self.feature_mean.dtype))

    def encode_texts(self, rows_BTD: Tensor, mask_BT: Tensor) -> SpokenTokens:
        with autocast(self, mask_BT.device):
            tokens_BLD, mask_BL = self.audio(rows_BTD, mask_BT)
            summary_BD = self.spoken_summary(masked_mean(tokens_BLD, mask_BL))
        kind = self.feature_mean.dtype
        nothing_BL = torch.zeros_like(mask_BL, dtype=kind)
        return SpokenTokens(tokens_BLD.to(kind), mask_BL, nothing_BL, None, summary_BD.to(kind))

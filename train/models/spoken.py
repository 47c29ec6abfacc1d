"""CMCM's encoders of clips and spoken captions, for S-MiT and Places (section 4.1, Table 3 and appendix B)."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from ..data.text_inputs import RecordingInputs
from ..settings import ENCODERS, EncoderTraits, ModelSettings
from .audio import AudioEncoder
from .base import MakeModules, ModelPlan, PairModel, no_modules
from .gated import GatedEmbedding, GatedLinearUnit
from .tokens import TextTokens, TokenSizes, VideoTokens, masked_mean

if TYPE_CHECKING:
    from typing_extensions import Self

WIDTH = 1024
"""Width of the audio encoder's tokens."""


@dataclass(frozen=True)
class SpokenTokens(TextTokens):
    """Encoded recordings: a token for every 160 ms, and no tokens of interest."""

    summary_BD: Tensor = field(kw_only=True)

    @property
    def sentence_BD(self) -> Tensor:
        """The summary of each recording, f_high of Table 3."""
        return self.summary_BD


@dataclass(frozen=True)
class SeenTokens(VideoTokens):
    """Encoded clips or still images."""

    summary_BD: Tensor = field(kw_only=True)

    @property
    def mean_BD(self) -> Tensor:
        """The summary of each clip, f_high of Table 3."""
        return self.summary_BD


class SpokenPair(PairModel):
    """Table 3's encoders of clips or still images, and of recordings.

    f_fine is the standardised feature vectors, and the residual network's output for a recording. f_high is "Max
    Pooling + GLU" of clips, and "Avg. Pooling + GLU" of still images (Places) and of recordings. If ``glu_size``
    is 0, the model is as in earlier versions: a linear layer on the rows, and another gate.
    """

    traits: ClassVar[EncoderTraits] = ENCODERS["spoken"]

    def __init__(
        self, feature_dim: int, *, glu_size: int = 0, still: bool = False, make_modules: MakeModules = no_modules
    ) -> None:
        """Make new encoders.

        Args:
            feature_dim: Width of a row of features.
            glu_size: Width of the vectors of clips and recordings; 0: as in earlier versions.
            still: The videos are still images.
            make_modules: Makes the objective's modules.
        """
        super().__init__(glu_size or WIDTH, standardised_dim=feature_dim)
        self.still, self.project = still, None
        if glu_size:
            self.sizes = TokenSizes(glu_size, text=WIDTH, video=feature_dim)
            self.audio = AudioEncoder()
            self.seen_summary = GatedLinearUnit(feature_dim, glu_size)
            self.spoken_summary = GatedLinearUnit(WIDTH, glu_size)
        else:
            self.project, self.audio = nn.Linear(feature_dim, WIDTH), AudioEncoder()
            self.seen_summary, self.spoken_summary = GatedEmbedding(WIDTH, WIDTH), GatedEmbedding(WIDTH, WIDTH)
        self.add(make_modules)

    @classmethod
    def from_settings(cls, settings: ModelSettings, plan: ModelPlan) -> "Self":
        """Return a model with new encoders."""
        assert isinstance(plan.text_inputs, RecordingInputs)
        return cls(plan.feature_dim, glu_size=settings.glu_size, still=plan.still, make_modules=plan.make_modules)

    def compile_layers(self) -> None:
        """Compile the audio encoder with torch.compile."""
        self.audio.compile_layers()

    def encode_videos(self, features_BMF: Tensor, mask_BM: Tensor, lengths_B: Tensor | None = None) -> SeenTokens:
        """Encode clips; see ``PairModel.encode_videos``."""
        with self.autocast(mask_BM.device):
            tokens_BMD = self.standardised(features_BMF)
            if self.project is not None:
                tokens_BMD = self.project(tokens_BMD)
            if self.still:
                pooled_BD = masked_mean(tokens_BMD, mask_BM)
            else:
                pooled_BD = tokens_BMD.masked_fill(~mask_BM[:, :, None], -torch.inf).amax(dim=1)
            summary_BD = self.seen_summary(pooled_BD)
        return SeenTokens(
            tokens_BMD.to(self.feature_mean.dtype),
            mask_BM,
            lengths_B=lengths_B,
            summary_BD=summary_BD.to(self.feature_mean.dtype),
        )

    def encode_texts(self, inputs: dict[str, Tensor]) -> SpokenTokens:
        """Encode recordings from their log-mel rows ``rows_BTD`` [B, T, D] and ``mask_BT``, True for a row."""
        rows_BTD, mask_BT, kind = inputs["rows_BTD"], inputs["mask_BT"], self.feature_mean.dtype
        with self.autocast(mask_BT.device):
            tokens_BLD, mask_BL, lengths_B = self.audio(rows_BTD.to(kind), mask_BT, inputs.get("lengths_B"))
            summary_BD = self.spoken_summary(masked_mean(tokens_BLD, mask_BL))
        nothing_BL = torch.zeros_like(mask_BL, dtype=kind)
        return SpokenTokens(
            tokens_BLD.to(kind), mask_BL, nothing_BL, lengths_B=lengths_B, summary_BD=summary_BD.to(kind)
        )

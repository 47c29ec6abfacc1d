"""The architecture of Support-Set Bottlenecks as NCL's Appendix C describes it: T5 and a CNN, an RNN, and pooling.

The appendix names the parts without their sizes: "SSB applies CNN and RNN networks on its text and visual features,
respectively, followed by transformer pooling layers". Here each is one layer as wide as the text encoder. Letters: B
clips or captions, M rows, N subwords, L of either, F width of a row, D width of the text encoder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.text_inputs import SubwordInputs
from ..settings import ENCODERS, EncoderTraits, ModelSettings
from .base import MakeModules, ModelPlan, PairModel, no_modules
from .layers import Compiled, SelfAttentionLayer, by_length, new_layers
from .tokens import TextTokens, VideoTokens, lengths_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from typing_extensions import Self

    from ..data.text_towers import TextTower

KERNEL = 3
"""Subwords that the convolution sees at once."""


class TransformerPool(nn.Module):
    """A learned token that attends to a sequence in a self-attention layer; its output represents the sequence."""

    def __init__(self, text_encoder: PreTrainedModel | TextTower, dropout: float) -> None:
        """Make a new layer with the text encoder's width and number of heads."""
        super().__init__()
        self.token = nn.Parameter(0.02 * torch.randn(text_encoder.config.hidden_size))
        [self.layer] = new_layers(text_encoder, 1, dropout)

    def forward(self, x_BLD: Tensor, mask_BL: Tensor) -> Tensor:
        """Return a vector of each sequence [B, D]. ``mask_BL``: True for a token, False for padding."""
        first_B1D = self.token.to(x_BLD.dtype).expand(len(x_BLD), 1, -1)
        mask_BL = F.pad(mask_BL, (1, 0), value=True)
        return self.layer(torch.cat([first_B1D, x_BLD], dim=1), mask_BL, 1)[:, 0]


class SupportSetPair(PairModel):
    """SSB's encoders: each clip and each caption becomes one vector, and so one token."""

    compiled_texts: Compiled | None = None

    traits: ClassVar[EncoderTraits] = ENCODERS["ssb"]

    def __init__(
        self,
        feature_dim: int,
        text_encoder: PreTrainedModel | TextTower,
        *,
        dropout: float = 0.0,
        make_modules: MakeModules = no_modules,
    ) -> None:
        """Make a model with a given text encoder and new layers.

        Args:
            feature_dim: Width of a row of features.
            text_encoder: T5's encoder, another BERT-like model, or a text tower.
            dropout: Dropout rate of rows, subwords and pooling layers; the text encoder has its own.
            make_modules: Makes the objective's modules.
        """
        width = text_encoder.config.hidden_size
        super().__init__(width, standardised_dim=feature_dim)
        self.text_encoder = text_encoder
        self.cnn = nn.Conv1d(width, width, KERNEL, padding=KERNEL // 2)
        self.rnn = nn.GRU(feature_dim, width)
        self.dropout = nn.Dropout(dropout)
        self.text_pool, self.video_pool = TransformerPool(text_encoder, dropout), TransformerPool(text_encoder, dropout)
        self.add(make_modules)

    @classmethod
    def from_settings(cls, settings: ModelSettings, plan: ModelPlan) -> Self:
        """Return a model with new layers."""
        assert isinstance(plan.text_inputs, SubwordInputs)
        return cls(plan.feature_dim, plan.text_inputs.encoder, dropout=settings.dropout, make_modules=plan.make_modules)

    def compile_layers(self) -> None:
        """Compile the text encoder and the pooling layers with torch.compile, for any length."""
        self.compiled_texts = Compiled(self._hidden_states)
        for layer in self.modules():
            if isinstance(layer, SelfAttentionLayer):
                layer.compile_steps()

    def encode_videos(self, features_BMF: Tensor, mask_BM: Tensor, lengths_B: Tensor | None = None) -> VideoTokens:
        """Encode clips; see ``PairModel.encode_videos``. Values at padding have no influence."""
        x_BMF = self.standardised(features_BMF).masked_fill(~mask_BM[:, :, None], 0.0)
        # The RNN goes forward in time and padding comes last, so padding does not affect the states of rows. It runs in
        # float32: autocast casts a GRU's input but, on some devices, not its weights.
        states_MBD, _ = self.rnn(self.dropout(x_BMF).transpose(0, 1))
        with self.autocast(mask_BM.device):
            clips_BD = self.video_pool(states_MBD.transpose(0, 1), mask_BM)
        return VideoTokens(*_one_token(clips_BD.to(x_BMF.dtype)))

    def encode_texts(self, inputs: dict[str, Tensor]) -> TextTokens:
        """Encode captions from the ids of their subwords ``input_ids`` [B, N] and ``attention_mask``."""
        input_ids, mask_BN, kind = inputs["input_ids"], inputs["attention_mask"].bool(), self.feature_mean.dtype

        def run(rows: Tensor, length: int, mask: Tensor | None) -> tuple[Tensor, ...]:
            ids = input_ids[rows, :length]
            with self.autocast(ids.device):
                return ((self.compiled_texts or self._hidden_states)(ids, mask).to(kind),)

        # 0 at padding, like the convolution's own padding: a caption's result is the same with and without padding.
        [tokens_BND] = by_length(mask_BN, lengths_of(mask_BN, inputs.get("lengths_B")), run)
        with self.autocast(mask_BN.device):
            convolved_BND = F.relu(self.cnn(self.dropout(tokens_BND).transpose(1, 2))).transpose(1, 2)
            texts_BD = self.text_pool(convolved_BND, mask_BN).to(kind)
        tokens_B1D, mask_B1 = _one_token(texts_BD)
        return TextTokens(tokens_B1D, mask_B1, torch.zeros_like(mask_B1, dtype=kind))

    def _hidden_states(self, ids_PL: Tensor, mask_PL: Tensor | None) -> Tensor:
        """Return the text encoder's output [P, L, D]."""
        return self.text_encoder(input_ids=ids_PL, attention_mask=mask_PL).last_hidden_state


def _one_token(vectors_BD: Tensor) -> tuple[Tensor, Tensor]:
    """Return vectors as sequences of one token, and their mask."""
    return vectors_BD[:, None], torch.ones(len(vectors_BD), 1, dtype=torch.bool, device=vectors_BD.device)

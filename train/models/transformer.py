"""TACo's encoders (section 3.1), with ToCo's heads on the fusion layers (its section 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from ..data.text_inputs import SubwordInputs
from ..settings import ADDITIONS, ENCODERS, MAX_TOKENS, EncoderTraits, ModelSettings
from .base import MakeModules, ModelPlan, PairModel, no_modules
from .fusion import Fusion, TokenBank
from .layers import Compiled, SelfAttentionLayer, by_length, new_layers
from .masked_words import MaskedWordHead
from .tokens import TextTokens, VideoTokens, lengths_of, pooled_texts

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from typing_extensions import Self

    from ..data.text_towers import TextTower


def subword_tokens(
    inputs: dict[str, Tensor], encode: Callable[[Tensor, Tensor | None], tuple[Tensor, ...]], pooling: str
) -> TextTokens:
    """Return the tokens of captions, which are encoded in groups of similar length.

    Args:
        inputs: ``input_ids``, ``attention_mask`` and ``token_weights``, each [B, N].
        encode: Encodes ids [P, L] with a mask (None: no padding) as tokens [P, L, D] and, optionally, their types.
        pooling: Which vector represents a text, as in ``tokens.pooled_texts``.
    """
    input_ids, mask_BN = inputs["input_ids"], inputs["attention_mask"].bool()
    lengths_B = lengths_of(mask_BN, inputs.get("lengths_B"))
    tokens_BND, *types = by_length(
        mask_BN, lengths_B, lambda rows, length, mask: encode(input_ids[rows, :length], mask)
    )
    return TextTokens(
        tokens_BND,
        mask_BN,
        inputs["token_weights"],
        *types,
        lengths_B=lengths_B,
        num_of_interest_B=inputs.get("num_of_interest_B"),
        whole_BD=pooled_texts(tokens_BND, mask_BN, lengths_B, pooling),
    )


class VideoTextModel(PairModel):
    """TACo's model (section 3.1): video and text tokens with the width of the text encoder, and fusion scores of pairs.

    Each of ``settings.ADDITIONS`` may be added to it. With "standardise", the features' mean and deviation and the
    linear layer form one affine map, which is well scaled at the start for any extractor.
    """

    compiled_texts: Compiled | None = None

    traits: ClassVar[EncoderTraits] = ENCODERS["transformer"]

    def __init__(
        self,
        feature_dim: int,
        text_encoder: PreTrainedModel | TextTower,
        *,
        num_video_layers: int,
        num_fusion_layers: int | None,
        dropout: float,
        additions: Collection[str] = frozenset(ADDITIONS),
        token_head: bool = False,
        masked_words: MaskedWordHead | None = None,
        reads_texts: bool = True,
        pooling: str = "cls",
        make_modules: MakeModules = no_modules,
    ) -> None:
        """Make a model with a given text encoder and new layers.

        Args:
            feature_dim: Width of a row of features.
            text_encoder: A BERT-like model, T5's encoder, or a text tower.
            num_video_layers: Number of self-attention layers over a clip's rows, 0 or more.
            num_fusion_layers: Number of fusion layers; None for no fusion module.
            dropout: Dropout rate of the new layers.
            additions: Keys of ``settings.ADDITIONS``.
            token_head: Use ToCo's heads of the fusion module.
            masked_words: Head that predicts masked subwords, used with ToCo's head for pairs.
            reads_texts: Train the text encoder.
            pooling: Which vector represents a text, as in ``tokens.pooled_texts``.
            make_modules: Makes the objective's modules.
        """
        from ..data.text_towers import TextTower  # transformers takes seconds to import

        width = text_encoder.config.hidden_size
        super().__init__(width, standardised_dim=feature_dim if "standardise" in additions else None)
        self.text_encoder = text_encoder
        self.project = nn.Linear(feature_dim, width)
        if isinstance(text_encoder, TextTower) and feature_dim == width:  # both towers of CLIP share a space
            nn.init.eye_(self.project.weight)
            nn.init.zeros_(self.project.bias)
        self.positions = nn.Parameter(0.02 * torch.randn(MAX_TOKENS, width)) if "positions" in additions else None
        self.dropout = nn.Dropout(dropout if "norm" in additions else 0.0)
        self.video_layers = new_layers(text_encoder, num_video_layers, dropout)
        if num_fusion_layers is not None:
            self.fusion = Fusion(
                text_encoder,
                num_fusion_layers,
                dropout,
                token_head=token_head,
                perceptron=masked_words is not None,
                normalised="norm" in additions,
            )
        self.masked_words = masked_words
        self.token_head, self.pooling = token_head, pooling
        self.scale = width**-0.25 if "scale" in additions else 1.0
        """Multiplies all tokens. Dot products of two vectors scaled by it grow like sqrt(width), as in attention, and
        start near 1."""
        self.add(make_modules)
        if not reads_texts:
            self.text_encoder.requires_grad_(False)

    @classmethod
    def from_settings(cls, settings: ModelSettings, plan: ModelPlan) -> Self:
        """Return a model with new layers."""
        assert isinstance(plan.text_inputs, SubwordInputs)
        encoder, masked_words = plan.text_inputs.encoder, None
        if plan.masks_words:
            masked_words = MaskedWordHead.for_encoder(encoder, plan.text_inputs.tokenizer, settings.text_encoder)
        return cls(
            plan.feature_dim,
            encoder,
            num_video_layers=settings.num_video_layers,
            num_fusion_layers=settings.num_fusion_layers if plan.has_fusion else None,
            dropout=settings.dropout,
            additions=settings.added,
            token_head=plan.has_token_head,
            masked_words=masked_words,
            reads_texts=plan.reads_texts,
            pooling=plan.text_inputs.pooling.method,
            make_modules=plan.make_modules,
        )

    def compile_layers(self) -> None:
        """Compile the text encoder and all self-attention layers with torch.compile, for any length.

        With a token head, the text encoder is not compiled: transformers takes a lock to return the first hidden
        states, which torch.compile does not support.
        """
        if not self.token_head:
            self.compiled_texts = Compiled(self._hidden_states)
        for layer in self.modules():
            if isinstance(layer, SelfAttentionLayer):
                layer.compile_steps()

    def encode_videos(self, features_BMF: Tensor, mask_BM: Tensor, lengths_B: Tensor | None = None) -> VideoTokens:
        """Encode clips; see ``PairModel.encode_videos``. Values at padding have no influence."""

        kind = self.project.weight.dtype

        def run(rows: Tensor, length: int, mask: Tensor | None) -> tuple[Tensor, ...]:
            features = features_BMF[rows, :length]
            features = self.standardised(features) if self.standardises else features.to(kind)
            with self.autocast(features_BMF.device):
                x = self.dropout(self.project(features))
                if self.positions is not None:
                    x = x + self.positions[:length]
                for layer in self.video_layers:
                    x = layer(x, mask)
            return (x.to(kind) * self.scale,)

        lengths_B = lengths_of(mask_BM, lengths_B)
        [tokens_BMD] = by_length(mask_BM, lengths_B, run)
        return VideoTokens(tokens_BMD, mask_BM, lengths_B=lengths_B)

    def encode_texts(self, inputs: dict[str, Tensor]) -> TextTokens:
        """Encode captions from ``input_ids``, ``attention_mask`` and ``token_weights``, each [B, N]."""

        def encode(ids_PL: Tensor, mask_PL: Tensor | None) -> tuple[Tensor, ...]:
            with self.autocast(ids_PL.device):
                last, *first = (self.compiled_texts or self._hidden_states)(ids_PL, mask_PL)
            kind = self.project.weight.dtype
            return (last.to(kind) * self.scale, *(x.to(kind) for x in first))

        return subword_tokens(inputs, encode, self.pooling)

    def _hidden_states(self, ids_PL: Tensor, mask_PL: Tensor | None) -> tuple[Tensor, ...]:
        """Return the text encoder's output [P, L, D] and, for a token head, the input of its first layer."""
        out = self.text_encoder(input_ids=ids_PL, attention_mask=mask_PL, output_hidden_states=self.token_head)
        # ToCo 4.2: "outputs of the embedding layer"
        return (out.last_hidden_state, out.hidden_states[0]) if self.token_head else (out.last_hidden_state,)

    def token_bank(self, texts: TextTokens, videos: VideoTokens, max_text_tokens: int) -> TokenBank:
        """Return the tokens that the fusion layers take pairs from, as they were before scaling for dot products.

        Raises:
            TypeError: The model has no fusion layers.
        """
        if self.fusion is None:
            return super().token_bank(texts, videos, max_text_tokens)
        texts = replace(texts, tokens_BND=texts.tokens_BND / self.scale)
        videos = replace(videos, tokens_BMD=videos.tokens_BMD / self.scale)
        return self.fusion.bank(texts, videos, max_text_tokens)

    def word_logits(self, outputs_KD: Tensor) -> Tensor:
        """Return the logits of the vocabulary; see ``PairModel.word_logits``."""
        if self.masked_words is None:
            return super().word_logits(outputs_KD)
        return self.masked_words(outputs_KD, self.text_encoder)

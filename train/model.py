"""The model: TACo's two encoders (section 3.1) and their scores."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .losses import token_similarity


@dataclass(frozen=True)
class VideoTokens:
    tokens_BMD: Tensor
    mask_BM: Tensor
    """True where there is a token."""

    @property
    def mean_BD(self) -> Tensor:
        """x-bar of TACo section 3.3: the average of a video's tokens."""
        weights_BM1 = self.mask_BM[:, :, None].to(self.tokens_BMD.dtype)
        return (self.tokens_BMD * weights_BM1).sum(dim=1) / weights_BM1.sum(dim=1)


@dataclass(frozen=True)
class TextTokens:
    tokens_BND: Tensor
    weights_BN: Tensor
    """Normalised idf of the tokens of interest, 0 elsewhere."""

    @property
    def sentence_BD(self) -> Tensor:
        """y-bar of TACo section 3.3: the [CLS] token."""
        return self.tokens_BND[:, 0]


class VideoTextModel(nn.Module):
    """Features -> video tokens, captions -> text tokens, as wide as the text encoder.

    The features are standardised with the training clips' mean and deviation before the linear projection: together still one
    affine map, but one that starts out well scaled whatever extractor made the features.
    """

    def __init__(self, feature_dim: int, text_encoder: PreTrainedModel, *, max_video_tokens: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        width = text_encoder.config.hidden_size
        self.text_encoder = text_encoder
        self.register_buffer("feature_mean", torch.zeros(feature_dim))
        self.register_buffer("feature_std", torch.ones(feature_dim))
        self.project = nn.Linear(feature_dim, width)
        self.positions = nn.Parameter(0.02 * torch.randn(max_video_tokens, width))
        self.dropout = nn.Dropout(dropout)
        heads = text_encoder.config.num_attention_heads
        self.video_layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, activation="gelu", batch_first=True) for _ in range(num_layers)
        )
        self.scale = width**-0.25
        """Dot products of two vectors scaled by it grow like sqrt(width), as in attention, and start near 1."""

    def encode_videos(self, features_BMF: Tensor, mask_BM: Tensor) -> VideoTokens:
        """``mask_BM``: True where there is a feature. What stands in padded rows has no influence."""
        standardised = (features_BMF - self.feature_mean) / self.feature_std
        x = self.dropout(self.project(standardised)) + self.positions[: features_BMF.shape[1]]
        for layer in self.video_layers:
            x = layer(x, src_key_padding_mask=~mask_BM)
        return VideoTokens(x * self.scale, mask_BM)

    def encode_texts(self, input_ids: Tensor, attention_mask: Tensor, token_weights: Tensor) -> TextTokens:
        tokens_BND = self.text_encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return TextTokens(tokens_BND * self.scale, token_weights)

    @staticmethod
    def score(texts: TextTokens, videos: VideoTokens, token_weight: float) -> Tensor:
        """[num_texts, num_videos]: the sentence score and, times ``token_weight``, the tokens' (0.5 in TACo, Figure 3)."""
        sentence = texts.sentence_BD @ videos.mean_BD.T
        token_CNB = token_similarity(videos.tokens_BMD, videos.mask_BM, texts.tokens_BND)
        return sentence + token_weight * torch.einsum("cn,cnb->cb", texts.weights_BN, token_CNB)

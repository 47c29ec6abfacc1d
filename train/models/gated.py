"""SSML's gated embeddings (section 5.1), HowTo100M's model, and SSML's head for questions.

All encode a clip and a caption as one vector each.
"""

from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.text_inputs import WordVectorInputs
from ..settings import ENCODERS, EncoderTraits, ModelSettings
from .base import MakeModules, ModelPlan, PairModel, no_modules
from .tokens import TextTokens, VideoTokens

if TYPE_CHECKING:
    from typing_extensions import Self


class GatedEmbedding(nn.Module):
    """(W1 x + b1) o sigmoid(W2 (W1 x + b1) + b2), SSML section 5.1."""

    def __init__(self, from_width: int, to_width: int) -> None:
        super().__init__()
        self.embed, self.gate = nn.Linear(from_width, to_width), nn.Linear(to_width, to_width)

    def forward(self, x: Tensor) -> Tensor:
        """Embed vectors, [..., from_width] -> [..., to_width]."""
        embedded = self.embed(x)
        return embedded * torch.sigmoid(self.gate(embedded))


class GatedLinearUnit(nn.Module):
    """(x W + b) o sigmoid(x V + c), Dauphin et al. 2017; the GLU of CMCM's Table 3."""

    def __init__(self, from_width: int, to_width: int) -> None:
        super().__init__()
        self.embed, self.gate = nn.Linear(from_width, to_width), nn.Linear(from_width, to_width)

    def forward(self, x: Tensor) -> Tensor:
        """Embed vectors, [..., from_width] -> [..., to_width]."""
        return self.embed(x) * torch.sigmoid(self.gate(x))


class WordMaximum(nn.Module):
    """max over a caption's words of ReLU(W x + b): the sentence pooling of HowTo100M's published code."""

    def __init__(self, from_width: int, to_width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(from_width, to_width)

    def forward(self, x: Tensor) -> Tensor:
        """Pool the vectors of words, [..., N, from_width] -> [..., to_width]."""
        return F.relu(self.embed(x).amax(dim=-2))  # ReLU is monotonic, so it is applied to the maximum only


class GatedPair(PairModel):
    """SSML's encoders of a clip's pooled features and a caption's averaged word vectors.

    Both are single vectors, so each clip and each caption is encoded as one token.
    """

    traits: ClassVar[EncoderTraits] = ENCODERS["gated"]

    def __init__(self, feature_dim: int, word_dim: int, width: int, *, make_modules: MakeModules = no_modules) -> None:
        """Make new encoders.

        Args:
            feature_dim: Width of a clip's pooled features.
            word_dim: Width of the word vectors.
            width: Width of the embeddings.
            make_modules: Makes the objective's modules.
        """
        super().__init__(width)
        self.video, self.text = GatedEmbedding(feature_dim, width), self._make_text_encoder(word_dim, width)
        self.add(make_modules)

    def _make_text_encoder(self, word_dim: int, width: int) -> nn.Module:
        return GatedEmbedding(word_dim, width)

    @classmethod
    def from_settings(cls, settings: ModelSettings, plan: ModelPlan) -> "Self":
        """Return a model with new embeddings."""
        assert isinstance(plan.text_inputs, WordVectorInputs)
        width = plan.text_inputs.width
        return cls(plan.feature_dim, width, settings.embedding_size, make_modules=plan.make_modules)

    def compile_layers(self) -> None:
        """Compile both embeddings with torch.compile."""
        self.video.compile(dynamic=True)
        self.text.compile(dynamic=True)

    def encode_videos(self, features_BMF: Tensor, mask_BM: Tensor, lengths_B: Tensor | None = None) -> VideoTokens:
        """Encode clips of one row each (M = 1)."""
        return VideoTokens(self._embed(self.video, features_BMF), mask_BM, lengths_B=lengths_B)

    def encode_texts(self, inputs: dict[str, Tensor]) -> TextTokens:
        """Encode captions from their averaged word ``vectors`` [B, W], or from each word's vector [B, N, W]."""
        vectors = inputs["vectors"]
        mask_B1 = torch.ones(len(vectors), 1, dtype=torch.bool, device=vectors.device)
        return TextTokens(
            self._embed(self.text, vectors[:, None]), mask_B1, torch.zeros_like(mask_B1, dtype=vectors.dtype)
        )

    def _embed(self, layer: nn.Module, x: Tensor) -> Tensor:
        with self.autocast(x.device):
            embedded = layer(x)
        return embedded.to(x.dtype)


class HtmPair(GatedPair):
    """HowTo100M's model (Miech et al. 2019), as in its published code, with the width 6144 of SSML section 5.1.

    A caption's words pass a linear layer and ReLU; their maximum passes a gated embedding: 300 -> 6144 -> 6144.
    """

    traits: ClassVar[EncoderTraits] = ENCODERS["htm"]

    def _make_text_encoder(self, word_dim: int, width: int) -> nn.Module:
        return nn.Sequential(WordMaximum(word_dim, width), GatedEmbedding(width, width))


def l2_normalize(vectors_BD: Tensor) -> Tensor:
    """Scale vectors to length 1."""
    return F.normalize(vectors_BD, dim=-1)


class AnswerHead(nn.Module):
    """SSML section 5.2: "two more sets of embeddings on top of the pre-trained embeddings".

    One embeds a question and a video together, the other an answer. All embeddings have length 1. Answers are texts
    like questions. ``blind_questions`` and ``blind_answers`` do the same without the video: a baseline that is
    trained alongside and does not change the encoders.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.asked, self.answer = GatedEmbedding(2 * width, width), GatedEmbedding(width, width)
        self.blind_asked, self.blind_answer = GatedEmbedding(width, width), GatedEmbedding(width, width)

    def questions(self, text_BD: Tensor, video_BD: Tensor) -> Tensor:
        """Embed questions about videos, [B, D]."""
        return l2_normalize(self.asked(torch.cat([l2_normalize(text_BD), l2_normalize(video_BD)], dim=-1)))

    def answers(self, text_AD: Tensor) -> Tensor:
        """Embed answers, [A, D]."""
        return l2_normalize(self.answer(l2_normalize(text_AD)))

    def blind_questions(self, text_BD: Tensor) -> Tensor:
        """Embed questions without their videos, [B, D]."""
        return l2_normalize(self.blind_asked(l2_normalize(text_BD.detach())))

    def blind_answers(self, text_AD: Tensor) -> Tensor:
        """Embed answers for ``blind_questions``, [A, D]."""
        return l2_normalize(self.blind_answer(l2_normalize(text_AD.detach())))

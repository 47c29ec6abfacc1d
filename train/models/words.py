"""Encoders of bags of words and rows: a vector and a weight for each word, and linear layers on rows."""

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.text_inputs import WordIdInputs
from ..settings import ENCODERS, EncoderTraits, ModelSettings
from .base import MakeModules, ModelPlan, PairModel, no_modules
from .tokens import TextTokens, VideoTokens, masked_mean

if TYPE_CHECKING:
    from typing_extensions import Self

WIDTH = 256
"""Width of the vectors that are compared."""
FIRST_SCALE, FIRST_SHARPNESS = 15.0, 10.0
MIN_IDF = 0.3
"""Words of nearly every caption begin with this weight."""


class WordPair(PairModel):
    """A model whose texts are bags of words, and whose videos are bags of rows.

    Each word has two vectors: one is compared with a whole clip after the caption's words are added up, the other with
    each row. It also has a weight, which begins as the word's idf. A text's tokens are the two vectors side by side.
    """

    traits: ClassVar[EncoderTraits] = ENCODERS["words"]

    def __init__(
        self,
        feature_dim: int,
        num_words: int,
        *,
        idf: np.ndarray | None = None,
        dropout: float = 0.0,
        make_modules: MakeModules = no_modules,
    ) -> None:
        """Make new encoders.

        Args:
            feature_dim: Width of the video features.
            num_words: Size of the vocabulary.
            idf: Inverse document frequency of each word, with which its weight begins; None: 1 for all.
            dropout: Rate at which a clip's features are dropped while training, each in all rows.
            make_modules: Makes the objective's modules.
        """
        super().__init__(2 * WIDTH, standardised_dim=feature_dim)
        self.words = nn.Embedding(num_words, 2 * WIDTH)
        nn.init.normal_(self.words.weight, std=WIDTH**-0.5)
        if idf is None:
            first = torch.full((num_words,), math.log(math.expm1(1)))
        else:
            first = torch.log(torch.expm1(torch.from_numpy(idf).float().clamp(min=MIN_IDF)))
        self.word_weights = nn.Parameter(first)
        self.rows, self.clip = nn.Linear(feature_dim, WIDTH), nn.Linear(2 * feature_dim, WIDTH)
        self.dropout = dropout
        self.log_bag_scale = nn.Parameter(torch.tensor(math.log(FIRST_SCALE)))
        self.log_word_scale = nn.Parameter(torch.tensor(math.log(FIRST_SCALE)))
        self.log_sharpness = nn.Parameter(torch.tensor(math.log(FIRST_SHARPNESS)))
        self.add(make_modules)

    @classmethod
    def from_settings(cls, settings: ModelSettings, plan: ModelPlan) -> "Self":
        """Return a model with new encoders."""
        texts = plan.text_inputs
        assert isinstance(texts, WordIdInputs)
        return cls(
            plan.feature_dim,
            len(texts.words),
            idf=texts.idf,
            dropout=settings.dropout,
            make_modules=plan.make_modules,
        )

    def compile_layers(self) -> None:
        """Compile the linear layers with torch.compile."""
        self.rows.compile(dynamic=True)
        self.clip.compile(dynamic=True)

    def encode_videos(self, features_BMF: Tensor, mask_BM: Tensor, lengths_B: Tensor | None = None) -> VideoTokens:
        """Encode clips: a token for each row, and a vector of the mean and the maximum of all rows."""
        x_BMF = self.standardised(features_BMF)
        if self.training and self.dropout:
            x_BMF = x_BMF * F.dropout(x_BMF.new_ones(len(x_BMF), 1, x_BMF.shape[2]), self.dropout)
        mean_BF = masked_mean(x_BMF, mask_BM)
        max_BF = x_BMF.masked_fill(~mask_BM[:, :, None], float("-inf")).amax(dim=1)
        with self.autocast(features_BMF.device):
            rows_BMD, clip_BD = self.rows(x_BMF), self.clip(torch.cat([mean_BF, max_BF], dim=1))
        return VideoTokens(rows_BMD.to(x_BMF.dtype), mask_BM, clip_BD.to(x_BMF.dtype), lengths_B)

    def encode_texts(self, inputs: dict[str, Tensor]) -> TextTokens:
        """Encode captions from the ids of their words ``input_ids`` [B, N] and ``attention_mask``."""
        ids_BN, mask_BN = inputs["input_ids"], inputs["attention_mask"].bool()
        # Not word_weights[ids_BN]: with several threads, the order in which its gradient is summed is left to chance.
        weights_BN = F.softplus(F.embedding(ids_BN, self.word_weights[:, None])[:, :, 0]) * mask_BN
        return TextTokens(self.words(ids_BN), mask_BN, weights_BN, ids_BN=ids_BN, lengths_B=inputs.get("lengths_B"))

"""Encoders of bags of words and rows: a vector and a weight for each word, and linear layers on rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.text_inputs import SubwordInputs, WordIdInputs, WordSentenceInputs
from ..settings import ENCODERS, EncoderTraits, ModelSettings
from .base import MakeModules, ModelPlan, PairModel, no_modules
from .closed_form import LinearVectors, Regression
from .layers import by_length
from .tokens import TextTokens, VideoTokens, masked_mean, pooled_texts
from .word_directions import Whitening

if TYPE_CHECKING:
    from typing_extensions import Self

WIDTH = 256
"""Width of the vectors that are compared."""
FIRST_SCALE, FIRST_SHARPNESS = 15.0, 10.0
MIN_IDF = 0.3
"""Minimum initial weight, for words that are in nearly every caption."""
SENTENCES_AT_ONCE = 256
LEFT_OVER = 0.1
"""Scale of the random numbers in those columns of vectors that no direction sets."""
MAX_SOLVED_WORDS = 8192
"""Maximum number of words whose vectors are solved. Their covariances take two to three times 0.5 GB."""


class SolvedBag(nn.Module):
    """Vectors of captions and of whole clips that are solved, not trained (``closed_form``).

    A caption's words are weighted by TF-IDF; a clip is the mean and the maximum of its standardised rows. A vector has
    a part for words and, with a text encoder, a part for sentences; the parts' shares of a score sum to 1.
    """

    words: Tensor
    caption_bias: Tensor
    clips: Tensor
    clip_bias: Tensor
    idf: Tensor
    sentence_bias: Tensor
    sentence_clips: Tensor
    sentence_clip_bias: Tensor
    sentence_share: Tensor

    def __init__(self, feature_dim: int, num_words: int, sentence_dim: int = 0) -> None:
        """Make vectors of zeros, for ``set_words`` and ``set_sentences``.

        Args:
            feature_dim: Width of the video features.
            num_words: Size of the vocabulary. The most frequent words come first; those after ``MAX_SOLVED_WORDS``
                are ignored.
            sentence_dim: Width of the text encoder's sentence vectors; 0 without one.
        """
        super().__init__()
        num_solved = min(num_words, MAX_SOLVED_WORDS)
        self.register_buffer("words", torch.zeros(num_solved, WIDTH))
        self.register_buffer("caption_bias", torch.zeros(WIDTH))
        self.register_buffer("clips", torch.zeros(2 * feature_dim, WIDTH))
        self.register_buffer("clip_bias", torch.zeros(WIDTH))
        self.register_buffer("idf", torch.ones(num_solved))
        self.has_sentences = sentence_dim > 0
        if self.has_sentences:
            self.register_buffer("sentence_bias", torch.zeros(sentence_dim))
            self.register_buffer("sentence_clips", torch.zeros(2 * feature_dim, sentence_dim))
            self.register_buffer("sentence_clip_bias", torch.zeros(sentence_dim))
            self.register_buffer("sentence_share", torch.tensor(0.0))

    def set_words(self, solved: LinearVectors) -> None:
        """Take the solved vectors of words and clips."""
        self.words.copy_(solved.words_VK)
        self.caption_bias.copy_(solved.caption_bias_K)
        self.clips.copy_(solved.clips_DK)
        self.clip_bias.copy_(solved.clip_bias_K)

    def set_sentences(self, mean_H: Tensor, solved: Regression, share: float) -> None:
        """Set clips' solved sentence vectors, the mean sentence vector of captions, and sentences' share of a score."""
        self.sentence_bias.copy_(-mean_H)
        self.sentence_clips.copy_(solved.weights_DH)
        self.sentence_clip_bias.copy_(solved.bias_H)
        self.sentence_share.fill_(share)

    def word_weights(self, ids_BN: Tensor, mask_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Return word ids [B, N] and their TF-IDF weights, scaled to length 1 in each caption; 0 at padding."""
        is_solved_BN = mask_BN & (ids_BN < len(self.idf))
        ids_BN = torch.where(is_solved_BN, ids_BN, 0)
        return ids_BN, F.normalize(self.idf[ids_BN] * is_solved_BN, dim=1)

    def of_captions(self, ids_BN: Tensor, mask_BN: Tensor, sentences_BH: Tensor | None = None) -> Tensor:
        """Return the vectors of captions, of length 1, from their words and sentence vectors."""
        ids_BN, weights_BN = self.word_weights(ids_BN, mask_BN)
        words_BK = torch.einsum("bn,bnk->bk", weights_BN, self.words[ids_BN]) + self.caption_bias
        return self._joined(words_BK, None if sentences_BH is None else sentences_BH + self.sentence_bias)

    def of_clips(self, x_BD: Tensor) -> Tensor:
        """Return the vectors of clips, of length 1, from the mean and the maximum of their rows."""
        sentences_BH = x_BD @ self.sentence_clips + self.sentence_clip_bias if self.has_sentences else None
        return self._joined(x_BD @ self.clips + self.clip_bias, sentences_BH)

    def _joined(self, words_BK: Tensor, sentences_BH: Tensor | None) -> Tensor:
        words_BK = F.normalize(words_BK, dim=1)
        if sentences_BH is None:
            return words_BK
        share = self.sentence_share.clamp(0, 1)
        shares = (1 - share).sqrt(), share.sqrt()
        return torch.cat([shares[0] * words_BK, shares[1] * F.normalize(sentences_BH, dim=1)], dim=1)


class WordPair(PairModel):
    """A model of texts as bags of words, and of videos as bags of feature vectors.

    Each word has a vector, which is compared with each feature vector, and a weight, whose initial value is the word's
    idf. The score of a whole caption and a whole clip is either solved (``SolvedBag``) or trained. If it is trained,
    each word has a second vector, stored before the other one, and a text's sum of second vectors is compared with a
    linear layer on a clip's mean and maximum.
    """

    traits: ClassVar[EncoderTraits] = ENCODERS["words"]

    def __init__(
        self,
        feature_dim: int,
        num_words: int,
        *,
        idf: np.ndarray | None = None,
        dropout: float = 0.0,
        is_solved: bool = False,
        sentences: SubwordInputs | None = None,
        make_modules: MakeModules = no_modules,
    ) -> None:
        """Make new encoders.

        Args:
            feature_dim: Width of the video features.
            num_words: Size of the vocabulary.
            idf: Inverse document frequency of each word, the initial value of its weight; None: 1 for all.
            dropout: Rate at which a clip's features are dropped while training, each in all rows.
            is_solved: Vectors of captions and whole clips are solved, not trained.
            sentences: Has a text encoder, which is not trained; its sentence vectors are solved for, too.
            make_modules: Makes the objective's modules.
        """
        width = WIDTH if is_solved else 2 * WIDTH
        super().__init__(width, standardised_dim=feature_dim)
        self.words = nn.Embedding(num_words, width)
        nn.init.normal_(self.words.weight, std=WIDTH**-0.5)
        if idf is None:
            first = torch.full((num_words,), math.log(math.expm1(1)))
        else:
            first = torch.log(torch.expm1(torch.from_numpy(idf).float().clamp(min=MIN_IDF)))
        self.word_weights = nn.Parameter(first)
        self.rows = nn.Linear(feature_dim, WIDTH)
        self.solved: SolvedBag | None = None
        if is_solved:
            self.solved = SolvedBag(feature_dim, num_words, sentences.encoder.config.hidden_size if sentences else 0)
            if idf is not None:
                self.solved.idf.copy_(torch.from_numpy(idf[: len(self.solved.idf)]))
        else:
            self.clip = nn.Linear(2 * feature_dim, WIDTH)
            self.log_bag_scale = nn.Parameter(torch.tensor(math.log(FIRST_SCALE)))
        self.text_encoder: nn.Module | None = None
        if sentences is not None:
            self.text_encoder, self.pooling = sentences.encoder.requires_grad_(False), sentences.pooling.method
        self.dropout = dropout
        self.log_word_scale = nn.Parameter(torch.tensor(math.log(FIRST_SCALE)))
        self.log_sharpness = nn.Parameter(torch.tensor(math.log(FIRST_SHARPNESS)))
        self.add(make_modules)

    @classmethod
    def from_settings(cls, settings: ModelSettings, plan: ModelPlan) -> Self:
        """Return a model with new encoders."""
        texts = plan.text_inputs
        assert isinstance(texts, WordIdInputs)
        return cls(
            plan.feature_dim,
            len(texts.words),
            idf=texts.idf,
            dropout=settings.dropout,
            is_solved=plan.is_solved,
            sentences=texts.sentences if plan.is_solved and isinstance(texts, WordSentenceInputs) else None,
            make_modules=plan.make_modules,
        )

    def compile_layers(self) -> None:
        """Compile the linear layers with torch.compile."""
        self.rows.compile(dynamic=True)
        if self.solved is None:
            self.clip.compile(dynamic=True)

    def begin(self, whitening: Whitening, directions_VK: Tensor) -> None:
        """Set the layer on rows to a whitening, and the words' vectors to directions of whitened rows.

        Words without a direction keep their random vectors. Columns beyond the number of directions stay random, scaled
        by ``LEFT_OVER``.
        """
        size = directions_VK.shape[1]
        has_direction_V = directions_VK.any(dim=1)
        left_VK = LEFT_OVER * self.words.weight[has_direction_V, size:]
        self.words.weight[has_direction_V] = torch.cat([directions_VK[has_direction_V], left_VK], dim=1)
        # A whitened row has length sqrt(size), a word's vector length 1.
        self.rows.weight[:size] = whitening.directions_FK.T / size**0.5
        self.rows.bias[:size] = -(whitening.mean_F @ whitening.directions_FK) / size**0.5
        self.rows.weight[size:] *= LEFT_OVER
        self.rows.bias[size:] = 0

    def whole_clips(self, features_BMF: Tensor, mask_BM: Tensor) -> Tensor:
        """Return the mean and the maximum of each clip's standardised rows, [B, 2F]."""
        return _mean_and_maximum(self.standardised(features_BMF), mask_BM)

    def encode_videos(self, features_BMF: Tensor, mask_BM: Tensor, lengths_B: Tensor | None = None) -> VideoTokens:
        """Encode clips: a token for each feature vector, and a vector of their mean and maximum.

        During training, a solved vector is not needed and is None.
        """
        x_BMF = self.standardised(features_BMF)
        if self.training and self.dropout:
            x_BMF = x_BMF * F.dropout(x_BMF.new_ones(len(x_BMF), 1, x_BMF.shape[2]), self.dropout)
        whole_BD = None
        if self.solved is None:
            with self.autocast(features_BMF.device):
                whole_BD = self.clip(_mean_and_maximum(x_BMF, mask_BM)).to(x_BMF.dtype)
        elif not self.training:
            whole_BD = self.solved.of_clips(_mean_and_maximum(x_BMF, mask_BM))
        with self.autocast(features_BMF.device):
            rows_BMD = self.rows(x_BMF)
        return VideoTokens(rows_BMD.to(x_BMF.dtype), mask_BM, whole_BD, lengths_B)

    def encode_texts(self, inputs: dict[str, Tensor]) -> TextTokens:
        """Encode captions from the ids of their words ``input_ids`` [B, N] and ``attention_mask``."""
        ids_BN, mask_BN = inputs["input_ids"], inputs["attention_mask"].bool()
        # Not word_weights[ids_BN]: with several threads, the order in which its gradient is summed is left to chance.
        weights_BN = F.softplus(F.embedding(ids_BN, self.word_weights[:, None])[:, :, 0]) * mask_BN
        whole_BD = None
        if self.solved is not None and not self.training:
            whole_BD = self.solved.of_captions(ids_BN, mask_BN, self.sentence_vectors(inputs))
        lengths_B = inputs.get("lengths_B")
        return TextTokens(
            self.words(ids_BN), mask_BN, weights_BN, ids_BN=ids_BN, lengths_B=lengths_B, whole_BD=whole_BD
        )

    def sentence_vectors(self, inputs: dict[str, Tensor]) -> Tensor | None:
        """Return the text encoder's pooled vectors of captions [B, H]; None without a text encoder."""
        encoder = self.text_encoder
        if encoder is None:
            return None
        ids_BL, mask_BL = inputs["sentence_ids"], inputs["sentence_mask"].bool()
        if len(ids_BL) > SENTENCES_AT_ONCE:
            parts = zip(ids_BL.split(SENTENCES_AT_ONCE), mask_BL.split(SENTENCES_AT_ONCE), strict=True)
            vectors = [self.sentence_vectors({"sentence_ids": ids, "sentence_mask": mask}) for ids, mask in parts]
            return torch.cat([of_part for of_part in vectors if of_part is not None])

        def encode(rows: Tensor, length: int, mask_PL: Tensor | None) -> tuple[Tensor, ...]:
            return (encoder(input_ids=ids_BL[rows, :length], attention_mask=mask_PL).last_hidden_state.float(),)

        lengths_B = mask_BL.sum(dim=1).cpu()
        [tokens_BLH] = by_length(mask_BL, lengths_B, encode)
        pooled_BH = pooled_texts(tokens_BLH, mask_BL, lengths_B, self.pooling)
        return tokens_BLH[:, 0] if pooled_BH is None else pooled_BH

    def train(self, mode: bool = True) -> Self:
        """Set the training mode, except for the text encoder, which is not trained."""
        super().train(mode)
        if self.text_encoder is not None:
            self.text_encoder.eval()
        return self


def _mean_and_maximum(x_BMF: Tensor, mask_BM: Tensor) -> Tensor:
    max_BF = x_BMF.masked_fill(~mask_BM[:, :, None], float("-inf")).amax(dim=1)
    return torch.cat([masked_mean(x_BMF, mask_BM), max_BF], dim=1)

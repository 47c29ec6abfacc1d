"""The objective of the default recipe: a bag of words against a whole clip, and each word against each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...storage.common.errors import SettingError
from ...storage.common.settings import setting
from .base import MAX_SIMILARITIES, Objective

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.base import PairModel
    from ..models.tokens import TextTokens, VideoTokens
    from ..models.words import WordPair
    from ..recipes.train_config import TrainConfig
    from .batch import Batch


SOLVED_SCALE = 15.0
"""Scale of the solved score if no stage weights are chosen: about that of the score of words and feature vectors."""
BAGS = {
    "solved": "canonical correlations of words and clips, solved before training",
    "trained": "by a contrastive loss of its own",
}
"""{how the vectors of captions and whole clips are found: description}"""


@dataclass(frozen=True, kw_only=True)
class WordsObjective(Objective):
    """Two scores: of captions with whole clips, solved or trained, and of words with rows, trained.

    Each trained score has its own contrastive loss. A loss of their sum was tried: each score then learns less by
    itself, and the sum ranks no better (``tests/benchmarks/README.md``).
    """

    name: ClassVar[str] = "words"
    description: ClassVar[str] = (
        "a contrastive loss of a caption's words with a clip's feature vectors, beside canonical correlations of "
        "captions and whole clips, which are solved"
    )
    loss_terms: ClassVar[tuple[str, ...]] = ("bag", "word")
    needs_tokens: ClassVar[bool] = True
    needs_words: ClassVar[bool] = True
    needs_word_vectors: ClassVar[bool] = True
    vector_score: ClassVar[str] = "bag"
    has_word_similarity: ClassVar[bool] = True
    ignored_settings: ClassVar[frozenset[str]] = frozenset(
        {"tokens_of_interest", "num_fusion_layers", "temperature", "normalized_loss", "query_queue"}
    )

    bag: str = setting("solved", "how the vectors of whole captions and clips are computed", choices=BAGS)

    def check(self) -> None:
        """Check that there is a loss to train, and that no temperature is set, since it would have no effect."""
        super().check()
        if not self.loss_names:
            raise SettingError(
                "losses", self.losses, "has no loss to train, since the bag is solved; expected all or word"
            )
        if self.temperature != 1.0:
            raise SettingError(
                "temperature", self.temperature, "has no effect: objective words learns its scales; omit it"
            )

    def ignored_in(self, config: TrainConfig) -> dict[str, str]:
        """Return the settings that this configuration ignores."""
        unread = {} if "bag" in super().loss_names else {"bag": "losses has bag"}
        return super().ignored_in(config) | unread

    @property
    def is_solved(self) -> bool:
        """True if the vectors of whole captions and clips are solved before training."""
        return self.bag == "solved" and "bag" in super().loss_names

    @property
    def loss_names(self) -> tuple[str, ...]:
        """The terms that the loss has: none for a bag that is solved."""
        return tuple(name for name in super().loss_names if name != "bag" or self.bag == "trained")

    @property
    def score_weights(self) -> dict[str, float]:
        """{stage: weight} of the stages that are solved or trained."""
        return dict.fromkeys(super().loss_names, 1.0)

    def compute_loss(self, model: PairModel, batch: Batch) -> dict[str, Tensor]:
        """Return the loss of each score."""
        from ..losses import nce

        texts, videos, weights_B = batch.all_texts(), batch.all_videos(), batch.all_weights()
        scores: dict[str, Tensor] = {}
        if "bag" in self.loss_names:
            scores["bag"] = self.text_vectors(model, texts) @ self.video_vectors(model, videos).T
        if "word" in self.loss_names:
            scores |= self.early_scores(model, texts, videos)
        return {
            name: nce(s_BB, weights_R=weights_B) + nce(s_BB.T, weights_R=weights_B) for name, s_BB in scores.items()
        }

    def text_vectors(self, model: PairModel, texts: TextTokens) -> Tensor:
        """Return each text's solved vector or weighted sum of words, scaled to the length of the score's scale."""
        import torch.nn.functional as F

        words = _words_of(model)
        if words.solved is not None:
            return SOLVED_SCALE * texts.sentence_BD
        half = texts.tokens_BND.shape[2] // 2
        bag_BD = (texts.weights_BN[:, :, None] * texts.tokens_BND[:, :, :half]).sum(dim=1)
        return words.log_bag_scale.exp() * F.normalize(bag_BD, dim=1)

    def video_vectors(self, model: PairModel, videos: VideoTokens) -> Tensor:
        """Return the vectors of the whole clips, of length 1."""
        import torch.nn.functional as F

        return videos.whole if _words_of(model).solved is not None else F.normalize(videos.whole, dim=1)

    def early_scores(self, model: PairModel, texts: TextTokens, videos: VideoTokens) -> dict[str, Tensor]:
        """Return the words' score: the weighted sum of the fits of a text's words to the rows.

        A word's fit is the soft maximum of its cosines with the rows. A text's weights have length 1.
        """
        import torch
        import torch.nn.functional as F

        from ..models.tokens import lengths_of, nonzero

        words = _words_of(model)
        assert texts.ids_BN is not None, "the encoder gives them"
        # Captions share words, so each word is compared with the rows once.
        text_of_P, column_of_P = nonzero(texts.mask_BN, lengths_of(texts.mask_BN, texts.lengths_B))
        ids_S, word_of_P = texts.ids_BN[text_of_P, column_of_P].unique(return_inverse=True)
        tokens_SD = F.normalize(words.words(ids_S)[:, -videos.tokens_BMD.shape[2] :], dim=1)
        rows_BMD = F.normalize(videos.tokens_BMD, dim=2)
        parts = tokens_SD.split(max(MAX_SIMILARITIES // videos.mask_BM.numel(), 1))
        fits_SB = torch.cat([soft_maximum(part, rows_BMD, videos.mask_BM, words.log_sharpness.exp()) for part in parts])
        weights_BN = words.log_word_scale.exp() * F.normalize(texts.weights_BN, dim=1)
        weights_TS = fits_SB.new_zeros(len(texts.mask_BN), len(ids_S))
        weights_TS = weights_TS.index_put((text_of_P, word_of_P), weights_BN[text_of_P, column_of_P])
        return {"word": weights_TS @ fits_SB}

    def word_similarity(self, texts: TextTokens, videos: VideoTokens) -> Tensor:
        """Return cosines of words and rows; the words' score takes the soft maximum of each word's."""
        import torch.nn.functional as F

        words_BND = F.normalize(texts.tokens_BND[:, :, -videos.tokens_BMD.shape[2] :], dim=2)
        return words_BND @ F.normalize(videos.tokens_BMD, dim=2).transpose(1, 2)


def soft_maximum(tokens_SD: Tensor, rows_BMD: Tensor, mask_BM: Tensor, sharpness: Tensor) -> Tensor:
    """Return log(mean of exp(sharpness * product)) / sharpness over each video's rows, [S, B].

    Args:
        tokens_SD: Words.
        rows_BMD: Rows of videos.
        mask_BM: True for a row, False for padding.
        sharpness: 0 would give the mean, infinity the maximum.
    """
    import torch

    products_SBM = torch.einsum("sd,bmd->sbm", tokens_SD, rows_BMD) * sharpness
    products_SBM = products_SBM.masked_fill(~mask_BM, float("-inf"))
    return (products_SBM.logsumexp(dim=2) - mask_BM.sum(dim=1).to(products_SBM.dtype).log()) / sharpness


def _words_of(model: PairModel) -> WordPair:
    from ..models.words import WordPair

    assert isinstance(model, WordPair), "checked with the settings"
    return model

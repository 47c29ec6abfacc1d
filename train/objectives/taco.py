"""TACo: token-aware cascade contrastive learning (Yang, Bisk and Gao 2021). ``batch`` explains the shape letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...storage.common.errors import SettingError
from ...storage.common.settings import setting
from .base import MAX_SIMILARITIES
from .fusion import FusionObjective

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.base import PairModel
    from ..models.fusion import FusionScores
    from ..models.tokens import TextTokens, VideoTokens
    from ..recipes.train_config import TrainConfig
    from ..settings import DataSettings
    from .batch import Batch


@dataclass(frozen=True, kw_only=True)
class TacoObjective(FusionObjective):
    """TACo Eq. 6: a contrastive loss of sentences (L1), of tokens of interest (L2), and of the fusion layers (L3)."""

    name: ClassVar[str] = "taco"
    description: ClassVar[str] = "L1 + lambda_t L2 + L3 (TACo, Eq. 6)"
    loss_terms: ClassVar[tuple[str, ...]] = ("sentence", "token", "fusion")
    can_normalize: ClassVar[bool] = True
    vector_score: ClassVar[str] = "sentence"
    has_word_similarity: ClassVar[bool] = True

    sentence_score_weight: float = setting(1.0, "weight of the sentence score in retrieval")

    def check(self) -> None:
        """Check that something finds the hard negatives."""
        super().check()
        if self.loss_names == ("fusion",) and self.negatives == "cascade":
            problem = (
                "needs sentence or token scores to select hard negatives, but losses is fusion; expected random or all"
            )
            raise SettingError("negatives", self.negatives, problem)

    def check_data(self, data: DataSettings) -> None:
        """Check that there is something to train."""
        if self.loss_names == ("token",) and not data.pos_tags:
            problem = "nothing to train with losses token; expected some parts of speech"
            raise SettingError("tokens_of_interest", data.tokens_of_interest, problem)

    def ignored_in(self, config: TrainConfig) -> dict[str, str]:
        """Return the settings that this configuration ignores, each with the condition under which it is read."""
        conditions = super().ignored_in(config)
        if "sentence" not in self.loss_names:
            conditions["sentence_score_weight"] = "losses has sentence"
        if self.loss_names == ("fusion",):
            conditions["temperature"] = "losses has sentence or token"
        return conditions

    @property
    def has_fusion(self) -> bool:
        """True if L3 is trained."""
        return "fusion" in self.loss_names

    @property
    def score_weights(self) -> dict[str, float]:
        """{stage: weight} of the stages that are trained (TACo section 3.4)."""
        weights = {
            "sentence": self.sentence_score_weight,
            "token": self.token_score_weight,
            "fusion": self.fusion_score_weight,
        }
        return {stage: weights[stage] for stage in self.loss_names}

    def compute_loss(self, model: PairModel, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of TACo Eq. 6 that ``losses`` names (Table 3); all by default."""
        from ..losses import cascade_scores
        from .batch import best_matches

        videos, terms, guidance_RB = batch.all_videos(), {}, None
        if "sentence" in self.loss_names:
            guidance_RB = batch.texts.sentence_BD @ videos.mean_BD.T
            terms["sentence"] = self._sentence_loss(batch, guidance_RB)
        if "token" in self.loss_names:
            text_of_S, weights_S, similarity_SB = best_matches(batch, videos)
            terms["token"] = self.token_loss_weight * self._token_loss(batch, text_of_S, weights_S, similarity_SB)
            if guidance_RB is None:
                guidance_RB = similarity_SB.new_zeros(len(batch.texts.mask_BN), similarity_SB.shape[1])
            guidance_RB = cascade_scores(
                sentence_TV=guidance_RB.detach(), token_SV=similarity_SB.detach(), text_of_S=text_of_S
            )
        if self.has_fusion:
            terms["fusion"] = self._fusion_loss(model, batch, videos, guidance_RB)
        if model.queries is not None:
            model.queries.push(batch.workers.gather(batch.texts.sentence_BD), videos.mean_BD)
        return self.over_pairs(terms, batch)

    def _sentence_loss(self, batch: Batch, similarity_RB: Tensor) -> Tensor:
        """L1, Eq. 3."""
        from ..losses import sentence_nce

        weights_R, bias_B = batch.weights_R, None
        if self.normalized_loss:
            bias_B = batch.video_biases(similarity_RB, self.temperature, weights_R)
        first = batch.first_index
        return sentence_nce(similarity_RB, self.temperature, first=first, weights_R=weights_R, bias_B=bias_B)

    def _token_loss(self, batch: Batch, text_of_S: Tensor, weights_S: Tensor, similarity_SB: Tensor) -> Tensor:
        """L2, Eq. 4."""
        from ..losses import token_nce

        counted_S = weights_S if batch.weights_R is None else weights_S * batch.weights_R[text_of_S]
        bias_B = None
        if self.normalized_loss:
            bias_B = batch.video_biases(similarity_SB, self.temperature, counted_S, text_of_S)
        return token_nce(
            similarity_SB,
            self.temperature,
            text_of_S=text_of_S,
            weights_S=counted_S,
            num_texts=len(batch.texts.mask_BN),
            first=batch.first_index,
            bias_B=bias_B,
        )

    def _fusion_loss(self, model: PairModel, batch: Batch, videos: VideoTokens, guidance_RB: Tensor | None) -> Tensor:
        """L3, Eq. 5."""
        from ..losses import fusion_nce
        from .batch import pair_matrix

        text_candidates_BB, video_candidates_BB = self.choose_negatives(batch, guidance_RB)
        text_of_P, video_of_P = (text_candidates_BB | video_candidates_BB).cpu().nonzero(as_tuple=True)
        bank = model.token_bank(batch.all_texts(), videos, batch.max_text_tokens)
        scores = batch.fuse(model, bank, text_of_P, video_of_P)
        scores_BB = pair_matrix(scores.pair_P, text_of_P, video_of_P, text_candidates_BB)
        return fusion_nce(
            scores_BB,
            text_candidates_BB=text_candidates_BB,
            video_candidates_BB=video_candidates_BB,
            weights_B=batch.all_weights(),
            normalized=self.normalized_loss,
        )

    def text_vectors(self, model: PairModel, texts: TextTokens) -> Tensor:
        """Return the texts' [CLS] tokens."""
        return texts.sentence_BD

    def video_vectors(self, model: PairModel, videos: VideoTokens) -> Tensor:
        """Return the videos' average tokens."""
        return videos.mean_BD

    def early_scores(self, model: PairModel, texts: TextTokens, videos: VideoTokens) -> dict[str, Tensor]:
        """Return the tokens' score: the weighted sum of the best matches of a text's tokens of interest."""
        import torch

        from ..losses import token_similarity

        text_of_S, weights_S, tokens_SD = texts.of_interest
        parts = tokens_SD.split(max(MAX_SIMILARITIES // videos.mask_BM.numel(), 1))
        best_SV = torch.cat(
            [token_similarity(part, video_BMD=videos.tokens_BMD, video_mask_BM=videos.mask_BM) for part in parts]
        )
        empty_TV = best_SV.new_zeros(len(texts.mask_BN), len(videos.mask_BM))
        return {"token": empty_TV.index_add(0, text_of_S, weights_S[:, None] * best_SV)}

    def word_similarity(self, texts: TextTokens, videos: VideoTokens) -> Tensor:
        """Return dot products of tokens; Eq. 4 takes the largest of each text token."""
        return texts.tokens_BND @ videos.tokens_BMD.transpose(1, 2)

    def late_scores(self, fused: FusionScores, token_weights_PN: Tensor) -> dict[str, Tensor]:
        """Return the fusion layers' score."""
        return {"fusion": fused.pair_P}

"""ToCo, TACo's first version: token-aware contrastive learning on top of the fusion layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...storage.common.errors import SettingError
from .fusion import FusionObjective

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.base import PairModel
    from ..models.fusion import FusionScores
    from ..models.tokens import TextTokens, VideoTokens
    from ..recipes.train_config import TrainConfig
    from .batch import Batch


@dataclass(frozen=True, kw_only=True)
class TocoObjective(FusionObjective):
    """ToCo Eq. 3, and the loss of the network that finds hard videos ("another contrastive loss", section 3.3)."""

    name: ClassVar[str] = "toco"
    description: ClassVar[str] = "L + lambda L^t with hard negative videos (ToCo, Eq. 3)"
    loss_terms: ClassVar[tuple[str, ...]] = ("pooled", "fusion", "token")
    has_token_head: ClassVar[bool] = True
    vector_score: ClassVar[str] = "pooled"
    ignored_settings: ClassVar[frozenset[str]] = frozenset({"normalized_loss", "query_queue"})

    def check(self) -> None:
        """Check that a score is trained."""
        super().check()
        scored = [term for term in self.loss_terms if term in ("fusion", "token")]
        if not set(scored) & set(self.loss_names):
            problem = f"trains no score; expected {' or '.join(map(repr, scored))} among them"
            raise SettingError("losses", self.losses, problem)

    def ignored_in(self, config: TrainConfig) -> dict[str, str]:
        """Return the settings that this configuration ignores, each with the condition under which it is read."""
        conditions = super().ignored_in(config)
        if "pooled" not in self.loss_names:
            conditions["temperature"] = "losses has pooled"
        return conditions

    @property
    def has_fusion(self) -> bool:
        """True: both scores are the fusion layers'."""
        return True

    @property
    def score_weights(self) -> dict[str, float]:
        """{stage: weight} of the stages that are trained: "f + lambda f^t"; the pooled one only finds candidates."""
        weights = {"pooled": 0.0, "fusion": self.fusion_score_weight, "fusion_token": self.token_score_weight}
        return {stage: weight for stage, weight in weights.items() if stage.removeprefix("fusion_") in self.loss_names}

    def compute_loss(self, model: PairModel, batch: Batch) -> dict[str, Tensor]:
        """Return ToCo Eq. 3's terms over hard videos for each text, and the pooled one."""
        from ..losses import nce
        from .batch import pair_matrix

        videos, terms = batch.all_videos(), {}
        pooled_RB = batch.texts.mean_BD @ videos.mean_BD.T
        if "pooled" in self.loss_names:
            terms["pooled"] = nce(pooled_RB / self.temperature, first=batch.first_index, weights_R=batch.weights_R)
        # Eq. 1 and 2: texts choose among videos, not vice versa.
        text_candidates_BB, _ = self.choose_negatives(batch, pooled_RB)
        text_of_P, video_of_P = text_candidates_BB.cpu().nonzero(as_tuple=True)
        texts = batch.all_texts()
        bank = model.token_bank(texts, videos, batch.max_text_tokens)
        scores = batch.fuse(model, bank, text_of_P, video_of_P)
        if "fusion" in self.loss_names:
            scores_BB = pair_matrix(scores.pair_P, text_of_P, video_of_P, text_candidates_BB)
            logits_BB = scores_BB.masked_fill(~text_candidates_BB, float("-inf"))
            terms["fusion"] = nce(logits_BB, weights_R=batch.all_weights())
        if "token" in self.loss_names:
            token_PN = _token_scores(scores)
            terms["token"] = self.token_loss_weight * _token_loss(
                batch, texts, token_PN, text_of_P, video_of_P, text_candidates_BB
            )
        return self.over_pairs(terms, batch)

    def text_vectors(self, model: PairModel, texts: TextTokens) -> Tensor:
        """Return the texts' average tokens."""
        return texts.mean_BD

    def video_vectors(self, model: PairModel, videos: VideoTokens) -> Tensor:
        """Return the videos' average tokens."""
        return videos.mean_BD

    def late_scores(self, fused: FusionScores, token_weights_PN: Tensor) -> dict[str, Tensor]:
        """Return f, and f^t summed over the tokens of interest with their weights."""
        token_PN = _token_scores(fused)
        weighted_PN = token_weights_PN[:, : token_PN.shape[1]] * token_PN
        return {"fusion": fused.pair_P, "fusion_token": weighted_PN.sum(dim=1)}


def _token_scores(scores: FusionScores) -> Tensor:
    assert scores.token_PN is not None, "ToCo's fusion layers have a token head"
    return scores.token_PN


def _token_loss(
    batch: Batch, texts: TextTokens, token_PN: Tensor, text_of_P: Tensor, video_of_P: Tensor, text_candidates_BB: Tensor
) -> Tensor:
    """Eq. 2."""
    import torch.nn.functional as F

    from ..losses import fusion_token_nce
    from .batch import pair_matrix

    padded_PN = F.pad(token_PN, (0, texts.mask_BN.shape[1] - token_PN.shape[1]))
    token_BBN = pair_matrix(padded_PN, text_of_P, video_of_P, text_candidates_BB)
    weights_B = batch.all_weights()
    weights_BN = texts.weights_BN if weights_B is None else texts.weights_BN * weights_B[:, None]
    return fusion_token_nce(token_BBN, text_candidates_BB=text_candidates_BB, token_weights_BN=weights_BN)

"""SSML: noise estimation by density for a margin loss (Amrani et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...storage.common.settings import setting
from .base import Objective

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.base import PairModel
    from ..recipes.train_config import TrainConfig
    from .batch import Batch


@dataclass(frozen=True, kw_only=True)
class SsmlObjective(Objective):
    """SSML Eq. 4 on cosine similarities. Without pair weights, it is HowTo100M's loss, SSML's baseline."""

    name: ClassVar[str] = "ssml"
    description: ClassVar[str] = "max-margin loss with pair weights (SSML, Eq. 4)"
    loss_terms: ClassVar[tuple[str, ...]] = ("margin",)
    ignored_settings: ClassVar[frozenset[str]] = frozenset(
        {"tokens_of_interest", "num_fusion_layers", "temperature", "normalized_loss", "query_queue", "stage_weights"}
    )

    margin: float = setting(0.1, "margin between a pair and its negatives (SSML's delta, CMCM's M)", ge=0)
    loss_sum: bool = setting(
        False, "sum each loss over the pairs of a batch, as the papers' equations do, instead of taking the mean"
    )
    intra_video_rate: float = setting(
        0.5,
        "share of the total weight of negatives for negatives of the same video; with --clips-per-video",
        ge=0,
        le=1,
    )

    def ignored_in(self, config: TrainConfig) -> dict[str, str]:
        """Return the settings that this configuration ignores, each with the condition under which it is read."""
        conditions = super().ignored_in(config)
        if config.data.clips_per_video < 2:
            conditions["intra_video_rate"] = "clips_per_video is 2 or more"
        return conditions

    def compute_loss(self, model: PairModel, batch: Batch) -> dict[str, Tensor]:
        """Return Eq. 4."""
        from ..losses import intra_video_weights, soft_max_margin

        text_BD, video_BD = batch.all_vectors(self, model)
        weights_B, negative_weights_BB = batch.all_weights(), None
        if batch.video_of_R is not None:
            negative_weights_BB = intra_video_weights(batch.workers.gather(batch.video_of_R), self.intra_video_rate)
        similarity_BB = text_BD @ video_BD.T
        if weights_B is None:
            weights_B = similarity_BB.new_ones(len(similarity_BB))
        reduction = "sum" if self.loss_sum else "mean"
        loss = soft_max_margin(
            similarity_BB, weights_B, self.margin, negative_weights_BB=negative_weights_BB, reduction=reduction
        )
        return {"margin": loss}

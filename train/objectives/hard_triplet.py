"""The triplet loss with hard negatives of VSE++ (Faghri et al. 2018), which SSB is trained with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...storage.common.settings import setting
from .base import Objective

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.base import PairModel
    from .batch import Batch


@dataclass(frozen=True, kw_only=True)
class HardTripletObjective(Objective):
    """A pair must be closer than the hardest negatives of its text and of its video, by cosine similarity."""

    name: ClassVar[str] = "hard-triplet"
    description: ClassVar[str] = "max-margin triplet loss with the hardest negatives (VSE++; NCL, Appendix C)"
    loss_terms: ClassVar[tuple[str, ...]] = ("margin",)
    ignored_settings: ClassVar[frozenset[str]] = frozenset(
        {"tokens_of_interest", "num_fusion_layers", "temperature", "normalized_loss", "query_queue", "stage_weights"}
    )

    margin: float = setting(0.2, "margin between a pair and its negatives (SSML's delta, CMCM's M)", ge=0)

    def compute_loss(self, model: PairModel, batch: Batch) -> dict[str, Tensor]:
        """Return the loss in both directions, summed over the batch's pairs."""
        from ..losses import hardest_margin

        text_BD, video_BD = batch.all_vectors(self, model)
        loss = hardest_margin(text_BD @ video_BD.T, self.margin, weights_B=batch.all_weights())
        return {"margin": len(text_BD) * loss}  # a sum: it is about 15 times the NCL loss (NCL, Appendix C)

"""NCL: normalised contrastive learning (Park et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...storage.common.settings import setting
from .base import Objective

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.base import PairModel
    from .batch import Batch

SINKHORN_ITERATIONS = 4  # NCL section 3.3


@dataclass(frozen=True, kw_only=True)
class NclObjective(Objective):
    """NCL Eq. 4 with the similarities of Eq. 12, or, without ``normalized_loss``, with those of Eq. 1."""

    name: ClassVar[str] = "ncl"
    description: ClassVar[str] = "contrastive loss with normalised retrieval probabilities (NCL, Eq. 4)"
    loss_terms: ClassVar[tuple[str, ...]] = ("contrast",)
    can_normalize: ClassVar[bool] = True
    ignored_settings: ClassVar[frozenset[str]] = frozenset({"tokens_of_interest", "num_fusion_layers", "stage_weights"})

    loss_scale: float = setting(1.0, "factor of the loss (NCL's Appendix C: 15 in place of a margin loss)", gt=0)

    @property
    def normalization(self) -> str:
        """Section 3.4: biases of training queries, for a run that was trained with biases."""
        return "ncl" if self.normalized_loss else "none"

    def compute_loss(self, model: PairModel, batch: Batch) -> dict[str, Tensor]:
        """Return Eq. 4, times the scale."""
        from ..losses import normalized_nce

        text_BD, video_BD = batch.all_vectors(self, model)
        if model.queries is not None:
            model.queries.push(text_BD, video_BD)
        loss = normalized_nce(
            text_BD @ video_BD.T,
            self.temperature,
            weights_B=batch.all_weights(),
            num_iterations=SINKHORN_ITERATIONS if self.normalized_loss else 0,
        )
        return {"contrast": self.loss_scale * loss}

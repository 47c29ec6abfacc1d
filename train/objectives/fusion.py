"""Code that TACo and ToCo share: settings of the fusion layers, which see some pairs of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...storage.common.settings import setting
from .base import Objective

if TYPE_CHECKING:
    from torch import Tensor

    from ..recipes.train_config import TrainConfig
    from .batch import Batch

NEGATIVES = {
    "cascade": "the hardest by the early stages' scores",
    "random": "the same number, drawn at random",
    "all": "all other pairs of the batch",
}
"""{how the negatives for the fusion layers are chosen: description}"""
IDF_COUNTS = {
    "token": "all training captions that contain the word (TACo, Eq. 7)",
    "tag": "those that contain it with the same part of speech",
    "tf-idf": "as token; the weight is the IDF times how often the caption has the word (ToCo, section 3.3)",
}
"""{which captions a word's inverse document frequency counts: description}"""


@dataclass(frozen=True, kw_only=True)
class FusionObjective(Objective):
    """An objective with fusion layers."""

    needs_tokens: ClassVar[bool] = True
    needs_words: ClassVar[bool] = True

    negatives: str = setting("cascade", "negatives of the fusion layers", choices=NEGATIVES)
    num_negatives: int = setting(8, "K' of TACo's section 3.3", ge=1)  # TACo section 4.3
    token_loss_weight: float = setting(0.5, "lambda_t of TACo's Eq. 6; lambda of ToCo's Eq. 3")
    token_score_weight: float = setting(0.5, "weight of the token score in retrieval (TACo, Figure 3; lambda in ToCo)")
    fusion_score_weight: float = setting(1.0, "weight of the fusion layers' score in retrieval")
    loss_sum: bool = setting(
        False, "sum each loss over the pairs of a batch, as the papers' equations do, instead of taking the mean"
    )
    idf: str = setting("token", "captions that the IDF of a token of interest counts", choices=IDF_COUNTS)

    def ignored_in(self, config: TrainConfig) -> dict[str, str]:
        """Return the settings that this configuration ignores, each with the condition under which it is read."""
        conditions = super().ignored_in(config)
        if "token" not in self.loss_names:
            token = ("tokens_of_interest", "token_loss_weight", "token_score_weight", "idf")
            conditions |= dict.fromkeys(token, "losses has token")
        if "fusion" not in self.loss_names:
            conditions["fusion_score_weight"] = "losses has fusion"
        if not self.has_fusion:
            conditions |= dict.fromkeys(("num_fusion_layers", "negatives", "num_negatives"), "losses has fusion")
        elif self.negatives == "all":
            conditions["num_negatives"] = "negatives is cascade or random"
        return conditions

    @property
    def idf_counts(self) -> str:
        """Captions counted in the IDF of a token of interest, one of ``IDF_COUNTS``; "tag" if no loss uses it."""
        return self.idf if "token" in self.loss_names else "tag"

    def over_pairs(self, terms: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Return loss terms, given as means over a batch's pairs, as sums if ``loss_sum`` is set."""
        num_pairs = batch.workers.size * len(batch.texts.mask_BN)
        return {name: num_pairs * term for name, term in terms.items()} if self.loss_sum else terms

    def choose_negatives(self, batch: Batch, guidance_RB: Tensor | None) -> tuple[Tensor, Tensor]:
        """Choose the pairs that the fusion layers see; see ``batch.choose_negatives``."""
        from .batch import choose_negatives

        return choose_negatives(batch, guidance_RB, self.negatives, self.num_negatives)

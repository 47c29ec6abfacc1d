"""ToCo's masked language prediction (section 5.3): its model with BERT's masked subwords instead of the token loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .toco import TocoObjective

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.base import PairModel
    from ..models.fusion import FusionScores
    from ..recipes.train_config import TrainConfig
    from .batch import Batch


@dataclass(frozen=True, kw_only=True)
class TocoMlmObjective(TocoObjective):
    """ToCo Eq. 3 with a loss of masked subwords instead of L^t; a score is f alone.

    Some subwords of each caption are masked (``models.masked_words``). The fusion layers see the masked caption beside
    its own clip, and a head predicts the masked subwords. The other losses see the whole caption.

    Example: ``vlalign-train --dataset youcook2 --objective toco-mlm``
    """

    name: ClassVar[str] = "toco-mlm"
    description: ClassVar[str] = "L + lambda times the loss of masked subwords (ToCo, section 5.3)"
    loss_terms: ClassVar[tuple[str, ...]] = ("pooled", "fusion", "masked")
    has_token_head: ClassVar[bool] = False
    masks_words: ClassVar[bool] = True
    ignored_settings: ClassVar[frozenset[str]] = TocoObjective.ignored_settings | {
        "tokens_of_interest",
        "token_score_weight",
        "idf",
    }

    def ignored_in(self, config: TrainConfig) -> dict[str, str]:
        """Return the settings that this configuration ignores, each with the condition under which it is read."""
        conditions = super().ignored_in(config)
        if "masked" in self.loss_names:
            del conditions["token_loss_weight"]
        else:
            conditions["token_loss_weight"] = "losses has masked"
        return conditions

    def compute_loss(self, model: PairModel, batch: Batch) -> dict[str, Tensor]:
        """Return ToCo's terms over pairs, and the loss of masked subwords."""
        terms = super().compute_loss(model, batch)
        if "masked" in self.loss_names:
            masked = {"masked": self.token_loss_weight * _masked_loss(model, batch)}
            terms |= self.over_pairs(masked, batch)
        return terms

    def late_scores(self, fused: FusionScores, token_weights_PN: Tensor) -> dict[str, Tensor]:
        """Return f."""
        return {"fusion": fused.pair_P}


def _masked_loss(model: PairModel, batch: Batch) -> Tensor:
    """Return this process's cross entropy, scaled so that the mean over processes is the mean over masked subwords."""
    import torch
    import torch.nn.functional as F

    assert batch.masked is not None and model.fusion is not None, "the batch is made for this objective"
    texts, places = batch.masked.texts, batch.masked.places
    pairs = torch.arange(len(texts.mask_BN))
    bank = model.token_bank(texts, batch.videos, batch.max_text_tokens)
    outputs_PND = model.fusion.text_outputs(bank, pairs, pairs, recompute=batch.recompute is not None)
    logits_KV = model.word_logits(outputs_PND[places.text_of_K, places.position_K])
    loss_K = F.cross_entropy(logits_KV, places.ids_K, reduction="none")
    if batch.weights_R is not None:
        loss_K = loss_K * batch.weights_R[places.text_of_K]
    number = batch.workers.sum(loss_K.new_full((), len(loss_K))).clamp(min=1)
    return loss_K.sum() * batch.workers.size / number

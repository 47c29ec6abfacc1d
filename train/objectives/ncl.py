"""NCL: normalised contrastive learning (Park et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...storage.common.errors import SettingError
from ...storage.common.settings import setting
from .base import Objective

if TYPE_CHECKING:
    from torch import Tensor

    from ..losses import LearnedTemperature
    from ..models.base import ObjectiveModules, PairModel
    from .batch import Batch

SINKHORN_ITERATIONS = 4  # NCL section 3.3
MIN_TEMPERATURE = 0.01
"""Lower limit of a learned temperature: CLIP's ``logit_scale`` is 100 or less (Radford et al. 2021, section 2.5)."""


@dataclass(frozen=True, kw_only=True)
class NclObjective(Objective):
    """NCL Eq. 4 with the similarities of Eq. 12 or, without ``normalized_loss``, of Eq. 1."""

    name: ClassVar[str] = "ncl"
    description: ClassVar[str] = "contrastive loss with normalised retrieval probabilities (NCL, Eq. 4)"
    loss_terms: ClassVar[tuple[str, ...]] = ("contrast",)
    can_normalize: ClassVar[bool] = True
    ignored_settings: ClassVar[frozenset[str]] = frozenset({"tokens_of_interest", "num_fusion_layers", "stage_weights"})

    loss_scale: float = setting(1.0, "factor of the loss (NCL's Appendix C: 15 instead of a margin loss)", gt=0)
    learned_temperature: bool = setting(
        False, "learn the temperature, from --temperature on, as CLIP's logit_scale (CLIP4Clip); it stays 0.01 or more"
    )

    def check(self) -> None:
        """Check that a learned temperature starts above its limit."""
        super().check()
        if self.learned_temperature and self.temperature < MIN_TEMPERATURE:
            problem = f"below the limit of a learned temperature; expected {MIN_TEMPERATURE} or more"
            raise SettingError("temperature", self.temperature, problem)

    @property
    def learns_temperature(self) -> bool:
        """True if the temperature is a parameter of the model, ``own.log_scale``."""
        return self.learned_temperature

    @property
    def normalization(self) -> str:
        """Section 3.4: biases of training queries, for a run that was trained with biases."""
        return "ncl" if self.normalized_loss else "none"

    def make_modules(self, width: int, num_labels: int) -> ObjectiveModules:
        """Make the learned temperature, and the queue of queries."""
        from ..losses import LearnedTemperature
        from ..models.base import ObjectiveModules

        learned = LearnedTemperature(self.temperature, min_temperature=MIN_TEMPERATURE)
        return ObjectiveModules(
            own=learned if self.learned_temperature else None,
            queries=self._make_queries(width),
        )

    def temperature_of(self, model: PairModel) -> float:
        """Return the model's learned temperature, or the settings' temperature."""
        return _learned(model).temperature if self.learned_temperature else self.temperature

    def compute_loss(self, model: PairModel, batch: Batch) -> dict[str, Tensor]:
        """Return Eq. 4, times the scale."""
        from ..losses import normalized_nce

        text_BD, video_BD = batch.all_vectors(self, model)
        if model.queries is not None:
            model.queries.push(text_BD, video_BD)
        loss = normalized_nce(
            text_BD @ video_BD.T,
            1 / _learned(model).scale() if self.learned_temperature else self.temperature,
            weights_B=batch.all_weights(),
            num_iterations=SINKHORN_ITERATIONS if self.normalized_loss else 0,
        )
        return {"contrast": self.loss_scale * loss}


def _learned(model: PairModel) -> LearnedTemperature:
    from ..losses import LearnedTemperature

    assert isinstance(model.own, LearnedTemperature), "the model of a learned temperature has one"
    return model.own

"""A run's complete settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ...storage.common.errors import SettingError
from ..config.fields import rule_of, types_of
from ..config.settings import (
    ENCODERS,
    DataSettings,
    Encoder,
    ModelSettings,
    OptimizationSettings,
    Settings,
    ValidationSettings,
)
from ..objectives import DEFAULT_OBJECTIVE, OBJECTIVES, Objective

PARTS: dict[str, type[Settings]] = {
    "data": DataSettings,
    "model": ModelSettings,
    "optimisation": OptimizationSettings,
    "validation": ValidationSettings,
}
"""{part: its settings}, besides the objective's."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(DataSettings, ModelSettings, OptimizationSettings, ValidationSettings):
    """A complete training configuration: the settings of all parts, and the objective with its own.

    Defaults are the papers' numbers where they fit a small model on a CPU.
    """

    objective: Objective = field(default_factory=OBJECTIVES[DEFAULT_OBJECTIVE])
    recipe: str = ""
    """Source of the settings that were not given."""
    init: str = ""
    """The run whose model training starts from; empty: none."""

    def check(self) -> None:
        """Check settings that concern several parts."""
        if self.clips_per_video and self.batch_size % self.clips_per_video:
            problem = f"expected whole groups of clips, a multiple of clips_per_video {self.clips_per_video}"
            raise SettingError("batch_size", self.batch_size, problem)
        if self.encoders.normalises_batches and self.micro_batch_size:
            problem = f"the batch normalisation of encoder {self.encoder} must see the whole batch; expected 0"
            raise SettingError("micro_batch_size", self.micro_batch_size, problem)
        self._check_encoder()
        self._check_maps()
        self.objective.check_data(self)

    def _check_encoder(self) -> None:
        lack = "it needs tokens" if self.objective.needs_tokens and not self.encoders.gives_tokens else ""
        lack = lack or (
            "it needs to know words" if self.objective.needs_words and not self.encoders.reads_words else ""
        )
        if self.objective.needs_word_vectors != self.encoders.gives_word_vectors:
            lack = lack or "the encoder and the objective named words belong together"
        if lack:
            fitting = [name for name, other in OBJECTIVES.items() if _fits(other, self.encoders)]
            problem = f"does not fit objective {self.objective.name}: {lack}; expected one of {', '.join(fitting)}"
            raise SettingError("encoder", self.encoder, problem)

    def _check_maps(self) -> None:
        takes_grid = self.encoders.gives_tokens and not self.objective.needs_row_times
        if self.maps and self.encoders.gives_tokens and self.grid is None:
            problem = "a map of each frame; set video_grid to TIMExHEIGHTxWIDTH, such as 2x2x2"
            raise SettingError("features", self.features, problem)
        if self.grid is not None and not takes_grid:
            if self.encoders.gives_tokens:
                problem = (
                    f"objective {self.objective.name} needs the time of each row, which a grid's cells do not have"
                )
            else:
                problem = f"expected an encoder that takes tokens, which {self.encoder} does not"
            raise SettingError("video_grid", self.video_grid, problem)

    def unused(self) -> dict[str, str]:
        """Return the settings that change nothing in this configuration: {setting: what it belongs to}."""
        by_encoder = {name: _having_encoders(name) for name in self.encoders.unused}
        by_objective = {name: _having_objectives(name) for name in self.objective.unused}
        return self.objective.unused_now(self) | by_encoder | by_objective

    @property
    def has_fusion(self) -> bool:
        """True if the model has fusion layers."""
        return self.objective.has_fusion

    @property
    def score_weights(self) -> dict[str, float]:
        """{stage: weight} of the stages of the score that are trained."""
        return self.objective.score_weights

    def flat(self) -> dict[str, Any]:
        """Return all settings by name, the objective's own among them, as ``run.json`` keeps them."""
        settings = {of.name: getattr(self, of.name) for of in fields(self)} | {"objective": self.objective.name}
        return settings | {of.name: getattr(self.objective, of.name) for of in fields(self.objective)}

    @classmethod
    def from_flat(cls, settings: Mapping[str, Any]) -> TrainConfig:
        """Return the configuration of settings by name, such as ``{"dataset": "demo", "features": "s3d", "margin":
        0.2}``.

        A setting that only other objectives have is checked and ignored.

        Raises:
            SettingError: A value cannot be used, or a setting does not exist.
        """
        name = settings.get("objective", DEFAULT_OBJECTIVE)
        if name not in OBJECTIVES:
            raise SettingError("objective", name, f"expected one of {', '.join(OBJECTIVES)}")
        objective, common = OBJECTIVES[name], {of.name for of in fields(cls)} - {"objective"}
        unused = foreign_settings(settings)
        known = common | {of.name for of in fields(objective)} | {"objective"} | set(unused)
        if unknown := settings.keys() - known:
            setting = min(unknown)
            raise SettingError(setting, settings[setting], "no such setting")
        own = {of.name: settings[of.name] for of in fields(objective) if of.name in settings}
        rest = {setting: settings[setting] for setting in common & settings.keys()}
        return cls(objective=objective(**own), **rest)


def train_config(**settings: Any) -> TrainConfig:
    """Return the configuration of settings by name; see ``TrainConfig.from_flat``."""
    return TrainConfig.from_flat(settings)


def setting_types() -> dict[str, type]:
    """Return the type of every setting that a run can have: {name: str, int, float or bool}."""
    types: dict[str, type] = {"objective": str, "recipe": str, "init": str}
    for part in [*PARTS.values(), *OBJECTIVES.values()]:
        types |= types_of(part)
    return types


def objective_settings() -> dict[str, dict[str, type[Objective]]]:
    """Return the objectives that have each setting: {setting: {objective's name: objective}}."""
    having: dict[str, dict[str, type[Objective]]] = {}
    for name, objective in OBJECTIVES.items():
        for of in fields(objective):
            having.setdefault(of.name, {})[name] = objective
    return having


def _having_encoders(setting: str) -> str:
    """Return the encoders that read a setting, in words."""
    return "encoder " + " or ".join(name for name, encoder in ENCODERS.items() if setting not in encoder.unused)


def _having_objectives(setting: str) -> str:
    """Return the objectives that read a setting, in words."""
    common = {of.name for of in fields(Objective)} | {of.name for part in PARTS.values() for of in fields(part)}
    having = OBJECTIVES if setting in common else objective_settings().get(setting, {})
    return "objective " + ", ".join(name for name, of in having.items() if setting not in of.unused)


def refuse_unused(config: TrainConfig, written: Mapping[str, Any]) -> None:
    """Raise ``SettingError`` for a setting that somebody wrote, and that changes nothing.

    Args:
        config: The configuration with these settings.
        written: The settings that were not a recipe's, by name.
    """
    foreign = foreign_settings({**written, "objective": config.objective.name})
    unused = config.unused() | {name: _having_objectives(name) for name in foreign}
    for name, value in written.items():
        if name in unused:
            where = f"objective {config.objective.name} with encoder {config.encoder}"
            problem = f"changes nothing for {where}: it belongs to {unused[name]}; leave it out"
            raise SettingError(name, value, problem)


def foreign_settings(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of settings that only other objectives have.

    Raises:
        SettingError: The value of one of them is not allowed.
    """
    objective, foreign = settings.get("objective", DEFAULT_OBJECTIVE), []
    for name, having in objective_settings().items():
        if name not in settings or objective in having:
            continue
        foreign.append(name)
        [of] = [of for of in fields(next(iter(having.values()))) if of.name == name]
        if (problem := rule_of(of).problem(settings[name])) is not None:
            raise SettingError(name, settings[name], problem)
    return foreign


def _fits(objective: type[Objective], encoder: Encoder) -> bool:
    return (
        (encoder.gives_tokens or not objective.needs_tokens)
        and (encoder.reads_words or not objective.needs_words)
        and encoder.gives_word_vectors == objective.needs_word_vectors
    )

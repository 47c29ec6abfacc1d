"""A run's complete settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ...storage.common.errors import SettingError
from ...storage.common.settings import Settings, info_of, types_of
from ...storage.profiles import FRAME_MAPS
from ..objectives import DEFAULT_OBJECTIVE, OBJECTIVES, Objective, objectives
from ..settings import (
    ENCODERS,
    DataSettings,
    EncoderTraits,
    ExtraInput,
    ModelSettings,
    OptimizationSettings,
    ValidationSettings,
    encoders,
)

COMPONENTS: dict[str, type[Settings]] = {
    "validation": ValidationSettings,
    "optimization": OptimizationSettings,
    "model": ModelSettings,
    "data": DataSettings,
}
"""{component: its settings}, without the objective's. The names of all settings differ, so commands, recipes and
``run.json`` do not name components. ``run.json`` and the names of runs list settings in this order.
"""
OF_RUN = {"objective": str, "recipe": str, "init": str}
"""{setting that belongs to no component: its type}"""
Recipe = Mapping[str, Any]
"""Settings that a configuration starts from: {name: value}, such as ``{"objective": "taco", "batch_size": 128}``."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A complete training configuration: the settings of all components, and the objective with its own.

    Defaults are the papers' numbers where they fit a small model on a CPU.

    Raises:
        SettingError: Settings do not fit together.

    Example:
        >>> from vlalign.train import TrainConfig
        >>> settings = {"dataset": "demo", "features": "s3d", "objective": "taco", "batch_size": 32}
        >>> config = TrainConfig.from_flat(settings)
        >>> config.objective.name, config.optimization.batch_size, config.flat()["features"]
        ('taco', 32, 's3d')
    """

    data: DataSettings
    """Settings of the training data."""
    model: ModelSettings = dataclasses.field(default_factory=ModelSettings)
    """Settings of the model."""
    optimization: OptimizationSettings = dataclasses.field(default_factory=OptimizationSettings)
    """Settings of the optimization: steps, batch size, learning rate, seed."""
    validation: ValidationSettings = dataclasses.field(default_factory=ValidationSettings)
    """Settings of the validation."""
    objective: Objective = dataclasses.field(default_factory=OBJECTIVES[DEFAULT_OBJECTIVE])
    """The objective, with its own settings."""
    recipe: str = ""
    """Source of the settings that were not given."""
    init: str = ""
    """The run that initialises the model; empty: none."""

    def __post_init__(self) -> None:
        self._check_batches()
        self._check_encoder()
        self._check_tower()
        self._check_maps()
        self._check_extra()
        self.objective.check_data(self.data)

    def _check_batches(self) -> None:
        clips_per_video, batch_size = self.data.clips_per_video, self.optimization.batch_size
        if clips_per_video and batch_size % clips_per_video:
            problem = f"expected whole groups of clips, a multiple of clips_per_video {clips_per_video}"
            raise SettingError("batch_size", batch_size, problem)
        micro_batch_size = self.optimization.micro_batch_size
        if self.model.encoder_traits.normalises_batches and micro_batch_size:
            problem = f"the batch normalisation of encoder {self.model.encoder} needs the whole batch; expected 0"
            raise SettingError("micro_batch_size", micro_batch_size, problem)

    def _check_encoder(self) -> None:
        objective, traits = self.objective, self.model.encoder_traits
        lack = "the objective needs tokens" if objective.needs_tokens and not traits.gives_tokens else ""
        lack = lack or (
            "the objective needs an encoder for words" if objective.needs_words and not traits.reads_words else ""
        )
        if objective.needs_word_vectors != traits.learns_word_vectors:
            lack = lack or "encoder words and objective words need each other"
        if lack:
            fitting = [name for name, other in objectives().items() if _fits(other, traits)]
            problem = (
                f"does not fit objective {objective.name}: {lack}; this encoder fits objective {' or '.join(fitting)}"
            )
            raise SettingError("encoder", self.model.encoder, problem)
        if objective.is_solved and self.model.encoder not in ENCODERS:
            problem = (
                f"encoder {self.model.encoder} is your own, and must train its vectors of whole clips; expected trained"
            )
            raise SettingError("bag", "solved", problem)

    def _check_tower(self) -> None:
        data, objective, traits = self.data, self.objective, self.model.encoder_traits
        if self.model.tower is None and not traits.reads_frames:
            return
        if self.model.tower is not None and traits.reads_frames:
            problem = f"encoder {self.model.encoder} reads frames itself; omit it"
            raise SettingError("video_tower", self.model.video_tower, problem)
        name = f"video_tower {self.model.video_tower}" if self.model.tower else f"encoder {self.model.encoder}"
        if "+" in data.features:
            problem = f"{name} reads the frames of one store; expected one name"
            raise SettingError("features", data.features, problem)
        if traits.pools_rows:
            problem = f"encoder {self.model.encoder} takes the maximum over stored rows; omit it, or change the encoder"
            raise SettingError("video_tower", self.model.video_tower, problem)
        if objective.is_solved:
            raise SettingError("bag", "solved", f"the features of {name} change during training; expected trained")
        if objective.pair_weights != "none":
            problem = f"needs stored features, but {name} reads frames; expected none"
            raise SettingError("pair_weights", objective.pair_weights, problem)

    @property
    def store_grid(self) -> tuple[int, int, int] | None:
        """The grid into which the store's maps are averaged; None if they are not, or if the model averages them."""
        return None if self.model.tower is not None else self.data.grid

    def _check_maps(self) -> None:
        data, pools_rows, tower = self.data, self.model.encoder_traits.pools_rows, self.model.tower
        maps = data.maps if tower is None else tower.encoder if tower.map_shape else None
        if maps and not pools_rows and data.grid is None:
            problem = "has a map of each frame; set video_grid to TIMExHEIGHTxWIDTH, such as 2x2x2"
            setting = ("features", data.features) if tower is None else ("video_tower", self.model.video_tower)
            raise SettingError(*setting, problem)
        if data.grid is not None:
            self._check_grid(data.grid, data.features.split("+") if tower is None else [tower.encoder])
        if data.grid is not None and pools_rows:
            problem = f"encoder {self.model.encoder} does not read the rows of a clip; omit it, or change the encoder"
            raise SettingError("video_grid", data.video_grid, problem)
        if data.grid is not None and self.objective.needs_row_times:
            problem = f"objective {self.objective.name} needs the time of each row, which a grid's cells do not have"
            raise SettingError("video_grid", data.video_grid, problem)

    def _check_grid(self, grid: tuple[int, int, int], names: list[str]) -> None:
        shapes = [FRAME_MAPS[name] for name in names if name in FRAME_MAPS]
        if not shapes:
            problem = (
                f"features {'+'.join(names)} are not maps; expected features among {', '.join(FRAME_MAPS)}, or no grid"
            )
            raise SettingError("video_grid", self.data.video_grid, problem)
        height, width = min(height for height, _, _ in shapes), min(width for _, width, _ in shapes)
        if grid[1] > height or grid[2] > width:
            problem = f"a map of {'+'.join(names)} has {height} x {width} cells; expected at most that many"
            raise SettingError("video_grid", self.data.video_grid, problem)

    def _check_extra(self) -> None:
        of_encoder, of_objective = self.model.encoder_traits.extra, self.objective.extra
        twice = [name for name in of_encoder if of_objective.get(name, of_encoder[name]) != of_encoder[name]]
        if twice:
            problem = f"its input {twice[0]!r} differs from that of encoder {self.model.encoder}; rename one of them"
            raise SettingError("objective", self.objective.name, problem)

    @property
    def extra(self) -> dict[str, ExtraInput]:
        """{name: custom input} that the encoder or the objective declares."""
        return {**self.model.encoder_traits.extra, **self.objective.extra}

    def ignored_settings(self) -> dict[str, str]:
        """Return the settings that this configuration ignores: {setting: the condition under which it is read}."""
        by_encoder = {name: _encoders_that_use(name) for name in self.model.encoder_traits.ignored_settings}
        by_objective = {name: _objectives_that_use(name) for name in self.objective.ignored_settings}
        by_tower = {} if self.model.tower else {"frame_augmentation": "video_tower is set"}
        return self.objective.ignored_in(self) | by_encoder | by_objective | by_tower

    @property
    def has_fusion(self) -> bool:
        """True if the model has fusion layers."""
        return self.objective.has_fusion

    @property
    def score_weights(self) -> dict[str, float]:
        """{stage: weight} of the stages of the score that are trained."""
        return self.objective.score_weights

    def flat(self) -> dict[str, Any]:
        """Return all settings by name, the objective's own among them, as in ``run.json``."""
        settings = _values(*(getattr(self, component) for component in COMPONENTS))
        of_run = {"objective": self.objective.name, "recipe": self.recipe, "init": self.init}
        return settings | of_run | _values(self.objective)

    @classmethod
    def from_flat(cls, settings: Mapping[str, Any]) -> TrainConfig:
        """Return the configuration of settings by name, such as ``{"dataset": "demo", "features": "s3d", "margin":
        0.2}``.

        A setting that only other objectives have is checked and ignored.

        Args:
            settings: Settings by name; those that are missing have their defaults.

        Raises:
            SettingError: A value cannot be used, or a setting does not exist.
        """
        name = settings.get("objective", DEFAULT_OBJECTIVE)
        if name not in objectives():
            raise SettingError("objective", name, f"expected one of {', '.join(objectives())}")
        settings_of_others(settings)
        if unknown := settings.keys() - setting_types().keys():
            raise SettingError(min(unknown), settings[min(unknown)], "no such setting; see vlalign-train --help-all")

        def make(component: type[Settings]) -> Any:
            return component(**{f.name: settings[f.name] for f in fields(component) if f.name in settings})

        of_run = {name: settings[name] for name in ("recipe", "init") if name in settings}
        components = {name: make(component) for name, component in COMPONENTS.items()}
        return cls(objective=make(objectives()[name]), **components, **of_run)


def train_config(**settings: Any) -> TrainConfig:
    """Return the configuration of settings by name; see ``TrainConfig.from_flat``."""
    return TrainConfig.from_flat(settings)


def _values(*components: Settings) -> dict[str, Any]:
    return {field.name: getattr(component, field.name) for component in components for field in fields(component)}


def setting_types() -> dict[str, type]:
    """Return the type of every setting that a run can have: {name: str, int, float or bool}."""
    types: dict[str, type] = dict(OF_RUN)
    for component in [*COMPONENTS.values(), *objectives().values()]:
        types |= types_of(component)
    return types


def default_settings(objective: type[Objective]) -> dict[str, Any]:
    """Return {setting: its default} with an objective; ``MISSING`` for settings without a default."""
    components = [*COMPONENTS.values(), objective]
    return {field.name: field.default for component in components for field in fields(component)}


def objective_settings() -> dict[str, dict[str, type[Objective]]]:
    """Return, for each setting, the objectives that have it: {setting: {objective's name: objective}}."""
    having: dict[str, dict[str, type[Objective]]] = {}
    for name, objective in objectives().items():
        for field in fields(objective):
            having.setdefault(field.name, {})[name] = objective
    return having


def settings_of_others(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of settings that only other objectives have.

    Raises:
        SettingError: The value of one of them is not allowed.
    """
    objective, others = settings.get("objective", DEFAULT_OBJECTIVE), []
    for name, having in objective_settings().items():
        if name not in settings or objective in having:
            continue
        others.append(name)
        [field] = [field for field in fields(next(iter(having.values()))) if field.name == name]
        if (problem := info_of(field).problem(settings[name])) is not None:
            raise SettingError(name, settings[name], problem)
    return others


def refuse_ignored(config: TrainConfig, written: Mapping[str, Any]) -> None:
    """Raise ``SettingError`` for an explicit setting that has no effect.

    Args:
        config: The configuration with these settings.
        written: The explicit settings, by name.
    """
    others = settings_of_others({**written, "objective": config.objective.name})
    ignored = config.ignored_settings() | {name: _objectives_that_use(name) for name in others}
    for name, value in written.items():
        if name in ignored:
            where = f"objective {config.objective.name} with encoder {config.model.encoder}"
            problem = f"has no effect for {where}: it is used only if {ignored[name]}; omit it"
            raise SettingError(name, value, problem)


def _encoders_that_use(setting: str) -> str:
    return "encoder is " + " or ".join(
        name for name, traits in encoders().items() if setting not in traits.ignored_settings
    )


def _objectives_that_use(setting: str) -> str:
    common = {field.name for component in COMPONENTS.values() for field in fields(component)}
    having = objectives() if setting in common else objective_settings().get(setting, {})
    return "objective is one of " + ", ".join(
        name for name, objective in having.items() if setting not in objective.ignored_settings
    )


def _fits(objective: type[Objective], encoder: EncoderTraits) -> bool:
    return (
        (encoder.gives_tokens or not objective.needs_tokens)
        and (encoder.reads_words or not objective.needs_words)
        and encoder.learns_word_vectors == objective.needs_word_vectors
    )

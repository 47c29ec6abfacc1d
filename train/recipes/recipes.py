"""Recipes: complete settings, and how they become a run's configuration.

The papers' settings are in a file for each paper. A setting that a recipe does not name has its default. To add a
recipe, add a row to its paper's file, or write a file for a new paper and add it to ``PAPER_RECIPES``. Say in
``departure_data`` where it departs from the paper, and run docs/make_departures.py.
"""

from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Any

from ...storage.common.errors import SettingError
from ...storage.hub.names import FRAMES
from ...storage.profiles import FRAME_MAPS, FRAME_PROFILES
from ..objectives import DEFAULT_OBJECTIVE, objectives
from ..settings import ENCODERS, parse_video_tower
from . import cmcm, ncl, ssml, taco, toco
from .train_config import Recipe, TrainConfig

PAPER_RECIPES: dict[str, Recipe] = {
    **taco.RECIPES,
    **toco.RECIPES,
    **ssml.RECIPES,
    **ncl.RECIPES,
    **cmcm.RECIPES,
}
"""{name: recipe}. A name starts with the recipe's objective."""
DEFAULT_RECIPE = "default"
TOWER_PARAMETERS = ("video_tower.", "project.")
"""Prefixes of the names of parameters of a video tower, and of the layer after it."""
RECIPES = MappingProxyType[str, Recipe](
    {
        # No paper's: chosen on five small sets, docs/training.md.
        DEFAULT_RECIPE: {
            "objective": "words",
            "encoder": "words",
            "max_video_tokens": 64,
            "max_text_tokens": 128,
            "num_steps": 0,
            "batch_size": 128,
            "learning_rate": 3e-3,
            "warmup_steps": 20,
            "schedule": "cosine",
            "weight_decay": 1e-2,
            "ema_decay": 0.98,
            "dropout": 0.2,
            "validation_share": 0.1,
            "stage_weights": "validation",
        },
        **PAPER_RECIPES,
    }
)
"""{name: recipe}: the default one, and the papers'."""

BEHIND_DEFAULT = frozenset(f"{name}-small" for name in ("taco", "toco", "toco-mlm", "ssml", "mil-nce", "ncl", "cmcm"))
"""Small recipes that find fewer clips than the default one on small data sets: docs/objectives.md."""


def usual_recipe(objective: str | None, dataset: str, protocol: str, init: str) -> str | None:
    """Return the name of the objective's recipe for a data set.

    Args:
        objective: Name of the objective; None: that of the data set's paper, or else the default recipe's.
        dataset: Name of the data set.
        protocol: If not empty, a recipe for this protocol is preferred.
        init: If not empty, only recipes for fine-tuning are considered.

    Returns:
        The paper's recipe, or else the objective's small one, or None if it has neither.
    """
    if objective is None:
        of_paper = usual_recipe(DEFAULT_OBJECTIVE, dataset, protocol, init)
        return of_paper if of_paper is not None and not of_paper.endswith("-small") else DEFAULT_RECIPE
    if objective == RECIPES[DEFAULT_RECIPE]["objective"]:
        return DEFAULT_RECIPE
    stem = f"{objective}-{dataset}"
    of_dataset = [name for name in RECIPES if name == stem or name.startswith(f"{stem}-")]
    usable = [name for name in of_dataset if name.endswith("-finetune") == bool(init)]
    best = [name for name in usable if not protocol or RECIPES[name].get("protocol", protocol) == protocol]
    small = f"{objective}-small"
    return next(iter([*best, *usable, *([small] if small in RECIPES else [])]), None)


def make_config(name: str | None, given: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration of a recipe with some settings replaced.

    Args:
        name: Name of a recipe; None for the settings' defaults.
        given: The settings that replace the recipe's, by name; "dataset" among them.

    Raises:
        SettingError: There is no such recipe, it needs another setting, or a value cannot be used.
    """
    if name is not None and name not in RECIPES:
        raise SettingError("recipe", name, f"expected one of {', '.join(RECIPES)}")
    settings = {**(RECIPES[name] if name else {}), **given, "recipe": name or ""}
    if given.get("features") and "video_tower" not in given and not are_frames(given["features"]):
        tower = settings.pop("video_tower", "")  # the recipe's features are frames, these are not
        if tower and "parameter_groups" not in given:
            settings["parameter_groups"] = _without_tower(settings.get("parameter_groups", ""))
    if (tower := parse_video_tower(settings.get("video_tower", ""))) is not None:
        are_maps = tower.map_shape is not None
    else:
        are_maps = set(str(given.get("features") or next(iter(FRAME_MAPS))).split("+")) <= set(FRAME_MAPS)
    if "video_grid" not in given and not are_maps:  # the recipe's features are maps, these are not
        settings.pop("video_grid", None)
        if "code_layers" not in given:
            settings.pop("code_layers", None)
    if settings.get("encoder", "words") not in ENCODERS and hasattr(
        objectives().get(settings.get("objective", "")), "bag"
    ):
        settings.setdefault("bag", "trained")  # a custom encoder makes its own vectors of whole clips
    if not settings.get("features"):
        raise SettingError(
            "features",
            "is missing",
            "the recipe has no default; expected a store's name, such as s3d, or several joined by +",
        )
    if name and name.endswith("-finetune") and not settings.get("init"):
        raise SettingError("recipe", name, "needs a trained run to start from; pass --init RUN")
    return TrainConfig.from_flat(settings)


def are_frames(features: str) -> bool:
    """Return whether a store contains a network's input frames instead of features, judging by its name."""
    return features in FRAME_PROFILES or FRAMES in features.split("--")[1:]


def _without_tower(groups: str) -> str:
    """Return a recipe's parameter groups without the groups of its video tower and of the layer after it."""
    return ";".join(group for group in groups.split(";") if not group.startswith(TOWER_PARAMETERS))


def describe(config: TrainConfig, given: Container[str]) -> list[str]:
    """Return a line for every setting that is used, with its value and where it is from.

    Args:
        config: The configuration.
        given: Names of the settings that did not come from the recipe.
    """
    recipe = RECIPES.get(config.recipe, {})
    lines = []
    ignored = config.ignored_settings()
    used = {name: value for name, value in config.flat().items() if name not in ignored}
    for name, value in used.items():
        source = "given" if name in given else f"recipe {config.recipe}" if recipe.get(name) == value else ""
        lines.append(f"  {name:<22} {value!s:<30} {source}".rstrip())
    return lines

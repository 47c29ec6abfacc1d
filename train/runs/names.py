"""Names of runs' folders: objective, features, what differs from the recipe, and the seed."""

import hashlib
import re
from pathlib import Path
from typing import Any

from ..recipes.recipes import RECIPES, usual_recipe
from ..recipes.train_config import TrainConfig, default_settings

NAMED = ("dataset", "objective", "recipe", "features", "protocol", "init", "seed")
"""Settings that have a place of their own in a name, or in the folder's path."""
MOST_CHARACTERS = 120
"""Longest text of settings in a name. Longer ones are replaced by a hash: file systems allow 255 bytes for a name."""


def changed_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that differ from the run's recipe: {name: value}, without those of ``NAMED``."""
    recipe = RECIPES.get(config.recipe, {})
    defaults = default_settings(type(config.objective))
    changed = {}
    for name, value in config.flat().items():
        is_no_grid = name == "video_grid" and not value  # follows from the features
        if name not in NAMED and not is_no_grid and value != recipe.get(name, defaults[name]):
            changed[name] = value
    return changed


def settings_text(settings: dict[str, Any]) -> str:
    """Return settings as a text without spaces or separators of paths, such as "losses=sentence-num_steps=100"."""
    return "-".join(f"{name}={re.sub(r'[^A-Za-z0-9._+-]+', '_', _text(value))}" for name, value in settings.items())


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def name_of_run(config: TrainConfig, init: Path | None, *, seed: str | None = None) -> str:
    """Return the name of the folder of a run that was not given one.

    It begins with the objective, or with the recipe if that is not the data set's usual one. Settings that differ from
    the recipe are part of it.

    Args:
        config: The run's settings.
        init: Folder of the run whose model training starts from.
        seed: What stands in the place of the seed, for several runs; None: the run's own.
    """
    usual = usual_recipe(config.objective.name, config.data.dataset, config.data.protocol, config.init)
    start = config.objective.name if config.recipe in ("", usual) else config.recipe
    settings = settings_text(changed_settings(config))
    if len(settings) > MOST_CHARACTERS:
        settings = "settings-" + hashlib.sha256(settings.encode()).hexdigest()[:8]
    origin = f"from-{init.name}" if init else ""
    parts = (
        start,
        config.data.features,
        config.data.protocol,
        origin,
        settings,
        seed or f"seed{config.optimization.seed}",
    )
    return "-".join(filter(None, parts))

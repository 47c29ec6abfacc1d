"""Checks of a run's JSON files. Files are not trusted: each value that is used is checked for its type."""

import json
import math
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from ...storage.common.errors import UserError
from ...storage.common.files import read_jsonl
from ...storage.common.terminal import one_line
from ..objectives import DEFAULT_OBJECTIVE, OBJECTIVES
from ..recipes.train_config import TrainConfig, setting_types

FEATURES = ("features", "profile_hash", "weights", "weights_sha256", "origin")
RENAMED_SETTINGS = {"held_out": "validation_share", "average": "ema_decay"}
"""{name of a setting in runs of earlier versions: its name now}"""
MOST_NAMES = 64
"""Upper limit of the terms of a loss."""


class UnknownRun(UserError):
    """A run whose settings this version does not know: it is of another version, or of an objective of one's own."""


def check_run(about: Any) -> None:
    """Raise ``ValueError`` if ``run.json`` lacks something or has a value of another type."""
    _expect(isinstance(about, dict), "not an object")
    for part in ("config", "inputs", "result", "software"):
        _expect(isinstance(about.get(part), dict), f"{part} is not an object")
    config, stores = read_config(about), about["inputs"].get("features")
    _expect(
        isinstance(stores, list) and all(isinstance(store, dict) for store in stores),
        "inputs.features is not a list of objects",
    )
    num_expected = len(config.data.features.split("+"))
    _expect(
        len(stores) == num_expected, f"inputs.features has {len(stores)} stores; config.features {config.data.features}"
    )
    for name in FEATURES:
        _expect(all(isinstance(store.get(name), str) for store in stores), f"inputs.features: {name} is not text")
    best = about["result"].get("best")
    _expect(isinstance(best, dict) and isinstance(best.get("step"), int), "result.best has no step")
    _expect(
        all(value is None or _is_number(value) for value in best.values()),
        "result.best has values that are not finite numbers",
    )
    weights = about["result"].get("stage_weights", {})
    _expect(isinstance(weights, dict), "result.stage_weights is not an object")
    _expect(weights.keys() <= config.score_weights.keys(), "result.stage_weights names other stages than the run's")
    _expect(all(map(_is_number, weights.values())), "result.stage_weights has values that are not finite numbers")
    tried = about["result"].get("stage_weights_tried", [])
    _expect(
        isinstance(tried, list) and all(_is_trial(trial, config.score_weights.keys()) for trial in tried),
        "result.stage_weights_tried is not a list of weights of the run's stages with their figures",
    )
    json.dumps(about, ensure_ascii=False).encode()  # raises for text that no encoding can hold


def read_config(about: dict[str, Any]) -> TrainConfig:
    """Return the configuration in what ``run.json`` says.

    Raises:
        UnknownRun: The objective or a setting does not exist.
        ValueError: A setting has another type.
        UserError: A value cannot be used.
    """
    written: dict[str, Any] = about["config"]
    settings = {RENAMED_SETTINGS.get(name, name): value for name, value in written.items()}
    name = settings.get("objective", DEFAULT_OBJECTIVE)
    _expect(isinstance(name, str), "config.objective is not text")
    if name not in OBJECTIVES:
        raise UnknownRun(_unknown("objective", name, f"it knows {', '.join(OBJECTIVES)}"))
    types = setting_types()
    for name, value in settings.items():
        if name not in types:
            raise UnknownRun(_unknown("setting", name, "another version made it"))
        expected = types[name]
        is_type = isinstance(value, expected) and not (isinstance(value, bool) and expected is not bool)
        _expect(is_type or (expected is float and _is_number(value)), f"config.{name}: expected {expected.__name__}")
    return TrainConfig.from_flat(settings)


def _unknown(what: str, name: str, why: str) -> str:
    return f"this version does not know its {what} '{one_line(name)[:80]}' ({why}); use the version that trained it"


def score_weights(about: Mapping[str, Any], config: TrainConfig) -> dict[str, float]:
    """Return the weight of each stage of a run's score: as validation chose them, or else as the settings say."""
    return config.score_weights | about["result"].get("stage_weights", {})


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the numbers of each step of a training, each a number or None.

    Raises:
        UserError: The file holds anything else.
    """
    events = read_jsonl(path)
    wrong = f"{path}: not the events of a training; train the run again"
    if not events or len(events[0]) > MOST_NAMES:
        raise UserError(wrong)
    for event in events:
        if not isinstance(event.get("step"), int) or not all(
            value is None or _is_number(value) for value in event.values()
        ):
            raise UserError(wrong)
    return events


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(one_line(otherwise)[:200])


def _is_trial(trial: Any, stages: Set[str]) -> bool:
    """Return whether a value is a ``TriedWeights`` of these stages."""
    if not isinstance(trial, dict) or not isinstance(weights := trial.get("weights"), dict):
        return False
    figures = [trial.get("recall"), trial.get("mean_reciprocal_rank"), *weights.values()]
    return weights.keys() == stages and all(map(_is_number, figures))


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an int with more digits than a float has
        return False

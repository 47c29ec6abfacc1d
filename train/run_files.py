"""What the JSON files of a run may say: each value that is used is of its type, whoever wrote it."""

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..storage.common.errors import UserError
from ..storage.common.terminal import one_line
from ..storage.files import read_jsonl
from .config import TrainConfig

FEATURES = ("features", "profile_hash", "weights", "weights_sha256", "origin")
MOST_NAMES = 64
"""Of terms of a loss."""


def check_run(about: Any) -> None:
    """Raises ``ValueError`` where ``run.json`` lacks something or has another type there."""
    _expect(isinstance(about, dict), "it is no object")
    for part in ("config", "inputs", "result", "software"):
        _expect(isinstance(about.get(part), dict), f"{part} is no object")
    config, stores = read_config(about), about["inputs"].get("features")
    _expect(
        isinstance(stores, list) and all(isinstance(store, dict) for store in stores),
        "inputs.features is no list of objects",
    )
    _expect(
        len(stores) == len(config.features.split("+")),
        f"inputs.features has {len(stores)} stores; config.features {config.features}",
    )
    for name in FEATURES:
        _expect(all(isinstance(store.get(name), str) for store in stores), f"inputs.features has no text for {name}")
    best = about["result"].get("best")
    _expect(isinstance(best, dict) and isinstance(best.get("step"), int), "result.best has no step")
    _expect(
        all(value is None or _is_number(value) for value in best.values()),
        "result.best has something that is no number",
    )
    json.dumps(about, ensure_ascii=False).encode()  # raises for what is no text in any encoding


def read_config(about: dict[str, Any]) -> TrainConfig:
    """Raises ``ValueError``, ``TypeError`` or ``UserError`` for what is no training configuration."""
    given, known = about["config"], {field.name: field.type for field in fields(TrainConfig)}
    for name, value in given.items():
        _expect(name in known, f"config.{name} is not known")
        is_type = isinstance(value, known[name]) and not (isinstance(value, bool) and known[name] is not bool)
        _expect(is_type or (known[name] is float and _is_number(value)), f"config.{name} is no {known[name].__name__}")
    return TrainConfig(**given)


def read_events(path: Path) -> list[dict[str, Any]]:
    """Numbers by step, or None. Raises ``UserError`` for anything else."""
    events = read_jsonl(path)
    wrong = f"{path}: no events of a training; train the run again"
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


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # of more digits than a float has
        return False

"""The training objectives, one file each.

An objective is a loss with its settings. To add one, write its file and add its row here; CONTRIBUTING.md has an
example. Formulas of papers are in ``train/losses/``, as functions of tensors. Custom objectives are loaded from their
modules by name (``storage/common/plugins.py``).
"""

from dataclasses import MISSING, fields
from typing import Any

from ...storage.common.plugins import loaded_plugins
from ...storage.common.settings import types_of
from ..settings import DataSettings, ModelSettings, OptimizationSettings, ValidationSettings, extra_problem
from .base import Objective
from .cmcm import CmcmObjective
from .hard_triplet import HardTripletObjective
from .mil_nce import MilNceObjective
from .ncl import NclObjective
from .segmentation import SegmentationObjective
from .ssml import SsmlObjective
from .taco import TacoObjective
from .toco import TocoObjective
from .toco_mlm import TocoMlmObjective
from .vqa import VqaObjective
from .words import WordsObjective

OBJECTIVES: dict[str, type[Objective]] = {
    "taco": TacoObjective,
    "toco": TocoObjective,
    "toco-mlm": TocoMlmObjective,
    "ssml": SsmlObjective,
    "mil-nce": MilNceObjective,
    "ncl": NclObjective,
    "hard-triplet": HardTripletObjective,
    "cmcm": CmcmObjective,
    "vqa": VqaObjective,
    "segmentation": SegmentationObjective,
    "words": WordsObjective,
}
"""{name: objective} of the built-in objectives"""
DEFAULT_OBJECTIVE = "taco"


def objectives() -> dict[str, type[Objective]]:
    """Return {name: objective}: the built-in ones, and loaded custom ones."""
    own = {plugin.text: plugin.value for plugin in loaded_plugins("objectives")}
    return OBJECTIVES | {name: objective for name, objective in own.items() if name not in OBJECTIVES}


def objective_problem(value: Any) -> str | None:
    """Return the reason why a custom value is not an objective, or None if it is."""
    if not isinstance(value, type) or not issubclass(value, Objective):
        return "is not an objective; expected a subclass of vlalign.train.objectives.base.Objective"
    if value.__module__.startswith("vlalign."):
        return f"is built in; expected one of {', '.join(OBJECTIVES)}, or one of your own"
    if "__dataclass_fields__" not in vars(value):
        return "is not a dataclass; write @dataclass(frozen=True, kw_only=True) above the class"
    if missing := [name for name in ("description", "loss_terms") if not hasattr(value, name)]:
        return f"has no {missing[0]}; expected the class variables description and loss_terms"
    others = {field.name for of in COMMON_SETTINGS for field in fields(of)}
    for field in fields(value):
        if field.name in others:
            return f"its setting {field.name} has the name of a setting of all runs; rename it"
        if field.default is MISSING:
            return f"its setting {field.name} has no default; expected setting(DEFAULT, DESCRIPTION)"
        if (kind := types_of(value)[field.name]) not in (str, int, float, bool):
            return f"its setting {field.name} is of type {kind}; expected str, int, float or bool"
    if value.compute_loss is Objective.compute_loss:
        return "has no compute_loss; expected a method that returns the terms of the loss"
    return extra_problem(value.extra)


COMMON_SETTINGS = (DataSettings, ModelSettings, OptimizationSettings, ValidationSettings)
"""The settings of every run, in addition to its objective's settings."""


def objective_for(task: str) -> str | None:
    """Return the objective that is made for a task; None for retrieval, which has several."""
    return next((name for name, objective in OBJECTIVES.items() if objective.task == task), None)

"""The objectives that a model can be trained with, one file each.

An objective is a loss with its settings. To add one, write its file and add its row here; CONTRIBUTING.md has an
example. Formulas of papers stand in ``train/losses/``, as functions of tensors.
"""

from .base import Objective
from .cmcm import CmcmObjective
from .mil_nce import MilNceObjective
from .ncl import NclObjective
from .segmentation import SegmentationObjective
from .ssml import SsmlObjective
from .taco import TacoObjective
from .toco import TocoObjective
from .vqa import VqaObjective
from .words import WordsObjective

OBJECTIVES: dict[str, type[Objective]] = {
    "taco": TacoObjective,
    "toco": TocoObjective,
    "ssml": SsmlObjective,
    "mil-nce": MilNceObjective,
    "ncl": NclObjective,
    "cmcm": CmcmObjective,
    "vqa": VqaObjective,
    "segmentation": SegmentationObjective,
    "words": WordsObjective,
}
"""{name: objective}"""
DEFAULT_OBJECTIVE = "taco"


def objective_for(task: str) -> str | None:
    """Return the objective whose runs alone can be asked a task, and can be asked nothing else; None if others can."""
    return next((name for name, objective in OBJECTIVES.items() if objective.task == task), None)

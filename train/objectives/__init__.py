"""The objectives that a model can be trained with, one file each.

To add an objective, write its file, add its row here, and its tests.
"""

from .base import Objective
from .cmcm import Cmcm
from .mil_nce import MilNce
from .ncl import Ncl
from .segmentation import Segmentation
from .ssml import Ssml
from .taco import Taco
from .toco import Toco
from .vqa import Vqa
from .words import Words

OBJECTIVES: dict[str, type[Objective]] = {
    "taco": Taco,
    "toco": Toco,
    "ssml": Ssml,
    "mil-nce": MilNce,
    "ncl": Ncl,
    "cmcm": Cmcm,
    "vqa": Vqa,
    "segmentation": Segmentation,
    "words": Words,
}
"""{name: objective}"""
DEFAULT_OBJECTIVE = "taco"


def objective_for(task: str) -> str | None:
    """Return the objective whose runs alone can be asked a task, and can be asked nothing else; None if others can."""
    return next((name for name, objective in OBJECTIVES.items() if objective.task == task), None)

"""The tasks that a run is evaluated on, one a file, and their report.

To add a task, write its file, its page beside it, and its row in ``TASKS``.
"""

from typing import Any

from .retrieval import Retrieval
from .segmentation import Segmentation
from .steps import Steps
from .task import Task
from .vqa import Vqa

TASKS: dict[str, Task[Any]] = {task.name: task for task in (Retrieval(), Steps(), Vqa(), Segmentation())}
"""{name: task}. The first one is the default."""

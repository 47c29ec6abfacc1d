"""The evaluation tasks of runs, one file each, and their report.

To add a task, write its file, its page beside the file, and its entry in ``TASKS``.
"""

from typing import Any

from .retrieval import Retrieval
from .segmentation import Segmentation
from .steps import Steps
from .task import Task
from .vqa import Vqa

TASKS: dict[str, Task[Any]] = {task.name: task for task in (Retrieval(), Steps(), Vqa(), Segmentation())}
"""{name: task}. The first one is the default."""

"""Train video-text models on features and captions, evaluate them, and search with them.

Public names are imported at their first use: torch takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .evaluation import evaluate
    from .search.search import search_clips
    from .training import TrainedRun, train

__all__ = ["TrainedRun", "evaluate", "search_clips", "train"]

_MODULES = {
    "TrainedRun": ".training",
    "evaluate": ".evaluation",
    "search_clips": ".search.search",
    "train": ".training",
}
"""{public name: its module}"""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Train video-text models on features and captions, evaluate them, and search with them.

Public names are imported at their first use: torch takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .comparison.seeds import SeedRuns, train_seeds
    from .evaluation import evaluate
    from .search.opened import open_search
    from .search.search import search_clips
    from .training import TrainedRun, train

__all__ = ["SeedRuns", "TrainedRun", "evaluate", "open_search", "search_clips", "train", "train_seeds"]

_MODULES = {
    "SeedRuns": ".comparison.seeds",
    "TrainedRun": ".training",
    "evaluate": ".evaluation",
    "open_search": ".search.opened",
    "search_clips": ".search.search",
    "train": ".training",
    "train_seeds": ".comparison.seeds",
}
"""{public name: its module}"""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

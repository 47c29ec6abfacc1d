"""Train video-text models on features and captions, evaluate them, and search with them.

Public names are imported at their first use: torch takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .comparison.seeds import SeedRuns, train_seeds
    from .evaluation import evaluate
    from .search.build import build_index
    from .search.search import open_search
    from .training import TrainedRun, train

__all__ = ["SeedRuns", "TrainedRun", "build_index", "evaluate", "open_search", "train", "train_seeds"]

_MODULES = {
    "SeedRuns": ".comparison.seeds",
    "TrainedRun": ".training",
    "evaluate": ".evaluation",
    "build_index": ".search.build",
    "open_search": ".search.search",
    "train": ".training",
    "train_seeds": ".comparison.seeds",
}
"""{public name: its module}"""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Train video-text models on features and captions, evaluate them, and search with them.

Public names are imported at their first use: torch takes seconds.
"""

from typing import TYPE_CHECKING

from ..storage.common.lazy import names_from

if TYPE_CHECKING:
    from .comparison.seeds import SeedRuns, train_seeds
    from .evaluation import evaluate
    from .search.build import build_index
    from .search.search import open_search
    from .training import TrainedRun, train

__all__ = ["SeedRuns", "TrainedRun", "build_index", "evaluate", "open_search", "train", "train_seeds"]

__getattr__ = names_from(
    __name__,
    {
        "SeedRuns": "comparison.seeds",
        "TrainedRun": "training",
        "evaluate": "evaluation",
        "build_index": "search.build",
        "open_search": "search.search",
        "train": "training",
        "train_seeds": "comparison.seeds",
    },
)

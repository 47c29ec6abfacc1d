"""Stores -> a model, its figures, a report and search. Long names are imported on first use: torch takes seconds."""

from typing import Any

__all__ = ["evaluate", "search_clips"]


def __getattr__(name: str) -> Any:
    if name == "evaluate":
        from .evaluation import evaluate

        return evaluate
    if name == "search_clips":
        from .search.search import search_clips

        return search_clips
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Annotations to captions with part-of-speech tags, and the IDF table. ``prepare_captions`` does all of it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .prepare import PreparedCaptions, prepare_captions

__all__ = ["PreparedCaptions", "prepare_captions"]


def __getattr__(name: str) -> Any:
    # Imported on first use, so that importing one reader imports nothing heavy.
    if name in __all__:
        from . import prepare

        return getattr(prepare, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Videos -> features. ``load_extractor`` and ``extract_video`` are all that a notebook needs."""

from typing import Any

__all__ = ["extract_video", "load_extractor"]


def __getattr__(name: str) -> Any:
    # Imported on first use: torch takes seconds to import, and a command that finds nothing left to do needs none of it.
    if name == "load_extractor":
        from .extractor import load_extractor

        return load_extractor
    if name == "extract_video":
        from .video import extract_video

        return extract_video
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Turn annotations into captions with part-of-speech tags and an IDF table: see ``prepare_captions``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..storage.common.lazy import lazy_names

if TYPE_CHECKING:
    from types import ModuleType

    from .public import *

__all__ = [
    "Annotations",
    "Chunk",
    "ChunkedReader",
    "Dataset",
    "PreparedCaptions",
    "PreprocessingSettings",
    "prepare_captions",
]


def _public() -> ModuleType:
    from . import public

    return public


# Importing one reader imports nothing heavy.
__getattr__ = lazy_names(__name__, __all__, _public)

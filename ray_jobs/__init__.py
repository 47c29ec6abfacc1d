"""Runs the steps of the other folders on a Ray cluster. A worker here is a Ray actor or task on one of its machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..storage.common.lazy import lazy_names

if TYPE_CHECKING:
    from types import ModuleType

    from .public import *

__all__ = [
    "WorkerOptions",
    "build_index_on_cluster",
    "extract_on_cluster",
    "prepare_captions_on_cluster",
    "train_on_cluster",
    "transcribe_dataset_on_cluster",
]


def _public() -> ModuleType:
    from . import public

    return public


# Each needs Ray and the folder of its step.
__getattr__ = lazy_names(__name__, __all__, _public)

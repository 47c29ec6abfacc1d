"""Train video-text models on features and captions, evaluate them, and search with them.

Public names are imported at their first use: torch takes seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..storage.common.lazy import lazy_names

if TYPE_CHECKING:
    from types import ModuleType

    from .public import *

__all__ = [
    "Batch",
    "BuiltIndex",
    "CaptionColumn",
    "ClipDataset",
    "ClipRows",
    "Difference",
    "EncoderTraits",
    "Evaluation",
    "EvaluationRequest",
    "EvaluationSettings",
    "ExportedClip",
    "ExportedClips",
    "ExportedMoments",
    "FeatureRows",
    "LoadedRun",
    "ModelPlan",
    "ModelSettings",
    "Moment",
    "MtebModel",
    "Objective",
    "ObjectiveModules",
    "PairModel",
    "Search",
    "SearchSource",
    "SeedRuns",
    "SyncResult",
    "SyncSettings",
    "Task",
    "TaskResult",
    "TextTokens",
    "TrainConfig",
    "TrainedRun",
    "VideoTokens",
    "build_index",
    "compare_similarities",
    "evaluate",
    "export_clips",
    "export_moments",
    "export_run",
    "export_sentence_transformer",
    "load_run",
    "mteb_model",
    "mteb_task",
    "open_search",
    "sync_videos",
    "train",
    "train_seeds",
]


def _public() -> ModuleType:
    from . import public

    return public


__getattr__ = lazy_names(__name__, __all__, _public)

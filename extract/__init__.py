"""Videos -> features.

``load_extractor`` and ``extract_video`` are all that one video needs. ``extract_dataset`` extracts a whole data set
into its stores, as ``vlalign-extract`` does; ``plan_extraction`` and ``verify_dataset`` do the same as its options
``--plan`` and ``--verify-against``. ``transcribe_video`` and ``transcribe_dataset`` transcribe speech; the latter also
transcribes text in frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..storage.common.lazy import lazy_names

if TYPE_CHECKING:
    from types import ModuleType

    from .public import *

__all__ = [
    "ExtractionPlan",
    "ExtractionResult",
    "ExtractionSettings",
    "TranscriptionResult",
    "TranscriptionSettings",
    "VerificationResult",
    "extract_dataset",
    "extract_video",
    "load_extractor",
    "plan_extraction",
    "transcribe_dataset",
    "transcribe_video",
    "verify_dataset",
]


def _public() -> ModuleType:
    from . import public

    return public


# Torch takes seconds to import, and a command that has nothing left to do does not need it.
__getattr__ = lazy_names(__name__, __all__, _public)

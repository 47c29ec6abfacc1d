"""Videos -> features.

``load_extractor`` and ``extract_video`` are all that one video needs. ``extract_dataset`` extracts a whole data set
into its stores, as ``vlalign-extract`` does; ``plan_extraction`` and ``verify_dataset`` are its ``--plan`` and
``--verify-against``.
"""

from typing import TYPE_CHECKING

from ..storage.common.lazy import names_from

if TYPE_CHECKING:
    from .dataset import ExtractionResult, extract_dataset
    from .extractor import load_extractor
    from .plan import ExtractionPlan, plan_extraction
    from .settings import ExtractionSettings
    from .verification.verify import VerificationResult, verify_dataset
    from .video import extract_video

__all__ = [
    "ExtractionPlan",
    "ExtractionResult",
    "ExtractionSettings",
    "VerificationResult",
    "extract_dataset",
    "extract_video",
    "load_extractor",
    "plan_extraction",
    "verify_dataset",
]
# Torch takes seconds to import, and a command that has nothing left to do does not need it.
__getattr__ = names_from(
    __name__,
    {
        "ExtractionPlan": "plan",
        "ExtractionResult": "dataset",
        "ExtractionSettings": "settings",
        "VerificationResult": "verification.verify",
        "extract_dataset": "dataset",
        "extract_video": "video",
        "load_extractor": "extractor",
        "plan_extraction": "plan",
        "verify_dataset": "verification.verify",
    },
)

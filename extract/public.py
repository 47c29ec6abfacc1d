"""The public names of ``vlalign.extract``; ``__init__`` imports them from here at their first use."""

from .extractor import load_extractor as load_extractor
from .pipeline.dataset import ExtractionResult as ExtractionResult
from .pipeline.dataset import extract_dataset as extract_dataset
from .pipeline.plan import ExtractionPlan as ExtractionPlan
from .pipeline.plan import plan_extraction as plan_extraction
from .settings import ExtractionSettings as ExtractionSettings
from .speech.video import transcribe_video as transcribe_video
from .transcription.dataset import TranscriptionResult as TranscriptionResult
from .transcription.dataset import transcribe_dataset as transcribe_dataset
from .transcription.settings import TranscriptionSettings as TranscriptionSettings
from .verification.verify import VerificationResult as VerificationResult
from .verification.verify import verify_dataset as verify_dataset
from .video import extract_video as extract_video

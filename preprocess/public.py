"""The public names of ``vlalign.preprocess``, as ``__init__`` gives them at their first use."""

from .prepare import PreparedCaptions as PreparedCaptions
from .prepare import prepare_captions as prepare_captions
from .settings import PreprocessingSettings as PreprocessingSettings

"""The public names of ``vlalign.preprocess``, which ``__init__`` imports at their first use."""

from .datasets.sources import Annotations as Annotations
from .datasets.sources import Chunk as Chunk
from .datasets.sources import ChunkedReader as ChunkedReader
from .datasets.sources import Dataset as Dataset
from .prepare import PreparedCaptions as PreparedCaptions
from .prepare import prepare_captions as prepare_captions
from .settings import PreprocessingSettings as PreprocessingSettings

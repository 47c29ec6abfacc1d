"""What turns queries and clips into vectors that can be compared: the protocol of the two encoders.

A query becomes a vector in ``encode_text`` or ``encode_image``, a part of a video in ``encode_clips``. ``StoreEncoder``
does it with a feature store and the text tower of its model, ``RunEncoder`` with a trained run.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ...storage.dataset.folder import DatasetFolder
from ...storage.stores.feature_store import FeatureStore
from ..data.clips import Clip
from .moments import ScoreCurve

TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class ClipScores:
    """Scores of some clips for a query, with all stages."""

    total: np.ndarray
    """Weighted sum of the stages, float32 [N]."""
    stages: dict[str, np.ndarray]
    """{stage: float32 [N]}"""


class SearchEncoder(Protocol):
    """Makes vectors of clips and of texts whose dot product says how well they fit."""

    @property
    def dataset(self) -> DatasetFolder:
        """The data set that is searched."""
        ...

    @property
    def name(self) -> str:
        """Name of the features, or of the run."""
        ...

    @property
    def description(self) -> str:
        """The data set's name, and what else must be known about the search."""
        ...

    @property
    def note(self) -> str | None:
        """The note to show with every result, such as that features come from random weights."""
        ...

    @property
    def reads_texts(self) -> bool:
        """Whether texts have vectors; else only captions can be searched by text, and videos by example."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """The identity of the encoder; vectors with another identity cannot be compared."""
        ...

    def video_ids(self) -> list[str]:
        """Return the videos that have features."""
        ...

    def duration_seconds(self, video_id: str) -> float:
        """Return the duration of a video."""
        ...

    def checksum(self, video_id: str) -> int:
        """Return a checksum of a video's rows, 0 to 2**63 - 1."""
        ...

    def encode_clips(self, clips: Sequence[Clip]) -> np.ndarray:
        """Return a vector for each clip, float32 [N, D]; NaN for a clip without rows, which is never found."""
        ...

    def encode_text(self, text: str) -> np.ndarray:
        """Return the vector of a text, float32 [D]."""
        ...

    def encode_image(self, path: Path) -> np.ndarray:
        """Return the vector of an image, as of a video that shows it, float32 [D]."""
        ...

    def score(self, text: str, clips: Sequence[Clip], rerank: int) -> ClipScores | None:
        """Score clips with all stages, the late ones for the ``rerank`` best; None if vectors are all there is."""
        ...

    def curve(self, query_D: np.ndarray, video_id: str) -> ScoreCurve | None:
        """Return scores finer than the windows'; None if there are none."""
        ...

    def word_curves(self, text: str, video_id: str) -> dict[str, ScoreCurve]:
        """Return how well each word of a text fits a video over its time; nothing if the model cannot say."""
        ...

    def warnings(self, text: str) -> list[str]:
        """Return what of a text the model does not know, or does not read, one line each."""
        ...


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors [..., D] with length 1; zeros stay."""
    vectors = np.asarray(vectors, dtype=np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), TINY)


def stores_checksum(stores: Sequence[FeatureStore], video_id: str) -> int:
    """Return one checksum of a video's rows in several stores."""
    parts = b"".join(int(store.locate(video_id)[1]["checksum"]).to_bytes(8, "little", signed=True) for store in stores)
    return int.from_bytes(hashlib.sha256(parts).digest()[:8], "little") >> 1

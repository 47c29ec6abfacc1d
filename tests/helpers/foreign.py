"""Rows of features that others might have made."""

import numpy as np
from vlalign.storage import VideoFeatures, Weights

# Files that other tools made


def rows(num_rows: int = 12, dimension: int = 64, seed: int = 0) -> np.ndarray:
    """Rows that resemble their neighbours, as those of a video do."""
    steps = np.random.default_rng(seed).standard_normal((num_rows, dimension))
    return np.abs(np.cumsum(steps, axis=0)).astype(np.float32)


def rows_of(video_id: str, source: str, dimension: int) -> VideoFeatures:
    return VideoFeatures(
        video_id=video_id,
        features=np.ones((1, dimension), dtype=np.float32),
        start_seconds=np.zeros(1),
        end_seconds=np.ones(1),
        valid_frames=np.full(1, 16),
        duration_seconds=1.0,
        source=source,
    )


STORED = Weights(name="random (seed 5)", sha256="5" * 64)

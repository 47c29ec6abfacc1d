"""Spoken captions as the audio encoder takes them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from ...storage.records import Caption
from ...storage.stores.store import Store
from .clip_features import pad_rows

ROWS_OF_TOKEN = 16
"""Log-mel rows of 10 ms that become one token."""
DYNAMIC_RANGE = 80.0
"""In dB: values below a recording's loudest value by more than this are raised to it, as in AVLnet, DAVEnet and
others."""


class Recordings:
    """Reads the log-mel rows of spoken captions, each recording's loudest value at 0 dB."""

    def __init__(self, store: Store, max_tokens: int) -> None:
        """Read from ``store`` at most as many rows as become ``max_tokens`` tokens."""
        self.store, self.max_rows = store, ROWS_OF_TOKEN * max_tokens

    def __call__(self, captions: Sequence[Caption]) -> dict[str, Tensor]:
        """Return ``rows_BTD`` [B, T, D], padded to the longest, and ``mask_BT``, True for a row."""
        clips = [(caption.recording or "", None, None) for caption in captions]
        rows = [_levelled(recording.features[: self.max_rows]) for recording in self.store.get_clips(clips)]
        rows_BTD, mask_BT = pad_rows(rows, self.store.profile.dimension)
        return {"rows_BTD": rows_BTD, "mask_BT": mask_BT}

    def save(self, folder: Path) -> None:
        """Do nothing: the recordings stay in their store."""


def _levelled(rows_TD: np.ndarray) -> np.ndarray:
    return np.maximum(rows_TD - rows_TD.max(initial=-np.inf), -DYNAMIC_RANGE) if len(rows_TD) else rows_TD

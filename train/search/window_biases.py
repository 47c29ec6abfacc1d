"""NCL's biases of search windows, from the training texts that a run saved (NCL, section 3.4).

They depend on all windows together. Therefore they are computed for a whole index and stored beside its shards.
"""

import hashlib
import json
from dataclasses import dataclass

import numpy as np

from ...storage.common.errors import refuse_unreadable
from ...storage.common.tensor_files import SUFFIX, TensorFile, write_tensors
from ...storage.common.terminal import say
from ...storage.common.writing import check_folders
from .encoder import TrainingTexts
from .index import IndexFolder, WindowIndex

MAX_WINDOWS = 1 << 17
"""Maximum number of windows that have biases. With 16,384 training texts, computing them takes minutes."""
MAX_WINDOWS_BY_SEARCH = 20_000
"""Maximum number of windows whose biases a search computes itself."""
FORMAT = 1
TYPES = {"bias": ("F64", 1), "log_weights": ("F64", 1)}
"""{tensor: type, dimensions}: the bias of each row of the index [W]; ``FittedBiases.log_weights_K`` [K]."""
DAMAGE, REMEDY = "not the biases of an index", "remove it and run vlalign-index"


@dataclass(frozen=True)
class WindowBiases:
    """The biases that are added to the scores of a text with the windows of an index."""

    texts: TrainingTexts
    bias_W: np.ndarray
    """float64, one for each row of the index; 0 for a row that is outdated or has no vector."""
    log_weights_K: np.ndarray

    def of_vectors(self, vectors: np.ndarray) -> np.ndarray:
        """Return the biases [N] of vectors [N, D] that are not windows, for example of captions' times."""
        from ..scoring.query_biases import biases_of

        return biases_of(self.texts.similarities(vectors), self.log_weights_K, self.texts.temperature)


def fit_window_biases(texts: TrainingTexts, index: WindowIndex) -> WindowBiases:
    """Compute the biases of the windows of an index.

    Args:
        texts: Training texts of the run that made the index.
        index: Its windows.
    """
    from ..scoring.query_biases import fit_biases

    rows = np.flatnonzero(index.is_live)
    vectors = index.vectors_of(rows)
    has_vector = np.isfinite(vectors).all(axis=1)
    bias_W = np.zeros(len(index.video))
    fitted = fit_biases(texts.similarities(vectors[has_vector]), texts.temperature)
    bias_W[rows[has_vector]] = fitted.bias_N
    return WindowBiases(texts, bias_W, fitted.log_weights_K)


def open_window_biases(folder: IndexFolder, index: WindowIndex, max_windows: int = MAX_WINDOWS) -> WindowBiases | None:
    """Open the biases of an index's windows; compute them if there are few windows. None if the run has none.

    Args:
        folder: The index.
        index: Its windows.
        max_windows: Compute missing biases for at most this many windows; for more, print a note and return None.

    Raises:
        UserError: The file is damaged.
    """
    texts = folder.encoder.training_texts()
    if texts is None or not index.num_windows:
        return None
    about = [folder.key, texts.temperature, [shard.path.name for shard in index.shards]]
    digest = hashlib.sha256(json.dumps(about).encode() + index.is_live.tobytes()).hexdigest()
    path = folder.path / "biases" / f"windows{SUFFIX}"
    if path.exists():
        file = TensorFile(path, TYPES, FORMAT, DAMAGE, REMEDY)
        with refuse_unreadable(path, DAMAGE, REMEDY):
            bias_W, log_weights_K = (np.array(file.arrays[name]) for name in TYPES)
            if file.about.get("of") == digest:
                if len(bias_W) != len(index.video) or len(log_weights_K) != len(texts.vectors):
                    raise ValueError("its arrays do not fit the index")
                if not (np.isfinite(bias_W).all() and np.isfinite(log_weights_K).all()):
                    raise ValueError("values that are not numbers")
                return WindowBiases(texts, bias_W, log_weights_K)
    if index.num_windows > min(max_windows, MAX_WINDOWS):
        todo = (
            f"run vlalign-index --dataset {folder.encoder.dataset.name}"
            if index.num_windows <= MAX_WINDOWS
            else f"only indexes of up to {MAX_WINDOWS:,} windows have them"
        )
        say(f"note: NCL's biases of the {index.num_windows:,} windows are not used; {todo}")
        return None
    biases = fit_window_biases(texts, index)
    check_folders(path.parent)
    tensors = {"bias": biases.bias_W, "log_weights": biases.log_weights_K}
    write_tensors(path, tensors, {"format": str(FORMAT), "of": digest})
    return biases

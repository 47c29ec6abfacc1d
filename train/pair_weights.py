"""How probable it is that a training clip and its caption belong together: computed once, and kept beside the data set."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ..storage.console import UserError, progress, say
from ..storage.files import written_whole
from ..storage.layout import DatasetFolder
from ..storage.word_vectors import read_word_vectors
from .config import TrainConfig
from .data import ClipFeatures, Pairs
from .density import nearest_pairs, probability
from .runs import describe_inputs
from .text import average_words
from .workers import Workers

CLIPS = 4096


def pair_weights(dataset: DatasetFolder, config: TrainConfig, features: ClipFeatures, pairs: Pairs, workers: Workers) -> np.ndarray | None:
    """p-hat of SSML's Eq. 2 for each caption and its clip, float32; None where all count the same. Raises ``UserError`` where there are
    no word vectors, or fewer pairs than neighbours."""
    if config.pair_weights == "none":
        return None
    vectors = read_word_vectors(dataset.word_vectors)
    k = config.density_neighbors
    if k >= len(pairs.captions):
        raise UserError(f"--density-neighbors {k}: there are {len(pairs.captions):,} training pairs; expected fewer neighbours than others")
    about = {"k": k, "inputs": describe_inputs(dataset, features.stores), "word_vectors": vectors.about, "num_pairs": len(pairs.captions)}
    about["vectors"] = "less their mean"
    name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    path = dataset.path / "pair_weights" / f"{config.features}-k{k}-{name}.npz"
    if workers.first and not path.exists():
        say(f"{path}: how probable it is that clips and captions belong together, of {len(pairs.captions):,} pairs")
        clips = np.concatenate([features.pooled(pairs.clips[first : first + CLIPS]) for first in range(0, len(pairs.clips), CLIPS)])
        captions = average_words(vectors, (caption.caption for caption in pairs.captions))

        def shown(parts: Iterable[int]) -> Iterable[int]:
            return progress(parts, total=len(captions), what="density", unit="pairs", size=lambda number: number)

        found = nearest_pairs(_less_their_mean(clips)[pairs.clip_of_caption], _less_their_mean(captions), k, progress=shown)
        _write(path, probability(found.similarity_NK), about)
    workers.wait()
    with np.load(path) as arrays:
        return arrays["probability"]


def _less_their_mean(vectors: np.ndarray) -> np.ndarray:
    """Averaged word vectors, and maxima over rows, all point nearly the same way: left as they are, their cosines tell little. Rows of
    zeros, which say nothing, stay."""
    known = vectors.any(axis=1)
    vectors[known] -= vectors[known].mean(axis=0)
    return vectors


def _write(path: Path, values: np.ndarray, about: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as partial, partial.open("wb") as file:
        np.savez(file, probability=values, about=np.array(json.dumps(about)))

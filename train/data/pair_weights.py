"""How probable it is that a training clip and its caption belong together: computed once, and kept beside the data set."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ...storage.common.errors import UserError
from ...storage.common.progress import progress
from ...storage.common.terminal import say
from ...storage.files import written_whole
from ...storage.layout import DatasetFolder
from ...storage.word_vectors import WordVectors, read_word_vectors
from ..config import TrainConfig
from ..density import nearest_pairs, probability
from ..runs import describe_inputs
from ..workers import Workers
from .pairs import ClipFeatures, Pairs
from .text import average_words

CLIPS = 4096
PART_NUMBERS = 1 << 30
"""Numbers in the vectors of the pairs among which neighbours are looked for: so many take 12 GB. Where all pairs have more, each one's
neighbours are those in its part of them; parts are drawn, so that each is a smaller sample of the same density."""
PARTS_SEED = 0


def pair_weights(
    dataset: DatasetFolder, config: TrainConfig, features: ClipFeatures, pairs: Pairs, workers: Workers
) -> np.ndarray | None:
    """p-hat of SSML's Eq. 2 for each caption and its clip, float32; None where all count the same. Raises ``UserError`` where there are
    no word vectors, or fewer pairs than neighbours."""
    if config.pair_weights == "none":
        return None
    vectors = read_word_vectors(dataset.word_vectors)
    k, size = config.density_neighbors, len(pairs.captions)
    if k >= size:
        raise UserError(
            f"--density-neighbors {k}: there are {size:,} training pairs; expected fewer neighbours than others"
        )
    width = features.pooled(pairs.clips[:1]).shape[1] + vectors.vectors.shape[1]
    num_parts = min(-(-size * width // PART_NUMBERS), size // (k + 1))
    about = {
        "k": k,
        "inputs": describe_inputs(dataset, features.stores),
        "word_vectors": vectors.about,
        "num_pairs": size,
    }
    about |= {"vectors": "less their mean", "parts": num_parts}
    name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    path = dataset.path / "pair_weights" / f"{config.features}-k{k}-{name}.npz"
    if workers.first and not path.exists():
        among = f", neighbours among {size // num_parts:,} each" if num_parts > 1 else ""
        say(f"{path}: how probable it is that clips and captions belong together, of {size:,} pairs{among}")
        similarity, done = np.empty((size, k), dtype=np.float32), 0
        for part in np.array_split(np.random.default_rng(PARTS_SEED).permutation(size), num_parts):
            part.sort()  # stores are read in their order
            similarity[part] = _similarity_to_nearest(features, vectors, pairs, part, k, done)
            done += len(part)
        _write(path, probability(similarity), about)
    workers.wait()
    with np.load(path) as arrays:
        return arrays["probability"]


def _similarity_to_nearest(
    features: ClipFeatures, vectors: WordVectors, pairs: Pairs, part: np.ndarray, k: int, done: int
) -> np.ndarray:
    """S of Eq. 1 of each pair of a part with its nearest in it, [P, K]. ``done``: pairs of the parts before."""

    def shown(numbers: Iterable[int]) -> Iterable[int]:
        return progress(
            numbers, total=len(pairs.captions), what="density", unit="pairs", size=lambda number: number, done=done
        )

    numbers, clip_of_pair = np.unique(pairs.clip_of_caption[part], return_inverse=True)
    own = [pairs.clips[number] for number in numbers]
    clips = _less_their_mean(
        np.concatenate([features.pooled(own[first : first + CLIPS]) for first in range(0, len(own), CLIPS)])
    )
    captions = _less_their_mean(average_words(vectors, (c.caption for c in pairs.captions.take(part))))
    return nearest_pairs(clips[clip_of_pair], captions, k, progress=shown).similarity_NK


def _less_their_mean(vectors: np.ndarray) -> np.ndarray:
    """Averaged word vectors, and maxima over rows, all point nearly the same way: left as they are, their cosines tell little. Rows of
    zeros, which say nothing, stay."""
    known = vectors.any(axis=1, keepdims=True)
    mean = vectors.sum(axis=0, dtype=np.float64) / max(known.sum(), 1)
    return np.subtract(vectors, mean.astype(vectors.dtype), out=vectors, where=known)


def _write(path: Path, values: np.ndarray, about: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as partial, partial.open("wb") as file:
        np.savez(file, probability=values, about=np.array(json.dumps(about)))

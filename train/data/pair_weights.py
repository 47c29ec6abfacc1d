"""The weights of training pairs: how probable it is that a clip and its caption belong together.

They are computed once and cached beside the data set. Pairs that are too improbable can be discarded instead.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ...storage.captions.files import read_captions_about
from ...storage.captions.word_vectors import WordVectors, read_word_vectors
from ...storage.common.errors import SettingError, refuse_unreadable
from ...storage.common.progress import progress
from ...storage.common.tensor_files import SUFFIX, CachedTensors, TensorWriter
from ...storage.common.terminal import say
from ...storage.dataset.folder import DatasetFolder
from ...storage.untrusted.limits import FORMAT_ERRORS
from ...storage.untrusted.npz import open_npz
from ..density import nearest_pairs, probability
from ..distributed import Workers
from .clip_features import ClipFeatures
from .pairs import FoundPairs, Pairs, PairSource, by_parts_of_videos, make_pairs
from .stores import facts_of
from .text_inputs import average_word_vectors

NAME, FORMAT = "probability", 1
CLIPS = 4096
PART_NUMBERS = 1 << 30
"""Upper limit of the numbers in the vectors that are searched for neighbours together, about 12 GB. If the vectors of
all pairs have more, the pairs are split into random parts, and each pair's neighbours are searched in its own part: a
smaller sample of the same density."""
PARTS_SEED = 0


@dataclass(frozen=True)
class Density:
    """Settings for the probability of a pair (SSML, sections 3.3 and 3.4)."""

    num_neighbors: int
    """K of Eq. 3."""
    is_centered: bool = False
    """Subtract the mean from vectors before comparison; Eq. 1 does not."""
    threshold: float | None = None
    """Pairs below it are discarded; None: pairs are weighted."""


def density_weights(
    dataset: DatasetFolder,
    features: ClipFeatures,
    pairs: Pairs,
    density: Density,
    workers: Workers,
    *,
    are_some: bool = False,
) -> np.ndarray:
    """Return p-hat of SSML's Eq. 2 for each caption and its clip, float32 [num_captions], mapped.

    The first process computes it once and caches it under ``<dataset>/pair_weights``.

    Args:
        dataset: Has the word vectors.
        features: Of the clips.
        pairs: The training pairs.
        density: K of Eq. 3, and which vectors are compared.
        workers: The processes that train together; all return the same.
        are_some: Whether ``pairs`` are only some of the data set's training pairs. The cache key then includes which.

    Raises:
        SettingError: There are not more pairs than neighbours.
        UserError: There are no word vectors.
    """
    vectors = read_word_vectors(dataset.word_vectors)
    num_pairs, num_neighbors = len(pairs.captions), density.num_neighbors
    if num_neighbors >= num_pairs:
        problem = f"there are {num_pairs:,} training pairs; expected fewer neighbours than that"
        raise SettingError("density_neighbors", num_neighbors, problem)
    width = features.pooled(pairs.clips[:1]).shape[1] + vectors.vectors.shape[1]
    num_parts = min(-(-num_pairs * width // PART_NUMBERS), num_pairs // (num_neighbors + 1))
    about = {
        "k": num_neighbors,
        "inputs": {"captions": read_captions_about(dataset.captions), "features": [*map(facts_of, features.stores)]},
        "word_vectors": vectors.about,
        "num_pairs": num_pairs,
        "vectors": "minus their mean" if density.is_centered else "as they are",
        "parts": num_parts,
    }
    if are_some:
        about["rows"] = hashlib.sha256(pairs.captions.selected.tobytes()).hexdigest()
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    names = "+".join(store.name for store in features.stores)
    path = dataset.path / "pair_weights" / f"{names}-k{num_neighbors}-{key[:16]}{SUFFIX}"

    def make(writer: TensorWriter) -> None:
        if (earlier := path.with_suffix(".npz")).exists():  # of a version that did not map its files
            with refuse_unreadable(earlier, "not readable", "remove it", FORMAT_ERRORS), open_npz(earlier) as arrays:
                values = arrays[NAME]()
                if values is None or values.ndim != 1:
                    raise ValueError("not a list of numbers")
                return writer.append(NAME, values.astype(np.float32, copy=False))
        among = f", neighbours among {num_pairs // num_parts:,} each" if num_parts > 1 else ""
        say(f"{path}: computing the probability that each clip and its caption match, {num_pairs:,} pairs{among}")
        writer.append(NAME, _probability(features, vectors, pairs, density, num_parts))
        return None

    cache = CachedTensors(path, {NAME: ("F32", 1)}, FORMAT, key, make)
    if workers.is_first:
        cache.open()
    workers.wait()
    return cache.open()[NAME]


def _probability(
    features: ClipFeatures, vectors: WordVectors, pairs: Pairs, density: Density, num_parts: int
) -> np.ndarray:
    num_pairs = len(pairs.captions)
    of_pairs, done = np.empty(num_pairs, dtype=np.float32), 0
    for part in np.array_split(np.random.default_rng(PARTS_SEED).permutation(num_pairs), num_parts):
        part.sort()  # stores are read in their order
        of_pairs[part] = _similarity_to_nearest(features, vectors, pairs, part, density, done).mean(axis=1)
        done += len(part)
    return probability(of_pairs)


def _similarity_to_nearest(
    features: ClipFeatures, vectors: WordVectors, pairs: Pairs, part: np.ndarray, density: Density, done: int
) -> np.ndarray:
    """Return the similarity S (Eq. 1) of each pair of a part to its nearest pairs in the part, [P, K].

    ``done`` is the number of pairs in earlier parts, for the progress.
    """

    def shown(counts: Iterable[int]) -> Iterable[int]:
        total = len(pairs.captions)
        return progress(counts, total=total, what="density", unit="pairs", size=lambda count: count, done=done)

    clip_indices, clip_of_pair = np.unique(pairs.clip_of_caption[part], return_inverse=True)
    clips = [pairs.clips[index] for index in clip_indices]
    pooled = [features.pooled(clips[first : first + CLIPS]) for first in range(0, len(clips), CLIPS)]
    video = np.concatenate(pooled)
    text = average_word_vectors(vectors, (c.caption for c in pairs.captions.take(part)))
    if density.is_centered:
        video, text = _less_their_mean(video), _less_their_mean(text)
    return nearest_pairs(video[clip_of_pair], text, density.num_neighbors, progress=shown).similarity_NK


def _less_their_mean(vectors: np.ndarray) -> np.ndarray:
    """Subtract the mean in place, and return the vectors. Rows of zeros stay.

    Averaged word vectors, and maxima over rows, all point in nearly the same direction, so their cosines say little.
    """
    known = vectors.any(axis=1, keepdims=True)
    mean = vectors.sum(axis=0, dtype=np.float64) / max(known.sum(), 1)
    return np.subtract(vectors, mean.astype(vectors.dtype), out=vectors, where=known)


def discard_improbable(
    pairs: dict[str, Pairs], probabilities: np.ndarray, density: Density, source: PairSource
) -> dict[str, Pairs]:
    """Return the pairs of all splits, without training pairs below the threshold (SSML, section 3.4).

    Args:
        pairs: {split: pairs}
        probabilities: The result of ``density_weights`` for the training pairs.
        density: Has the threshold.
        source: Caches the pairs.

    Raises:
        SettingError: Fewer than 2 clips are left.
    """
    train, threshold = pairs["train"], density.threshold
    is_kept = np.zeros(len(train.captions.whole), dtype=bool)
    is_kept[train.captions.selected[np.asarray(probabilities) >= threshold]] = True

    def make() -> Iterator[FoundPairs]:
        yield FoundPairs({split: of_split for split, of_split in pairs.items() if split != "train"})
        for part in by_parts_of_videos(train.captions):
            yield FoundPairs({"train": make_pairs(part.take(np.flatnonzero(is_kept[part.selected])))})

    digest = hashlib.sha256(np.packbits(is_kept).tobytes()).hexdigest()
    name = f"density{threshold:g}-k{density.num_neighbors}-{digest[:16]}"
    found = dict(source.cached(name, train.captions.whole, make, kept=digest).pairs)
    num_kept, num_pairs = len(found["train"].captions), len(train.captions)
    if len(found["train"].clips) < 2:
        problem = f"leaves {num_kept:,} of {num_pairs:,} training pairs; expected a lower value"
        raise SettingError("density_threshold", threshold, problem)
    return found

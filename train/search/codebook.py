"""Codebooks: from them follow the list of a window, and its code.

Inverted lists and product quantisation (Jegou et al. 2011), by FAISS.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from .index import WindowIndex

if TYPE_CHECKING:
    import faiss

NUM_CODES, VALUES_OF_CODE = 128, 16
"""A vector is cut into 128 pieces, each of which is one of 16: 64 bytes a window."""
LIST_SAMPLE, CODE_SAMPLE, PERCENT_SAMPLE = 40, 65_536, 5_000
"""Windows to learn lists from, for each list; windows to learn codes from; windows that stand for all in percents."""
MOST_LISTS = 1 << 14
BLOCK_WINDOWS = 1 << 14
PartCodes = tuple[np.ndarray, np.ndarray]
"""The list of each window int32 [W], and its codes uint8 [W, 64]: two pieces a byte."""


def has_faiss() -> bool:
    """Return whether FAISS is installed (extra ``index``)."""
    return find_spec("faiss") is not None


def padded_width(dim: int) -> int:
    """Return the width of vectors of ``dim`` values after padding to whole pieces."""
    return math.ceil(dim / NUM_CODES) * NUM_CODES


@dataclass(frozen=True)
class Codebook:
    """Lists and pieces, from which the codes of vectors follow."""

    lists: np.ndarray
    """The middle of each list, float32 [L, P]; vectors of D values are padded with zeros to P."""
    pieces: np.ndarray
    """The values of each piece of a vector, float32 [128, 16, P / 128]."""
    sample: np.ndarray
    """Vectors of some windows, float16 [S, D]."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the arrays, by which codes know their codebook."""
        arrays = (self.lists, self.pieces)
        return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()

    @cached_property
    def coarse(self) -> faiss.IndexFlatIP:
        """FAISS's exact search for the list of a vector."""
        import faiss

        coarse = faiss.IndexFlatIP(self.lists.shape[1])
        coarse.add(np.ascontiguousarray(self.lists))
        return coarse

    def new_index(self) -> faiss.IndexIVFPQ:
        """Return FAISS's index with these lists and pieces, and no windows. It needs this codebook to live."""
        import faiss

        num_lists, width = self.lists.shape
        index = faiss.IndexIVFPQ(self.coarse, width, num_lists, NUM_CODES, 4, faiss.METRIC_INNER_PRODUCT)
        index.by_residual = False
        faiss.copy_array_to_vector(np.ascontiguousarray(self.pieces).ravel(), index.pq.centroids)
        index.is_trained = True
        return index

    def padded(self, vectors: np.ndarray) -> np.ndarray:
        """Return vectors [N, D] as float32 [N, P]."""
        return _padded(vectors, self.lists.shape[1])


def learn_codebook(index: WindowIndex) -> Codebook:
    """Return the codebook of an index, learned from a sample of its windows. The same windows give the same one."""
    import faiss

    width = padded_width(index.dim)
    num_lists = min(max(int(math.sqrt(index.num_windows)), 1), MOST_LISTS)
    sample = _sample(index, max(LIST_SAMPLE * num_lists, CODE_SAMPLE))
    vectors = _padded(sample, width)
    clustering = faiss.Clustering(width, num_lists)
    clustering.niter, clustering.spherical, clustering.seed = 8, True, 0
    clustering.min_points_per_centroid, clustering.max_points_per_centroid = 1, LIST_SAMPLE
    coarse = faiss.IndexFlatIP(width)
    clustering.train(vectors, coarse)
    quantizer = faiss.ProductQuantizer(width, NUM_CODES, 4)
    quantizer.cp.seed, quantizer.cp.min_points_per_centroid = 0, 1
    quantizer.train(vectors[np.random.default_rng(0).permutation(len(vectors))[:CODE_SAMPLE]])
    lists = faiss.vector_to_array(clustering.centroids).reshape(num_lists, width)
    pieces = faiss.vector_to_array(quantizer.centroids).reshape(NUM_CODES, VALUES_OF_CODE, width // NUM_CODES)
    few = np.random.default_rng(1).permutation(len(sample))[:PERCENT_SAMPLE]
    return Codebook(lists, pieces, sample[np.sort(few)])


def _sample(index: WindowIndex, count: int) -> np.ndarray:
    """Return the vectors of some windows, float16 [N, D]; those with values that are no numbers are left out."""
    live = np.flatnonzero(index.is_live)
    rows = np.sort(np.random.default_rng(0).choice(live, min(count, len(live)), replace=False))
    vectors = index.halves_of(rows)
    return vectors[np.isfinite(vectors).all(axis=1)]


def _padded(vectors: np.ndarray, width: int) -> np.ndarray:
    padded = np.zeros((len(vectors), width), np.float32)
    padded[:, : vectors.shape[1]] = vectors
    return padded


def encode(vectors: np.ndarray, codebook: Codebook) -> PartCodes:
    """Return the list int32 [N] and the codes uint8 [N, 64] of vectors [N, D].

    A value that is no number counts as 0.
    """
    index = codebook.new_index()
    lists = np.empty(len(vectors), np.int32)
    codes = np.empty((len(vectors), NUM_CODES // 2), np.uint8)
    for low in range(0, len(vectors), BLOCK_WINDOWS):
        block = codebook.padded(np.nan_to_num(vectors[low : low + BLOCK_WINDOWS], posinf=0, neginf=0))
        lists[low : low + len(block)] = codebook.coarse.search(block, 1)[1][:, 0]
        codes[low : low + len(block)] = index.pq.compute_codes(block)
    return lists, codes

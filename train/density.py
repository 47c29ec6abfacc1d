"""SSML section 3.3: how probable it is that a clip and its caption belong together, told by how dense the pairs are around theirs.

A pair is near another one only where both its clip and its caption are. That is no metric, and no search structure is made for it. But
the smaller of two numbers is at most their mean, and the mean of two cosine similarities is an inner product: neighbours by the mean are
found fast, and those by the smaller one are among the first of them.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

EXACT_PAIRS = 20_000
"""So many at most are compared all with all; and so many tell how similarities are distributed."""
CHUNK = 1024
"""Pairs whose neighbours are looked for at once."""


def pair_association_probability(video: np.ndarray, text: np.ndarray, k: int, *, seed: int = 0) -> np.ndarray:
    """SSML Eq. 1 to 3: p-hat of each pair, float32 [N] in [0, 1].

    ``video`` [N, Dv], ``text`` [N, Dt]: clips and their captions, any vectors that cosine similarity makes sense of (a row of zeros is
    as near to all others as they are to it: not at all). ``k``: neighbours. Where all have the same density, each is 1. Raises
    ``ValueError`` where there are not ``k`` other pairs, or where a number is none.
    """
    density = neighbour_similarity(video, text, k, seed=seed)
    least, most = density.min(), density.max()
    return np.ones_like(density) if least == most else (density - least) / (most - least)


def neighbour_similarity(video: np.ndarray, text: np.ndarray, k: int, *, seed: int = 0) -> np.ndarray:
    """S-bar of Eq. 3, float32 [N]: the mean of S (Eq. 1) over each pair's ``k`` nearest."""
    if len(video) != len(text):
        raise ValueError(f"{len(video)} clips and {len(text)} captions: expected pairs")
    if not 1 <= k < len(video):
        raise ValueError(f"k {k}: each of {len(video)} pairs has {max(len(video) - 1, 0)} others; expected 1 to so many")
    pairs = _Pairs(video, text, np.random.default_rng(seed))
    parts = [pairs.similarity(rows, candidates).topk(k, dim=1).values.mean(dim=1) for rows, candidates in pairs.candidates(k)]
    return torch.cat(parts).numpy()


class _Pairs:
    def __init__(self, video: np.ndarray, text: np.ndarray, rng: np.random.Generator) -> None:
        self.sides = [_Side(video, "clips", rng), _Side(text, "captions", rng)]
        self.size = len(video)
        self.rng = rng

    def similarity(self, rows: slice, candidates: Tensor | None) -> Tensor:
        """S of Eq. 1, [R, C], of the pairs ``rows`` with their candidates [R, C], or with all; none with itself."""
        found = torch.minimum(*(side.similarity(rows, candidates) for side in self.sides))
        own = torch.arange(rows.start, rows.start + len(found))[:, None]
        others = torch.arange(self.size)[None, :] if candidates is None else candidates
        return found.masked_fill(others == own, float("-inf"))

    def candidates(self, k: int) -> Iterator[tuple[slice, Tensor | None]]:
        for first in range(0, self.size, CHUNK):
            yield slice(first, min(first + CHUNK, self.size)), None


class _Side:
    """The clips or the captions, and how similar they are to each other in the mean."""

    def __init__(self, vectors: np.ndarray, what: str, rng: np.random.Generator) -> None:
        self.vectors = torch.from_numpy(np.asarray(vectors, dtype=np.float32))
        lengths = self.vectors.norm(dim=1, keepdim=True)
        if not torch.isfinite(lengths).all():
            raise ValueError(f"{int((~torch.isfinite(lengths)).sum())} of the {what}' vectors have a number that is none")
        self.vectors = self.vectors / lengths.clamp(min=torch.finfo(torch.float32).tiny)
        sample = self.vectors
        if len(sample) > EXACT_PAIRS:
            sample = sample[np.sort(rng.choice(len(sample), EXACT_PAIRS, replace=False))]
        self.mean, self.std = _mean_and_std(sample)

    def similarity(self, rows: slice, candidates: Tensor | None) -> Tensor:
        """Standardised cosine similarity; 0 where all are equally similar."""
        if candidates is None:
            products = self.vectors[rows] @ self.vectors.T
        else:
            products = torch.einsum("rd,rcd->rc", self.vectors[rows], self.vectors[candidates])
        return (products - self.mean) / self.std if self.std else torch.zeros_like(products)


def _mean_and_std(vectors: Tensor) -> tuple[float, float]:
    """Of the inner products of all vectors with all others, from their sum and from their second moments: not one is computed."""
    vectors = vectors.double()
    number = len(vectors) * (len(vectors) - 1)
    own = vectors.square().sum(dim=1)
    mean = (vectors.sum(dim=0).square().sum() - own.sum()) / number
    square = ((vectors.T @ vectors).square().sum() - own.square().sum()) / number
    variance = (square - mean**2).clamp(min=0).item()
    return mean.item(), variance**0.5 if variance > 1e-12 else 0.0  # less is rounding

"""SSML section 3.3: how probable it is that a clip and its caption belong together, told by how dense the pairs are around theirs.

A pair is near another one only where both its clip and its caption are. That is no metric, and no index is made for it. But what is near
must be near on each side: so it is looked for where one side is near, among clusters of that side's vectors, and only what is near enough
there is compared on the other side. Which side that is, and how many clusters are looked at, is found with some pairs whose neighbours
are looked for everywhere.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

EXACT_PAIRS = 20_000
"""So many at most are compared all with all; and so many tell how similarities are distributed."""
SAMPLE = 500
"""Pairs whose neighbours are looked for everywhere, where there are more."""
SAMPLE_RECALL = 0.97
"""Of their neighbours, which are to be in the clusters that are looked at."""
CLUSTER_ROUNDS, CLUSTER_SAMPLE = 8, 128
"""Of k-means, and vectors for each cluster that it sees."""
FIRST, NEXT = 64, 512
"""So many that are nearest on the side that is searched are looked at before any others: they tell how near neighbours are at least."""
BLOCK = 1 << 27
"""Similarities in memory at once, and numbers of gathered vectors."""


class Neighbours(NamedTuple):
    similarity_NK: np.ndarray
    """S of Eq. 1 with each pair's nearest ones, float32."""
    number_NK: np.ndarray
    """Which pairs these are."""


def pair_association_probability(video: np.ndarray, text: np.ndarray, k: int, *, seed: int = 0) -> np.ndarray:
    """SSML Eq. 1 to 3: p-hat of each pair, float32 [N] in [0, 1].

    ``video`` [N, Dv], ``text`` [N, Dt]: clips and their captions, any vectors that cosine similarity makes sense of (a row of zeros has
    a similarity of 0 with all others). ``k``: neighbours. Where all have the same density, each is 1. Raises ``ValueError`` where there
    are not ``k`` other pairs, or where a number is none. Up to 20,000 pairs are compared all with all, of more than that a search finds
    nearly all neighbours; ``seed`` is for what it draws.
    """
    return probability(nearest_pairs(video, text, k, seed=seed).similarity_NK)


def probability(similarity_NK: np.ndarray) -> np.ndarray:
    """Eq. 2 and 3, from S with the nearest ones of each pair."""
    density = similarity_NK.mean(axis=1)
    least, most = density.min(), density.max()
    return np.ones_like(density) if least == most else (density - least) / (most - least)


def nearest_pairs(
    video: np.ndarray, text: np.ndarray, k: int, *, seed: int = 0, progress: Callable[[Iterable[int]], Iterable[int]] = iter
) -> Neighbours:
    """The ``k`` nearest of each pair by S of Eq. 1. ``progress`` gets the numbers of pairs that are done at a time."""
    if len(video) != len(text):
        raise ValueError(f"{len(video)} clips and {len(text)} captions: expected pairs")
    if not 1 <= k < len(video):
        raise ValueError(f"k {k}: each of {len(video)} pairs has {max(len(video) - 1, 0)} others; expected 1 to so many")
    rng = np.random.default_rng(seed)
    sides = _Side(video, "clips", rng), _Side(text, "captions", rng)
    size = len(video)
    similarity, number = torch.empty(size, k), torch.empty(size, k, dtype=torch.int64)

    def parts() -> Iterator[int]:
        found = _everywhere(sides, torch.arange(size), k) if size <= EXACT_PAIRS else _in_clusters(sides, k, rng)
        for rows, values, numbers in found:
            similarity[rows], number[rows] = values, numbers
            yield len(rows)

    for _ in progress(parts()):
        pass
    return Neighbours(similarity.numpy(), number.numpy())


class _Side:
    """The clips or the captions, and how similar they are to each other in the mean."""

    def __init__(self, vectors: np.ndarray, what: str, rng: np.random.Generator) -> None:
        self.vectors = torch.from_numpy(np.array(vectors, dtype=np.float32))
        lengths = self.vectors.norm(dim=1, keepdim=True)
        if not torch.isfinite(lengths).all():
            raise ValueError(f"{int((~torch.isfinite(lengths)).sum())} of the {what}' vectors have a number that is none")
        self.vectors /= lengths.clamp(min=torch.finfo(torch.float32).tiny)
        sample = self.vectors
        if len(sample) > EXACT_PAIRS:
            sample = sample[torch.from_numpy(np.sort(rng.choice(len(sample), EXACT_PAIRS, replace=False)))]
        self.mean, self.std = _mean_and_std(sample)

    def similarity(self, rows: Tensor, others: Tensor | None = None) -> Tensor:
        """Standardised cosine similarity of some with others, [R, O], or with all; 0 where all are equally similar."""
        return self._standardised(self.vectors[rows] @ (self.vectors if others is None else self.vectors[others]).T)

    def similarity_of_pairs(self, rows: Tensor, others: Tensor) -> Tensor:
        """The same, of each of ``rows`` [P] with that of ``others`` [P]."""
        step = max(BLOCK // self.vectors.shape[1], 1)
        parts = [
            torch.einsum("pd,pd->p", self.vectors[r], self.vectors[o]) for r, o in zip(rows.split(step), others.split(step), strict=True)
        ]
        return self._standardised(torch.cat(parts) if parts else torch.empty(0))

    def _standardised(self, products: Tensor) -> Tensor:
        return products.sub_(self.mean).div_(self.std) if self.std else products.zero_()


def _mean_and_std(vectors: Tensor) -> tuple[float, float]:
    """Of the inner products of all vectors with all others, from their sum and from their second moments: not one is computed."""
    vectors = vectors.double()
    number = len(vectors) * (len(vectors) - 1)
    own = vectors.square().sum(dim=1)
    mean = (vectors.sum(dim=0).square().sum() - own.sum()) / number
    square = ((vectors.T @ vectors).square().sum() - own.square().sum()) / number
    variance = (square - mean**2).clamp(min=0).item()
    return mean.item(), variance**0.5 if variance > 1e-12 else 0.0  # less is rounding


Part = tuple[Tensor, Tensor, Tensor]
"""Numbers of pairs [R], and the S and the numbers of their nearest [R, K]."""


def _everywhere(sides: tuple[_Side, _Side], rows: Tensor, k: int) -> Iterator[Part]:
    """By comparing all with all."""
    for part in rows.split(max(BLOCK // len(sides[0].vectors), 1)):
        similarity = torch.minimum(*(side.similarity(part) for side in sides))
        similarity[torch.arange(len(part)), part] = -torch.inf
        yield part, *similarity.topk(k, dim=1)


def _in_clusters(sides: tuple[_Side, _Side], k: int, rng: np.random.Generator) -> Iterator[Part]:
    """Cluster by cluster of one side: its pairs' neighbours are looked for in it and in the clusters nearest to it."""
    sample = torch.from_numpy(np.sort(rng.choice(len(sides[0].vectors), SAMPLE, replace=False)))
    known = torch.cat([numbers for _, _, numbers in _everywhere(sides, sample, k)])
    searched, other = sorted(sides, key=lambda side: _nearer_than(side, sample, known))
    of_pair, order = _clusters(searched.vectors, round(len(searched.vectors) ** 0.5), rng)
    members = [m.sort().values for m in of_pair.argsort(stable=True).split(of_pair.bincount(minlength=len(order)).tolist())]
    num_looked_at = _clusters_needed(of_pair, order, sample, known)
    for cluster, own in enumerate(members):
        candidates = torch.cat([members[number] for number in order[cluster, :num_looked_at]])
        for rows in own.split(max(BLOCK // len(candidates), 1)):
            yield rows, *_nearest_of(searched, other, rows, candidates, k)


def _nearest_of(searched: _Side, other: _Side, rows: Tensor, candidates: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Of ``rows`` among ``candidates``: S and numbers of the k nearest, [R, K].

    Those that are nearest on the searched side are looked at first. They tell how near the neighbours are at least, and what is not so
    near on that side need not be looked at on the other.
    """
    near = searched.similarity(rows, candidates)
    near[candidates == rows[:, None]] = -torch.inf
    nearest, columns = near.topk(min(max(NEXT, k), near.shape[1]), dim=1)
    found = torch.full((len(rows), k), -torch.inf), torch.zeros(len(rows), k, dtype=torch.int64)

    def look_at(row: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        """The k nearest of each row so far, and of these."""
        numbers = candidates[column]
        similarity = torch.minimum(near[row, column], other.similarity_of_pairs(rows[row], numbers))
        known = torch.arange(len(rows)).repeat_interleave(k)
        row, similarity, numbers = (torch.cat(x) for x in ((known, row), (found[0].flatten(), similarity), (found[1].flatten(), numbers)))
        order = similarity.argsort(descending=True)
        order = order[row[order].argsort(stable=True)]
        best = order[torch.searchsorted(row[order], torch.arange(len(rows)))[:, None] + torch.arange(k)]
        return similarity[best], numbers[best]

    for part in (slice(0, FIRST), slice(FIRST, None)):
        row, place = (nearest[:, part] >= found[0][:, -1:]).nonzero(as_tuple=True)
        found = look_at(row, columns[:, part][row, place])
    far = (nearest[:, -1] >= found[0][:, -1]).nonzero().flatten()  # more than those may be near enough
    row, column = ((near[far] >= found[0][far, -1:]) & (near[far] < nearest[far, -1:])).nonzero(as_tuple=True)
    return look_at(far[row], column)


def _nearer_than(side: _Side, sample: Tensor, known: Tensor) -> float:
    """Of how many pairs, in the mean over the sample, this side is nearer than that of the farthest neighbour."""
    similarity = side.similarity(sample)
    farthest = similarity.gather(1, known).amin(dim=1, keepdim=True)
    return (similarity > farthest).sum(dim=1).double().mean().item()


def _clusters(vectors: Tensor, number: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Of unit vectors, by k-means: the cluster of each [N], and for each cluster all by nearness [C, C], itself first."""
    drawn = torch.from_numpy(rng.permutation(len(vectors))[: number * CLUSTER_SAMPLE])
    sample = vectors[drawn]
    middles = sample[:number].clone()
    for _ in range(CLUSTER_ROUNDS):
        sums = torch.zeros_like(middles).index_add_(0, _nearest(sample, middles), sample)
        middles = torch.nn.functional.normalize(torch.where((sums != 0).any(dim=1, keepdim=True), sums, middles), dim=1)
    nearness = (middles @ middles.T).fill_diagonal_(torch.inf)
    return _nearest(vectors, middles), nearness.argsort(dim=1, descending=True)


def _nearest(vectors: Tensor, middles: Tensor) -> Tensor:
    return torch.cat([(part @ middles.T).argmax(dim=1) for part in vectors.split(BLOCK // len(middles))])


def _clusters_needed(of_pair: Tensor, order: Tensor, sample: Tensor, known: Tensor) -> int:
    """In how many, the nearest first, the known neighbours of the sample are nearly all found."""
    place = order.argsort(dim=1)[of_pair[sample][:, None], of_pair[known]].flatten()
    return int(place.double().quantile(SAMPLE_RECALL).ceil().item()) + 1

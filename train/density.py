"""SSML section 3.3: how probable it is that a clip and its caption belong together, from the density of pairs around
them.

A pair is near another one only if both its clip and its caption are near. That is no metric, so no index fits. But what
is near must be near on each side. So neighbours are searched among clusters of the side on which fewer pairs are near.
There, pairs are compared by the principal components of both sides first, and the nearest of them by their whole
vectors. The number of clusters to search is chosen with a sample of pairs whose neighbours are searched everywhere.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

EXACT_PAIRS = 20_000
"""So many at most are compared all with all."""
SAMPLE = 1000
"""Pairs whose neighbours are looked for everywhere, where there are more."""
SAMPLE_RECALL = 0.97
"""Share of their neighbours that must be in the clusters that are looked at."""
CLUSTERS, CLUSTER_ROUNDS, CLUSTER_SAMPLE = 8, 8, 32
"""Clusters for each root of the number of pairs, rounds of k-means, and vectors for each cluster that it sees."""
COMPONENTS, SHORTLIST = 96, 8
"""Principal components by which pairs are compared first; so many times the neighbours that are wanted are compared
whole, 64 at least."""
GROUP, CACHED = 16, 1 << 22
"""Columns of which the largest is taken before they are sorted, and similarities that stay in a processor's cache."""
ROWS = 20_000
"""Vectors that are in memory as doubles at once."""
BLOCK = 1 << 27
"""Similarities in memory at once, and numbers of gathered vectors."""


class Neighbours(NamedTuple):
    """The nearest pairs of each pair."""

    similarity_NK: np.ndarray
    """S of Eq. 1 with each pair's nearest ones, float32."""
    number_NK: np.ndarray
    """The indexes of those pairs."""


def pair_association_probability(video: np.ndarray, text: np.ndarray, k: int, *, seed: int = 0) -> np.ndarray:
    """SSML Eq. 1 to 3: the probability that each clip and its caption belong together.

    Up to 20,000 pairs are compared all with all. For more, a search finds nearly all neighbours.

    Args:
        video: Vectors of the clips [N, Dv], compared by cosine similarity. A row of zeros has similarity 0 with all
            others.
        text: Vectors of their captions [N, Dt].
        k: Number of neighbours.
        seed: Of random draws.

    Returns:
        p-hat of each pair, float32 [N] in [0, 1]; 1 for all if all have the same density.

    Raises:
        ValueError: There are fewer than ``k`` other pairs, or vectors contain non-finite values.
    """
    return probability(nearest_pairs(video, text, k, seed=seed).similarity_NK.mean(axis=1))


def probability(density_N: np.ndarray) -> np.ndarray:
    """Return p-hat of Eq. 2 from the density of Eq. 3: the mean of S of Eq. 1 with the nearest pairs, [N] -> [N]."""
    lowest, highest = density_N.min(), density_N.max()
    return np.ones_like(density_N) if lowest == highest else (density_N - lowest) / (highest - lowest)


def nearest_pairs(
    video: np.ndarray,
    text: np.ndarray,
    k: int,
    *,
    seed: int = 0,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Neighbours:
    """Return the ``k`` nearest pairs of each pair by S of Eq. 1.

    Args:
        video: Vectors of the clips [N, Dv].
        text: Vectors of their captions [N, Dt].
        k: Number of neighbours.
        seed: Of random draws.
        progress: Wraps the counts of pairs that are done at a time.

    Raises:
        ValueError: There are fewer than ``k`` other pairs, or vectors contain non-finite values.
    """
    if len(video) != len(text):
        raise ValueError(f"{len(video)} clips and {len(text)} captions: expected pairs")
    if not 1 <= k < len(video):
        raise ValueError(
            f"k {k}: each of {len(video)} pairs has {max(len(video) - 1, 0)} others; expected 1 to so many"
        )
    rng = np.random.default_rng(seed)
    sides = _Side(video, "clips"), _Side(text, "captions")
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
    """The clips or the captions: vectors of length 1, with the mean and std of their similarities."""

    def __init__(self, vectors: np.ndarray, what: str) -> None:
        self.vectors = torch.from_numpy(np.array(vectors, dtype=np.float32))
        lengths = self.vectors.norm(dim=1, keepdim=True)
        if not torch.isfinite(lengths).all():
            raise ValueError(
                f"{int((~torch.isfinite(lengths)).sum())} of the {what}' vectors contain non-finite values"
            )
        self.vectors /= lengths.clamp(min=torch.finfo(torch.float32).tiny)
        self.moments_DD, self.mean, self.std = _moments(self.vectors)

    def similarity(self, rows: Tensor) -> Tensor:
        """Standardised cosine similarity of some with all, [R, N]; 0 where all are equally similar."""
        return self.standardised(self.vectors[rows] @ self.vectors.T)

    def similarity_of_pairs(self, rows: Tensor, others: Tensor) -> Tensor:
        """The same, of each of ``rows`` [P] with that of ``others`` [P]."""
        step = max(BLOCK // self.vectors.shape[1], 1)
        parts = [
            torch.einsum("pd,pd->p", self.vectors[r], self.vectors[o])
            for r, o in zip(rows.split(step), others.split(step), strict=True)
        ]
        return self.standardised(torch.cat(parts) if parts else torch.empty(0))

    def principal_components(self) -> Tensor:
        """[N, C + 1]: numbers whose inner products come as near to those of the vectors as so few can, and a one."""
        directions = torch.linalg.eigh(self.moments_DD).eigenvectors[:, -COMPONENTS:]
        return torch.nn.functional.pad(self.vectors @ directions.to(self.vectors.dtype), (0, 1), value=1.0)

    def standardising(self, components: Tensor) -> Tensor:
        """Return the directions whose products with the vectors are ``standardised`` already, so that no pass over all
        of them is left."""
        if not self.std:
            return torch.zeros_like(components)
        scaled = components / self.std
        scaled[:, -1] = -self.mean / self.std
        return scaled

    def standardised(self, products: Tensor) -> Tensor:
        return products.sub_(self.mean).div_(self.std) if self.std else products.zero_()


def _moments(vectors: Tensor) -> tuple[Tensor, float, float]:
    """Return the second moments [D, D], and the mean and deviation of the products of all vectors with all others.

    Mean and deviation follow from the moments and the sum, so that no product is computed.
    """
    number, width = vectors.shape
    moments, total = torch.zeros(width, width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
    own, own_square = 0.0, 0.0  # with themselves
    for part in vectors.split(ROWS):
        rows = part.double()
        moments.addmm_(rows.T, rows)
        total += rows.sum(dim=0)
        lengths = rows.square().sum(dim=1)
        own, own_square = own + lengths.sum(), own_square + lengths.square().sum()
    mean = (total.square().sum() - own) / (number * (number - 1))
    variance = ((moments.square().sum() - own_square) / (number * (number - 1)) - mean**2).item()
    return moments, mean.item(), variance**0.5 if variance > 1e-12 else 0.0  # less is rounding


Part = tuple[Tensor, Tensor, Tensor]
"""Numbers of pairs [R], and the S and the numbers of their nearest [R, K]."""


def _everywhere(sides: tuple[_Side, _Side], rows: Tensor, k: int) -> Iterator[Part]:
    """By comparing all with all."""
    for part in rows.split(max(BLOCK // len(sides[0].vectors), 1)):
        similarity = torch.minimum(*(side.similarity(part) for side in sides))
        similarity[torch.arange(len(part)), part] = -torch.inf
        nearest = similarity.topk(k, dim=1)
        yield part, nearest.values, nearest.indices


def _in_clusters(sides: tuple[_Side, _Side], k: int, rng: np.random.Generator) -> Iterator[Part]:
    """Cluster by cluster of one side: its pairs' neighbours are looked for in it and in the clusters nearest to it."""
    size = len(sides[0].vectors)
    sample = torch.from_numpy(np.sort(rng.choice(size, SAMPLE, replace=False)))
    known = torch.cat([numbers for _, _, numbers in _everywhere(sides, sample, k)])
    components = [side.principal_components() for side in sides]
    searched = min((0, 1), key=lambda number: _nearer_than(sides[number], sample, known))
    of_pair, centroids = _clusters(components[searched], round(CLUSTERS * size**0.5), rng)
    num_looked_at = _clusters_needed(of_pair, centroids, sample, known)
    by_cluster = of_pair.argsort(stable=True)
    components = [values[by_cluster] for values in components]  # so that a cluster's lie side by side
    members = torch.arange(size).split(of_pair.bincount(minlength=len(centroids)).tolist())
    for own, middle in zip(members, centroids, strict=True):
        if not len(own):
            continue
        near = _distances(middle[None], centroids)[0].topk(num_looked_at, largest=False).indices.sort().values
        places = torch.cat([members[number] for number in near])
        others = by_cluster[places], [values[places] for values in components]
        for part in own.split(max(BLOCK // max(len(places), 1), 1)):
            rows = by_cluster[part]
            yield rows, *_nearest_of(sides, rows, [values[part] for values in components], *others, k)


def _nearest_of(
    sides: tuple[_Side, _Side], rows: Tensor, of_rows: list[Tensor], others: Tensor, of_others: list[Tensor], k: int
) -> tuple[Tensor, Tensor]:
    """Return S and the numbers of the k pairs among ``others`` that are nearest to each of ``rows``, both [R, K].

    Args:
        sides: Both sides of the pairs.
        rows: Numbers of the pairs whose neighbours are looked for.
        of_rows: Components of these pairs, of both sides.
        others: Numbers of the pairs that may be neighbours.
        of_others: Components of those, of both sides.
        k: Neighbours of each.
    """
    number, parts = max(SHORTLIST * k, 64) + 1, []  # one of them is the pair itself
    step = max(CACHED // len(rows), GROUP)
    of_rows = [side.standardising(values) for side, values in zip(sides, of_rows, strict=True)]
    for part in zip(others.split(step), *(values.split(step) for values in of_others), strict=True):
        near = torch.minimum(*(r @ o.T for r, o in zip(of_rows, part[1:], strict=True)))
        columns = _largest(near, number)
        parts.append((near.gather(1, columns), part[0][columns]))
    near, shortlist = (torch.cat(values, dim=1) for values in zip(*parts, strict=True))
    shortlist = shortlist.gather(1, _largest(near, number))
    pairs = rows.repeat_interleave(shortlist.shape[1]), shortlist.flatten()
    similarity = torch.minimum(*(side.similarity_of_pairs(*pairs) for side in sides)).view_as(shortlist)
    similarity, columns = similarity.masked_fill_(shortlist == rows[:, None], -torch.inf).topk(k, dim=1)
    return similarity, shortlist.gather(1, columns)


def _largest(values: Tensor, number: int) -> Tensor:
    """Return the columns of each row's largest values, in no order: a top-k in two stages.

    Groups of columns are ranked by their maximum, and only the best groups are sorted. A group is every n-th column,
    and a few more are groups of their own.
    """
    if values.shape[1] <= GROUP * number:
        return values.topk(min(number, values.shape[1]), dim=1, sorted=False).indices
    num_groups = values.shape[1] // GROUP
    groups = values[:, : num_groups * GROUP].unflatten(1, (GROUP, num_groups))
    best = groups.amax(dim=1).topk(number, dim=1, sorted=False).indices
    columns = (best[:, None] + num_groups * torch.arange(GROUP)[:, None]).flatten(1)
    columns = torch.cat([columns, torch.arange(num_groups * GROUP, values.shape[1]).expand(len(values), -1)], dim=1)
    return columns.gather(1, values.gather(1, columns).topk(number, dim=1, sorted=False).indices)


def _nearer_than(side: _Side, sample: Tensor, known: Tensor) -> float:
    """Return how many pairs are nearer on this side than the farthest neighbour, in the mean over the sample."""
    number = 0
    for part, nearest in zip(*(x.split(max(BLOCK // len(side.vectors), 1)) for x in (sample, known)), strict=True):
        similarity = side.similarity(part)
        farthest = similarity.gather(1, nearest).amin(dim=1, keepdim=True)
        number += int(torch.count_nonzero(similarity > farthest))
    return number / len(sample)


def _clusters(vectors: Tensor, number: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """By k-means: the cluster of each vector [N], and the clusters' means."""
    sample = vectors[torch.from_numpy(rng.permutation(len(vectors))[: number * CLUSTER_SAMPLE])]
    centroids = sample[:number].clone()
    for _ in range(CLUSTER_ROUNDS):
        of_sample = _nearest(sample, centroids)
        sums, sizes = (
            torch.zeros_like(centroids).index_add_(0, of_sample, sample),
            of_sample.bincount(minlength=number)[:, None],
        )
        centroids = torch.where(sizes > 0, sums / sizes.clamp(min=1), centroids)
    return _nearest(vectors, centroids), centroids


def _distances(vectors: Tensor, centroids: Tensor) -> Tensor:
    """Squared, but for the vectors' own squares, which change no order: [V, C]."""
    return torch.addmm(centroids.square().sum(dim=1), vectors, centroids.T, alpha=-2)


def _nearest(vectors: Tensor, centroids: Tensor) -> Tensor:
    return torch.cat(
        [_distances(part, centroids).argmin(dim=1) for part in vectors.split(max(BLOCK // len(centroids), 1))]
    )


def _clusters_needed(of_pair: Tensor, centroids: Tensor, sample: Tensor, known: Tensor) -> int:
    """Return how many clusters, the nearest first, hold nearly all known neighbours of the sample."""
    place = _distances(centroids[of_pair[sample]], centroids).argsort(dim=1).argsort(dim=1).gather(1, of_pair[known])
    return int(place.double().quantile(SAMPLE_RECALL).ceil().item()) + 1

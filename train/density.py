"""SSML section 3.3: the probability that a clip and its caption belong together, from the density of pairs near them.

A pair is near another one only if both its clip and its caption are near. This is not a metric, so the usual
nearest-neighbour indexes do not apply. But near pairs are near on each side. So neighbours are looked for in clusters
of the side on which fewer pairs are near. There, pairs are compared by the principal components of both sides first,
and the nearest of them by their whole vectors. The number of clusters to search is chosen with a sample of pairs that
are compared with all others.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

MAX_EXACT_PAIRS = 20_000
"""Up to this number of pairs, each is compared with all others."""
NUM_SAMPLED_PAIRS = 1000
"""With more pairs, only a sample of this size is compared with all others."""
MIN_SAMPLE_RECALL = 0.97
"""Share of the sample's neighbours that the searched clusters must hold."""
CLUSTERS_PER_ROOT, KMEANS_ROUNDS, VECTORS_PER_CLUSTER = 8, 8, 32
"""Number of clusters, divided by the square root of the number of pairs; rounds of k-means; vectors that k-means uses
for each cluster."""
NUM_COMPONENTS = 96
"""Principal components by which pairs are compared first."""
SHORTLIST_FACTOR, MIN_SHORTLIST = 8, 64
"""Pairs that are compared by their whole vectors: number for each neighbour, and minimum in total."""
COLUMNS_PER_GROUP = 16
"""Columns in a group; only the groups with the largest maxima are sorted."""
SIMILARITIES_IN_CACHE = 1 << 22
"""Similarities that stay in a processor's cache."""
VECTORS_IN_DOUBLE = 20_000
"""Vectors that are in memory as doubles at once."""
MAX_VALUES_AT_ONCE = 1 << 27
"""Upper limit of the similarities, and of the values of gathered vectors, that are in memory at once."""


class Neighbours(NamedTuple):
    """The nearest pairs of each pair.

    Example:
        >>> import numpy as np
        >>> from vlalign.train.density import nearest_pairs
        >>> vectors = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # pairs 0 and 1 are alike
        >>> nearest_pairs(vectors, vectors, k=1).similarity_NK.shape
        (3, 1)
    """

    similarity_NK: np.ndarray
    """S of Eq. 1: similarity of each pair to its nearest pairs, float32."""
    index_NK: np.ndarray
    """Indices of the nearest pairs."""


def pair_association_probability(video: np.ndarray, text: np.ndarray, k: int, *, seed: int = 0) -> np.ndarray:
    """SSML Eq. 1 to 3: the probability that each clip and its caption belong together.

    Up to 20,000 pairs are compared all with all. For more, a search finds nearly all neighbours.

    Args:
        video: Vectors of the clips [N, Dv], compared by cosine similarity. A row of zeros has similarity 0 with all
            others.
        text: Vectors of their captions [N, Dt].
        k: Number of neighbours.
        seed: Seed of random draws.

    Returns:
        p-hat of each pair, float32 [N] in [0, 1]; 1 for all if all have the same density.

    Raises:
        ValueError: There are fewer than ``k`` other pairs, or vectors contain non-finite values.

    Example:
        >>> import numpy as np
        >>> from vlalign.train.density import pair_association_probability
        >>> vectors = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # pairs 0 and 1 are alike
        >>> pair_association_probability(vectors, vectors, k=1).round(3).tolist()
        [1.0, 1.0, 0.0]
    """
    return probability(nearest_pairs(video, text, k, seed=seed).similarity_NK.mean(axis=1))


def probability(density_N: np.ndarray) -> np.ndarray:
    """SSML Eq. 2: the probability that each pair matches, from its density.

    Args:
        density_N: Density of each pair (Eq. 3), the mean of S (Eq. 1) over its nearest pairs, [N].

    Returns:
        p-hat [N] in [0, 1]; 1 for all if all have the same density.

    Example:
        >>> import numpy as np
        >>> from vlalign.train.density import probability
        >>> probability(np.array([0.25, 0.5, 0.75])).tolist()
        [0.0, 0.5, 1.0]
    """
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
        seed: Seed of random draws.
        progress: Wraps the iterable that yields the number of pairs done in each step.

    Returns:
        Similarities and indices of the neighbours.

    Raises:
        ValueError: There are fewer than ``k`` other pairs, or vectors contain non-finite values.

    Example:
        >>> import numpy as np
        >>> from vlalign.train.density import nearest_pairs
        >>> vectors = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # pairs 0 and 1 are alike
        >>> nearest_pairs(vectors, vectors, k=1).index_NK[:2].tolist()
        [[1], [0]]
    """
    if len(video) != len(text):
        raise ValueError(f"{len(video)} clips and {len(text)} captions: expected equal numbers")
    if not 1 <= k < len(video):
        raise ValueError(
            f"k {k}: each of {len(video)} pairs has {max(len(video) - 1, 0)} others; expected 1 to that number"
        )
    rng = np.random.default_rng(seed)
    sides = _Side(video, "clips"), _Side(text, "captions")
    size = len(video)
    similarity, number = torch.empty(size, k), torch.empty(size, k, dtype=torch.int64)

    def parts() -> Iterator[int]:
        is_exact = size <= MAX_EXACT_PAIRS
        found = _exact_neighbours(sides, torch.arange(size), k) if is_exact else _neighbours_in_clusters(sides, k, rng)
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
            num_bad = int((~torch.isfinite(lengths)).sum())
            raise ValueError(f"{what}: {num_bad} of {len(lengths)} vectors contain non-finite values")
        self.vectors /= lengths.clamp(min=torch.finfo(torch.float32).tiny)
        self.moments_DD, self.mean, self.std = _moments(self.vectors)

    def similarity(self, rows: Tensor) -> Tensor:
        """Return the standardised cosine similarities of ``rows`` with all vectors, [R, N]; 0 if all are the same."""
        return self.standardised(self.vectors[rows] @ self.vectors.T)

    def similarity_of_pairs(self, rows: Tensor, others: Tensor) -> Tensor:
        """Return the standardised cosine similarity of ``rows`` and ``others``, one by one, [P]."""
        step = max(MAX_VALUES_AT_ONCE // self.vectors.shape[1], 1)
        parts = [
            torch.einsum("pd,pd->p", self.vectors[r], self.vectors[o])
            for r, o in zip(rows.split(step), others.split(step), strict=True)
        ]
        return self.standardised(torch.cat(parts) if parts else torch.empty(0))

    def principal_components(self) -> Tensor:
        """Return the vectors projected onto the principal components, and a column of ones for the mean: [N, C + 1].

        Of all projections onto this many directions, this one preserves the vectors' inner products best.
        """
        directions = torch.linalg.eigh(self.moments_DD).eigenvectors[:, -NUM_COMPONENTS:]
        return torch.nn.functional.pad(self.vectors @ directions.to(self.vectors.dtype), (0, 1), value=1.0)

    def fold_standardisation(self, components: Tensor) -> Tensor:
        """Return components whose products with ``principal_components`` are standardised.

        The mean and the standard deviation are folded into the components, so no pass over all products is needed.
        """
        if not self.std:
            return torch.zeros_like(components)
        scaled = components / self.std
        scaled[:, -1] = -self.mean / self.std
        return scaled

    def standardised(self, products: Tensor) -> Tensor:
        return products.sub_(self.mean).div_(self.std) if self.std else products.zero_()


def _moments(vectors: Tensor) -> tuple[Tensor, float, float]:
    """Return the second moments [D, D], and the mean and standard deviation of all products of two different vectors.

    Mean and deviation follow from the moments and the sum of the vectors, without computing the products.
    """
    number, width = vectors.shape
    moments, total = torch.zeros(width, width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
    own, own_square = 0.0, 0.0  # products of vectors with themselves
    for part in vectors.split(VECTORS_IN_DOUBLE):
        rows = part.double()
        moments.addmm_(rows.T, rows)
        total += rows.sum(dim=0)
        lengths = rows.square().sum(dim=1)
        own, own_square = own + lengths.sum(), own_square + lengths.square().sum()
    mean = (total.square().sum() - own) / (number * (number - 1))
    variance = ((moments.square().sum() - own_square) / (number * (number - 1)) - mean**2).item()
    return moments, mean.item(), variance**0.5 if variance > 1e-12 else 0.0  # less is rounding


FoundPart = tuple[Tensor, Tensor, Tensor]
"""Indices of pairs [R], and S (Eq. 1) and the indices of their nearest pairs, both [R, K]."""


def _exact_neighbours(sides: tuple[_Side, _Side], rows: Tensor, k: int) -> Iterator[FoundPart]:
    """Yield the nearest pairs of ``rows``, compared with all pairs."""
    for part in rows.split(max(MAX_VALUES_AT_ONCE // len(sides[0].vectors), 1)):
        similarity = torch.minimum(*(side.similarity(part) for side in sides))
        similarity[torch.arange(len(part)), part] = -torch.inf
        nearest = similarity.topk(k, dim=1)
        yield part, nearest.values, nearest.indices


def _neighbours_in_clusters(sides: tuple[_Side, _Side], k: int, rng: np.random.Generator) -> Iterator[FoundPart]:
    """Yield the nearest pairs of each cluster of one side, found in it and in the clusters nearest to it."""
    size = len(sides[0].vectors)
    sample = torch.from_numpy(np.sort(rng.choice(size, NUM_SAMPLED_PAIRS, replace=False)))
    true_neighbours = torch.cat([numbers for _, _, numbers in _exact_neighbours(sides, sample, k)])
    components = [side.principal_components() for side in sides]
    searched = min((0, 1), key=lambda number: _mean_num_nearer(sides[number], sample, true_neighbours))
    of_pair, centroids = _clusters(components[searched], round(CLUSTERS_PER_ROOT * size**0.5), rng)
    num_looked_at = _clusters_needed(of_pair, centroids, sample, true_neighbours)
    by_cluster = of_pair.argsort(stable=True)
    components = [values[by_cluster] for values in components]  # the pairs of a cluster are contiguous
    members = torch.arange(size).split(of_pair.bincount(minlength=len(centroids)).tolist())
    for own, centroid in zip(members, centroids, strict=True):
        if not len(own):
            continue
        near = _distances(centroid[None], centroids)[0].topk(num_looked_at, largest=False).indices.sort().values
        places = torch.cat([members[number] for number in near])
        others = by_cluster[places], [values[places] for values in components]
        for part in own.split(max(MAX_VALUES_AT_ONCE // max(len(places), 1), 1)):
            rows = by_cluster[part]
            yield rows, *_nearest_candidates(sides, rows, [values[part] for values in components], *others, k)


def _nearest_candidates(
    sides: tuple[_Side, _Side], rows: Tensor, of_rows: list[Tensor], others: Tensor, of_others: list[Tensor], k: int
) -> tuple[Tensor, Tensor]:
    """Return S and the indices of the k pairs among ``others`` that are nearest to each of ``rows``, both [R, K].

    Args:
        sides: Both sides of the pairs.
        rows: Indices of the pairs whose neighbours are looked for.
        of_rows: Their principal components, of both sides.
        others: Indices of the pairs that may be neighbours.
        of_others: Their principal components, of both sides.
        k: Number of neighbours of each pair.
    """
    number, parts = max(SHORTLIST_FACTOR * k, MIN_SHORTLIST) + 1, []  # one of them is the pair itself
    step = max(SIMILARITIES_IN_CACHE // len(rows), COLUMNS_PER_GROUP)
    of_rows = [side.fold_standardisation(values) for side, values in zip(sides, of_rows, strict=True)]
    for part in zip(others.split(step), *(values.split(step) for values in of_others), strict=True):
        near = torch.minimum(*(r @ o.T for r, o in zip(of_rows, part[1:], strict=True)))
        columns = _largest_columns(near, number)
        parts.append((near.gather(1, columns), part[0][columns]))
    near, shortlist = (torch.cat(values, dim=1) for values in zip(*parts, strict=True))
    shortlist = shortlist.gather(1, _largest_columns(near, number))
    pairs = rows.repeat_interleave(shortlist.shape[1]), shortlist.flatten()
    similarity = torch.minimum(*(side.similarity_of_pairs(*pairs) for side in sides)).view_as(shortlist)
    similarity, columns = similarity.masked_fill_(shortlist == rows[:, None], -torch.inf).topk(k, dim=1)
    return similarity, shortlist.gather(1, columns)


def _largest_columns(values: Tensor, number: int) -> Tensor:
    """Return the columns of each row's largest values, in any order: a top-k in two stages.

    Groups of columns are ranked by their maximum, and only the best groups are sorted. A group is every n-th column.
    The few columns that are left over are always sorted.
    """
    if values.shape[1] <= COLUMNS_PER_GROUP * number:
        return values.topk(min(number, values.shape[1]), dim=1, sorted=False).indices
    num_groups = values.shape[1] // COLUMNS_PER_GROUP
    groups = values[:, : num_groups * COLUMNS_PER_GROUP].unflatten(1, (COLUMNS_PER_GROUP, num_groups))
    best = groups.amax(dim=1).topk(number, dim=1, sorted=False).indices
    columns = (best[:, None] + num_groups * torch.arange(COLUMNS_PER_GROUP)[:, None]).flatten(1)
    rest = torch.arange(num_groups * COLUMNS_PER_GROUP, values.shape[1]).expand(len(values), -1)
    columns = torch.cat([columns, rest], dim=1)
    return columns.gather(1, values.gather(1, columns).topk(number, dim=1, sorted=False).indices)


def _mean_num_nearer(side: _Side, sample: Tensor, true_neighbours: Tensor) -> float:
    """Return the sample's mean number of pairs that are nearer on this side than the farthest true neighbour."""
    number = 0
    at_once = max(MAX_VALUES_AT_ONCE // len(side.vectors), 1)
    for part, nearest in zip(sample.split(at_once), true_neighbours.split(at_once), strict=True):
        similarity = side.similarity(part)
        farthest = similarity.gather(1, nearest).amin(dim=1, keepdim=True)
        number += int(torch.count_nonzero(similarity > farthest))
    return number / len(sample)


def _clusters(vectors: Tensor, number: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return the cluster of each vector by k-means [N], and the clusters' means."""
    sample = vectors[torch.from_numpy(rng.permutation(len(vectors))[: number * VECTORS_PER_CLUSTER])]
    centroids = sample[:number].clone()
    for _ in range(KMEANS_ROUNDS):
        of_sample = _nearest_centroids(sample, centroids)
        sums, sizes = (
            torch.zeros_like(centroids).index_add_(0, of_sample, sample),
            of_sample.bincount(minlength=number)[:, None],
        )
        centroids = torch.where(sizes > 0, sums / sizes.clamp(min=1), centroids)
    return _nearest_centroids(vectors, centroids), centroids


def _distances(vectors: Tensor, centroids: Tensor) -> Tensor:
    """Return squared distances [V, C] minus the vectors' squared lengths, which do not change the order."""
    return torch.addmm(centroids.square().sum(dim=1), vectors, centroids.T, alpha=-2)


def _nearest_centroids(vectors: Tensor, centroids: Tensor) -> Tensor:
    parts = vectors.split(max(MAX_VALUES_AT_ONCE // len(centroids), 1))
    return torch.cat([_distances(part, centroids).argmin(dim=1) for part in parts])


def _clusters_needed(of_pair: Tensor, centroids: Tensor, sample: Tensor, true_neighbours: Tensor) -> int:
    """Return how many of the nearest clusters must be searched to find nearly all true neighbours of the sample."""
    rank = _distances(centroids[of_pair[sample]], centroids).argsort(dim=1).argsort(dim=1)
    place = rank.gather(1, of_pair[true_neighbours])
    return int(place.double().quantile(MIN_SAMPLE_RECALL).ceil().item()) + 1

"""SSML section 4: the error bound of Theorem 1, its error in simulations, and the toy data of section 6.1.

The moment generating functions are in "the extended version", which the paper cites but does not include. Here they are
derived from section 4.1. All lengths are in standard deviations of a concept, and all concepts are equally far from
each other: ``separation``, by default the smallest distance that the theorem allows. A pair's neighbours are first
those that share both of its concepts, then those that share one, then the others, each time drawn at random. For
correctly associated pairs, real neighbours are nearer than these, so the bound holds all the more; for wrongly
associated pairs, it holds in simulations.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

LARGEST_T = 100
"""Section 4.2: "optimize for t over [1, 100]"."""
STEP = 0.05
"""Step of the numerical integrals."""


def error_bound(k: int, num_pairs: int, num_concepts: int, noise: float, *, separation: float = 6.0) -> float:
    """Return the bound of Eq. 5 and 6 at the threshold tau* at which both bounds are equal (section 4.2).

    They are equal where exp(-t tau) M0(t) = exp(t tau) M1(-t). There, both are sqrt(M0(t) M1(-t)), which is minimised
    over t; the paper prints this root as tau*.

    Args:
        k: K, the number of neighbours.
        num_pairs: M.
        num_concepts: T.
        noise: eta, the probability that a pair is wrongly associated.
        separation: Distance of two concepts, in their standard deviations.

    Returns:
        The bound, at most 1.

    Raises:
        ValueError: Outside of 1 <= K < M, T > 1 and 0 < eta < 1.

    Example:
        >>> round(error_bound(4, 1250, 50, 0.5), 2)
        0.12
    """
    if not (1 <= k < num_pairs and num_concepts > 1 and 0 < noise < 1):
        raise ValueError(
            f"K {k}, M {num_pairs}, T {num_concepts}, eta {noise}: expected 1 <= K < M, T > 1 and 0 < eta < 1"
        )
    t = torch.arange(1, LARGEST_T + 1, dtype=torch.float64)
    others, both = num_pairs - 1, num_concepts * (num_concepts - 1)
    one_wrong = (num_concepts - 2) * noise / both
    wrong = _log_mgf(t, k, _shared(others, k, noise / both, 2 * ((1 - noise) / num_concepts + one_wrong)), separation)
    right = _log_mgf(-t, k, _shared(others, k, (1 - noise) / num_concepts, 2 * noise / num_concepts), separation)
    return math.exp(min(((wrong + right) / 2).min().item(), 0.0))


def _shared(others: int, k: int, both: float, one: float) -> Tensor:
    """Return the log-probability [k + 1, k + 1] of how many of k neighbours share both concepts and how many share one.

    Args:
        others: Number of other pairs.
        k: Number of neighbours.
        both: Probability that another pair shares both concepts.
        one: Probability that it shares one of them.
    """
    log_p = torch.full((k + 1, k + 1), -math.inf, dtype=torch.float64)
    sharing_both = _at_most(_log_binomial(others, both, k), k)
    for number in range(k + 1):
        left = k - number
        log_p[number, : left + 1] = sharing_both[number] + _at_most(
            _log_binomial(others - number, one / (1 - both), left), left
        )
    return log_p


def _log_binomial(n: int, p: float, most: int) -> Tensor:
    """Return the log-probabilities of 0 to ``most`` successes."""
    x = torch.arange(most + 1, dtype=torch.float64)
    size = torch.tensor(float(n), dtype=torch.float64)
    ways = torch.lgamma(size + 1) - torch.lgamma(x + 1) - torch.lgamma((size - x).clamp(min=0) + 1)
    return (ways + x * math.log(p) + (size - x) * math.log1p(-p)).masked_fill(x > n, -math.inf)


def _at_most(log_p: Tensor, most: int) -> Tensor:
    """Return the log-probabilities of 0, 1, ... and of ``most`` or more successes."""
    rest = (1 - log_p[:most].exp().sum()).clamp(min=1e-300).log()
    return torch.cat([log_p[:most], rest[None]])


def _log_mgf(t: Tensor, k: int, shared: Tensor, separation: float) -> Tensor:
    """Return log E exp(t S-bar) for each t; S-bar is the mean over k neighbours of -(|x - x'| + |y - y'|) / 2."""
    of_side = _log_mgf_of_side(-t / (2 * k), k, separation)  # [t, number of neighbours that share this side's concept]
    total = torch.full_like(t, -math.inf)
    for both in range(k + 1):
        for one in range(k - both + 1):
            if shared[both, one] < -700:  # exp of it is 0
                continue
            split = _log_binomial(one, 0.5, one) if one else torch.zeros(1, dtype=torch.float64)
            clips = torch.arange(one + 1)  # how many of those that share one concept share the clip's
            terms = of_side[:, both + clips] + of_side[:, both + one - clips] + split
            total = torch.logaddexp(total, shared[both, one] + terms.logsumexp(dim=1))
    return total


def _log_mgf_of_side(u: Tensor, k: int, separation: float) -> Tensor:
    """Return log E exp(u sum |x - x'|) over k neighbours, 0 to k of them of x's own concept: [len(u), k + 1].

    All terms of the sum have the same x, so they are independent only given x.
    """
    reach = 10 + LARGEST_T / 2  # exp(u k |x|) moves the weight this far out
    x = torch.arange(-reach, reach + STEP, STEP, dtype=torch.float64)
    within, across = _log_mgf_folded(x, u[:, None]), _log_mgf_folded(x - separation, u[:, None])
    log_weight = -x.square() / 2 - math.log(math.sqrt(2 * math.pi) / STEP)
    return torch.stack([(n * within + (k - n) * across + log_weight).logsumexp(dim=1) for n in range(k + 1)], dim=1)


def _log_mgf_folded(mean: Tensor, u: Tensor) -> Tensor:
    """Return log E exp(u |d|), d normal with this mean and variance 1."""
    one, other = (sign * u * mean + torch.special.log_ndtr(sign * mean + u) for sign in (1, -1))
    return u.square() / 2 + torch.logaddexp(one, other)


def _concepts(num_pairs: int, num_concepts: int, noise: float, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return which pairs are correctly associated, and the concepts of their clips and captions (section 4.1)."""
    right = rng.random(num_pairs) >= noise
    of_clip = rng.integers(num_concepts, size=num_pairs)
    of_caption = np.where(right, of_clip, (of_clip + rng.integers(1, num_concepts, size=num_pairs)) % num_concepts)
    return right, of_clip, of_caption


def simulated_error(
    k: int, num_pairs: int, num_concepts: int, noise: float, rng: np.random.Generator, *, separation: float = 6.0
) -> float:
    """Simulate the error that Theorem 1 bounds, with pairs of scalars drawn as in the theorem.

    The concepts lie on a line, each ``separation`` from the next, in different orders for clips and captions.

    Returns:
        The larger of both kinds of error (Eq. 5 and 6) at the best threshold.
    """
    right, *concepts = _concepts(num_pairs, num_concepts, noise, rng)
    x, y = (separation * rng.permutation(num_concepts)[of] + rng.standard_normal(num_pairs) for of in concepts)
    similarity = -(np.abs(x[:, None] - x) + np.abs(y[:, None] - y)) / 2
    np.fill_diagonal(similarity, -np.inf)
    density = np.partition(similarity, num_pairs - k, axis=1)[:, -k:].mean(axis=1)
    wrong, correct = np.sort(density[~right]), np.sort(density[right])
    thresholds = np.concatenate([wrong, correct])
    taken = 1 - np.searchsorted(wrong, thresholds, side="left") / max(len(wrong), 1)
    missed = np.searchsorted(correct, thresholds, side="right") / max(len(correct), 1)
    return float(np.maximum(taken, missed).min())


class ToyData(NamedTuple):
    """Pairs of section 6.1."""

    clips: np.ndarray
    """[M, D]"""
    captions: np.ndarray
    """[M, D]"""
    is_right: np.ndarray
    """True for a correctly associated pair, [M]."""


def toy_data(
    rng: np.random.Generator, *, num_concepts: int = 50, num_pairs: int = 1250, noise: float = 0.5, width: int = 128
) -> ToyData:
    """Draw the toy data of section 6.1: a mixture of normal distributions in each modality.

    The means are uniform in (0, 1); the diagonals of the covariance matrices are uniform in (0, 0.3).

    Example:
        >>> toy_data(np.random.default_rng(0)).clips.shape
        (1250, 128)
    """
    means, variances = rng.uniform(0, 1, (2, num_concepts, width)), rng.uniform(0, 0.3, (2, num_concepts, width))
    right, *concepts = _concepts(num_pairs, num_concepts, noise, rng)
    clips, captions = (
        means[side][of] + np.sqrt(variances[side][of]) * rng.standard_normal((num_pairs, width))
        for side, of in enumerate(concepts)
    )
    return ToyData(clips, captions, right)

"""SSML Theorem 1: how often density tells a wrongly associated pair from a correctly associated one falsely, at most.

The moment generating functions stand in an appendix that the paper refers to and does not contain; these were worked
out from its section 4.1. All lengths are in standard deviations of a concept, and all concepts are equally far from
each other: ``separation``, the least that the theorem allows by default. A pair's neighbours are first those that share
both of its concepts, then those that share one, then the others, each time drawn at random. For correctly associated
pairs, real neighbours are nearer than that, and the bound holds for them all the more; for the others, it holds as far
as simulations show.
"""

import math

import torch
from torch import Tensor

LARGEST_T = 100
"""Section 4.2: "optimize for t over [1, 100]"."""
STEP = 0.05


def error_bound(k: int, num_pairs: int, num_concepts: int, noise: float, *, separation: float = 6.0) -> float:
    """The bound of Eq. 5 and 6 at the threshold at which both are the same: the least sqrt(M0(t) M1(-t)) over t.

    ``k``, ``num_pairs``, ``num_concepts``, ``noise``: K, M, T and eta. Not above 1. Raises ``ValueError`` outside of 1
    <= K < M, T > 1 and 0 < eta < 1.
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
    """[k + 1, k + 1]: log-probability that of the k neighbours so many share both concepts and so many share one; each
    of the ``others`` does with these probabilities."""
    log_p = torch.full((k + 1, k + 1), -math.inf, dtype=torch.float64)
    sharing_both = _at_most(_log_binomial(others, both, k), k)
    for number in range(k + 1):
        left = k - number
        log_p[number, : left + 1] = sharing_both[number] + _at_most(
            _log_binomial(others - number, one / (1 - both), left), left
        )
    return log_p


def _log_binomial(n: int, p: float, most: int) -> Tensor:
    """Of 0 to ``most`` successes."""
    x = torch.arange(most + 1, dtype=torch.float64)
    size = torch.tensor(float(n), dtype=torch.float64)
    ways = torch.lgamma(size + 1) - torch.lgamma(x + 1) - torch.lgamma((size - x).clamp(min=0) + 1)
    return (ways + x * math.log(p) + (size - x) * math.log1p(-p)).masked_fill(x > n, -math.inf)


def _at_most(log_p: Tensor, most: int) -> Tensor:
    """The last one stands for "so many or more"."""
    rest = (1 - log_p[:most].exp().sum()).clamp(min=1e-300).log()
    return torch.cat([log_p[:most], rest[None]])


def _log_mgf(t: Tensor, k: int, shared: Tensor, separation: float) -> Tensor:
    """[len(t)]: log E exp(t S-bar), S-bar being the mean over k neighbours of -(|x - x'| + |y - y'|) / 2."""
    of_side = _log_mgf_of_side(-t / (2 * k), k, separation)  # [t, number of neighbours that share this side's concept]
    total = torch.full_like(t, -math.inf)
    for both in range(k + 1):
        for one in range(k - both + 1):
            if shared[both, one] < -700:  # nothing of it would be left
                continue
            split = _log_binomial(one, 0.5, one) if one else torch.zeros(1, dtype=torch.float64)
            clips = torch.arange(one + 1)  # so many of those that share one concept share the clip's
            terms = of_side[:, both + clips] + of_side[:, both + one - clips] + split
            total = torch.logaddexp(total, shared[both, one] + terms.logsumexp(dim=1))
    return total


def _log_mgf_of_side(u: Tensor, k: int, separation: float) -> Tensor:
    """[len(u), k + 1]: log E exp(u sum |x - x'|) over k neighbours, of which 0 to k are of x's own concept. They all
    have the same x, so that they are independent only where it is known."""
    reach = 10 + LARGEST_T / 2  # exp(u k |x|) moves the weight so far out
    x = torch.arange(-reach, reach + STEP, STEP, dtype=torch.float64)
    within, across = _log_mgf_folded(x, u[:, None]), _log_mgf_folded(x - separation, u[:, None])
    log_weight = -x.square() / 2 - math.log(math.sqrt(2 * math.pi) / STEP)
    return torch.stack([(n * within + (k - n) * across + log_weight).logsumexp(dim=1) for n in range(k + 1)], dim=1)


def _log_mgf_folded(mean: Tensor, u: Tensor) -> Tensor:
    """log E exp(u |d|), d normal with this mean and variance 1."""
    one, other = (sign * u * mean + torch.special.log_ndtr(sign * mean + u) for sign in (1, -1))
    return u.square() / 2 + torch.logaddexp(one, other)

"""NCL's biases of candidates, from training queries instead of the evaluation queries (section 3.4)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .scores import QueryRows

NUM_ITERATIONS = 4  # NCL, section 3.3
MAX_SIMILARITIES_AT_ONCE = 1 << 22
"""Similarities of queries to candidates in memory at once: 32 MiB in float64."""


@dataclass(frozen=True)
class DotProducts:
    """Similarities of queries to candidates, each computed when it is read: all of them may not fit in memory."""

    queries_KD: Tensor
    candidates_ND: Tensor

    def __len__(self) -> int:
        return len(self.queries_KD)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of queries and of candidates."""
        return len(self.queries_KD), len(self.candidates_ND)

    def __getitem__(self, queries: slice) -> np.ndarray:
        """Return the similarities of some queries, float32 [k, N]."""
        return (self.queries_KD[queries] @ self.candidates_ND.T).float().cpu().numpy()


class FittedBiases(NamedTuple):
    """The biases of candidates, and the weights that extend them to other candidates on the same scale."""

    bias_N: np.ndarray
    """float64 [N], in the unit of the similarity (NCL, Eq. 11)."""
    log_weights_K: np.ndarray
    """float64 [K]: the weight of each query in the sum whose logarithm is the bias of a candidate."""


def fit_biases(known: QueryRows, temperature: float) -> FittedBiases:
    """Fit biases that give each candidate an equal share of the known queries' retrieval probabilities.

    Sinkhorn's iterations (NCL, section 3.3) over the matrix of known queries and candidates, some rows at a time. The
    biases equal ``losses.sinkhorn_biases`` of the whole matrix, up to rounding. With 16,384 queries and 27,763
    candidates (MSVD) this takes about 200 MiB; the matrix alone takes 1.8 GB.

    Args:
        known: Similarities of the known queries to the candidates.
        temperature: Divides the similarities.

    Raises:
        ValueError: There is no query.

    Source: NCL, sections 3.3 and 3.4.

    Example:
        >>> fit_biases(np.array([[1.0, 0.0], [1.0, 0.0]]), 1.0).bias_N.round(3)
        array([-1.313, -0.313])
    """
    num_queries, num_candidates = known.shape
    if not num_queries:
        raise ValueError("known: got no queries; expected similarities of one query or more")
    log_a_K = torch.zeros(num_queries, dtype=torch.float64)
    log_b_N = torch.zeros(num_candidates, dtype=torch.float64)
    for _ in range(NUM_ITERATIONS):
        log_sums_N = torch.full_like(log_b_N, -math.inf)
        for queries, logits_kN in _blocks(known, temperature):
            log_a_K[queries] = -math.log(num_queries) - (logits_kN + log_b_N).logsumexp(dim=1)
            log_sums_N = torch.logaddexp(log_sums_N, (logits_kN + log_a_K[queries, None]).logsumexp(dim=0))
        log_b_N = -math.log(num_candidates) - log_sums_N
    log_total = log_b_N.logsumexp(dim=0)
    return FittedBiases(
        (temperature * (log_b_N - log_total)).numpy(), (log_a_K + math.log(num_candidates) + log_total).numpy()
    )


def biases_of(known: QueryRows, log_weights_K: np.ndarray, temperature: float) -> np.ndarray:
    """Return the biases [N] of new candidates, float64; for candidates of ``fit_biases``, the same biases.

    Args:
        known: Similarities of the new candidates to the queries given to ``fit_biases``.
        log_weights_K: Weights from ``fit_biases``.
        temperature: The temperature given to ``fit_biases``.
    """
    log_sums_N = torch.full((known.shape[1],), -math.inf, dtype=torch.float64)
    for queries, logits_kN in _blocks(known, temperature):
        weighted_kN = logits_kN + torch.from_numpy(log_weights_K[queries])[:, None]
        log_sums_N = torch.logaddexp(log_sums_N, weighted_kN.logsumexp(dim=0))
    return (-temperature * log_sums_N).numpy()


def _blocks(known: QueryRows, temperature: float) -> Iterator[tuple[slice, Tensor]]:
    """Yield some queries at a time, and their similarities divided by the temperature, float64 [k, N]."""
    num_queries, num_candidates = known.shape
    at_once = max(MAX_SIMILARITIES_AT_ONCE // max(num_candidates, 1), 1)
    for first in range(0, num_queries, at_once):
        queries = slice(first, first + at_once)
        yield queries, torch.from_numpy(np.ascontiguousarray(known[queries])).double() / temperature

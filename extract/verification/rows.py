"""Distances between rows of features."""

from collections.abc import Callable

import numpy as np

POOLS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda rows: rows.mean(axis=0, keepdims=True),
    "maximum": lambda rows: rows.max(axis=0, keepdims=True),
}
"""Ways in which all rows [T, D] of a video become one, [1, D]."""


def squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the squared distances [M, N] of all pairs of rows of [M, D] and [N, D]."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    centre = a.mean(axis=0)  # what all rows have in common would only cost digits
    a, b = a - centre, b - centre
    return np.maximum((a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T, 0)


def paired_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the squared distances [N] of rows that belong together, of [N, D] and [N, D]."""
    return ((a.astype(np.float64) - b) ** 2).sum(axis=1)


def float16_steps(rows: np.ndarray) -> np.ndarray:
    """Return the squared distance [N] between neighbouring float16 numbers, summed over each row of [N, D]."""
    _, exponents = np.frexp(rows.astype(np.float64))
    return (np.ldexp(1.0, np.maximum(exponents - 11, -24)) ** 2).sum(axis=1)


def unit(rows: np.ndarray) -> np.ndarray:
    """Return rows [N, D] scaled to length 1."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def is_unit(rows: np.ndarray) -> bool:
    """Return whether all rows have length 1."""
    return np.allclose(np.linalg.norm(rows, axis=1), 1, atol=2e-3)

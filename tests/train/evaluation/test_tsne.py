"""t-SNE by its equations, and on groups of vectors."""

import numpy as np
from vlalign.train.evaluation.tsne import joint_probabilities, squared_distances, tsne, tsne_gradient


def divergence(p: np.ndarray, places: np.ndarray) -> float:
    """Eq. 2 and 4, in plain loops."""
    num = len(places)
    q = np.array(
        [[0 if i == j else 1 / (1 + sum((places[i] - places[j]) ** 2)) for j in range(num)] for i in range(num)]
    )
    q /= q.sum()
    return sum(p[i, j] * np.log(p[i, j] / q[i, j]) for i in range(num) for j in range(num) if i != j)


def test_the_gradient_is_that_of_the_divergence():
    rng = np.random.default_rng(0)
    places = rng.normal(size=(6, 2))
    p = joint_probabilities(squared_distances(rng.normal(size=(6, 3))), 2.0)
    expected = np.zeros_like(places)
    for index in np.ndindex(places.shape):
        change = np.zeros_like(places)
        change[index] = 1e-5
        expected[index] = (divergence(p, places + change) - divergence(p, places - change)) / 2e-5
    np.testing.assert_allclose(tsne_gradient(p, places), expected, rtol=1e-4, atol=1e-8)


def test_each_row_has_the_perplexity():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(30, 4))
    p = joint_probabilities(squared_distances(vectors), 5.0)
    np.testing.assert_allclose(p, p.T)
    assert abs(p.sum() - 1) < 1e-9 and not np.diag(p).any()
    # The conditional probabilities of one row, found by trying many widths.
    squares = np.array([sum((vectors[3] - other) ** 2) for other in vectors])
    widths = {}
    for beta in np.geomspace(1e-2, 1e2, 20_000):
        row = np.exp(-beta * np.delete(squares, 3))
        row /= row.sum()
        widths[abs(-np.sum(row * np.log(np.maximum(row, 1e-300))) - np.log(5.0))] = row
    best = widths[min(widths)]
    of_others = p[3] * 2 * 30  # p_j|3 + p_3|j
    assert (of_others[np.arange(30) != 3] >= best - 1e-3).all()


def test_groups_of_vectors_stay_together():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(5), 20)
    vectors = 6 * rng.normal(size=(5, 16))[groups] + rng.normal(size=(100, 16))
    places = tsne(vectors)
    np.testing.assert_array_equal(places, tsne(vectors))
    distances = squared_distances(places) + 1e9 * np.eye(100)
    assert (groups[distances.argmin(axis=1)] == groups).all(), "the nearest one is of the same group"
    for few in (0, 1, 2, 3, 4):
        assert tsne(vectors[:few]).shape == (few, 2) and np.isfinite(tsne(vectors[:few])).all()

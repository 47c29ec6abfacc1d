"""SSML's Theorem 1: its bound against simulated pairs, and where both say that the method fails."""

import math

import numpy as np
import pytest
import torch
from vlalign.train.comparison.density_bound import _log_mgf_of_side, error_bound, simulated_error, toy_data


def measured_error(k: int, pairs: int, concepts: int, noise: float, rng: np.random.Generator) -> float:
    """The larger of both kinds of error at the best threshold, one threshold after the other."""
    right = rng.random(pairs) >= noise
    a = rng.integers(concepts, size=pairs)
    b = np.where(right, a, (a + rng.integers(1, concepts, size=pairs)) % concepts)
    x, y = (6 * rng.permutation(concepts)[of] + rng.standard_normal(pairs) for of in (a, b))
    density = []
    for i in range(pairs):
        similarity = -(np.abs(x[i] - x) + np.abs(y[i] - y)) / 2
        density.append(np.mean(sorted(np.delete(similarity, i))[-k:]))
    density = np.array(density)
    return min(max((density[~right] >= t).mean(), (density[right] <= t).mean()) for t in density)


@pytest.mark.parametrize(("k", "pairs", "concepts", "noise"), [(4, 300, 12, 0.5), (1, 200, 20, 0.3)])
def test_the_simulated_error_is_that_of_a_plain_loop(k, pairs, concepts, noise):
    found = simulated_error(k, pairs, concepts, noise, np.random.default_rng(3))
    assert found == pytest.approx(measured_error(k, pairs, concepts, noise, np.random.default_rng(3)), abs=1e-9)


@pytest.mark.parametrize(
    ("k", "pairs", "concepts", "noise"), [(4, 1250, 50, 0.5), (4, 600, 20, 0.3), (8, 1250, 50, 0.3), (2, 400, 20, 0.7)]
)
def test_the_bound_of_theorem_1_is_not_below_the_errors_of_a_simulation(k, pairs, concepts, noise):
    bound = error_bound(k, pairs, concepts, noise)
    errors = [simulated_error(k, pairs, concepts, noise, np.random.default_rng(seed)) for seed in range(3)]
    print(f"bound {bound:.4f}, measured {np.mean(errors):.4f}")
    assert np.mean(errors) <= bound <= 1


def test_the_moment_generating_function_of_a_side_is_that_of_drawn_neighbours():
    """exp(u sum |x - x'|) over 3 neighbours, 2 of them of x's own concept, averaged over many draws."""
    rng, u = np.random.default_rng(0), -0.3
    x, others = rng.standard_normal((200_000, 1)), rng.normal([0, 0, 6], size=(200_000, 3))
    drawn = np.exp(u * np.abs(x - others).sum(axis=1)).mean()
    found = _log_mgf_of_side(torch.tensor([u], dtype=torch.float64), 3, 6.0)[0, 2].item()
    assert found == pytest.approx(math.log(drawn), abs=0.01)


def test_the_bound_of_theorem_1_fails_where_a_concept_has_fewer_pairs_than_neighbours():
    """Figure 2: it fails where K T passes M (1 - eta), whichever of the four is changed."""
    assert error_bound(4, 1250, 50, 0.5) < 0.2
    for k, pairs, concepts, noise in ((30, 1250, 50, 0.5), (4, 1250, 50, 0.95), (4, 150, 50, 0.5), (4, 1250, 400, 0.5)):
        assert k * concepts > pairs * (1 - noise)
        assert error_bound(k, pairs, concepts, noise) > 0.3
    assert error_bound(4, 1250, 2, 0.5) > error_bound(4, 1250, 20, 0.5), (
        "of few concepts, wrong pairs share both by chance"
    )
    with pytest.raises(ValueError, match=r"^K 0, M 10, T 5, eta 0\.5: "):
        error_bound(0, 10, 5, 0.5)


def test_two_sweeps_differ_from_the_papers_words_in_simulations_also():
    """Section 4.2 has the lowest error at K = M / T (1 - eta), here 12.5, and 0 for a large M."""
    for error in (error_bound, lambda *at: np.mean([simulated_error(*at, np.random.default_rng(s)) for s in range(2)])):
        assert error(6, 1250, 50, 0.5) < error(12, 1250, 50, 0.5)
        assert error(4, 1250, 50, 0.5) < error(4, 4000, 50, 0.5)


def test_toy_data_are_mixtures_of_concepts_that_right_pairs_share():
    data = toy_data(np.random.default_rng(0), num_concepts=3, num_pairs=200, noise=0.25, width=400)
    assert data.clips.shape == data.captions.shape == (200, 400)
    assert data.is_right.mean() == pytest.approx(0.75, abs=0.1)
    concepts = []
    for vectors in (data.clips, data.captions):  # concepts are far apart, so each vector is nearest to its own ones
        distances = np.linalg.norm(vectors[:, None] - vectors, axis=2)
        centres = [0]
        while len(centres) < 3:
            centres.append(int(distances[:, centres].min(axis=1).argmax()))
        concepts.append(distances[:, centres].argmin(axis=1))
    together = np.zeros((3, 3))
    np.add.at(together, (concepts[0][data.is_right], concepts[1][data.is_right]), 1)
    assert together.max(axis=0).sum() > 0.98 * together.sum(), "right pairs share a concept"

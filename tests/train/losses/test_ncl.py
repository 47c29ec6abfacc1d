"""NCL's normalised loss and its Sinkhorn biases against the paper's equations."""

import math

import numpy as np
import pytest
import torch
from helpers.loss_checks import same, similarities
from vlalign.train.losses import (
    normalized_nce,
    sinkhorn_biases,
)

pytestmark = pytest.mark.portable


def plain_sinkhorn(
    s: np.ndarray, temperature: float, r: np.ndarray, c: np.ndarray, iterations: int
) -> tuple[np.ndarray, np.ndarray]:
    """NCL Eq. 7 to 11 as they stand."""
    matrix, beta = np.exp(s / temperature), np.ones(s.shape[1])
    for _ in range(iterations):
        alpha = r / (matrix @ beta)
        beta = c / (alpha @ matrix)
    return temperature * np.log(alpha / alpha.sum()), temperature * np.log(beta / beta.sum())


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (6, 6), (9, 4)])
@pytest.mark.parametrize("iterations", [1, 4, 300])
def test_sinkhorn_biases_are_equations_7_to_11(shape, iterations):
    s = torch.randn(shape, dtype=torch.float64)
    r, c = (torch.rand(n, dtype=torch.float64) + 0.5 for n in shape)
    r, c = r / r.sum(), c / c.sum()
    for given, plain in (
        ({}, (np.full(shape[0], 1 / shape[0]), np.full(shape[1], 1 / shape[1]))),
        ({"text_marginals_M": r, "video_marginals_N": c}, (r.numpy(), c.numpy())),
    ):
        ours = sinkhorn_biases(s, 0.3, num_iterations=iterations, **given)
        for found, expected in zip(ours, plain_sinkhorn(s.numpy(), 0.3, *plain, iterations), strict=False):
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)
        if iterations == 300:
            assert ours.residual < 1e-9
            by_text = ((s + ours.video_N) / 0.3).softmax(dim=1) * torch.from_numpy(plain[0])[:, None]
            np.testing.assert_allclose(by_text.sum(dim=0).numpy(), plain[1], rtol=1e-8)


def test_sinkhorn_biases_need_an_iteration_and_take_the_papers_four():
    s = torch.randn(5, 5)
    assert torch.equal(sinkhorn_biases(s, 0.3).text_M, sinkhorn_biases(s, 0.3, num_iterations=4).text_M)
    with pytest.raises(ValueError, match=r"^num_iterations 0: .*\b1\b"):
        sinkhorn_biases(s, 0.3, num_iterations=0)


def test_sinkhorn_biases_stop_at_the_tolerance_and_hold_at_small_temperatures():
    s = torch.rand(30, 30)
    rough, fine = (sinkhorn_biases(s, 0.1, num_iterations=10_000, tolerance=t) for t in (1e-1, 1e-4))
    assert 1e-4 < rough.residual <= 1e-1 and fine.residual <= 1e-4
    tiny = sinkhorn_biases(s, 1e-4, num_iterations=50)  # exp(1 / 1e-4) is beyond any float
    assert all(torch.isfinite(x).all() for x in tiny[:2]) and torch.isfinite(tiny.residual)
    assert math.isfinite(normalized_nce(s, 1e-4).item())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [1, 2, 6])
def test_normalized_nce_is_equation_4_on_equation_12(size, weighted):
    s, gamma = similarities(size, size), 0.2
    weights = np.random.default_rng(size).uniform(0.1, 2, size) if weighted else np.ones(size)
    a, b = plain_sinkhorn(s.detach().numpy(), gamma, weights / weights.sum(), weights / weights.sum(), 4)
    adjusted = torch.from_numpy(a)[:, None] + torch.from_numpy(b)[None, :] + s
    total = 0.0
    for i in range(size):
        own = torch.exp(adjusted[i, i] / gamma)
        by_text, by_video = (own / torch.exp(row / gamma).sum() for row in (adjusted[i], adjusted[:, i]))
        total = total - weights[i] * (torch.log(by_text) + torch.log(by_video))
    same(normalized_nce(s, gamma, weights_B=torch.from_numpy(weights) if weighted else None), total / (2 * size), s)


@pytest.mark.parametrize("least", [0.0, 0.1])
def test_biases_leave_no_pull_on_a_text_or_a_video_as_a_whole_whatever_pairs_weigh(least):
    s, weights = similarities(8, 8), torch.linspace(least, 2, 8, dtype=torch.float64)
    (pull,) = torch.autograd.grad(normalized_nce(s, 0.5, num_iterations=1000, weights_B=weights), s)
    assert pull.abs().max() > 0.01
    assert max(pull.sum(dim=n).abs().max() for n in (0, 1)) < 1e-9
    (pull,) = torch.autograd.grad(normalized_nce(s, 0.5, num_iterations=0, weights_B=weights), s)
    assert pull.sum(dim=0).abs().max() > 0.01


def test_pairs_with_zero_weight_have_no_loss():
    s = similarities(3, 3)
    same(normalized_nce(s, 0.5, weights_B=torch.zeros(3, dtype=torch.float64)), 0.0 * s.sum(), s)

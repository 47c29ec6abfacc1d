"""Losses of SSML, NCL and CMCM, and what theirs are compared with: each against a plain loop and against what other
programs made."""

import json
import math

import numpy as np
import pytest
import torch
from helpers.shared import shared
from vlalign.train.losses import (
    code_distances,
    code_log_probabilities,
    code_matching,
    intra_video_weights,
    masked_margin_softmax,
    max_margin,
    mil_nce,
    nce,
    normalized_nce,
    sinkhorn_biases,
    soft_max_margin,
)


def similarities(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def same(ours: torch.Tensor, plain: torch.Tensor, *inputs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(torch.autograd.grad(ours, inputs), torch.autograd.grad(plain, inputs))


@pytest.fixture
def goldens():
    folder = shared("data/goldens")
    with np.load(folder / "inputs.npz") as arrays:
        return json.loads((folder / "goldens.json").read_text()), {
            name: torch.from_numpy(arrays[name]) for name in arrays
        }


@pytest.mark.parametrize("size", [1, 2, 7])
def test_soft_max_margin_is_equation_4(size):
    s, p = similarities(size, size), torch.rand(size, dtype=torch.float64)
    total = 0.0 * s.sum()
    for i in range(size):
        for j in range(size):
            if j != i:
                total = total + p[i] * (torch.relu(s[i, j] - s[i, i] + 0.2) + torch.relu(s[j, i] - s[i, i] + 0.2))
    same(soft_max_margin(s, p, 0.2), total / size**2, s)
    same(max_margin(s, 0.2), soft_max_margin(s, torch.ones(size), 0.2), s)


def test_max_margin_is_that_of_howto100m_and_mmt(goldens):
    expected, given = goldens
    s, losses = given["loss_sim"], expected["losses"]
    size = len(s)
    for margin in (0.1, 1.0):  # theirs counts each pair as a negative of itself, too
        theirs = losses[f"maxmargin_howto100m_m{margin}(sim incl. diagonal)"]
        assert max_margin(s, margin).item() + 2 * margin / size == pytest.approx(theirs, rel=1e-6)
    for margin in (0.05, 0.2):  # the mean over the negatives
        ours = max_margin(s, margin).item() * size**2 / (2 * size * (size - 1))
        assert ours == pytest.approx(losses[f"maxmargin_mmt_fixnorm_m{margin}"], rel=1e-6)
    weights = intra_video_weights(torch.arange(size) // 2, 0.5)
    own = 2 * 0.1 * weights.diagonal().sum() / size**2
    theirs = losses["maxmargin_howto100m_m0.1_npair2_negweight_hr0.5(batch4)"]
    assert (max_margin(s, 0.1, weights) + own).item() == pytest.approx(theirs, rel=1e-6)


def test_intra_video_negatives_have_their_part_of_the_weight():
    weights = intra_video_weights(torch.tensor([0, 0, 0, 1, 1, 2]), 0.25)
    torch.testing.assert_close(weights[0], torch.tensor([0.5] * 3 + [1.5] * 3))
    torch.testing.assert_close(weights[5], torch.ones(6))  # alone of its video
    torch.testing.assert_close(intra_video_weights(torch.zeros(3), 0.25), torch.ones(3, 3))


def test_mil_nce_is_that_of_its_authors(goldens):
    expected, given = goldens
    video, text = given["loss_video"], given["loss_text"].reshape(6, 3, 16)
    assert mil_nce(video, text).item() == pytest.approx(
        expected["losses"]["milnce_howto100m(video[6,16],text[18,16])"], rel=1e-6
    )
    video, text = video.double().requires_grad_(), text.double().requires_grad_()
    total = 0.0
    for i in range(6):
        right = sum(torch.exp(video[i] @ text[i, c]) for c in range(3))
        row = sum(torch.exp(video[i] @ text[e, c]) for e in range(6) for c in range(3))
        column = sum(torch.exp(video[e] @ text[i, c]) for e in range(6) for c in range(3))
        total = total - torch.log(right / (row + column)) / 6
    same(mil_nce(video, text), total, video, text)
    alone = mil_nce(torch.ones(1, 4), torch.ones(1, 1, 4))
    assert alone.item() == pytest.approx(math.log(2))


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


def test_pairs_none_of_which_weighs_anything_have_no_loss():
    s = similarities(3, 3)
    same(normalized_nce(s, 0.5, weights_B=torch.zeros(3, dtype=torch.float64)), 0.0 * s.sum(), s)


def test_masked_margin_softmax_is_equation_1_and_that_of_avlnet(goldens):
    expected, given = goldens
    s = given["loss_sim"]
    theirs = expected["losses"]["mms_margin0.001"]
    assert (masked_margin_softmax(s, 1e-3) + masked_margin_softmax(s.T, 1e-3)).item() == pytest.approx(theirs, rel=1e-6)
    s, total = similarities(4, 4), 0.0
    for i in range(4):
        own = torch.exp(s[i, i] - 0.5)
        total = total - torch.log(own / (own + sum(torch.exp(s[i, j]) for j in range(4) if j != i))) / 4
    same(masked_margin_softmax(s, 0.5), total, s)


def test_code_probabilities_are_those_of_a_published_program(goldens):
    """CMG's, which has the second half of S_code the other way round than the paper: by P(e|H_i^B) and P(e|H_j^A)."""
    expected, given = goldens
    everything = torch.ones(5, 6, dtype=torch.bool)
    a, b = (code_log_probabilities(given[f"cmcm_{name}"], everything, given["cmcm_codebook"]) for name in ("a", "v"))
    theirs = nce(a.exp() @ b.T + b.exp() @ a.T)
    assert 0.5 * theirs.item() == pytest.approx(expected["cmcm"]["cmcm_loss(0.5*Lcmcm, rows a)"], rel=1e-5)
    assert 0.5 * code_matching(a, b).item() == pytest.approx(expected["cmcm"]["cmcm_loss(0.5*Lcmcm, rows a)"], rel=1e-2)


def test_code_matching_is_equation_2_with_sequences_of_different_lengths():
    codebook = torch.randn(5, 3, dtype=torch.float64)
    a, b = (torch.randn(3, length, 3, dtype=torch.float64, requires_grad=True) for length in (4, 2))
    lengths_a, lengths_b = [4, 1, 2], [2, 2, 1]

    def probabilities(sequence):
        total = 0.0
        for h in sequence:
            closeness = torch.stack([torch.exp(-torch.linalg.vector_norm(h - e)) for e in codebook])
            total = total + closeness / closeness.sum()
        return total / len(sequence)

    pa, pb = (
        [probabilities(x[i, :n]) for i, n in enumerate(lengths)] for x, lengths in ((a, lengths_a), (b, lengths_b))
    )
    s = torch.stack([torch.stack([p @ torch.log(q) + q @ torch.log(p) for q in pb]) for p in pa])
    masks = (
        torch.arange(x.shape[1]) < torch.tensor(lengths)[:, None] for x, lengths in ((a, lengths_a), (b, lengths_b))
    )
    ours = code_matching(*(code_log_probabilities(x, mask, codebook) for x, mask in zip((a, b), masks, strict=True)))
    plain = sum(-torch.log(torch.exp(s[i, i]) / torch.exp(s[i]).sum()) for i in range(3)) / 3
    same(ours, plain, a, b)


def test_a_token_on_a_codeword_has_a_finite_gradient():
    token = torch.ones(1, 3, requires_grad=True)
    code_distances(token, torch.ones(2, 3)).sum().backward()
    assert torch.isfinite(token.grad).all()


def test_weights_of_pairs_count_in_every_loss_alike():
    s, weights = similarities(4, 4), torch.tensor([1.0, 0.0, 0.5, 2.0], dtype=torch.float64)
    each = torch.stack([torch.nn.functional.cross_entropy(s[i : i + 1], torch.tensor([i])) for i in range(4)])
    same(nce(s, weights_R=weights), (weights * each).mean(), s)
    ones = torch.ones(4, dtype=torch.float64)
    same(normalized_nce(s, 0.5, weights_B=ones), normalized_nce(s, 0.5), s)
    same(masked_margin_softmax(s, weights_B=ones), masked_margin_softmax(s), s)
    only_first = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    assert torch.autograd.grad(soft_max_margin(s, only_first), s)[0][1:, 1:].abs().sum() == 0

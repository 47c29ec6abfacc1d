"""CMCM's losses against loops and published programs."""

import pytest
import torch
from helpers.loss_checks import same, similarities
from vlalign.train.losses import (
    code_distances,
    code_log_probabilities,
    code_matching,
    code_similarity,
    masked_margin_softmax,
    nce,
)

pytestmark = pytest.mark.portable


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


def test_weights_of_pairs_count_in_both_losses_and_the_margin_is_small():
    s, weights = similarities(3, 3), torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)

    def plain(logits):
        return sum(w * (torch.logsumexp(logits[i], 0) - logits[i, i]) for i, w in enumerate(weights)) / 3

    same(masked_margin_softmax(s, weights_B=weights), plain(s - 1e-3 * torch.eye(3)), s)
    a, b = (torch.randn(3, 5, dtype=torch.float64).log_softmax(dim=1).requires_grad_() for _ in range(2))
    codes = code_similarity(text_TV=a, video_CV=b)
    same(code_matching(codes, weights_B=weights), plain(a.exp() @ b.T + a @ b.exp().T), a, b)


def test_code_probabilities_are_those_of_a_published_program(goldens):
    """CMG's, which has the second half of S_code the other way round than the paper: by P(e|H_i^B) and P(e|H_j^A)."""
    expected, given = goldens
    everything = torch.ones(5, 6, dtype=torch.bool)
    a, b = (code_log_probabilities(given[f"cmcm_{name}"], everything, given["cmcm_codebook"]) for name in ("a", "v"))
    theirs = nce(a.exp() @ b.T + b.exp() @ a.T)
    assert 0.5 * theirs.item() == pytest.approx(expected["cmcm"]["cmcm_loss(0.5*Lcmcm, rows a)"], rel=1e-5)
    ours = code_matching(code_similarity(text_TV=a, video_CV=b))
    assert 0.5 * ours.item() == pytest.approx(expected["cmcm"]["cmcm_loss(0.5*Lcmcm, rows a)"], rel=1e-2)


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
    text, video = (code_log_probabilities(x, mask, codebook) for x, mask in zip((a, b), masks, strict=True))
    ours = code_matching(code_similarity(text_TV=text, video_CV=video))
    plain = sum(-torch.log(torch.exp(s[i, i]) / torch.exp(s[i]).sum()) for i in range(3)) / 3
    same(ours, plain, a, b)


def test_a_token_on_a_codeword_has_a_finite_gradient():
    token = torch.ones(1, 3, requires_grad=True)
    code_distances(token, torch.ones(2, 3)).sum().backward()
    assert torch.isfinite(token.grad).all()

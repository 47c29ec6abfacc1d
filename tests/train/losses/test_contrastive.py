"""InfoNCE and MIL-NCE against loops and the authors' program; weights of pairs in every loss."""

import math

import pytest
import torch
from helpers.loss_checks import same, similarities
from vlalign.train.losses import (
    masked_margin_softmax,
    mil_nce,
    nce,
    normalized_nce,
    soft_max_margin,
)

pytestmark = pytest.mark.portable


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


def test_weights_of_clips_count_in_mil_nce():
    video, text = similarities(3, 4), similarities(3, 2, 4)
    weights = torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
    first, _, third = (mil_nce(video, text, weights_B=only) for only in torch.eye(3, dtype=torch.float64))
    same(mil_nce(video, text, weights_B=weights), 0.5 * first + 2 * third, video, text)


def test_targets_of_nce_are_consecutive_from_the_first():
    logits, weights = similarities(3, 7), torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)

    def plain(weights):
        return sum(w * (torch.logsumexp(logits[i], 0) - logits[i, 2 + i]) for i, w in enumerate(weights)) / 3

    same(nce(logits, first=2), plain(torch.ones(3)), logits)
    same(nce(logits, first=2, weights_R=weights), plain(weights), logits)


def test_weights_of_pairs_count_in_every_loss_alike():
    s, weights = similarities(4, 4), torch.tensor([1.0, 0.0, 0.5, 2.0], dtype=torch.float64)
    each = torch.stack([torch.nn.functional.cross_entropy(s[i : i + 1], torch.tensor([i])) for i in range(4)])
    same(nce(s, weights_R=weights), (weights * each).mean(), s)
    ones = torch.ones(4, dtype=torch.float64)
    same(normalized_nce(s, 0.5, weights_B=ones), normalized_nce(s, 0.5), s)
    same(masked_margin_softmax(s, weights_B=ones), masked_margin_softmax(s), s)
    only_first = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    assert torch.autograd.grad(soft_max_margin(s, only_first), s)[0][1:, 1:].abs().sum() == 0

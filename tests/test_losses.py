"""Each loss against a plain loop written from its equation, in float64, value and gradient."""

import math

import pytest
import torch
from vlalign.train.losses import sentence_nce, token_nce


def batch(num_pairs: int, num_video: int = 5, num_text: int = 4, width: int = 6):
    video = torch.randn(num_pairs, num_video, width, dtype=torch.float64, requires_grad=True)
    text = torch.randn(num_pairs, num_text, width, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(num_pairs, num_video) < 0.6
    mask[:, 0] = True
    weights = torch.rand(num_pairs, num_text, dtype=torch.float64) * (torch.rand(num_pairs, num_text) < 0.5)
    return video, mask, text, weights


def loop_sentence_nce(video, text, temperature):
    """Eq. 3, then divided by the number of texts."""
    total = 0.0
    for i in range(len(text)):
        scores = [torch.dot(video[j], text[i]) / temperature for j in range(len(video))]
        total = total - torch.log(torch.exp(scores[i]) / sum(torch.exp(s) for s in scores))
    return total / len(text)


def loop_token_nce(video, mask, text, weights, temperature):
    """Eq. 4 with the tokens' weights, then divided by the number of texts."""

    def similarity(j, i, p):
        return max(torch.dot(video[j, m], text[i, p]) for m in range(video.shape[1]) if mask[j, m])

    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(text)):
        for p in range(text.shape[1]):
            scores = [similarity(j, i, p) / temperature for j in range(len(video))]
            total = total - weights[i, p] * torch.log(torch.exp(scores[i]) / sum(torch.exp(s) for s in scores))
    return total / len(text)


@pytest.mark.parametrize("num_pairs", [1, 2, 7])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_sentence_nce_is_equation_3(num_pairs, temperature):
    video, _, text, _ = batch(num_pairs)
    video, text = (x[:, 0].detach().requires_grad_() for x in (video, text))
    ours, plain = sentence_nce(video, text, temperature), loop_sentence_nce(video, text, temperature)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(torch.autograd.grad(ours, (video, text)), torch.autograd.grad(plain, (video, text)))


@pytest.mark.parametrize("num_pairs", [1, 2, 7])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_token_nce_is_equation_4(num_pairs, temperature):
    video, mask, text, weights = batch(num_pairs)
    ours, plain = token_nce(video, mask, text, weights, temperature), loop_token_nce(video, mask, text, weights, temperature)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(torch.autograd.grad(ours, (video, text)), torch.autograd.grad(plain, (video, text)))


def test_padding_has_no_influence():
    video, mask, text, weights = batch(5)
    padded = torch.cat([video, 100 * torch.ones_like(video)], dim=1)
    padded_mask = torch.cat([mask, torch.zeros_like(mask)], dim=1)
    assert token_nce(padded, padded_mask, text, weights) == token_nce(video, mask, text, weights)


def test_no_token_of_interest_gives_zero_and_a_gradient():
    video, mask, text, weights = batch(3)
    loss = token_nce(video, mask, text, torch.zeros_like(weights))
    loss.backward()
    assert loss == 0
    assert torch.equal(video.grad, torch.zeros_like(video))


def test_similarities_that_are_all_equal_give_log_of_the_batch_size():
    assert sentence_nce(torch.ones(8, 3), torch.ones(8, 3)).item() == pytest.approx(math.log(8))


def test_large_scores_do_not_overflow():
    loss = sentence_nce(1e3 * torch.eye(4), 1e3 * torch.eye(4))
    assert loss.item() == 0.0

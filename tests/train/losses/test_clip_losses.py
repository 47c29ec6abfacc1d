"""CLIP's, SigLIP's and decoupled losses against loops and against transformers; learned temperature and bias."""

import math

import pytest
import torch
from helpers.loss_checks import same, similarities
from torch.nn.functional import normalize
from transformers import CLIPConfig, CLIPModel, SiglipConfig, SiglipModel
from vlalign.train.losses import (
    LearnedTemperature,
    decoupled_nce,
    nce,
    normalized_nce,
    sigmoid_loss,
    symmetric_nce,
)

pytestmark = pytest.mark.portable

TEXT = {
    "vocab_size": 20,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
}
IMAGE = {"image_size": 8, "patch_size": 4, "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16}
IMAGE |= {"num_attention_heads": 2}
INPUTS = {"input_ids": torch.arange(15).view(5, 3), "pixel_values": torch.linspace(-1, 1, 5 * 192).view(5, 3, 8, 8)}


def test_symmetric_nce_with_a_learned_temperature_is_clips_of_transformers():
    model = CLIPModel(CLIPConfig(text_config=TEXT, vision_config=IMAGE, projection_dim=8))
    out = model(**INPUTS, return_loss=True)
    scale = LearnedTemperature()
    torch.testing.assert_close(scale.log_scale, model.logit_scale, rtol=1e-4, atol=0.0)  # theirs is rounded
    with torch.no_grad():
        scale.log_scale.copy_(model.logit_scale)
    logits = scale(out.text_embeds @ out.image_embeds.T)
    torch.testing.assert_close(logits, out.logits_per_text)
    ours = symmetric_nce(logits)
    torch.testing.assert_close(ours, out.loss)
    gradients = (
        torch.autograd.grad(loss, x)[0] for loss, x in ((ours, scale.log_scale), (out.loss, model.logit_scale))
    )
    torch.testing.assert_close(*gradients)


def test_sigmoid_loss_with_a_learned_bias_is_siglips_of_transformers():
    model = SiglipModel(SiglipConfig(text_config=TEXT, vision_config=IMAGE))
    with torch.no_grad():
        model.logit_scale.fill_(math.log(10))
        model.logit_bias.fill_(-10)
    out = model(**INPUTS, return_loss=True)
    scale = LearnedTemperature(0.1, bias=-10.0, min_temperature=0.0)
    logits = scale(out.text_embeds @ out.image_embeds.T)
    torch.testing.assert_close(logits, out.logits_per_text)
    ours = sigmoid_loss(logits)
    torch.testing.assert_close(ours, out.loss)
    assert scale.bias is not None
    given = torch.autograd.grad(ours, (scale.log_scale, scale.bias))
    expected = torch.autograd.grad(out.loss, (model.logit_scale, model.logit_bias))
    torch.testing.assert_close(given, tuple(gradient[0] for gradient in expected))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_sigmoid_loss_is_equation_1(size, weighted):
    x, weights = similarities(size, size), torch.rand(size, dtype=torch.float64) if weighted else None
    total = 0.0
    for i in range(size):
        for j in range(size):
            row = torch.log1p(torch.exp((-1 if i == j else 1) * x[i, j]))
            total = total + (row if weights is None else weights[i] * row)
    same(sigmoid_loss(x, weights_R=weights), total / size, x)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [2, 5])
def test_decoupled_nce_has_no_positive_in_its_denominator(size, weighted):
    x, weights = similarities(size, size), torch.rand(size, dtype=torch.float64) if weighted else None
    total = 0.0
    for i in range(size):
        row = -torch.log(torch.exp(x[i, i]) / sum(torch.exp(x[i, j]) for j in range(size) if j != i))
        total = total + (row if weights is None else weights[i] * row)
    same(decoupled_nce(x, weights_R=weights), total / size, x)


def test_decoupled_nce_needs_a_negative():
    with pytest.raises(ValueError, match=r"\(1, 1\)"):
        decoupled_nce(torch.zeros(1, 1))


def test_symmetric_nce_is_the_mean_of_both_directions_with_weights():
    x, weights = similarities(4, 4), torch.rand(4, dtype=torch.float64)
    plain = sum(w * (2 * -x[i, i] + x[i].logsumexp(0) + x[:, i].logsumexp(0)) / 2 for i, w in enumerate(weights))
    same(symmetric_nce(x, weights_B=weights), plain / 4, x)
    same(symmetric_nce(x / 0.3), normalized_nce(x, 0.3, num_iterations=0), x)


@pytest.mark.parametrize("loss", [nce, sigmoid_loss, decoupled_nce])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_shares_of_a_batch_have_the_mean_of_their_losses(loss, size):
    """As several processes compute it: each its own texts, all of the videos."""
    x = similarities(6, 6)
    parts = [loss(x[first : first + size], first=first) for first in range(0, 6, size)]
    same(torch.stack(parts).mean(), loss(x), x)


def test_symmetric_nce_of_processes_is_that_of_the_batch():
    x = similarities(6, 6)
    rows = [slice(first, first + 2) for first in (0, 2, 4)]
    parts = [(nce(x[own], first=own.start) + nce(x.T[own], first=own.start)) / 2 for own in rows]
    same(torch.stack(parts).mean(), symmetric_nce(x), x)


@pytest.mark.parametrize("loss", [symmetric_nce, sigmoid_loss, decoupled_nce])
def test_large_logits_do_not_overflow(loss):
    logits = (1e4 * torch.randn(4, 4)).requires_grad_()
    value = loss(logits)
    assert torch.isfinite(value) and torch.isfinite(torch.autograd.grad(value, logits)[0]).all()


def test_the_temperature_has_a_lower_limit_from_which_it_can_return():
    scale = LearnedTemperature(0.02)
    optimizer = torch.optim.SGD(scale.parameters(), lr=1.0)
    for direction, expected in ((-1.0, 0.01), (-1.0, 0.01), (1.0, 0.01 * math.e)):  # steps of size 1 in the logarithm
        optimizer.zero_grad()
        (direction * scale.log_scale).backward()
        optimizer.step()
        scale(torch.ones(()))
        assert scale.temperature == pytest.approx(expected, rel=1e-5)


def test_a_model_with_a_learned_temperature_learns_it():
    text, video = (normalize(torch.randn(8, 4), dim=1) for _ in range(2))
    scale = LearnedTemperature(0.5, bias=0.0)
    before = sigmoid_loss(scale(text @ video.T))
    optimizer = torch.optim.SGD(scale.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        sigmoid_loss(scale(text @ video.T)).backward()
        optimizer.step()
    assert sigmoid_loss(scale(text @ video.T)) < before and scale.temperature != pytest.approx(0.5)
    assert set(scale.state_dict()) == {"log_scale", "bias"} and set(LearnedTemperature().state_dict()) == {"log_scale"}


@pytest.mark.parametrize(
    ("temperature", "limit"), [(0.0, 0.0), (-1.0, 0.0), (0.005, 0.01), (math.inf, 0.01), (1.0, -1.0)]
)
def test_impossible_temperatures_are_refused(temperature, limit):
    with pytest.raises(ValueError, match=f"{temperature}"):
        LearnedTemperature(temperature, min_temperature=limit)

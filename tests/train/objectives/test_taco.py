"""TACo's and ToCo's losses and gradients against the papers' equations written as loops; the choice of negatives."""

import math

import pytest
import torch
from helpers.pair_models import batch_of, encode, make_batch, make_model, plain_scores
from vlalign.train.objectives import OBJECTIVES
from vlalign.train.objectives.taco import TacoObjective


def naive_taco(model, texts, videos, config) -> torch.Tensor:
    """Eq. 3 to 6 with cascade sampling, pair by pair."""
    size = len(texts.mask_BN)
    sentence = [
        [texts.tokens_BND[i, 0] @ videos.tokens_BMD[j, videos.mask_BM[j]].mean(0) for j in range(size)]
        for i in range(size)
    ]
    best = [
        [
            [(videos.tokens_BMD[j, videos.mask_BM[j]] @ texts.tokens_BND[i, p]).max() for p in _interest(texts, i)]
            for j in range(size)
        ]
        for i in range(size)
    ]
    loss_1 = loss_2 = loss_3 = 0.0
    for i in range(size):
        loss_1 = loss_1 - torch.log(sentence[i][i].exp() / sum(s.exp() for s in sentence[i]))
        for place, p in enumerate(_interest(texts, i)):
            share = best[i][i][place].exp() / sum(best[i][j][place].exp() for j in range(size))
            loss_2 = loss_2 - texts.weights_BN[i, p] * torch.log(share)
    guide = [[(sentence[i][j] + sum(best[i][j])).item() for j in range(size)] for i in range(size)]
    fused = [[plain_scores(model, texts, videos, i, j)[0] for j in range(size)] for i in range(size)]
    for i in range(size):
        hard = sorted((j for j in range(size) if j != i), key=lambda j: -guide[i][j])[: config.num_negatives]
        loss_3 = loss_3 - torch.log(fused[i][i].exp() / sum(fused[i][j].exp() for j in [i, *hard]))
        hard = sorted((j for j in range(size) if j != i), key=lambda j: -guide[j][i])[: config.num_negatives]
        loss_3 = loss_3 - torch.log(fused[i][i].exp() / sum(fused[j][i].exp() for j in [i, *hard]))
    return (loss_1 + config.token_loss_weight * loss_2 + loss_3 / 2) / size


def naive_toco(model, texts, videos, config) -> torch.Tensor:
    """Eq. 1 to 3 of ToCo over hard videos, and the loss of the pooled scores that find them."""
    size = len(texts.mask_BN)
    pooled = [
        [
            texts.tokens_BND[i, texts.mask_BN[i]].mean(0) @ videos.tokens_BMD[j, videos.mask_BM[j]].mean(0)
            for j in range(size)
        ]
        for i in range(size)
    ]
    loss = 0.0
    for i in range(size):
        loss = loss - torch.log(pooled[i][i].exp() / sum(s.exp() for s in pooled[i]))
        hard = sorted((j for j in range(size) if j != i), key=lambda j: -pooled[i][j].item())[: config.num_negatives]
        scored = {j: plain_scores(model, texts, videos, i, j) for j in [i, *hard]}
        loss = loss - torch.log(scored[i][0].exp() / sum(f.exp() for f, _ in scored.values()))
        for p in _interest(texts, i):
            share = scored[i][1][p].exp() / sum(tokens[p].exp() for _, tokens in scored.values())
            loss = loss - config.token_loss_weight * texts.weights_BN[i, p] * torch.log(share)
    return loss / size


@pytest.mark.parametrize("objective", ["taco", "toco"])
def test_the_papers_sums_over_pairs_are_the_means_times_their_number(objective):
    model, batch = make_model(objective), make_batch(5)
    texts, videos = encode(model, batch)
    mean, total = (
        OBJECTIVES[objective](num_negatives=2, loss_sum=loss_sum).compute_loss(model, batch_of(texts, videos))
        for loss_sum in (False, True)
    )
    assert mean.keys() == total.keys()
    for name in mean:
        torch.testing.assert_close(total[name], 5 * mean[name])


def _interest(texts, i: int) -> list[int]:
    return texts.weights_BN[i].nonzero().ravel().tolist()


@pytest.mark.parametrize(("objective", "naive"), [("taco", naive_taco), ("toco", naive_toco)])
@pytest.mark.parametrize("num_pairs", [2, 6])
@pytest.mark.parametrize("recompute", [None, 3])
@pytest.mark.parametrize("no_interest", [False, True])
def test_loss_and_gradient_are_the_papers_equations(objective, naive, num_pairs, recompute, no_interest):
    model, batch = make_model(objective), make_batch(num_pairs)
    if no_interest:
        batch["token_weights"][:] = 0
    settings = OBJECTIVES[objective](num_negatives=2)
    found = []
    for ours in (True, False):
        model.zero_grad()
        texts, videos = encode(model, batch)
        if ours:
            terms = settings.compute_loss(model, batch_of(texts, videos, recompute=recompute))
            assert set(terms) == set(settings.loss_names)
            loss = sum(terms.values())
        else:
            loss = naive(model, texts, videos, settings)
        loss.backward()
        found.append((loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    (ours, our_gradients), (plain, plain_gradients) = found
    torch.testing.assert_close(ours, plain)
    assert plain_gradients.keys() <= our_gradients.keys()
    for name, gradient in our_gradients.items():
        torch.testing.assert_close(
            gradient, plain_gradients.get(name, torch.zeros_like(gradient)), atol=1e-9, rtol=1e-6, msg=name
        )


@pytest.mark.parametrize("losses", ["sentence", "token", "fusion", "sentence+fusion", "token+fusion", "sentence+token"])
def test_loss_terms_are_selected_by_name_and_independent(losses):
    model, batch = make_model("taco"), make_batch(5)
    texts, videos = encode(model, batch)
    every = TacoObjective(negatives="all").compute_loss(model, batch_of(texts, videos))
    some = TacoObjective(negatives="all", losses=losses).compute_loss(model, batch_of(texts, videos))
    assert list(some) == losses.split("+")
    assert all(torch.equal(some[name], every[name]) for name in some)


def test_biased_token_scores_pick_each_video_in_proportion_to_its_weight():
    texts, videos = encode(make_model("taco"), make_batch(4))
    batch = batch_of(texts, videos)
    text_of_S, weights_S = (
        torch.tensor([0, 0, 2, 3, 3, 3]),
        torch.tensor([0.1, 0.4, 0.8, 0.5, 0.0, 0.5], dtype=torch.float64),
    )
    similarity_SB = torch.randn(6, 4, dtype=torch.float64)
    bias_B = batch.video_biases(similarity_SB, 2.0, weights_S, text_of_S)
    picked_B = weights_S @ ((similarity_SB + bias_B) / 2.0).softmax(dim=1)
    expected_B = torch.zeros_like(picked_B).index_add(0, text_of_S, weights_S)
    torch.testing.assert_close(picked_B, expected_B, atol=1e-3, rtol=0)
    assert not torch.allclose(weights_S @ (similarity_SB / 2.0).softmax(dim=1), expected_B, atol=0.05)


def test_a_batch_without_tokens_of_interest_has_no_token_loss_with_biases_either():
    model, batch = make_model("taco"), make_batch(4)
    batch["token_weights"][:] = 0
    terms = TacoObjective(num_negatives=2, normalized_loss=True).compute_loss(model, batch_of(*encode(model, batch)))
    assert terms["token"] == 0
    assert all(torch.isfinite(term) for term in terms.values())


def test_the_cascade_takes_the_hardest_and_random_ones_are_drawn_by_seed():
    texts, videos = encode(make_model("taco"), make_batch(6))
    guide = torch.randn(6, 6)
    of_texts, of_videos = TacoObjective(num_negatives=2).choose_negatives(batch_of(texts, videos, seed=1), guide)
    others = guide.masked_fill(torch.eye(6).bool(), -math.inf)
    assert all(
        set(others[i].topk(2).indices.tolist()) | {i} == set(of_texts[i].nonzero().ravel().tolist()) for i in range(6)
    )
    assert all(
        set(others[:, j].topk(2).indices.tolist()) | {j} == set(of_videos[:, j].nonzero().ravel().tolist())
        for j in range(6)
    )
    drawn = [
        TacoObjective(num_negatives=2, negatives="random").choose_negatives(batch_of(texts, videos, seed=s), guide)[0]
        for s in (1, 1, 2)
    ]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert (drawn[0].sum(1) == 3).all() and drawn[0].diagonal().all()
    assert TacoObjective(negatives="all").choose_negatives(batch_of(texts, videos), None)[0].all()

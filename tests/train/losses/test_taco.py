"""TACo's and ToCo's losses against plain loops written from their equations, in float64: value and gradient."""

import math

import pytest
import torch
from vlalign.train.losses import (
    cascade_scores,
    fusion_nce,
    fusion_token_nce,
    hard_negatives,
    normalized_nce,
    sentence_nce,
    token_nce,
    token_similarity,
)

pytestmark = pytest.mark.portable


def batch(num_pairs: int, num_video: int = 5, num_text: int = 4, width: int = 6):
    video = torch.randn(num_pairs, num_video, width, dtype=torch.float64, requires_grad=True)
    text = torch.randn(num_pairs, num_text, width, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(num_pairs, num_video) < 0.6
    mask[:, 0] = True
    weights = torch.rand(num_pairs, num_text, dtype=torch.float64) * (torch.rand(num_pairs, num_text) < 0.5)
    return video, mask, text, weights


def of_interest(video, mask, text, weights) -> dict:
    """The arguments of ``token_nce``, from dense tensors."""
    text_of_S, position_S = weights.nonzero(as_tuple=True)
    similarity_SB = token_similarity(text[text_of_S, position_S], video_BMD=video, video_mask_BM=mask)
    of_tokens = {"text_of_S": text_of_S, "weights_S": weights[text_of_S, position_S], "num_texts": len(text)}
    return {"similarity_SB": similarity_SB} | of_tokens


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
    ours, plain = sentence_nce(text @ video.T, temperature), loop_sentence_nce(video, text, temperature)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(torch.autograd.grad(ours, (video, text)), torch.autograd.grad(plain, (video, text)))


@pytest.mark.parametrize("num_pairs", [1, 2, 7])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_token_nce_is_equation_4(num_pairs, temperature):
    video, mask, text, weights = batch(num_pairs)
    ours, plain = (
        token_nce(**of_interest(video, mask, text, weights), temperature=temperature),
        loop_token_nce(video, mask, text, weights, temperature),
    )
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(torch.autograd.grad(ours, (video, text)), torch.autograd.grad(plain, (video, text)))


def test_padding_has_no_influence():
    video, mask, text, weights = batch(5)
    padded = torch.cat([video, 100 * torch.ones_like(video)], dim=1)
    padded_mask = torch.cat([mask, torch.zeros_like(mask)], dim=1)
    of_padded = token_nce(**of_interest(padded, padded_mask, text, weights))
    assert of_padded == token_nce(**of_interest(video, mask, text, weights))


def test_no_token_of_interest_gives_zero_and_a_gradient():
    video, mask, text, weights = batch(3)
    loss = token_nce(**of_interest(video, mask, text, torch.zeros_like(weights)))
    loss.backward()
    assert loss == 0
    assert torch.equal(video.grad, torch.zeros_like(video))


def test_similarities_that_are_all_equal_give_log_of_the_batch_size():
    assert sentence_nce(torch.ones(8, 8)).item() == pytest.approx(math.log(8))


def test_large_scores_do_not_overflow():
    loss = sentence_nce(1e6 * torch.eye(4))
    assert loss.item() == 0.0


# The later stage


def loop_hard(scores, num_negatives):
    """(text, video) pairs of each text's problem, and of each video's, by sorting."""
    size = len(scores)
    of_texts = {
        i: {i, *sorted((j for j in range(size) if j != i), key=lambda j: -scores[i][j])[:num_negatives]}
        for i in range(size)
    }
    of_videos = {
        j: {j, *sorted((i for i in range(size) if i != j), key=lambda i: -scores[i][j])[:num_negatives]}
        for j in range(size)
    }
    return of_texts, of_videos


def loop_fusion_nce(scores, of_texts, of_videos):
    """Eq. 5 of each text and of each video over their own problems, then divided by how many there are."""
    total = 0.0
    for i, videos in of_texts.items():
        total = total - torch.log(torch.exp(scores[i, i]) / sum(torch.exp(scores[i, j]) for j in videos))
    for j, texts in of_videos.items():
        total = total - torch.log(torch.exp(scores[j, j]) / sum(torch.exp(scores[i, j]) for i in texts))
    return total / (2 * len(scores))


@pytest.mark.parametrize("num_pairs", [1, 2, 7])
@pytest.mark.parametrize("num_negatives", [0, 1, 3, 20])
def test_hard_negatives_and_fusion_nce_are_equation_5_over_the_highest(num_pairs, num_negatives):
    guide = torch.randn(num_pairs, num_pairs, dtype=torch.float64)
    scores = torch.randn(num_pairs, num_pairs, dtype=torch.float64, requires_grad=True)
    of_texts, of_videos = hard_negatives(guide, num_negatives)
    expected_texts, expected_videos = loop_hard(guide.tolist(), num_negatives)
    assert {i: set(of_texts[i].nonzero().ravel().tolist()) for i in range(num_pairs)} == expected_texts
    assert {j: set(of_videos[:, j].nonzero().ravel().tolist()) for j in range(num_pairs)} == expected_videos
    ours = fusion_nce(scores, text_candidates_BB=of_texts, video_candidates_BB=of_videos)
    plain = loop_fusion_nce(scores, expected_texts, expected_videos)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(torch.autograd.grad(ours, scores), torch.autograd.grad(plain, scores))


def test_pairs_outside_the_masks_have_no_influence():
    guide, scores = torch.randn(6, 6), torch.randn(6, 6)
    of_texts, of_videos = hard_negatives(guide, 2)
    candidates = {"text_candidates_BB": of_texts, "video_candidates_BB": of_videos}
    assert of_texts.sum() == of_videos.sum() == 6 * 3 and (of_texts | of_videos).sum() <= 2 * 6 * 3 - 6
    junk = scores.masked_fill(~(of_texts | of_videos), float("inf"))
    assert fusion_nce(junk, **candidates) == fusion_nce(scores, **candidates)


def test_biases_leave_little_pull_on_a_text_or_a_video_as_a_whole():
    scores = torch.randn(12, 12, dtype=torch.float64, requires_grad=True)
    # Some videos are hard for many texts.
    of_texts, of_videos = hard_negatives(torch.randn(12, 12) + torch.randn(12), 3)
    candidates = {"text_candidates_BB": of_texts, "video_candidates_BB": of_videos}
    plain, ours = (
        torch.autograd.grad(fusion_nce(scores, **candidates, normalized=normalized), scores)[0]
        for normalized in (False, True)
    )
    for dim in (0, 1):
        assert ours.sum(dim).norm() < 0.4 * plain.sum(dim).norm()


@pytest.mark.parametrize("normalized", [False, True])
def test_fusion_nce_over_all_pairs_is_the_loss_of_the_whole_batch_with_its_weights(normalized):
    scores, weights = torch.randn(5, 5, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    everything = torch.ones(5, 5, dtype=torch.bool)
    candidates = dict.fromkeys(("text_candidates_BB", "video_candidates_BB"), everything)
    ours = fusion_nce(scores, **candidates, weights_B=weights, normalized=normalized)
    expected = normalized_nce(scores, 1.0, num_iterations=4 if normalized else 0, weights_B=weights)
    torch.testing.assert_close(ours, expected)


def test_scores_are_not_divided_unless_a_temperature_is_given():
    video, mask, text, weights = batch(4)
    similarity, of_tokens = text[:, 0] @ video[:, 0].T, of_interest(video, mask, text, weights)
    assert sentence_nce(similarity) == sentence_nce(similarity, 1.0)
    assert token_nce(**of_tokens) == token_nce(**of_tokens, temperature=1.0)


def test_cascade_scores_are_the_two_similarities_added():
    video, mask, text, weights = batch(5)
    token = token_similarity(text, video_BMD=video, video_mask_BM=mask)
    sentence = text[:, 0] @ video[:, 0].T
    text_of_S, place_S = (weights > 0).nonzero(as_tuple=True)
    got = cascade_scores(sentence_TV=sentence, token_SV=token[text_of_S, place_S], text_of_S=text_of_S)
    for i in range(5):
        for j in range(5):
            of_tokens = [
                max(video[j, m] @ text[i, p] for m in range(5) if mask[j, m]) for p in range(4) if weights[i, p] > 0
            ]
            torch.testing.assert_close(got[i, j], sentence[i, j] + sum(of_tokens))


@pytest.mark.parametrize("size", [2, 3, 6])
def test_shares_of_a_batch_have_the_mean_of_their_losses(size):
    """As several processes compute it: each its own texts, all of the videos."""
    video, mask, text, weights = batch(6)
    each = 6 // size
    for whole, part in (
        (
            sentence_nce(text[:, 0] @ video[:, 0].T),
            lambda own, first: sentence_nce(text[own, 0] @ video[:, 0].T, first=first),
        ),
        (
            token_nce(**of_interest(video, mask, text, weights)),
            lambda own, first: token_nce(**of_interest(video, mask, text[own], weights[own]), first=first),
        ),
    ):
        parts = [part(slice(first, first + each), first) for first in range(0, 6, each)]
        torch.testing.assert_close(torch.stack(parts).mean(), whole)


def loop_fusion_token_nce(scores, of_texts, weights):
    """ToCo Eq. 2, token by token."""
    total = 0.0
    for i in range(len(scores)):
        for p in range(weights.shape[1]):
            videos = [j for j in range(len(scores)) if of_texts[i, j]]
            share = torch.exp(scores[i, i, p]) / sum(torch.exp(scores[i, j, p]) for j in videos)
            total = total - weights[i, p] * torch.log(share)
    return total / len(scores)


@pytest.mark.parametrize("num_pairs", [1, 2, 5])
@pytest.mark.parametrize("interest", [0.0, 0.5, 1.0])
def test_fusion_token_nce_is_equation_2_of_toco(num_pairs, interest):
    scores = torch.randn(num_pairs, num_pairs, 4, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(num_pairs, 4, dtype=torch.float64) * (torch.rand(num_pairs, 4) < interest)
    of_texts, _ = hard_negatives(torch.randn(num_pairs, num_pairs), 2)
    ours = fusion_token_nce(scores, text_candidates_BB=of_texts, token_weights_BN=weights)
    plain = loop_fusion_token_nce(scores, of_texts, weights)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(torch.autograd.grad(ours, scores), torch.autograd.grad(plain, scores))

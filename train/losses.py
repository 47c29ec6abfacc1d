"""Losses as pure functions of tensors, with the papers' equations.

Shape letters: B pairs in the batch, M video tokens, N text tokens, D width, P pairs that are scored. The papers'
equations sum over the batch; these take the mean, so that a learning rate does not depend on the batch size. If several
processes share a batch, each has the texts ``first`` to ``first + R`` of it and all B videos.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def sentence_nce(video_BD: Tensor, text_RD: Tensor, temperature: float = 1.0, first: int = 0) -> Tensor:
    """TACo Eq. 3: each text must pick its own video among all of the batch, by dot product.

    Returns:
        A scalar, the mean over texts.
    """
    return nce(text_RD @ video_BD.T / temperature, first)


def nce(logits_RB: Tensor, first: int = 0, weights_R: Tensor | None = None) -> Tensor:
    """Return the cross entropy of rows whose targets are consecutive columns.

    Args:
        logits_RB: The logits; the target of row i is column ``first`` + i.
        first: Target of the first row.
        weights_R: Weight of each row; None: all have 1.

    Returns:
        A scalar, the mean over rows.
    """
    right_R = torch.arange(first, first + len(logits_RB), device=logits_RB.device)
    if weights_R is None:
        return F.cross_entropy(logits_RB, right_R)
    return weighted_nce(logits_RB, right_R, weights_R) / len(logits_RB)


def token_similarity(video_BMD: Tensor, video_mask_BM: Tensor, tokens: Tensor) -> Tensor:
    """s(x_j, y_i^p) of TACo Eq. 4: the largest dot product of each text token with any token of each video.

    Args:
        video_BMD: Video tokens.
        video_mask_BM: True for a token. Every video has at least one.
        tokens: Text tokens [..., D].

    Returns:
        [..., B]
    """
    products = torch.einsum("...d,bmd->...bm", tokens, video_BMD)
    return products.masked_fill(~video_mask_BM, float("-inf")).amax(dim=-1)


def token_nce(
    video_BMD: Tensor,
    video_mask_BM: Tensor,
    text_RND: Tensor,
    token_weights_RN: Tensor,
    temperature: float = 1.0,
    first: int = 0,
) -> Tensor:
    """TACo Eq. 4: each token of interest must pick its text's video, by its best match within a video.

    Args:
        video_BMD: Video tokens.
        video_mask_BM: True for a token. Every video has at least one.
        text_RND: Text tokens.
        token_weights_RN: Normalised idf of the tokens (Appendix A), 0 for tokens of no interest.
        temperature: Divides the similarities.
        first: Index of the first text's video.

    Returns:
        A scalar, the mean over texts; 0 if no text has a token of interest.
    """
    text_of_S, place_S = token_weights_RN.nonzero(as_tuple=True)
    similarity_SB = token_similarity(video_BMD, video_mask_BM, text_RND[text_of_S, place_S])
    return weighted_nce(similarity_SB / temperature, first + text_of_S, token_weights_RN[text_of_S, place_S]) / len(
        text_RND
    )


def weighted_nce(logits_SB: Tensor, right_S: Tensor, weights_S: Tensor) -> Tensor:
    """Return the sum over rows of weight times cross entropy, 0 without rows. ``right_S``: the target of each row."""
    return weights_S @ F.cross_entropy(logits_SB, right_S, reduction="none")


def cascade_scores(sentence_TV: Tensor, token_SV: Tensor, text_of_S: Tensor) -> Tensor:
    """Return how hard negatives are, [T, V]: TACo section 3.3, "we sum the two similarities".

    Args:
        sentence_TV: Dot products of Eq. 3.
        token_SV: Similarities of Eq. 4 (``token_similarity``) of the texts' tokens of interest. All weigh the same
            here: the paper weights them by idf in the loss only.
        text_of_S: Row of each token's text.
    """
    return sentence_TV.index_add(0, text_of_S, token_SV)


def hard_negatives(scores_BB: Tensor, num_negatives: int) -> tuple[Tensor, Tensor]:
    """Choose each text's own video and its hardest others, and each video's texts likewise.

    A pair that both want needs to be scored only once: the pairs to score are those for which either mask is True.

    Args:
        scores_BB: How hard each pair is, by text and video.
        num_negatives: Others to choose; all of them if there are fewer.

    Returns:
        Two masks [B, B], by text and video. In the first, each row is a text's problem; in the second, each column is a
        video's.
    """
    size = len(scores_BB)
    own = torch.eye(size, dtype=torch.bool, device=scores_BB.device)
    others = scores_BB.detach().masked_fill(own, float("-inf"))
    count = min(num_negatives, size - 1)
    of_texts = own.scatter(1, others.topk(count, dim=1).indices, True)
    of_videos = own.scatter(0, others.topk(count, dim=0).indices, True)
    return of_texts, of_videos


def fusion_nce(
    scores_BB: Tensor, of_texts: Tensor, of_videos: Tensor, *, weights_B: Tensor | None = None, normalized: bool = False
) -> Tensor:
    """TACo Eq. 5 over the chosen pairs: each text must pick its video, and each video its text ("and vice versa").

    Args:
        scores_BB: w . z_cls of text i and video j; anything for pairs that are in neither mask.
        of_texts: First mask of ``hard_negatives``.
        of_videos: Second mask of ``hard_negatives``.
        weights_B: Weight of each pair; None: all have 1.
        normalized: Add NCL's biases, each direction's over its own pairs.

    Returns:
        A scalar, the mean over the 2 B problems.
    """
    by_text, by_video = (scores_BB.masked_fill(~mask, float("-inf")) for mask in (of_texts, of_videos))
    if normalized:
        by_text = by_text + pair_biases(by_text, 1.0, weights_B).video_N
        by_video = by_video + pair_biases(by_video, 1.0, weights_B).text_M[:, None]
    by_text, by_video = (nce(logits, weights_R=weights_B) for logits in (by_text, by_video.T))
    return (by_text + by_video) / 2


def fusion_token_nce(scores_BBN: Tensor, of_texts: Tensor, token_weights_BN: Tensor) -> Tensor:
    """ToCo Eq. 2 over the chosen pairs: each token of interest must pick its text's video, by its fused score.

    Args:
        scores_BBN: f^t of text i's token n beside video j; anything for pairs that are not in ``of_texts``.
        of_texts: First mask of ``hard_negatives``.
        token_weights_BN: Normalised idf, 0 for tokens of no interest.

    Returns:
        A scalar, the mean over texts.
    """
    text_of_S, place_S = token_weights_BN.nonzero(as_tuple=True)
    logits_SB = scores_BBN[text_of_S, :, place_S].masked_fill(~of_texts[text_of_S], float("-inf"))
    return weighted_nce(logits_SB, text_of_S, token_weights_BN[text_of_S, place_S]) / len(scores_BBN)


def max_margin(similarity_BB: Tensor, margin: float = 0.1, negative_weights_BB: Tensor | None = None) -> Tensor:
    """HowTo100M's ranking loss: each pair must be ahead of all others in its row and its column by ``margin``.

    Args:
        similarity_BB: Similarity of text i and video j.
        margin: By how much.
        negative_weights_BB: Weight of each negative (``intra_video_weights``); None: all have 1.

    Returns:
        A scalar: the sum over the negatives, divided by B^2.
    """
    return soft_max_margin(similarity_BB, similarity_BB.new_ones(len(similarity_BB)), margin, negative_weights_BB)


def soft_max_margin(
    similarity_BB: Tensor, weights_B: Tensor, margin: float = 0.1, negative_weights_BB: Tensor | None = None
) -> Tensor:
    """SSML Eq. 4: ``max_margin`` in which each pair's part has a weight.

    Args:
        similarity_BB: Similarity of text i and video j.
        weights_B: Weight of each pair: the probability that clip and caption belong together.
        margin: By how much a pair must be ahead.
        negative_weights_BB: Weight of each negative; None: all have 1.

    Returns:
        A scalar: the sum over the negatives, divided by B^2.
    """
    own_B = similarity_BB.diagonal()
    of_texts = F.relu(margin + similarity_BB - own_B[:, None])
    of_videos = F.relu(margin + similarity_BB - own_B[None, :])
    of_texts, of_videos = weights_B[:, None] * of_texts, weights_B[None, :] * of_videos
    both = (of_texts + of_videos) * ~torch.eye(len(own_B), dtype=torch.bool, device=own_B.device)
    return (both if negative_weights_BB is None else both * negative_weights_BB).mean()


def answer_margin(similarity_RA: Tensor, right_R: Tensor, margin: float = 0.1) -> Tensor:
    """SSML section 5.2's "max margin ranking loss": the right answer must be ahead of all others by ``margin``.

    The other questions' answers in a batch would be poor negatives: they come as often as they are right, which teaches
    the model to avoid frequent answers.

    Args:
        similarity_RA: Similarity of question i with its video and answer j.
        right_R: Index of each question's right answer.
        margin: By how much.

    Returns:
        A scalar, the mean over questions and answers.
    """
    own_R1 = similarity_RA.gather(1, right_R[:, None])
    return F.relu(margin + similarity_RA - own_R1).scatter(1, right_R[:, None], 0.0).mean()


def intra_video_weights(video_of_B: Tensor, rate: float) -> Tensor:
    """Return the weight of each negative [B, B] such that those of the same video have a given share.

    HowTo100M's "intra-video negatives" have half of it. As in its code, a pair itself counts among those of its video.
    A row whose pairs are all of one video, or all of different ones, has 1 everywhere.

    Args:
        video_of_B: Index of each pair's video.
        rate: Share of a row's total weight that negatives of the same video have.
    """
    same = video_of_B[:, None] == video_of_B[None, :]
    size, num_same = len(same), same.sum(dim=1, keepdim=True)
    weights = torch.where(same, rate * size / num_same, (1 - rate) * size / (size - num_same).clamp(min=1))
    return weights.where((num_same > 1) & (num_same < size), 1.0)


def mil_nce(video_BD: Tensor, text_BCD: Tensor, weights_B: Tensor | None = None) -> Tensor:
    """MIL-NCE (Miech 2020, Eq. 1) as its authors compute it, with dot products and no temperature.

    All C candidate captions of a clip are right. Negatives are the clip with all other clips' captions, and the other
    clips with its captions. The right ones are in the denominator twice, so the least possible value is log 2.

    Args:
        video_BD: The clips.
        text_BCD: The candidates of each clip.
        weights_B: Weight of each clip; None: all have 1.

    Returns:
        A scalar, the mean over clips.
    """
    products_BBC = torch.einsum("bd,ecd->bec", video_BD, text_BCD)
    own = torch.arange(len(video_BD), device=video_BD.device)
    right_B = products_BBC[own, own].logsumexp(dim=1)
    all_B = torch.cat([products_BBC.flatten(1), products_BBC.transpose(0, 1).flatten(1)], dim=1).logsumexp(dim=1)
    loss_B = all_B - right_B
    return (loss_B if weights_B is None else weights_B * loss_B).mean()


class Biases(NamedTuple):
    """What normalises sums of retrieval probabilities, in the unit of the similarity (NCL Eq. 6)."""

    text_M: Tensor
    video_N: Tensor
    residual: Tensor
    """A scalar: how far the texts' sums still are from their marginals, as the largest part of one; the videos' are
    exact."""


@torch.no_grad()
def sinkhorn_biases(
    similarity_MN: Tensor,
    temperature: float,
    *,
    text_marginals_M: Tensor | None = None,
    video_marginals_N: Tensor | None = None,
    num_iterations: int = 4,
    tolerance: float = 0.0,
) -> Biases:
    """NCL Eq. 7 to 11: biases that give each text and each video its share of the retrieval probability.

    Computed in logarithms: at a temperature of 0.01 the paper's exp(S) leaves float32's range. No gradient.

    Args:
        similarity_MN: Similarity of text i and video j.
        temperature: Divides the similarities.
        text_marginals_M: Shares of the texts, the paper's r, which sum to 1; None: all the same.
        video_marginals_N: Shares of the videos, the paper's c, such as the numbers of captions of each; None: all the
            same.
        num_iterations: Upper limit of the iterations, 4 in the paper.
        tolerance: Stop when the residual is not above this.

    Raises:
        ValueError: Fewer than 1 iteration: the text biases (Eq. 10) need one.
    """
    if num_iterations < 1:
        raise ValueError(
            f"num_iterations {num_iterations}: expected 1 or more; without biases, leave the similarities as they are"
        )
    logits_MN = similarity_MN / temperature
    shares = [_log_shares(*given) for given in zip((text_marginals_M, video_marginals_N), logits_MN.shape, strict=True)]
    log_r_M, log_c_N = (share.to(logits_MN) for share in shares)
    log_a_M, log_b_N = torch.zeros_like(logits_MN[:, 0]), torch.zeros_like(logits_MN[0])
    residual = logits_MN.new_tensor(math.inf)
    log_sums_M = (logits_MN + log_b_N).logsumexp(dim=1)
    for _ in range(num_iterations):
        log_a_M = log_r_M - log_sums_M
        log_b_N = log_c_N - (logits_MN + log_a_M[:, None]).logsumexp(dim=0)
        log_sums_M = (logits_MN + log_b_N).logsumexp(dim=1)
        residual = (log_sums_M + log_a_M - log_r_M).exp().sub(1).abs().max()
        if tolerance and residual <= tolerance:
            break
    text_M, video_N = (temperature * (x - x.logsumexp(dim=0)) for x in (log_a_M, log_b_N))
    return Biases(text_M, video_N, residual)


def _log_shares(marginals: Tensor | None, number: int) -> Tensor:
    return torch.full((number,), -math.log(number), dtype=torch.float64) if marginals is None else marginals.log()


def shares_of(weights_N: Tensor) -> Tensor:
    """Return marginals in proportion to weights, some or all of which may be 0: their logarithms are finite."""
    weights_N = weights_N.detach() + 1e-12
    return weights_N / weights_N.sum()


def pair_biases(
    similarity_BB: Tensor, temperature: float, weights_B: Tensor | None = None, *, num_iterations: int = 4
) -> Biases:
    """Return NCL's biases of a batch of pairs, in which a text and a video have their pair's share of the loss.

    With other marginals there is no similarity at which the gradient vanishes: the loss would pull each video towards
    its weight, and the biases undo that in every step.
    """
    shares_B = None if weights_B is None else shares_of(weights_B)
    given = {"text_marginals_M": shares_B, "video_marginals_N": shares_B, "num_iterations": num_iterations}
    return sinkhorn_biases(similarity_BB, temperature, **given)


def normalized_nce(
    similarity_BB: Tensor, temperature: float, *, num_iterations: int = 4, weights_B: Tensor | None = None
) -> Tensor:
    """NCL Eq. 4 on the similarities of Eq. 12: each text must pick its video, and each video its text.

    Biases are added such that none of them is picked too often or too seldom.

    Args:
        similarity_BB: Similarity of text i and video j.
        temperature: Divides the similarities.
        num_iterations: Of ``sinkhorn_biases``; 0: no biases.
        weights_B: Weight of each pair; None: all have 1.

    Returns:
        A scalar, the mean of both directions.
    """
    by_text = by_video = similarity_BB
    if num_iterations:
        biases = pair_biases(similarity_BB, temperature, weights_B, num_iterations=num_iterations)
        by_text, by_video = (
            similarity_BB + biases.video_N,
            similarity_BB + biases.text_M[:, None],
        )  # the other one is the same for all
    by_text = nce(by_text / temperature, weights_R=weights_B)
    by_video = nce(by_video.T / temperature, weights_R=weights_B)
    return (by_text + by_video) / 2


def masked_margin_softmax(similarity_BB: Tensor, margin: float = 1e-3, weights_B: Tensor | None = None) -> Tensor:
    """CMCM Eq. 1: each row must pick its own column although that one is made worse by ``margin``.

    The paper's rows are modality A's, the videos. AVLnet, which its baselines come from, adds the other direction:
    ``masked_margin_softmax(s) + masked_margin_softmax(s.T)``.

    Returns:
        A scalar, the mean over rows.
    """
    return nce(similarity_BB - margin * torch.eye(len(similarity_BB), device=similarity_BB.device), weights_R=weights_B)


def code_log_probabilities(tokens_BLD: Tensor, mask_BL: Tensor, codebook_VD: Tensor) -> Tensor:
    """log P(e_v | H) of CMCM section 2.3, [B, V].

    It is the mean over a sequence's tokens of a softmin over the codewords of the Euclidean distance (not its square).

    Args:
        tokens_BLD: Tokens of the sequences.
        mask_BL: True for a token. Every sequence has at least one.
        codebook_VD: The codewords.
    """
    log_p_BLV = (-code_distances(tokens_BLD, codebook_VD)).log_softmax(dim=-1)
    of_tokens_BLV = log_p_BLV.masked_fill(~mask_BL[:, :, None], float("-inf"))
    return of_tokens_BLV.logsumexp(dim=1) - mask_BL.sum(dim=1, keepdim=True).log()


def code_distances(tokens: Tensor, codebook_VD: Tensor) -> Tensor:
    """Return Euclidean distances to the codewords, [..., D] -> [..., V].

    If a token lies on a codeword, the gradient is 0, not infinite.
    """
    squares = tokens.square().sum(dim=-1, keepdim=True) + codebook_VD.square().sum(dim=-1) - 2 * tokens @ codebook_VD.T
    return squares.clamp(min=1e-12).sqrt()


def code_similarity(a_BV: Tensor, b_CV: Tensor) -> Tensor:
    """S_code of CMCM section 2.3, [B, C], from log-probabilities of codewords: the negative symmetric cross entropy."""
    return a_BV.exp() @ b_CV.T + a_BV @ b_CV.exp().T


def code_matching(a_BV: Tensor, b_BV: Tensor, weights_B: Tensor | None = None) -> Tensor:
    """CMCM Eq. 2: each sequence of modality A must pick its own of modality B by the codewords that both use.

    The similarity is symmetric: the other direction is ``code_matching(b, a)``.

    Args:
        a_BV: ``code_log_probabilities`` of modality A.
        b_BV: Those of modality B.
        weights_B: Weight of each pair; None: all have 1.

    Returns:
        A scalar, the mean over pairs.
    """
    return nce(code_similarity(a_BV, b_BV), weights_R=weights_B)

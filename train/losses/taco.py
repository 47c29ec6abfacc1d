"""The losses of TACo and ToCo: of sentences, of tokens of interest, and of pairs that a fusion network scores."""

import torch
from torch import Tensor

from .contrastive import nce, weighted_nce
from .ncl import pair_biases


def sentence_nce(
    similarity_RB: Tensor,
    temperature: float = 1.0,
    *,
    first: int = 0,
    weights_R: Tensor | None = None,
    bias_B: Tensor | None = None,
) -> Tensor:
    """TACo Eq. 3: each text must pick its own video among all of the batch.

    For example, for texts [B, D] and their videos [B, D]: ``sentence_nce(text_BD @ video_BD.T)``.

    Args:
        similarity_RB: Similarity of text i and video j; in the paper, the dot product.
        temperature: Divides the similarities.
        first: Index of the first text's video.
        weights_R: Weight of each text; None: all have 1.
        bias_B: Added to the similarities with each video, such as NCL's biases.

    Returns:
        A scalar, the mean over texts.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import sentence_nce
        >>> similarity = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> round(sentence_nce(similarity).item(), 4)
        0.1269
    """
    biased_RB = similarity_RB if bias_B is None else similarity_RB + bias_B
    return nce(biased_RB / temperature, first=first, weights_R=weights_R)


def token_similarity(tokens: Tensor, *, video_BMD: Tensor, video_mask_BM: Tensor) -> Tensor:
    """s(x_j, y_i^p) of TACo Eq. 4: the largest dot product of each text token with any token of each video.

    Args:
        tokens: Text tokens [..., D].
        video_BMD: Video tokens.
        video_mask_BM: True for a token. Every video has at least one.

    Returns:
        [..., B]

    Example:
        >>> import torch
        >>> from vlalign.train.losses import token_similarity
        >>> video = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])  # a video of two tokens
        >>> mask = torch.tensor([[True, True]])
        >>> token_similarity(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), video_BMD=video, video_mask_BM=mask).tolist()
        [[1.0], [2.0]]
    """
    products = torch.einsum("...d,bmd->...bm", tokens, video_BMD)
    return products.masked_fill(~video_mask_BM, float("-inf")).amax(dim=-1)


def token_nce(
    similarity_SB: Tensor,
    temperature: float = 1.0,
    *,
    text_of_S: Tensor,
    weights_S: Tensor,
    num_texts: int,
    first: int = 0,
    bias_B: Tensor | None = None,
) -> Tensor:
    """TACo Eq. 4: each token of interest must pick its text's video, by its best match within a video.

    For example, for texts [R, N, D] with token weights [R, N], 0 for tokens of no interest::

        text_of_S, position_S = weights_RN.nonzero(as_tuple=True)
        tokens_SD = text_RND[text_of_S, position_S]
        similarity_SB = token_similarity(tokens_SD, video_BMD=video_BMD, video_mask_BM=video_mask_BM)
        weights_S = weights_RN[text_of_S, position_S]
        token_nce(similarity_SB, text_of_S=text_of_S, weights_S=weights_S, num_texts=len(text_RND))

    Args:
        similarity_SB: ``token_similarity`` of each token of interest and video j.
        temperature: Divides the similarities.
        text_of_S: Index of each token's text.
        weights_S: Normalised idf of the tokens (Appendix A).
        num_texts: Number of texts, including texts without a token of interest.
        first: Index of the first text's video.
        bias_B: Added to the similarities with each video, such as NCL's biases.

    Returns:
        A scalar, the mean over texts; 0 if no text has a token of interest.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import token_nce
        >>> similarity = torch.tensor([[2.0, 0.0], [0.0, 2.0]])  # two tokens, two videos
        >>> of_token, weights = torch.tensor([0, 1]), torch.ones(2)
        >>> round(token_nce(similarity, text_of_S=of_token, weights_S=weights, num_texts=2).item(), 4)
        0.1269
    """
    biased_SB = similarity_SB if bias_B is None else similarity_SB + bias_B
    return weighted_nce(biased_SB / temperature, right_S=first + text_of_S, weights_S=weights_S) / num_texts


def cascade_scores(*, sentence_TV: Tensor, token_SV: Tensor, text_of_S: Tensor) -> Tensor:
    """Return how hard negatives are, [T, V]: TACo section 3.3, "we sum the two similarities".

    Args:
        sentence_TV: Dot products of Eq. 3.
        token_SV: Similarities of Eq. 4 (``token_similarity``) of the texts' tokens of interest. All weigh the same
            here: the paper weights them by idf in the loss only.
        text_of_S: Row of each token's text.

    Returns:
        A score of each text with each video, [T, V]; the higher, the harder.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import cascade_scores
        >>> sentence, token = torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [0.5, 2.0]])
        >>> cascade_scores(sentence_TV=sentence, token_SV=token, text_of_S=torch.tensor([0, 0])).tolist()
        [[1.5, 2.0]]
    """
    return sentence_TV.index_add(0, text_of_S, token_SV)


def hard_negatives(scores_BB: Tensor, num_negatives: int) -> tuple[Tensor, Tensor]:
    """Choose each text's own video and its hardest others, and each video's texts likewise.

    A pair chosen from both sides is scored only once: the pairs to score are those where either mask is True.

    Args:
        scores_BB: How hard each pair is, by text and video.
        num_negatives: Others to choose; all of them if there are fewer.

    Returns:
        Two masks [B, B], by text and video: each row of the first has the videos among which this text must find its
        own, and each column of the second the texts among which this video must find its own.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import hard_negatives
        >>> scores = torch.tensor([[9.0, 2.0, 1.0], [0.0, 9.0, 3.0], [4.0, 0.0, 9.0]])
        >>> of_texts, _ = hard_negatives(scores, 1)
        >>> of_texts.tolist()
        [[True, True, False], [False, True, True], [True, False, True]]
    """
    size = len(scores_BB)
    own = torch.eye(size, dtype=torch.bool, device=scores_BB.device)
    others = scores_BB.detach().masked_fill(own, float("-inf"))
    count = min(num_negatives, size - 1)
    text_candidates_BB = own.scatter(1, others.topk(count, dim=1).indices, True)
    video_candidates_BB = own.scatter(0, others.topk(count, dim=0).indices, True)
    return text_candidates_BB, video_candidates_BB


def fusion_nce(
    scores_BB: Tensor,
    *,
    text_candidates_BB: Tensor,
    video_candidates_BB: Tensor,
    weights_B: Tensor | None = None,
    normalized: bool = False,
) -> Tensor:
    """TACo Eq. 5 over the chosen pairs: each text must pick its video, and each video its text ("and vice versa").

    Args:
        scores_BB: w . z_cls of text i and video j; anything for pairs that are in neither mask.
        text_candidates_BB: First mask of ``hard_negatives``.
        video_candidates_BB: Second mask of ``hard_negatives``.
        weights_B: Weight of each pair; None: all have 1.
        normalized: Add NCL's biases, in each direction computed over the pairs of this direction.

    Returns:
        A scalar, the mean over the 2 B problems.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import fusion_nce
        >>> scores, every = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.ones(2, 2, dtype=torch.bool)
        >>> round(fusion_nce(scores, text_candidates_BB=every, video_candidates_BB=every).item(), 4)
        0.1269
    """
    by_text, by_video = (
        scores_BB.masked_fill(~mask, float("-inf")) for mask in (text_candidates_BB, video_candidates_BB)
    )
    if normalized:
        by_text = by_text + pair_biases(by_text, 1.0, weights_B=weights_B).video_N
        by_video = by_video + pair_biases(by_video, 1.0, weights_B=weights_B).text_M[:, None]
    by_text, by_video = (nce(logits, weights_R=weights_B) for logits in (by_text, by_video.T))
    return (by_text + by_video) / 2


def fusion_token_nce(scores_BBN: Tensor, *, text_candidates_BB: Tensor, token_weights_BN: Tensor) -> Tensor:
    """ToCo Eq. 2 over the chosen pairs: each token of interest must pick its text's video, by its fused score.

    Args:
        scores_BBN: f^t of text i's token n beside video j; anything for pairs that are not in ``text_candidates_BB``.
        text_candidates_BB: First mask of ``hard_negatives``.
        token_weights_BN: Normalised idf, 0 for tokens of no interest.

    Returns:
        A scalar, the mean over texts.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import fusion_token_nce
        >>> scores = torch.tensor([[[2.0], [0.0]], [[0.0], [2.0]]])  # one token a text
        >>> every = torch.ones(2, 2, dtype=torch.bool)
        >>> loss = fusion_token_nce(scores, text_candidates_BB=every, token_weights_BN=torch.ones(2, 1))
        >>> round(loss.item(), 4)
        0.1269
    """
    text_of_S, place_S = token_weights_BN.nonzero(as_tuple=True)
    logits_SB = scores_BBN[text_of_S, :, place_S].masked_fill(~text_candidates_BB[text_of_S], float("-inf"))
    return weighted_nce(logits_SB, right_S=text_of_S, weights_S=token_weights_BN[text_of_S, place_S]) / len(scores_BBN)

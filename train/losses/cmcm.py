"""The losses of CMCM: a softmax with a margin, and matching by codewords."""

import torch
from torch import Tensor

from .contrastive import nce


def masked_margin_softmax(similarity_BB: Tensor, margin: float = 1e-3, *, weights_B: Tensor | None = None) -> Tensor:
    """CMCM Eq. 1: each row must pick its own column, whose score is lowered by ``margin``.

    In the paper, the rows are modality A, the videos. AVLnet, from which its baselines come, adds the other direction:
    ``masked_margin_softmax(s) + masked_margin_softmax(s.T)``.

    Args:
        similarity_BB: Similarity of row i and column j; pairs are on the diagonal.
        margin: Subtracted from the similarity of each pair; 0.001 in the paper.
        weights_B: Weight of each row; None: all have 1.

    Returns:
        A scalar, the mean over rows.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import masked_margin_softmax
        >>> similarity = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> round(masked_margin_softmax(similarity, 0.5).item(), 4)
        0.2014
    """
    return nce(similarity_BB - margin * torch.eye(len(similarity_BB), device=similarity_BB.device), weights_R=weights_B)


def code_log_probabilities(tokens_BLD: Tensor, mask_BL: Tensor, codebook_VD: Tensor) -> Tensor:
    """log P(e_v | H) of CMCM section 2.3, [B, V].

    P is the mean over a sequence's tokens of the softmin of their Euclidean distances (not squared) to the codewords.

    Args:
        tokens_BLD: Tokens of the sequences.
        mask_BL: True for a token. Every sequence has at least one.
        codebook_VD: The codewords.

    Returns:
        Log probabilities of the codewords, [B, V].

    Example:
        >>> import torch
        >>> from vlalign.train.losses import code_log_probabilities
        >>> tokens, codebook = torch.zeros(1, 1, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> code_log_probabilities(tokens, torch.tensor([[True]]), codebook).exp().tolist()
        [[0.5, 0.5]]
    """
    log_p_BLV = (-code_distances(tokens_BLD, codebook_VD)).log_softmax(dim=-1)
    of_tokens_BLV = log_p_BLV.masked_fill(~mask_BL[:, :, None], float("-inf"))
    return of_tokens_BLV.logsumexp(dim=1) - mask_BL.sum(dim=1, keepdim=True).log()


def code_distances(tokens: Tensor, codebook_VD: Tensor) -> Tensor:
    """Return Euclidean distances to the codewords, [..., D] -> [..., V].

    If a token lies on a codeword, the gradient is 0, not infinite.

    Args:
        tokens: Tokens [..., D].
        codebook_VD: The codewords.

    Returns:
        Distances, [..., V].

    Example:
        >>> import torch
        >>> from vlalign.train.losses import code_distances
        >>> code_distances(torch.zeros(1, 2), torch.tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
        [[5.0, 1.0]]
    """
    squares = tokens.square().sum(dim=-1, keepdim=True) + codebook_VD.square().sum(dim=-1) - 2 * tokens @ codebook_VD.T
    return squares.clamp(min=1e-12).sqrt()


def code_similarity(*, text_TV: Tensor, video_CV: Tensor) -> Tensor:
    """S_code of CMCM section 2.3: the negative symmetric cross entropy of the codewords of two sequences.

    Args:
        text_TV: ``code_log_probabilities`` of the texts.
        video_CV: ``code_log_probabilities`` of the videos.

    Returns:
        The similarity of text i and video j, [T, C].

    Example:
        >>> import torch
        >>> from vlalign.train.losses import code_similarity
        >>> log_p = torch.tensor([[0.5, 0.5]]).log()
        >>> round(code_similarity(text_TV=log_p, video_CV=log_p).item(), 4)  # -2 log 2
        -1.3863
    """
    return text_TV.exp() @ video_CV.T + text_TV @ video_CV.exp().T


def code_matching(similarity_BB: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    """CMCM Eq. 2: each row must pick its own column by the codewords that both use.

    The equation has one direction, the videos'; the objective takes both: ``code_matching(s) + code_matching(s.T)``.

    Args:
        similarity_BB: ``code_similarity`` of text i and video j.
        weights_B: Weight of each row; None: all have 1.

    Returns:
        A scalar, the mean over rows.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import code_matching
        >>> similarity = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> round(code_matching(similarity).item(), 4)
        0.1269
    """
    return nce(similarity_BB, weights_R=weights_B)

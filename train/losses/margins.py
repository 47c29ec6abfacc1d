"""Max-margin ranking losses of HowTo100M, SSML and VSE++."""

import torch
import torch.nn.functional as F
from torch import Tensor


def max_margin(
    similarity_BB: Tensor,
    margin: float = 0.1,
    *,
    negative_weights_BB: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """HowTo100M's ranking loss: each pair must be ahead of all others in its row and its column by ``margin``.

    Args:
        similarity_BB: Similarity of text i and video j.
        margin: By how much.
        negative_weights_BB: Weight of each negative (``intra_video_weights``); None: all have 1.
        reduction: "sum", or "mean".

    Returns:
        A scalar: the sum over the negatives; for the mean, divided by B^2.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import max_margin
        >>> similarity = torch.tensor([[1.0, 0.5], [0.0, 0.5]])
        >>> round(max_margin(similarity, 0.1, reduction="sum").item(), 4)
        0.1
    """
    ones_B = similarity_BB.new_ones(len(similarity_BB))
    return soft_max_margin(similarity_BB, ones_B, margin, negative_weights_BB=negative_weights_BB, reduction=reduction)


def soft_max_margin(
    similarity_BB: Tensor,
    weights_B: Tensor,
    margin: float = 0.1,
    *,
    negative_weights_BB: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """SSML Eq. 4: ``max_margin`` with a weight for the terms of each pair.

    Args:
        similarity_BB: Similarity of text i and video j.
        weights_B: Weight of each pair: the probability that clip and caption belong together.
        margin: By how much a pair must be ahead.
        negative_weights_BB: Weight of each negative; None: all have 1.
        reduction: "sum" as in Eq. 4, or "mean".

    Returns:
        A scalar: the sum over the negatives; for the mean, divided by B^2.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import soft_max_margin
        >>> similarity = torch.tensor([[1.0, 0.5], [0.0, 0.5]])
        >>> weights = torch.tensor([1.0, 0.5])
        >>> round(soft_max_margin(similarity, weights, 0.1, reduction="sum").item(), 4)
        0.05
    """
    own_B = similarity_BB.diagonal()
    of_texts = F.relu(margin + similarity_BB - own_B[:, None])
    of_videos = F.relu(margin + similarity_BB - own_B[None, :])
    of_texts, of_videos = weights_B[:, None] * of_texts, weights_B[None, :] * of_videos
    both = (of_texts + of_videos) * ~torch.eye(len(own_B), dtype=torch.bool, device=own_B.device)
    weighted = both if negative_weights_BB is None else both * negative_weights_BB
    return weighted.sum() if reduction == "sum" else weighted.mean()


def hardest_margin(similarity_BB: Tensor, margin: float = 0.2, *, weights_B: Tensor | None = None) -> Tensor:
    """VSE++'s max of hinges (NCL, Appendix C: "max-margin triplet ranking loss with hard negative mining").

    Each pair must be ahead of the hardest negative of its text, and of the hardest one of its video, by ``margin``. For
    example, for vectors of length 1: ``hardest_margin(text @ video.T)``

    Args:
        similarity_BB: Similarity of text i and video j.
        margin: By how much.
        weights_B: Weight of each pair; None: all have 1.

    Returns:
        A scalar: the sum of both directions, the mean over pairs. 0 for a single pair, which has no negative.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import hardest_margin
        >>> similarity = torch.tensor([[1.0, 0.5], [0.0, 0.5]])
        >>> round(hardest_margin(similarity, 0.2).item(), 4)
        0.1
    """
    own_B = similarity_BB.diagonal()
    is_pair_BB = torch.eye(len(own_B), dtype=torch.bool, device=own_B.device)
    others_BB = similarity_BB.masked_fill(is_pair_BB, float("-inf"))
    loss_B = F.relu(margin + others_BB.amax(dim=1) - own_B) + F.relu(margin + others_BB.amax(dim=0) - own_B)
    return (loss_B if weights_B is None else weights_B * loss_B).mean()


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

    Example:
        >>> import torch
        >>> from vlalign.train.losses import answer_margin
        >>> similarity = torch.tensor([[0.5, 0.5, 0.0]])  # a question, three answers
        >>> round(answer_margin(similarity, torch.tensor([0]), 0.3).item(), 4)
        0.1
    """
    own_R1 = similarity_RA.gather(1, right_R[:, None])
    return F.relu(margin + similarity_RA - own_R1).scatter(1, right_R[:, None], 0.0).mean()


def intra_video_weights(video_of_B: Tensor, rate: float) -> Tensor:
    """Return the weight of each negative [B, B]. Negatives of the same video have a given share of a row's sum.

    In HowTo100M, these "intra-video negatives" have half of it. As in its code, a pair itself is one of its video's.
    A row is 1 everywhere if all pairs are of its video, or no other pair is.

    Args:
        video_of_B: Index of each pair's video.
        rate: Share of a row's total weight that negatives of the same video have.

    Returns:
        The weights, [B, B].

    Example:
        >>> import torch
        >>> from vlalign.train.losses import intra_video_weights
        >>> intra_video_weights(torch.tensor([0, 0, 1, 2]), 0.5)[0].tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    same = video_of_B[:, None] == video_of_B[None, :]
    size, num_same = len(same), same.sum(dim=1, keepdim=True)
    weights = torch.where(same, rate * size / num_same, (1 - rate) * size / (size - num_same).clamp(min=1))
    return weights.where((num_same > 1) & (num_same < size), 1.0)

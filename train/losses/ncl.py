"""NCL: biases that normalise retrieval probabilities, and the loss on normalised similarities."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .contrastive import nce


class Biases(NamedTuple):
    """Biases that normalise sums of retrieval probabilities, in the unit of the similarity (NCL Eq. 6).

    Example:
        >>> import torch
        >>> from vlalign.train.losses import sinkhorn_biases
        >>> biases = sinkhorn_biases(torch.zeros(2, 3), 1.0)
        >>> biases.text_M.shape, biases.video_N.shape
        (torch.Size([2]), torch.Size([3]))
    """

    text_M: Tensor
    """Bias of each text."""
    video_N: Tensor
    """Bias of each video."""
    residual: Tensor
    """A scalar: the largest relative difference between a text's sum and its marginal; the videos' sums are exact."""


@torch.no_grad()
def sinkhorn_biases(
    similarity_MN: Tensor,
    temperature: float | Tensor,
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

    Returns:
        The biases, and how far they are from the marginals.

    Raises:
        ValueError: Fewer than 1 iteration: the text biases (Eq. 10) need one.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import sinkhorn_biases
        >>> similarity = torch.tensor([[1.0, 0.0], [1.0, 0.0]])  # both texts prefer video 0
        >>> biases = sinkhorn_biases(similarity, 1.0)
        >>> round((biases.video_N[1] - biases.video_N[0]).item(), 4)
        1.0
    """
    if num_iterations < 1:
        raise ValueError(
            f"num_iterations {num_iterations}: expected 1 or more; for no biases, use the similarities unchanged"
        )
    logits_MN = similarity_MN / temperature
    given = zip((text_marginals_M, video_marginals_N), logits_MN.shape, strict=True)
    log_r_M, log_c_N = (_log_shares(marginals, number, logits_MN.device).to(logits_MN) for marginals, number in given)
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


def _log_shares(marginals: Tensor | None, number: int, device: torch.device) -> Tensor:
    if marginals is not None:
        return marginals.log()
    return torch.full((number,), -math.log(number), dtype=torch.float64, device=device)


def shares_of(weights_N: Tensor) -> Tensor:
    """Return marginals in proportion to weights, some or all of which may be 0: their logarithms are finite.

    Args:
        weights_N: Weights, 0 or more.

    Returns:
        The marginals, in the shape of the weights; their sum is 1.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import shares_of
        >>> shares_of(torch.tensor([1.0, 3.0])).tolist()
        [0.25, 0.75]
    """
    weights_N = weights_N.detach() + 1e-12
    return weights_N / weights_N.sum()


def pair_biases(
    similarity_BB: Tensor, temperature: float | Tensor, *, weights_B: Tensor | None = None, num_iterations: int = 4
) -> Biases:
    """Return NCL's biases of a batch of pairs. The marginal of a text or a video is its pair's share of the loss.

    With other marginals there is no similarity at which the gradient vanishes: the loss would pull each video towards
    its weight, and the biases would undo that in every step.

    Args:
        similarity_BB: Similarity of text i and video j.
        temperature: Divides the similarities.
        weights_B: Weight of each pair; None: all have the same.
        num_iterations: Of ``sinkhorn_biases``; at least 1.

    Returns:
        The biases, and how far they are from the marginals.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import pair_biases
        >>> biases = pair_biases(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), 1.0)
        >>> round((biases.video_N[1] - biases.video_N[0]).item(), 4)
        1.0
    """
    shares_B = None if weights_B is None else shares_of(weights_B)
    given = {"text_marginals_M": shares_B, "video_marginals_N": shares_B, "num_iterations": num_iterations}
    return sinkhorn_biases(similarity_BB, temperature, **given)


def normalized_nce(
    similarity_BB: Tensor, temperature: float | Tensor, *, num_iterations: int = 4, weights_B: Tensor | None = None
) -> Tensor:
    """NCL Eq. 4 on the similarities of Eq. 12: each text must pick its video, and each video its text.

    Biases are added so that no text or video is picked too often or too rarely.

    Args:
        similarity_BB: Similarity of text i and video j.
        temperature: Divides the similarities; a scalar tensor if it is learned.
        num_iterations: Of ``sinkhorn_biases``; 0: no biases.
        weights_B: Weight of each pair; None: all have 1.

    Returns:
        A scalar, the mean of both directions.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import normalized_nce
        >>> similarity = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> round(normalized_nce(similarity, 1.0).item(), 4)
        0.1269
    """
    by_text = by_video = similarity_BB
    if num_iterations:
        biases = pair_biases(similarity_BB, temperature, weights_B=weights_B, num_iterations=num_iterations)
        # The other bias is the same for all candidates of a text, or of a video.
        by_text, by_video = similarity_BB + biases.video_N, similarity_BB + biases.text_M[:, None]
    by_text = nce(by_text / temperature, weights_R=weights_B)
    by_video = nce(by_video.T / temperature, weights_R=weights_B)
    return (by_text + by_video) / 2

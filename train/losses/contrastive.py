"""Contrastive losses of a batch of pairs: cross entropy, CLIP's, SigLIP's, DCL and MIL-NCE; learned temperature."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def nce(logits_RB: Tensor, *, first: int = 0, weights_R: Tensor | None = None) -> Tensor:
    """Return the cross entropy of rows whose targets are consecutive columns.

    Args:
        logits_RB: The logits; the target of row i is column ``first`` + i.
        first: Target of the first row.
        weights_R: Weight of each row; None: all have 1.

    Returns:
        A scalar, the mean over rows.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import nce
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> round(nce(logits).item(), 4)
        0.1269
    """
    right_R = torch.arange(first, first + len(logits_RB), device=logits_RB.device)
    if weights_R is None:
        return F.cross_entropy(logits_RB, right_R)
    return weighted_nce(logits_RB, right_S=right_R, weights_S=weights_R) / len(logits_RB)


def weighted_nce(logits_SB: Tensor, *, right_S: Tensor, weights_S: Tensor) -> Tensor:
    """Return the sum over rows of weight times cross entropy, 0 without rows.

    Args:
        logits_SB: The logits.
        right_S: Index of the right column of each row, int64.
        weights_S: Weight of each row.

    Returns:
        A scalar.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import weighted_nce
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> loss = weighted_nce(logits, right_S=torch.tensor([0, 1]), weights_S=torch.tensor([1.0, 0.5]))
        >>> round(loss.item(), 4)
        0.1904
    """
    return weights_S @ F.cross_entropy(logits_SB, right_S, reduction="none")


def symmetric_nce(logits_BB: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    """CLIP's loss (Radford et al. 2021, Figure 3), also called InfoNCE: texts must pick their videos, and vice versa.

    For example, for vectors of length 1, with ``scale = LearnedTemperature()``:
    ``symmetric_nce(scale(text @ video.T))``

    With several processes, each of which has R texts and their R videos, and all B of the other side:
    ``(nce(text_RB, first=first) + nce(video_RB, first=first)) / 2``.

    Args:
        logits_BB: Similarity of text i and video j, multiplied by the scale.
        weights_B: Weight of each pair; None: all have 1.

    Returns:
        A scalar, the mean of both directions.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import symmetric_nce
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> round(symmetric_nce(logits).item(), 4)
        0.1269
    """
    return (nce(logits_BB, weights_R=weights_B) + nce(logits_BB.T, weights_R=weights_B)) / 2


def sigmoid_loss(logits_RB: Tensor, *, first: int = 0, weights_R: Tensor | None = None) -> Tensor:
    """SigLIP's loss (Zhai et al. 2023, Eq. 1): each text with each video is classified as a pair or not.

    For example, for vectors of length 1, with ``scale = LearnedTemperature(0.1, bias=-10.0, min_temperature=0.0)``:
    ``sigmoid_loss(scale(text @ video.T))``

    Args:
        logits_RB: Similarity of text i and video j, multiplied by the scale, plus the bias.
        first: Index of the first text's video.
        weights_R: Weight of each text's row; None: all have 1.

    Returns:
        A scalar: the sum over videos, the mean over texts.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import sigmoid_loss
        >>> logits = torch.tensor([[2.0, -2.0], [-2.0, 2.0]])
        >>> round(sigmoid_loss(logits).item(), 4)
        0.2539
    """
    signs_RB = torch.full_like(logits_RB, -1.0)
    signs_RB.diagonal(first).fill_(1.0)
    loss_R = -F.logsigmoid(signs_RB * logits_RB).sum(dim=1)
    return (loss_R if weights_R is None else weights_R * loss_R).mean()


def decoupled_nce(logits_RB: Tensor, *, first: int = 0, weights_R: Tensor | None = None) -> Tensor:
    """DCL (Yeh et al. 2022): ``nce`` without the right column in the denominator.

    The paper's pairs are two views of an image, and it also contrasts views of one kind with each other. Here a text's
    negatives are videos only. The paper has both directions: ``(decoupled_nce(x) + decoupled_nce(x.T)) / 2``.

    Args:
        logits_RB: Similarity of text i and video j, divided by the temperature (0.1 in the paper).
        first: Index of the first text's video.
        weights_R: Weight of each text; None: all have 1.

    Returns:
        A scalar, the mean over rows. It can be negative.

    Raises:
        ValueError: There is only one column, so no negative.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import decoupled_nce
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> decoupled_nce(logits).item()
        -2.0
    """
    if logits_RB.shape[1] < 2:
        raise ValueError(
            f"logits of shape {tuple(logits_RB.shape)}: expected 2 columns or more, a right and a wrong one"
        )
    others_RB = logits_RB.clone()
    others_RB.diagonal(first).fill_(float("-inf"))
    loss_R = others_RB.logsumexp(dim=1) - logits_RB.diagonal(first)
    return (loss_R if weights_R is None else weights_R * loss_R).mean()


class LearnedTemperature(nn.Module):
    """Logits of similarities with a learned temperature, and a learned bias if there is one.

    CLIP's (section 2.5) is ``LearnedTemperature()``; SigLIP's (section 3.2) is
    ``LearnedTemperature(0.1, bias=-10.0, min_temperature=0.0)``. As in both papers, the learned parameter is the
    logarithm of the scale, 1 / temperature. The papers apply no weight decay to these parameters: leave them out of the
    optimiser's decay.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import LearnedTemperature
        >>> scale = LearnedTemperature(0.5)
        >>> scale(torch.tensor([[1.0, 0.0]])).tolist()
        [[2.0, 0.0]]
    """

    def __init__(self, temperature: float = 0.07, *, bias: float | None = None, min_temperature: float = 0.01) -> None:
        """Set the initial values.

        Args:
            temperature: Initial temperature.
            bias: Initial bias, which is added to all logits. None: no bias.
            min_temperature: Lower limit of the temperature; CLIP's is 0.01. 0: none.

        Raises:
            ValueError: The temperature is not above 0, or is below its limit.
        """
        super().__init__()
        if not 0 < temperature < math.inf or not 0 <= min_temperature <= temperature:
            raise ValueError(
                f"temperature {temperature}, min_temperature {min_temperature}: expected 0 < temperature "
                "and 0 <= min_temperature <= temperature"
            )
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)))
        self.bias = None if bias is None else nn.Parameter(torch.tensor(float(bias)))
        self.max_log_scale = -math.log(min_temperature) if min_temperature else math.inf

    @property
    def temperature(self) -> float:
        """The temperature now. The host waits for the device."""
        return math.exp(-min(self.log_scale.item(), self.max_log_scale))

    def scale(self) -> Tensor:
        """Return 1 / temperature, a scalar with a gradient. A temperature below its limit is first raised to it."""
        with torch.no_grad():  # as CLIP does; a clamp in the graph would have no gradient back to the limit
            self.log_scale.clamp_(max=self.max_log_scale)
        return self.log_scale.exp()

    def forward(self, similarity: Tensor) -> Tensor:
        """Return similarity / temperature + bias, in the same shape.

        Args:
            similarity: Similarities of any shape.
        """
        logits = self.scale() * similarity
        return logits if self.bias is None else logits + self.bias


def mil_nce(video_BD: Tensor, text_BCD: Tensor, *, weights_B: Tensor | None = None) -> Tensor:
    """MIL-NCE (Miech 2020, Eq. 1) as its authors compute it, with dot products and no temperature.

    All C candidate captions of a clip are right. Negatives are the clip with all other clips' captions, and the other
    clips with its captions. The right ones are in the denominator twice, so the least possible value is log 2.

    Args:
        video_BD: The clips.
        text_BCD: The candidates of each clip.
        weights_B: Weight of each clip; None: all have 1.

    Returns:
        A scalar, the mean over clips.

    Example:
        >>> import torch
        >>> from vlalign.train.losses import mil_nce
        >>> video, text = torch.zeros(2, 4), torch.zeros(2, 1, 4)  # two clips, one candidate caption each
        >>> round(mil_nce(video, text).item(), 4)  # log 4
        1.3863
    """
    products_BBC = torch.einsum("bd,ecd->bec", video_BD, text_BCD)
    own = torch.arange(len(video_BD), device=video_BD.device)
    right_B = products_BBC[own, own].logsumexp(dim=1)
    all_B = torch.cat([products_BBC.flatten(1), products_BBC.transpose(0, 1).flatten(1)], dim=1).logsumexp(dim=1)
    loss_B = all_B - right_B
    return (loss_B if weights_B is None else weights_B * loss_B).mean()

"""Cross entropy among the pairs of a batch, and MIL-NCE."""

import torch
import torch.nn.functional as F
from torch import Tensor


def nce(logits_RB: Tensor, *, first: int = 0, weights_R: Tensor | None = None) -> Tensor:
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
    return weighted_nce(logits_RB, right_S=right_R, weights_S=weights_R) / len(logits_RB)


def weighted_nce(logits_SB: Tensor, *, right_S: Tensor, weights_S: Tensor) -> Tensor:
    """Return the sum over rows of weight times cross entropy, 0 without rows. ``right_S``: the target of each row."""
    return weights_S @ F.cross_entropy(logits_SB, right_S, reduction="none")


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
    """
    products_BBC = torch.einsum("bd,ecd->bec", video_BD, text_BCD)
    own = torch.arange(len(video_BD), device=video_BD.device)
    right_B = products_BBC[own, own].logsumexp(dim=1)
    all_B = torch.cat([products_BBC.flatten(1), products_BBC.transpose(0, 1).flatten(1)], dim=1).logsumexp(dim=1)
    loss_B = all_B - right_B
    return (loss_B if weights_B is None else weights_B * loss_B).mean()

"""Initial directions of the words' vectors: for each word, the direction of the feature vectors that show it.

A clip's caption does not state which of its feature vectors show a word, so the choice is iterative. Vectors are
weighted by their fit to the word's current direction. The new direction is their weighted mean, minus the same mean
over a sample of all clips. At the start, all vectors have the same weight.

Shape letters: B clips, M rows, K principal directions of rows, V words, P words of clips.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .closed_form import MIN_VARIANCE, principal_directions

PENALTY = 0.05
"""Added to the variance of each principal direction, in units of the mean variance."""
SWEEPS, SHARPNESS = 5, 2.0
"""Number of iterations, and sharpness of the weights: vectors have variance 1 in each principal direction."""
MAX_OTHER_CLIPS = 200
"""Maximum number of clips in the sample of all clips."""
PAIRS_AT_ONCE, WORDS_AT_ONCE = 1024, 256


class Whitening(NamedTuple):
    """Principal directions of rows, each scaled to variance 1."""

    mean_F: Tensor
    directions_FK: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """Return rows [..., F] in these directions, [..., K]."""
        return (rows - self.mean_F) @ self.directions_FK


def whiten(rows_TF: Tensor, most: int, *, seed: int = 0) -> Whitening:
    """Return the principal directions of rows.

    Args:
        rows_TF: Two rows or more.
        most: Upper limit of the directions.
        seed: Seed of the search for directions, used if there are many features.
    """
    mean_F = rows_TF.mean(dim=0)
    centered_TF = rows_TF - mean_F
    covariance_FF = (centered_TF.T @ centered_TF).double() / len(rows_TF)
    variances_K, directions_FK = principal_directions(covariance_FF, min(most, len(rows_TF) - 1), seed)
    scales_K = (variances_K + PENALTY * variances_K.mean()).clamp(min=MIN_VARIANCE).rsqrt()
    return Whitening(mean_F, (directions_FK * scales_K).float())


def word_directions(rows_BMK: Tensor, mask_BM: Tensor, words: Tensor, num_words: int) -> Tensor:
    """Return the direction of each word [V, K], of length 1; 0 for a word that no clip has.

    Args:
        rows_BMK: Whitened rows.
        mask_BM: True for a row, False for padding.
        words: Share of each clip's captions that contain each word, sparse [B, V], coalesced.
        num_words: V.
    """
    clip_P, word_P = words.indices()
    share_P = words.values().to(rows_BMK)
    total_V = torch.zeros(num_words).index_add(0, word_P, share_P)
    others = torch.linspace(0, len(rows_BMK) - 1, min(len(rows_BMK), MAX_OTHER_CLIPS)).long()
    other_BMK, other_BM = rows_BMK[others], mask_BM[others]
    directions_VK, sharpness = rows_BMK.new_zeros(num_words, rows_BMK.shape[2]), 0.0
    for _ in range(1 + SWEEPS):
        chosen_VK = torch.zeros_like(directions_VK)
        for of in torch.arange(len(clip_P)).split(PAIRS_AT_ONCE):
            rows_PMK = rows_BMK[clip_P[of]]
            fits_PM = sharpness * torch.einsum("pk,pmk->pm", directions_VK[word_P[of]], rows_PMK)
            attention_PM = fits_PM.masked_fill(~mask_BM[clip_P[of]], float("-inf")).softmax(dim=1)
            means_PK = torch.einsum("pm,pmk->pk", attention_PM, rows_PMK)
            chosen_VK.index_add_(0, word_P[of], share_P[of][:, None] * means_PK)
        usual_VK = torch.cat(
            [_chosen_of_any(part, other_BMK, other_BM, sharpness) for part in directions_VK.split(WORDS_AT_ONCE)]
        )
        directions_VK = F.normalize(chosen_VK - total_V[:, None] * usual_VK, dim=1) * (total_V > 0)[:, None]
        sharpness = SHARPNESS
    return directions_VK


def _chosen_of_any(directions_VK: Tensor, rows_BMK: Tensor, mask_BM: Tensor, sharpness: float) -> Tensor:
    """Return each word's weighted mean of a clip's rows, averaged over clips, [V, K]."""
    fits_VBM = sharpness * torch.einsum("vk,bmk->vbm", directions_VK, rows_BMK)
    attention_VBM = fits_VBM.masked_fill(~mask_BM, float("-inf")).softmax(dim=2)
    return torch.einsum("vbm,bmk->vk", attention_VBM, rows_BMK) / len(rows_BMK)

"""Canonical correlations of clips and captions: linear projections of both that are solved, not trained.

They only need sums over the training clips (``Sums``): one pass over the clips, in constant memory.

Shape letters: B clips, C captions, D numbers of a clip, V words, R principal directions of clips, K numbers of a
vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

MAX_DIRECTIONS = 512
"""Upper limit of the principal directions of clips that are used; the others are hardly more than noise."""
SWEEPS, OVERSAMPLING = 6, 32
"""Parameters of the search for principal directions (Halko, Martinsson and Tropp 2011, Algorithm 4.4)."""


MIN_VARIANCE = 1e-8
"""Directions of less variance are rounding errors: features are standardised."""
PRODUCTS_AT_ONCE = 1 << 22


class Strengths(NamedTuple):
    """The strength of both penalties, and the extra weight of large correlations."""

    clips: float
    """Penalty on clips, in units of the mean variance of their principal directions."""
    words: float
    """Penalty on words, in units of their mean variance. If it is strong and ``power`` is 1, this is ridge regression
    from clips to words."""
    power: float
    """Exponent of a direction's correlation in a score."""


@dataclass
class Sums:
    """Sums over clips and over the word weights of their captions.

    All clips have the same weight, however many captions they have.
    """

    x_D: Tensor
    xx_DD: Tensor
    y_V: Tensor
    yy_VV: Tensor
    yx_VD: Tensor
    num_clips: int = 0

    @classmethod
    def zeros(cls, num_features: int, num_words: int) -> Sums:
        """Return sums over no clips."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64)

        return cls(
            zeros(num_features),
            zeros(num_features, num_features),
            zeros(num_words),
            zeros(num_words, num_words),
            zeros(num_words, num_features),
        )

    def add(self, x_BD: Tensor, ids_CN: Tensor, weights_CN: Tensor, clip_of_C: Tensor) -> None:
        """Add clips with their captions.

        Args:
            x_BD: Features of clips, of a scale near 1.
            ids_CN: The different words of each caption.
            weights_CN: The weight of each word, 0 at padding.
            clip_of_C: Index of each caption's clip. Each clip has a caption.
        """
        share_C = 1 / clip_of_C.bincount(minlength=len(x_BD)).to(x_BD)[clip_of_C]
        self.num_clips += len(x_BD)
        self.x_D += x_BD.sum(dim=0)
        self.xx_DD += x_BD.T @ x_BD
        caption_P, column_P = weights_CN.nonzero(as_tuple=True)
        words_S, place_P = ids_CN[caption_P, column_P].unique(return_inverse=True)
        weight_P = weights_CN[caption_P, column_P].to(x_BD) * share_C[caption_P]
        places = torch.stack([place_P, clip_of_C[caption_P]])
        y_SB = torch.sparse_coo_tensor(places, weight_P, (len(words_S), len(x_BD)), check_invariants=False)
        self.y_V.index_add_(0, words_S, torch.zeros(len(words_S)).to(x_BD).index_add(0, place_P, weight_P).double())
        self.yx_VD.index_add_(0, words_S, torch.sparse.mm(y_SB, x_BD).double())
        for of in torch.arange(len(ids_CN)).split(max(PRODUCTS_AT_ONCE // ids_CN.shape[1] ** 2, 1)):
            products_CNN = (share_C[of, None] * weights_CN[of])[:, :, None] * weights_CN[of, None]
            places_CNN = ids_CN[of, :, None] * len(self.y_V) + ids_CN[of, None]
            self.yy_VV.view(-1).index_add_(0, places_CNN.flatten(), products_CNN.flatten().double())


class LinearVectors(NamedTuple):
    """Vectors of words and of clips. The cosine of a caption's vector and a clip's is their score.

    A caption's vector is the weighted sum of its words' vectors and ``caption_bias_K``; a clip's vector is linear in
    its features.
    """

    words_VK: Tensor
    caption_bias_K: Tensor
    clips_DK: Tensor
    clip_bias_K: Tensor


class Regression(NamedTuple):
    """A linear map from a clip's features to H target numbers."""

    weights_DH: Tensor
    bias_H: Tensor


class Covariances:
    """Means and covariances of clips and of the words of their captions."""

    def __init__(self, sums: Sums) -> None:
        """Compute covariances from sums over two clips or more; the sums are overwritten."""
        self.number = sums.num_clips
        self.mean_D, self.mean_V = sums.x_D / self.number, sums.y_V / self.number
        self.xx_DD = sums.xx_DD.div_(self.number).addr_(self.mean_D, self.mean_D, alpha=-1)
        self.yx_VD = sums.yx_VD.div_(self.number).addr_(self.mean_V, self.mean_D, alpha=-1)
        self.yy_VV = sums.yy_VV.div_(self.number).addr_(self.mean_V, self.mean_V, alpha=-1)


class CanonicalCorrelations:
    """Canonical correlations of the same clips and captions, for any strengths."""

    def __init__(self, covariances: Covariances, num_features: int | None = None, *, seed: int = 0) -> None:
        """Find the principal directions of the clips, after scaling each feature to variance 1.

        Args:
            covariances: Of clips and captions.
            num_features: Number of features of clips to use, from the first on; None: all.
            seed: Seed of the search for principal directions, used if there are many features.
        """
        self._mean_D, self._mean_V, self._yy_VV = covariances.mean_D, covariances.mean_V, covariances.yy_VV
        size = len(self._mean_D) if num_features is None else num_features
        xx_DD = covariances.xx_DD[:size, :size]
        variances_D = xx_DD.diagonal()
        scales_D = torch.where(variances_D > MIN_VARIANCE, variances_D, torch.inf).rsqrt()
        xx_DD = scales_D[:, None] * xx_DD * scales_D
        variances_R, directions_DR = principal_directions(xx_DD, min(MAX_DIRECTIONS, covariances.number - 1), seed)
        is_used_R = variances_R > MIN_VARIANCE
        self._variances_R = variances_R[is_used_R]
        self._directions_DR = torch.zeros(len(self._mean_D), int(is_used_R.sum()), dtype=torch.float64)
        self._directions_DR[:size] = scales_D[:, None] * directions_DR[:, is_used_R]
        self._scale = float(self._variances_R.mean()) if is_used_R.any() else 0.0
        self._xy_RV = (covariances.yx_VD @ self._directions_DR).T
        self._solved_by_penalty: tuple[float, Tensor] | None = None

    def solve(self, strengths: Strengths, num_dimensions: int) -> LinearVectors:
        """Return the vectors of words and clips, float32.

        Args:
            strengths: Penalties, and the power of the correlations.
            num_dimensions: K; the last numbers are 0 if there are fewer directions.

        Source: Vinod 1976 for the penalties; Gong et al. 2014, section 3.3, for the power of the correlations.
        """
        solved_VR = self._solved_words(strengths.words)
        scales_R = (self._variances_R + strengths.clips * self._scale).rsqrt()
        squares_RR = scales_R[:, None] * (self._xy_RV @ solved_VR) * scales_R
        values_R, vectors_RR = torch.linalg.eigh((squares_RR + squares_RR.T) / 2)
        kept = min(num_dimensions, len(values_R))
        correlations_K = values_R.flip(0)[:kept].clamp(min=1e-12).sqrt()
        weights_K = correlations_K ** (strengths.power / 2)
        clips_RK = scales_R[:, None] * vectors_RR.flip(1)[:, :kept]
        words_VK = solved_VR @ clips_RK / correlations_K * weights_K
        clips_DK = self._directions_DR @ (clips_RK * weights_K)
        parts = words_VK, -self._mean_V @ words_VK, clips_DK, -self._mean_D @ clips_DK
        return LinearVectors(*(torch.nn.functional.pad(part, (0, num_dimensions - kept)).float() for part in parts))

    def _solved_words(self, penalty: float) -> Tensor:
        """Return the words' penalised inverse covariance times their covariance with clips, [V, R]; cached."""
        if self._solved_by_penalty is None or self._solved_by_penalty[0] != penalty:
            penalized_VV = self._yy_VV.clone()
            penalized_VV.diagonal().add_(max(penalty * float(self._yy_VV.diagonal().mean()), MIN_VARIANCE))
            lower_VV = torch.linalg.cholesky(penalized_VV)
            self._solved_by_penalty = penalty, torch.cholesky_solve(self._xy_RV.T, lower_VV)
        return self._solved_by_penalty[1]

    def covariance(self, x_BD: Tensor, targets_BH: Tensor) -> Tensor:
        """Return the covariance [R, H] of clips, in their principal directions, with their target numbers.

        Args:
            x_BD: Some of the clips.
            targets_BH: H target numbers of each clip, less their mean.
        """
        x_BR = (x_BD - self._mean_D.to(x_BD)) @ self._directions_DR.to(x_BD)
        return (x_BR.T @ targets_BH / len(x_BD)).double()

    def regress(self, covariance_RH: Tensor, penalty: float) -> Regression:
        """Return ridge regression from clips to their target numbers, float32.

        Args:
            covariance_RH: As ``covariance`` returns it.
            penalty: Its strength, in mean variances of the principal directions of clips.
        """
        scales_R = 1 / (self._variances_R + penalty * self._scale)
        weights_DH = self._directions_DR @ (scales_R[:, None] * covariance_RH)
        return Regression(weights_DH.float(), (-self._mean_D @ weights_DH).float())


def principal_directions(xx_DD: Tensor, most: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the largest variances [R], the largest first, and their directions [D, R].

    Args:
        xx_DD: A covariance matrix.
        most: Upper limit of R.
        seed: Seed of the random start of the search, which finds directions of large variance to the last digits.
    """
    size = len(xx_DD)
    if size <= 2 * (most + OVERSAMPLING):
        values_D, vectors_DD = torch.linalg.eigh(xx_DD)
        return values_D.flip(0)[:most].clamp(min=0), vectors_DD.flip(1)[:, :most]
    generator = torch.Generator().manual_seed(seed)
    basis_DQ = torch.randn(size, most + OVERSAMPLING, generator=generator, dtype=xx_DD.dtype)
    for _ in range(SWEEPS):
        basis_DQ = torch.linalg.qr(xx_DD @ basis_DQ)[0]
    values_Q, vectors_QQ = torch.linalg.eigh(basis_DQ.T @ xx_DD @ basis_DQ)
    return values_Q.flip(0)[:most].clamp(min=0), (basis_DQ @ vectors_QQ.flip(1))[:, :most]

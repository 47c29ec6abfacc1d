"""Losses as pure functions of tensors, with the papers' equations.

These functions are what the objectives call. Most take similarities, a row for each text and a column for each video.

Shape letters: B pairs in the batch, M video tokens, N text tokens, S tokens of interest, D width, V codewords. The
papers' equations sum over the batch; these take the mean, so that a learning rate does not depend on the batch size. If
several processes share a batch, each has R of the batch's texts, from ``first`` on, and all B videos; the mean of
their losses is the batch's loss.
"""

from .cmcm import code_distances, code_log_probabilities, code_matching, code_similarity, masked_margin_softmax
from .contrastive import LearnedTemperature, decoupled_nce, mil_nce, nce, sigmoid_loss, symmetric_nce, weighted_nce
from .margins import answer_margin, hardest_margin, intra_video_weights, max_margin, soft_max_margin
from .ncl import Biases, normalized_nce, pair_biases, shares_of, sinkhorn_biases
from .taco import (
    cascade_scores,
    fusion_nce,
    fusion_token_nce,
    hard_negatives,
    sentence_nce,
    token_nce,
    token_similarity,
)

__all__ = [
    "Biases",
    "LearnedTemperature",
    "answer_margin",
    "cascade_scores",
    "code_distances",
    "code_log_probabilities",
    "code_matching",
    "code_similarity",
    "decoupled_nce",
    "fusion_nce",
    "fusion_token_nce",
    "hard_negatives",
    "hardest_margin",
    "intra_video_weights",
    "masked_margin_softmax",
    "max_margin",
    "mil_nce",
    "nce",
    "normalized_nce",
    "pair_biases",
    "sentence_nce",
    "shares_of",
    "sigmoid_loss",
    "sinkhorn_biases",
    "soft_max_margin",
    "symmetric_nce",
    "token_nce",
    "token_similarity",
    "weighted_nce",
]

"""The likelihood of the right clips of validation captions, used to choose strengths and stage weights."""

import numpy as np

SCALES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0)
"""Factors that are tried for the scores in the softmax, after scaling them to standard deviation 1."""


def log_likelihood(scores_QN: np.ndarray, right_Q: np.ndarray) -> float:
    """Return the mean log-probability of the right candidates, by the softmax of each query's scores at its best scale.

    Unlike recall, it uses the margin of each right candidate, and is more informative with few queries.

    Args:
        scores_QN: Scores of queries with candidates. Adding a number to a row, or scaling all, changes nothing.
        right_Q: Index of each query's right candidate.

    Source: McFadden 1974 (conditional logit); Breiman 1996 for choosing combinations of models on held-out data.
    """
    scores_QN = scores_QN.astype(np.float64)
    centered_QN = scores_QN - scores_QN.mean(axis=1, keepdims=True)
    spread = centered_QN.std()
    if not np.isfinite(spread) or spread == 0:
        return -float(np.log(scores_QN.shape[1]))
    centered_QN /= spread
    ahead_QN = centered_QN - centered_QN.max(axis=1, keepdims=True)
    own_Q = ahead_QN[np.arange(len(right_Q)), right_Q]
    return max(float((scale * own_Q - np.log(np.exp(scale * ahead_QN).sum(axis=1))).mean()) for scale in SCALES)

"""Scores that were normalised before they rank: NCL's biases, and what others do to the same end.

A query may only ever know itself and what is searched: then a way of scoring is *inductive*. What also looks at the other queries of the
test set is *transductive*, gains more, and answers another question; both are found in tables under the same names of metrics.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..losses import sinkhorn_biases

ITERATIONS, TOLERANCE = 200, 1e-3
"""Of the oracle; for training queries the 4 iterations of the paper do, for what they leave is less than chance."""
FOLDS = 5
STRENGTHS = np.linspace(0, 1, 11)


@dataclass(frozen=True)
class Normalized:
    by_caption: np.ndarray
    """float32 [num_texts, num_videos], for ranking videos by text."""
    by_clip: np.ndarray
    """The same, for ranking texts by video."""
    notes: list[str]
    """How much of it was done, and where it was not, why."""


@dataclass(frozen=True)
class Queries:
    """Similarities of training queries, for want of test queries that nobody knows beforehand."""

    texts: np.ndarray
    """float32 [num_queries, num_videos]: of training texts with the videos that are searched."""
    videos: np.ndarray
    """float32 [num_queries, num_texts]: of training videos with the texts that are searched."""


def normalization_error(
    scores: np.ndarray, temperature: float, counts: np.ndarray | None = None, expected: np.ndarray | None = None
) -> float:
    """NCL Eq. 5: by how much the candidates' retrieval probabilities, summed over the queries, differ from what they should be, in the
    mean over candidates. ``scores`` [num_queries, num_candidates]; ``counts`` [num_queries]: how often each query is asked (once);
    ``expected`` [num_candidates]: the sums as they should be (all the same)."""
    probabilities = (_tensor(scores) / temperature).softmax(dim=1).numpy()
    counts = np.ones(len(scores)) if counts is None else counts
    return float(
        np.abs(counts @ probabilities - (counts.sum() / scores.shape[1] if expected is None else expected)).mean()
    )


def normalization_errors(
    by_caption: np.ndarray, by_clip: np.ndarray, temperature: float, clip_of_caption: np.ndarray
) -> dict[str, float]:
    """Of both directions: a clip is right for each of its captions, and is asked for each of them."""
    captions_of = np.bincount(clip_of_caption, minlength=by_caption.shape[1])
    return {
        "text_to_video": normalization_error(by_caption, temperature, expected=captions_of),
        "video_to_text": normalization_error(by_clip.T, temperature, counts=captions_of),
    }


def normalize(
    name: str, scores: np.ndarray, temperature: float, clip_of_caption: np.ndarray, queries: Queries | None = None
) -> Normalized:
    """``scores`` [num_texts, num_videos] as ``name``, one of ``NORMALIZATIONS``, has them; ``clip_of_caption`` [num_texts]."""
    if name == "ncl":
        by_caption, note = biased(scores, queries.texts, temperature)
        by_clip, other_note = biased(scores.T, queries.videos, temperature)
        return Normalized(by_caption, by_clip.T, [f"text to video: {note}", f"video to text: {other_note}"])
    if name == "qbnorm":
        return Normalized(
            _inverted_softmax(scores, queries.texts, temperature),
            _inverted_softmax(scores.T, queries.videos, temperature).T,
            [],
        )
    if name == "dsl":
        return Normalized(_dual_softmax(scores, temperature), _dual_softmax(scores.T, temperature).T, [])
    if name == "ncl-oracle":
        captions_of = np.bincount(clip_of_caption, minlength=scores.shape[1])
        shares = torch.from_numpy(captions_of / captions_of.sum())
        given = {"video_marginals_N": shares, "num_iterations": ITERATIONS, "tolerance": TOLERANCE}
        biases = sinkhorn_biases(_tensor(scores), temperature, **given)
        return Normalized(_added(scores, biases.video_N), _added(scores.T, biases.text_M).T, [])
    return Normalized(scores, scores, [])


def biased(scores: np.ndarray, known: np.ndarray, temperature: float) -> tuple[np.ndarray, str]:
    """NCL section 3.4, and what was done in words. ``known`` [K, num_candidates]: training queries' similarities to the candidates.

    Biases of few queries are mostly chance. So they are added with the strength that leaves the least error for training queries that
    they were not made from; and not at all where they do not reduce the error of the queries at hand, which are then of another kind
    ("may not generalize well if the test query distribution is significantly different", as the paper's limitations say).
    """
    fold = np.arange(len(known)) % FOLDS
    errors = np.zeros(len(STRENGTHS))
    for left_out in range(min(FOLDS, len(known)) if len(known) > 1 else 0):
        bias = _bias(known[fold != left_out], temperature)
        errors += [
            normalization_error(known[fold == left_out] + strength * bias, temperature) for strength in STRENGTHS
        ]
    strength = STRENGTHS[errors.argmin()]
    normalised = (scores + strength * _bias(known, temperature)).astype(np.float32)
    before, after = (normalization_error(x, temperature) for x in (scores, normalised))
    if after >= before:
        return (
            scores,
            f"biases of {len(known):,} training queries would not reduce the normalisation error ({before:.3f}); not added",
        )
    return normalised, f"biases of {len(known):,} training queries, added with strength {strength:.1f}"


def _bias(known: np.ndarray, temperature: float) -> np.ndarray:
    return sinkhorn_biases(_tensor(known), temperature).video_N.numpy()


def _tensor(scores: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(scores)).double()


def _added(scores: np.ndarray, bias_N: Tensor) -> np.ndarray:
    return (scores + bias_N.numpy()).astype(np.float32)


def _inverted_softmax(scores: np.ndarray, known: np.ndarray, temperature: float) -> np.ndarray:
    """QB-Norm's dynamic inverted softmax, its logarithm: only queries whose best candidate is some training query's best, too, have
    their scores divided by what the training queries give a candidate. Its beta is 1 / ``temperature`` here (20 in its own paper)."""
    often = np.zeros(scores.shape[1], dtype=bool)
    often[known.argmax(axis=1)] = True
    hubness_N = (_tensor(known) / temperature).logsumexp(dim=0).numpy()
    normalised = (scores - temperature * hubness_N).astype(np.float32)
    return np.where(often[scores.argmax(axis=1)][:, None], normalised, scores)


def _dual_softmax(scores: np.ndarray, temperature: float) -> np.ndarray:
    logits = _tensor(scores) / temperature
    return (temperature * logits * logits.softmax(dim=0)).float().numpy()

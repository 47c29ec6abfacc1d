"""Scores that are normalised before they are ranked: NCL's biases, and methods with the same purpose.

An *inductive* method knows the query and the candidates. A *transductive* method also looks at the other queries of the
test set. It gains more and answers another question, yet published tables show both under the same metric names.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..losses import sinkhorn_biases
from ..scoring.query_biases import fit_biases
from ..scoring.scores import QueryRows, QuerySimilarities

ITERATIONS, TOLERANCE = 200, 1e-3
"""Limits of the oracle's iterations. For training queries, the paper's 4 iterations suffice: the remaining error is
below chance."""
QUERIES_AT_ONCE = 256
"""Number of queries whose probabilities are computed at once, in float64."""
FOLDS = 5
STRENGTHS = np.linspace(0, 1, 11)
MAX_TUNED_SIMILARITIES = 1 << 28
"""Upper limit of the similarities between training queries and candidates that are used to choose the strength."""


@dataclass(frozen=True)
class Normalized:
    """Normalised scores of all texts with all videos."""

    by_caption: np.ndarray
    """float32 [num_texts, num_videos], for ranking videos by text."""
    by_clip: np.ndarray
    """float32 [num_texts, num_videos], for ranking texts by video."""
    notes: list[str]
    """The normalisation that was done, or the reason why it was not."""

    def rows(self, texts: slice, scores: np.ndarray) -> np.ndarray:
        """Return the normalised scores of some texts with all videos; ``scores`` are their original scores."""
        return self.by_caption[texts]

    def columns(self, videos: slice, scores: np.ndarray) -> np.ndarray:
        """Return the normalised scores of all texts with some videos; ``scores`` are their original scores."""
        return self.by_clip[:, videos]


@dataclass(frozen=True)
class Biases:
    """NCL's biases of the candidates in both directions, added to the scores before ranking.

    Scores that do not fit into memory are normalised a part at a time. The query's own bias is omitted: it is the same
    for all candidates.
    """

    video_N: np.ndarray
    """float64 [num_videos], for ranking videos by text."""
    text_M: np.ndarray
    """float64 [num_texts], for ranking texts by video."""
    notes: list[str]

    def rows(self, texts: slice, scores: np.ndarray) -> np.ndarray:
        """Return the scores [R, num_videos] of some texts with the videos' biases (NCL, Eq. 12)."""
        return (scores + self.video_N).astype(np.float32)

    def columns(self, videos: slice, scores: np.ndarray) -> np.ndarray:
        """Return the scores [num_texts, C] of some videos with the texts' biases (NCL, Eq. 12)."""
        return (scores + self.text_M[:, None]).astype(np.float32)


def training_biases(queries: QuerySimilarities, temperature: float, *, weight: float = 1.0) -> Biases:
    """Return NCL's biases of the test candidates from training queries; no test query is looked at.

    Args:
        queries: The training queries.
        temperature: Divides the similarities.
        weight: Weight of the stage of the score that the biases belong to.

    Source: NCL, section 3.4.
    """
    video_N, text_M = (weight * fit_biases(known, temperature).bias_N for known in (queries.texts, queries.videos))
    return Biases(video_N, text_M, [f"biases of {queries.num_queries:,} training queries"])


class SummedProbabilities:
    """The sums of retrieval probabilities over queries, added in parts, and their deviation from the ideal.

    Source: NCL, Eq. 5.
    """

    def __init__(self, temperature: float, expected: np.ndarray) -> None:
        """Begin with no query.

        Args:
            temperature: Turns scores into probabilities.
            expected: [num_candidates], what the sums should be, up to a factor.
        """
        self._temperature, self._expected = temperature, expected
        self._sums, self._num_queries = np.zeros(len(expected)), 0.0

    def add(self, scores: np.ndarray, counts: np.ndarray | None = None) -> None:
        """Add the probabilities of some queries.

        Args:
            scores: [Q, num_candidates]
            counts: [Q], how often each query counts; by default once.
        """
        counts = np.ones(len(scores)) if counts is None else counts
        for first in range(0, len(scores), QUERIES_AT_ONCE):
            rows = slice(first, first + QUERIES_AT_ONCE)
            probabilities = (_tensor(scores[rows]) / self._temperature).softmax(dim=1).numpy()
            self._sums += counts[rows] @ probabilities
        self._num_queries += float(counts.sum())

    def mean_difference(self) -> float:
        """Return the mean absolute difference over the candidates."""
        return float(np.abs(self._sums - self._target).mean())

    def multiples(self) -> np.ndarray:
        """Return each candidate's sum as a multiple of the ideal one [num_candidates]."""
        return self._sums / np.maximum(self._target, 1e-12)

    @property
    def _target(self) -> np.ndarray:
        return self._expected * (self._num_queries / self._expected.sum())


def normalization_error(scores: np.ndarray, temperature: float) -> float:
    """Return how far the sums of retrieval probabilities are from being equal.

    Args:
        scores: [num_queries, num_candidates]
        temperature: Turns scores into probabilities.

    Source: NCL, Eq. 5.
    """
    sums = SummedProbabilities(temperature, np.ones(scores.shape[1]))
    sums.add(scores)
    return sums.mean_difference()


def normalize(
    name: str,
    scores: np.ndarray,
    temperature: float,
    clip_of_caption: np.ndarray,
    queries: QuerySimilarities | None = None,
) -> Normalized:
    """Normalise scores in another way than with the biases of training queries (``training_biases``).

    Args:
        name: A key of ``retrieval.NORMALIZATIONS`` but "ncl".
        scores: [num_texts, num_videos]
        temperature: Turns scores into probabilities.
        clip_of_caption: [num_texts], index of the right video; used by "ncl-oracle".
        queries: Training queries, for "ncl-tuned" and "qbnorm".

    Raises:
        ValueError: ``queries`` is None and ``name`` needs them.
    """
    if name in ("ncl-tuned", "qbnorm"):
        if queries is None:
            raise ValueError(f"normalize {name!r}: needs similarities of training queries; got None")
        if name == "qbnorm":
            by_caption = _inverted_softmax(scores, queries.texts, temperature)
            return Normalized(by_caption, _inverted_softmax(scores.T, queries.videos, temperature).T, [])
        by_caption, note = tuned(scores, _first(queries.texts), temperature)
        by_clip, other_note = tuned(scores.T, _first(queries.videos), temperature)
        return Normalized(by_caption, by_clip.T, [f"text to video: {note}", f"video to text: {other_note}"])
    if name == "dsl":
        return Normalized(_dual_softmax(scores, temperature), _dual_softmax(scores.T, temperature).T, [])
    if name == "ncl-oracle":
        num_captions = np.bincount(clip_of_caption, minlength=scores.shape[1])
        biases = sinkhorn_biases(
            _tensor(scores),
            temperature,
            video_marginals_N=torch.from_numpy(num_captions / num_captions.sum()),
            num_iterations=ITERATIONS,
            tolerance=TOLERANCE,
        )
        return Normalized(_added(scores, biases.video_N), _added(scores.T, biases.text_M).T, [])
    return Normalized(scores, scores, [])


def tuned(scores: np.ndarray, known: np.ndarray, temperature: float) -> tuple[np.ndarray, str]:
    """Add NCL's biases to scores with a tuned strength; return the scores and a note. This rule is ours.

    Biases of few queries are mostly noise. They are therefore added with the strength that leaves the smallest error
    for training queries that they were not computed from. They are not added at all if they do not reduce the error
    of the given queries: these then come from another distribution (a limitation that the paper names).

    Args:
        scores: [num_queries, num_candidates]
        known: [K, num_candidates], similarities of training queries to the same candidates.
        temperature: Turns scores into probabilities.

    Returns:
        The scores, and a note for people.
    """
    fold = np.arange(len(known)) % FOLDS
    errors = np.zeros(len(STRENGTHS))
    for fold_index in range(min(FOLDS, len(known)) if len(known) > 1 else 0):
        bias = fit_biases(known[fold != fold_index], temperature).bias_N
        errors += [
            normalization_error(known[fold == fold_index] + strength * bias, temperature) for strength in STRENGTHS
        ]
    strength = STRENGTHS[errors.argmin()]
    normalised = (scores + strength * fit_biases(known, temperature).bias_N).astype(np.float32)
    before, after = (normalization_error(x, temperature) for x in (scores, normalised))
    queries = f"biases of {len(known):,} training queries"
    if after >= before:
        return scores, f"{queries} would not reduce the normalisation error ({before:.3f}); not added"
    return normalised, f"{queries}, added with strength {strength:.1f}"


def _first(known: QueryRows) -> np.ndarray:
    """Return the similarities of the first queries, at most ``MAX_TUNED_SIMILARITIES``."""
    return known[: max(MAX_TUNED_SIMILARITIES // known.shape[1], 1)]


def _tensor(scores: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(scores)).double()


def _added(scores: np.ndarray, bias_N: Tensor) -> np.ndarray:
    return (scores + bias_N.numpy()).astype(np.float32)


def _inverted_softmax(scores: np.ndarray, known: QueryRows, temperature: float) -> np.ndarray:
    """Return the logarithm of QB-Norm's dynamic inverted softmax.

    It changes only queries whose best candidate is also the best of some training query: their score of each candidate
    is divided by the sum of the training queries' scores of this candidate. QB-Norm's beta is 1 / ``temperature`` (20
    in its paper).
    """
    is_hub = np.zeros(scores.shape[1], dtype=bool)
    hubness_N = np.full(scores.shape[1], -np.inf)
    for first in range(0, known.shape[0], QUERIES_AT_ONCE):
        block = known[first : first + QUERIES_AT_ONCE]
        is_hub[block.argmax(axis=1)] = True
        hubness_N = np.logaddexp(hubness_N, (_tensor(block) / temperature).logsumexp(dim=0).numpy())
    normalised = (scores - temperature * hubness_N).astype(np.float32)
    return np.where(is_hub[scores.argmax(axis=1)][:, None], normalised, scores)


def _dual_softmax(scores: np.ndarray, temperature: float) -> np.ndarray:
    logits = _tensor(scores) / temperature
    return (temperature * logits * logits.softmax(dim=0)).float().numpy()

"""The shared space of texts and clips: distances between them, and a figure of it (NCL, Figures 7 and 8)."""

from typing import TypedDict

import numpy as np

from ..data.clips import evenly
from ..scoring.scores import Vectors

MAX_POINTS = 1000
"""Maximum number of texts, and of clips, in the figure."""


class Similarities(TypedDict):
    """Mean cosines of different texts, of different clips, and of all texts with all clips; None with only one."""

    text_text: float | None
    clip_clip: float | None
    text_clip: float


class Projection(TypedDict):
    """Points in a plane."""

    texts: np.ndarray
    """[T, 2]"""
    clips: np.ndarray
    """[V, 2]"""
    mean_text: np.ndarray
    """[2], mu_t of NCL's Eq. 21"""
    mean_clip: np.ndarray
    """[2], mu_v of NCL's Eq. 22"""


def mean_similarities(vectors: Vectors) -> Similarities:
    """Return how similar texts and clips are to each other, on average.

    Args:
        vectors: Of texts and clips.

    Source: NCL, Figure 8.
    """
    texts, clips = (_unit(of) for of in vectors)
    return {
        "text_text": _mean_of_different(texts),
        "clip_clip": _mean_of_different(clips),
        "text_clip": float(texts.mean(axis=0) @ clips.mean(axis=0)),
    }


def project(vectors: Vectors) -> Projection:
    """Return texts and clips in the plane in which they differ most: their first two principal components.

    At most ``MAX_POINTS`` of each are chosen, evenly. The means are over the chosen texts and clips.

    Args:
        vectors: Of texts and clips.

    Source: NCL, Figure 7 and Eq. 19 to 22; the paper uses t-SNE.
    """
    texts, clips = (_unit(of[evenly(len(of), MAX_POINTS)]) for of in vectors)
    both = np.concatenate([texts, clips])
    centre = both.mean(axis=0)
    axes = np.linalg.svd(both - centre, full_matrices=False)[2][:2]
    plane = np.zeros((both.shape[1], 2))
    plane[:, : len(axes)] = axes.T
    points = [(of - centre) @ plane for of in (texts, clips)]
    return {
        "texts": points[0],
        "clips": points[1],
        "mean_text": points[0].mean(axis=0),
        "mean_clip": points[1].mean(axis=0),
    }


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors of length 1 in float64; zeros stay."""
    vectors = vectors.astype(np.float64)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _mean_of_different(units: np.ndarray) -> float | None:
    """Return the mean dot product of all pairs of different vectors, without making all of them."""
    if len(units) < 2:
        return None
    of_all, of_same = np.square(units.sum(axis=0)).sum(), np.square(units).sum()
    return float((of_all - of_same) / (len(units) * (len(units) - 1)))

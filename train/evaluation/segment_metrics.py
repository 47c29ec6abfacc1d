"""Metrics of action segmentation: of frames, of the order of steps, and of segments."""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import numpy as np

from ..data.segments import BACKGROUND

SegmentationMetrics = TypedDict(
    "SegmentationMetrics",
    {
        "accuracy": float,
        "steps_accuracy": float,
        "macro_accuracy": float,
        "edit": float,
        "F1@10": float,
        "F1@25": float,
        "F1@50": float,
    },
)
"""In percent.

``accuracy``: of all frames, background included, as published for COIN. ``steps_accuracy``: of the frames that show a
step (NaN if none does). ``macro_accuracy``: the mean over labels, background included, of the share of their frames
that is right. ``edit``: the mean of ``edit_score`` over videos. ``F1@k``: of segments that overlap by k percent.
"""


class Stretch(NamedTuple):
    """Consecutive frames with the same step."""

    label: int
    start: int
    end: int
    """The frame after the last one."""


class Matches(NamedTuple):
    """Counts of segments."""

    right: int
    wrong: int
    missed: int


def stretches_of(labels_T: np.ndarray) -> list[Stretch]:
    """Return the stretches of equal labels, background left out."""
    ends = [*(np.flatnonzero(np.diff(labels_T)) + 1).tolist(), len(labels_T)]
    starts = [0, *ends[:-1]]
    return [
        Stretch(int(labels_T[start]), start, end)
        for start, end in zip(starts, ends, strict=True)
        if labels_T[start] != BACKGROUND
    ]


def edit_score(predicted_T: np.ndarray, true_T: np.ndarray) -> float:
    """Return 100 minus the edit distance of the two orders of steps, in percent of the longer one (100 without steps).

    Source: Lea et al. 2016.
    """
    predicted, true = ([stretch.label for stretch in stretches_of(labels)] for labels in (predicted_T, true_T))
    distances = list(range(len(true) + 1))
    for row, label in enumerate(predicted, start=1):
        diagonal, distances[0] = distances[0], row
        for column, other in enumerate(true, start=1):
            replaced = diagonal + (label != other)
            diagonal = distances[column]
            distances[column] = min(replaced, distances[column] + 1, distances[column - 1] + 1)
    return 100 * (1 - distances[-1] / max(len(predicted), len(true), 1))


def match_segments(predicted_T: np.ndarray, true_T: np.ndarray, min_overlap: float) -> Matches:
    """Count the segments that are right, wrong and missed.

    A predicted segment is matched with the true segment of its label that it overlaps most. It is right if their
    intersection over union is at least ``min_overlap`` and no earlier segment was matched with the same one.

    Source: Lea et al. 2017.
    """
    predicted, true = stretches_of(predicted_T), stretches_of(true_T)
    matched: set[int] = set()
    right = 0
    for stretch in predicted:
        overlaps = [_overlap(stretch, other) for other in true]
        best = int(np.argmax(overlaps)) if overlaps else -1
        if best >= 0 and overlaps[best] >= min_overlap and best not in matched:
            right += 1
            matched.add(best)
    return Matches(right, len(predicted) - right, len(true) - right)


def _overlap(a: Stretch, b: Stretch) -> float:
    """Return intersection over union, or -1 for different labels."""
    if a.label != b.label:
        return -1.0
    return max(min(a.end, b.end) - max(a.start, b.start), 0) / (max(a.end, b.end) - min(a.start, b.start))


def segmentation_metrics(predicted: Sequence[np.ndarray], true: Sequence[np.ndarray]) -> SegmentationMetrics:
    """Return the metrics of some videos.

    Args:
        predicted: For each video, the labels [T] that were found.
        true: For each video, the labels [T] that were annotated.
    """
    all_predicted, all_true = np.concatenate(predicted), np.concatenate(true)
    right, is_step = all_predicted == all_true, all_true != BACKGROUND
    labels, label_of_frame = np.unique(all_true, return_inverse=True)
    videos = list(zip(predicted, true, strict=True))
    shares = np.bincount(label_of_frame, right, len(labels)) / np.bincount(label_of_frame)
    return {
        "accuracy": 100 * float(right.mean()),
        "steps_accuracy": 100 * float(right[is_step].mean()) if is_step.any() else math.nan,
        "macro_accuracy": 100 * float(np.mean(shares)),
        "edit": 100 * float(np.mean([edit_score(p, t) for p, t in videos]) / 100),
        "F1@10": _f1(videos, 0.10),
        "F1@25": _f1(videos, 0.25),
        "F1@50": _f1(videos, 0.50),
    }


def _f1(videos: Sequence[tuple[np.ndarray, np.ndarray]], min_overlap: float) -> float:
    right, wrong, missed = np.sum([match_segments(p, t, min_overlap) for p, t in videos], axis=0)
    return 100 * float(2 * right / max(2 * right + wrong + missed, 1))

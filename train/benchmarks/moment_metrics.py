"""Metrics of moments that were found within one video: recall, average precision, and highlights.

Sources: ``compute_IoU_recall_top_n_forreg`` in ``main.py`` of jiyanggao/TALL (Charades-STA, Gao et al. 2017), and
``standalone_eval/eval.py`` of jayleicn/moment_detr (QVHighlights, Lei et al. 2021).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RECALL_AT = (1, 5)
RECALL_IOUS = (0.3, 0.5, 0.7)
MAX_MOMENTS = 10
"""Number of a query's best moments that are evaluated (``compute_mr_ap``)."""
PRECISION_IOUS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
"""Overlaps over which mAP is averaged: 0.5 to 0.95 (``compute_mr_ap``)."""
LENGTHS = {"short": (0.0, 10.0), "middle": (10.0, 30.0), "long": (30.0, 150.0)}
"""{name: lengths of right moments in seconds, above the first and up to the second} (``eval_moment_retrieval``)"""
CLIP_SECONDS = 2
"""Length of the clips of QVHighlights that annotators rated."""
VERY_GOOD = 4
"""Minimum saliency of a highlight, as in the tables of papers (``eval_highlight``)."""


@dataclass(frozen=True)
class LocatedQuery:
    """A query with the moments that were found and the right ones, all of one video."""

    found_N2: np.ndarray
    """float64 [N, 2], start and end in seconds, the best first."""
    right_M2: np.ndarray
    """float64 [M, 2], at least one."""


def temporal_iou(first_N2: np.ndarray, second_M2: np.ndarray) -> np.ndarray:
    """Return the intersection over union of each pair of spans: [N, M].

    >>> temporal_iou(np.array([[0.0, 4.0]]), np.array([[2.0, 6.0], [4.0, 5.0]])).round(3).tolist()
    [[0.333, 0.0]]

    Args:
        first_N2: Start and end of each span, [N, 2].
        second_M2: Start and end of other spans, [M, 2]. Each end is after its start.
    """
    start = np.maximum(first_N2[:, None, 0], second_M2[None, :, 0])
    end = np.minimum(first_N2[:, None, 1], second_M2[None, :, 1])
    shared = np.maximum(end - start, 0.0)
    lengths = np.diff(first_N2, axis=1) + np.diff(second_M2, axis=1).T
    return shared / (lengths - shared)


def moment_metrics(queries: Sequence[LocatedQuery]) -> dict[str, float]:
    """Return the metrics of queries, one or more, in percent.

    "R@1, IoU 0.5" is the share of queries whose first moment has an IoU of 0.5 or more with a right one. "mAP@0.5" is
    the mean over queries of the average precision of up to ten moments, and "mAP" its mean over IoUs of 0.5 to 0.95;
    "short mAP" and the like use only the right moments of such a length, and are missing if there are none.
    """
    metrics = {
        f"R@{k}, IoU {iou:g}": _percent([recall(query, k, iou) for query in queries])
        for k in RECALL_AT
        for iou in RECALL_IOUS
    }
    precision_QI = np.array([[average_precision(query, iou) for iou in PRECISION_IOUS] for query in queries])
    for iou in (0.5, 0.75):
        metrics[f"mAP@{iou:g}"] = _percent(precision_QI[:, PRECISION_IOUS.index(iou)])
    metrics["mAP"] = _percent(precision_QI)
    for name, (shortest, longest) in LENGTHS.items():
        of_length = [part for query in queries if (part := _of_length(query, shortest, longest)) is not None]
        if of_length:
            precisions = [average_precision(part, iou) for part in of_length for iou in PRECISION_IOUS]
            metrics[f"{name} mAP"] = _percent(precisions)
    return metrics


def _percent(shares: Sequence[float] | np.ndarray) -> float:
    return 100 * float(np.mean(shares))


def _of_length(query: LocatedQuery, shortest: float, longest: float) -> LocatedQuery | None:
    """Return a query with only its right moments in a range of lengths; None without any (``get_data_by_range``)."""
    lengths = query.right_M2[:, 1] - query.right_M2[:, 0]
    chosen = (lengths > shortest) & (lengths <= longest)
    return LocatedQuery(query.found_N2, query.right_M2[chosen]) if chosen.any() else None


def recall(query: LocatedQuery, k: int, iou: float) -> bool:
    """Return whether one of the first ``k`` moments overlaps a right one by ``iou`` or more."""
    return bool((temporal_iou(query.found_N2[:k], query.right_M2) >= iou).any())


def average_precision(query: LocatedQuery, iou: float) -> float:
    """Return the interpolated average precision of a query's first ``MAX_MOMENTS`` moments.

    A moment is correct if its IoU is ``iou`` or more with a right moment that no better one has taken; of several, it
    takes the one with the highest IoU (``compute_average_precision_detection`` in ``standalone_eval/utils.py``). The
    precision at a recall is the highest one at this recall or above.
    """
    overlaps_NM = temporal_iou(query.found_N2[:MAX_MOMENTS], query.right_M2)
    is_right = np.zeros(len(overlaps_NM), dtype=bool)
    for number, overlap_M in enumerate(overlaps_NM):
        best = int(overlap_M.argmax())
        if overlap_M[best] >= iou:
            is_right[number] = True
            overlaps_NM[:, best] = -1.0  # taken
    precision = is_right.cumsum() / np.arange(1, len(is_right) + 1)
    highest = np.maximum.accumulate(precision[::-1])[::-1]
    return float(highest[is_right].sum() / len(query.right_M2))


def clip_ratings(spans: Sequence[tuple[float, float]], saliency: Sequence[Sequence[int]], num_clips: int) -> np.ndarray:
    """Return each annotator's rating of each clip of a video, int64 [num_clips, A]; 0 outside of all moments.

    Args:
        spans: Start and end of each right moment in seconds.
        saliency: For each moment, the annotators' ratings of its clips, one clip after the other.
        num_clips: Number of clips of ``CLIP_SECONDS`` in the video.
    """
    ratings = [
        np.reshape(values, (round((end - start) / CLIP_SECONDS), -1))
        for (start, end), values in zip(spans, saliency, strict=True)
    ]
    ratings_TA = np.zeros((num_clips, ratings[0].shape[1]), dtype=np.int64)
    for (start, _), of_moment in zip(spans, ratings, strict=True):
        first = round(start / CLIP_SECONDS)
        ratings_TA[first : first + len(of_moment)] = of_moment[: max(num_clips - first, 0)]
    return ratings_TA


def highlight_metrics(rated: Sequence[tuple[np.ndarray, np.ndarray]]) -> Mapping[str, float]:
    """Return the metrics of highlight detection by scores of 2 s clips, in percent.

    "HIT@1" is the share of queries whose best clip an annotator called very good (``compute_hl_hit1``); "highlight mAP"
    the mean average precision of all clips, over annotators and queries (``compute_hl_ap``).

    Args:
        rated: For each query, the scores of the clips [T], and the annotators' ratings of the clips [T, A].
    """
    hits = [(ratings_TA[int(scores_T.argmax())] >= VERY_GOOD).any() for scores_T, ratings_TA in rated]
    precisions = [
        highlight_precision(scores_T, ratings_T >= VERY_GOOD)
        for scores_T, ratings_TA in rated
        for ratings_T in ratings_TA.T
    ]
    return {"HIT@1": _percent(hits), "highlight mAP": _percent(precisions)}


def highlight_precision(scores_T: np.ndarray, is_right_T: np.ndarray) -> float:
    """Return the interpolated average precision of clips (``get_ap`` in ``standalone_eval/utils.py``).

    It is the mean precision over the recalls that occur; clips with equal scores are one step. 0 if no clip is right.
    """
    order = np.argsort(-scores_T, kind="stable")
    is_last = np.append(np.diff(scores_T[order]) != 0, True)  # of clips with equal scores
    num_right = is_right_T[order].cumsum()[is_last]
    precision = num_right / (np.flatnonzero(is_last) + 1)
    highest = np.maximum.accumulate(precision[::-1])[::-1]
    is_step = np.diff(num_right, prepend=0) > 0
    return float(highest[is_step].mean()) if is_step.any() else 0.0

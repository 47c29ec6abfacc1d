"""Moments: hits that overlap are one moment, with a start, an end and a score."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class ScoreCurve:
    """How well a query fits a video, over its time."""

    start_seconds: np.ndarray
    """When each window starts, float64 [T], ascending."""
    end_seconds: np.ndarray
    """When each window ends, float64 [T]."""
    scores: np.ndarray
    """Score of each, float32 [T]. Compare them with each other only: a moment's score may have further stages."""

    @property
    def center_seconds(self) -> np.ndarray:
        """Middle of each window, float64 [T], ascending."""
        return (self.start_seconds + self.end_seconds) / 2

    def part(self, start_seconds: float, end_seconds: float) -> "ScoreCurve":
        """Return the windows whose middle lies between two times."""
        inside = (self.center_seconds >= start_seconds) & (self.center_seconds <= end_seconds)
        return ScoreCurve(self.start_seconds[inside], self.end_seconds[inside], self.scores[inside])


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A part of a video that fits a query."""

    video_id: str
    start_seconds: float
    end_seconds: float
    score: float
    """Higher is better: the score of ``window``, with all stages that were asked."""
    percentile: float
    """Percent of all windows that fit the query less well, by the stage that finds candidates: 100 is the best."""
    window: tuple[float, float]
    """Start and end in seconds of the window that scored highest."""
    stages: dict[str, float] = field(default_factory=dict)
    """{stage of the score: score of ``window``}"""
    curve: ScoreCurve
    """Scores over the time of this moment."""


@dataclass(frozen=True)
class Hit:
    """A window that was found."""

    video_id: str
    start_seconds: float
    end_seconds: float
    score: float
    percentile: float
    stages: dict[str, float] = field(default_factory=dict)


def merge_hits(hits: Sequence[Hit], num_moments: int, curve_of: Callable[[str], ScoreCurve]) -> list[Moment]:
    """Return moments, the best first.

    The best hit makes a moment. Hits that overlap it belong to it, and so on with the rest. Where a moment begins and
    ends is decided by the curve of its video (``outline``).

    Args:
        hits: The best first.
        num_moments: Most moments to return.
        curve_of: Returns the curve of a video.
    """
    moments: list[Moment] = []
    curves: dict[str, ScoreCurve] = {}
    for hit in hits:
        if len(moments) == num_moments:
            break
        if any(m.video_id == hit.video_id and _overlap(m, hit) for m in moments):
            continue
        if hit.video_id not in curves:
            curves[hit.video_id] = curve_of(hit.video_id)
        curve = curves[hit.video_id]
        start, end = outline(hit, curve)
        moments.append(
            Moment(
                video_id=hit.video_id,
                start_seconds=start,
                end_seconds=end,
                score=hit.score,
                percentile=hit.percentile,
                window=(hit.start_seconds, hit.end_seconds),
                stages=hit.stages,
                curve=curve.part(start, end),
            )
        )
    return moments


def _overlap(moment: Moment, hit: Hit) -> bool:
    """Return whether a hit shares time with a moment or the window that it was made of."""
    start = min(moment.start_seconds, moment.window[0])
    end = max(moment.end_seconds, moment.window[1])
    return hit.start_seconds < end and hit.end_seconds > start


def outline(hit: Hit, curve: ScoreCurve) -> tuple[float, float]:
    """Return where a moment begins and ends, in seconds.

    It has the window of the curve that is highest in the hit, and the windows next to it as long as they stay above
    half the height: the middle between that highest score and the median of the video. A hit that is the whole video,
    or has fewer than two windows of the curve, stays as it is.

    Args:
        hit: The window that was found.
        curve: Of its video.
    """
    centers, scores = curve.center_seconds, curve.scores
    inside = np.flatnonzero((centers >= hit.start_seconds) & (centers <= hit.end_seconds))
    if len(inside) < 2 or len(inside) == len(centers):
        return hit.start_seconds, hit.end_seconds
    peak = int(inside[scores[inside].argmax()])
    is_high = scores >= (scores[peak] + np.median(scores)) / 2
    first, last = peak, peak
    while first > 0 and is_high[first - 1]:
        first -= 1
    while last < len(centers) - 1 and is_high[last + 1]:
        last += 1
    return float(curve.start_seconds[first]), float(curve.end_seconds[last])


def span_lines(moments: Sequence[Moment]) -> Iterator[str]:
    """Yield a line for each moment, for the terminal."""
    yield f"{'score':>8}  {'seconds':>17}  {'better than':>11}  video"
    for moment in moments:
        span = f"{moment.start_seconds:>7.2f} - {moment.end_seconds:>7.2f}"
        yield f"{moment.score:>8.3f}  {span}  {moment.percentile:>10.2f}%  {moment.video_id}"

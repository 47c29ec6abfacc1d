"""Moments: found windows that overlap are merged into one moment, with a start, an end and a score."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from ...storage.common.terminal import one_line
from .query_checks import SearchBy, check_time

MAX_CAPTION_CHARACTERS = 60
"""Maximum length of a caption in the terminal's table."""
SIMILAR_KEYS = ("video_id", "start_seconds", "end_seconds")
OCCURRENCE_KEYS = ("start_seconds", "end_seconds", "best_seconds", "score")
"""Values of similar moments and of occurrences in ``moment_values``."""
RANK_OFFSET = 60
"""Reciprocal rank fusion (Cormack et al. 2009): a rank in a list counts 1 / (60 + rank)."""
FUSED_AT_ONCE = 20
"""Ranks of both lists that are fused together."""


@dataclass(frozen=True)
class ScoreCurve:
    """The scores of a query over the time of a video."""

    start_seconds: np.ndarray
    """Start of each window, float64 [T], ascending."""
    end_seconds: np.ndarray
    """End of each window, float64 [T]."""
    scores: np.ndarray
    """Score of each window, float32 [T]. Compare them only with each other: a moment's score may have more stages."""

    @property
    def center_seconds(self) -> np.ndarray:
        """Middle of each window, float64 [T], ascending."""
        return (self.start_seconds + self.end_seconds) / 2

    def part(self, start_seconds: float, end_seconds: float) -> "ScoreCurve":
        """Return the windows whose middle is between two times."""
        inside = (self.center_seconds >= start_seconds) & (self.center_seconds <= end_seconds)
        return ScoreCurve(self.start_seconds[inside], self.end_seconds[inside], self.scores[inside])


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A part of a video that fits a query.

    Example:
        >>> from vlalign.train import open_search
        >>> search = open_search("vlalign_data/demo", run="words-s3d-seed0", device="cpu")
        >>> moment = search("cut the onion", num_results=1)[0]
        >>> moment.start_seconds <= moment.best_seconds <= moment.end_seconds
        True
    """

    video_id: str
    """Id of the video."""
    start_seconds: float
    """Start in the video."""
    end_seconds: float
    """End in the video."""
    score: float
    """Score of ``window``, with all stages of the search; higher is better."""
    percentile: float | None
    """Percent of all search windows that fit the query less well, by the stage that finds candidates: 100 is the best.
    None if only captions were searched; ``score`` is the caption's then (BM25)."""
    window: tuple[float, float]
    """Start and end in seconds of the window that scored highest."""
    stages: dict[str, float] = field(default_factory=dict)
    """{stage of the score: score of ``window``}"""
    curve: ScoreCurve
    """Scores over the time of this moment."""
    found_by: SearchBy = "video"
    """The source of the match: the video, the text of a caption, or both."""
    caption: str | None = None
    """The caption or subtitle that found the moment."""
    caption_score: float | None = None
    """How well the query's words fit ``caption`` (BM25); captions that fit equally well have the same rank."""
    percent_of_captions: float | None = None
    """Percent of held-out captions of these videos whose best moment scores lower (``caption_scores.py``); None if it
    is not known, or if only captions were searched."""
    occurrences: tuple["Moment", ...] = ()
    """Fitting moments of the video in order of time, including this one; only in a search that is grouped by video."""
    similar: tuple["Moment", ...] = ()
    """Lower-ranked moments of other videos that look nearly the same; only in a search that folds them."""

    @property
    def best_seconds(self) -> float:
        """The second that fits the query best: the middle of the highest window of ``curve``, the first of equal ones.

        Without a curve, for example if only captions were searched, it is the middle of ``window``. It always lies
        within the moment.

        windows 0 to 4, 2 to 6 and 4 to 8 s with scores 0.1, 0.3 and 0.2  ->  4.0
        """
        if len(self.curve.scores):
            best = float(self.curve.center_seconds[self.curve.scores.argmax()])
        else:
            best = sum(self.window) / 2
        return min(max(best, self.start_seconds), self.end_seconds)


@dataclass(frozen=True)
class Hit:
    """A window that was found."""

    video_id: str
    start_seconds: float
    end_seconds: float
    score: float
    percentile: float
    stages: dict[str, float] = field(default_factory=dict)
    bias: float = 0.0
    """NCL's bias of the window, a part of the score."""


def merge_hits(
    hits: Iterable[Hit], curve_of: Callable[[str], ScoreCurve], *, are_shots: bool = False
) -> Iterator[Moment]:
    """Yield moments, the best first.

    The best hit makes a moment, and the hits that overlap it belong to it; then the best of the remaining hits makes
    the next moment, and so on. The curve of the video decides where a moment begins and ends (``moment_span``), but
    moments do not overlap better ones.

    Args:
        hits: The best first.
        curve_of: Returns the curve of a video.
        are_shots: A moment is the whole window of its best hit, whatever the curve.
    """
    moments: dict[str, list[Moment]] = {}
    curves: dict[str, ScoreCurve] = {}
    for hit in hits:
        check_time()
        of_video = moments.setdefault(hit.video_id, [])
        if any(_overlap(moment, hit) for moment in of_video):
            continue
        if hit.video_id not in curves:
            curves[hit.video_id] = curve_of(hit.video_id)
        curve = curves[hit.video_id]
        start, end = (hit.start_seconds, hit.end_seconds) if are_shots else moment_span(hit, curve)
        for other in of_video:  # the better one keeps what both would have
            if hit.start_seconds >= other.end_seconds:
                start = max(start, other.end_seconds)
            elif hit.end_seconds <= other.start_seconds:
                end = min(end, other.start_seconds)
        of_video.append(
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
        yield of_video[-1]


def _overlap(moment: Moment, hit: Hit) -> bool:
    """Return whether a hit shares time with a moment or the window that it was made from."""
    start = min(moment.start_seconds, moment.window[0])
    end = max(moment.end_seconds, moment.window[1])
    return hit.start_seconds < end and hit.end_seconds > start


def moment_span(hit: Hit, curve: ScoreCurve) -> tuple[float, float]:
    """Return (start, end) of a moment in seconds.

    The moment covers the highest window of the curve in the hit, and the windows on both sides as long as they stay
    above half the height: midway between that highest score and the median of the video. A hit that is the whole video,
    or has fewer than two windows of the curve, keeps its own start and end.

    Args:
        hit: The window that was found.
        curve: Curve of the hit's video.
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


def fuse_rankings(
    by_video: Iterable[Moment],
    by_text: Iterable[Moment],
    is_excluded: Callable[[Moment], bool] = lambda moment: False,
) -> Iterator[Moment]:
    """Yield moments of two lists by reciprocal rank fusion, the best first.

    A moment that a caption found is merged into the first moment of the other list that overlaps it, whose times are
    kept. The first ``FUSED_AT_ONCE`` ranks of the lists are fused, then the next, and so on: the first moments do not
    depend on how many are requested.

    Args:
        by_video: Moments whose windows fit, the best first.
        by_text: Moments whose captions fit, the best first.
        is_excluded: Returns whether captions may not lift a moment.
    """
    videos, texts = enumerate(by_video, start=1), _shared_ranks(by_text)
    before: dict[str, list[Moment]] = {}
    while block := _fused(list(islice(videos, FUSED_AT_ONCE)), list(islice(texts, FUSED_AT_ONCE)), is_excluded):
        new = [m for m in block if not any(share_time(m, other) for other in before.get(m.video_id, []))]
        yield from new
        for moment in new:
            before.setdefault(moment.video_id, []).append(moment)


def _shared_ranks(by_text: Iterable[Moment]) -> Iterator[tuple[int, Moment]]:
    """Yield moments with their ranks; captions with equal scores share the first of their ranks."""
    rank, last = 0, None
    for number, moment in enumerate(by_text, start=1):
        if moment.caption_score is None or moment.caption_score != last:
            rank, last = number, moment.caption_score
        yield rank, moment


def _fused(
    by_video: Sequence[tuple[int, Moment]],
    by_text: Sequence[tuple[int, Moment]],
    is_excluded: Callable[[Moment], bool],
) -> list[Moment]:
    """Fuse moments of two lists by their ranks; return them, the best first."""
    fused = [(1 / (RANK_OFFSET + rank), moment) for rank, moment in by_video]
    for rank, moment in by_text:
        points = 1 / (RANK_OFFSET + rank)
        index = next((i for i, (_, other) in enumerate(fused) if share_time(moment, other)), None)
        if index is None:
            fused.append((points, moment))
        elif fused[index][1].found_by == "video" and not is_excluded(fused[index][1]):
            about = {"caption": moment.caption, "caption_score": moment.caption_score}
            both = replace(fused[index][1], found_by="both", **about)
            fused[index] = fused[index][0] + points, both
    fused.sort(key=lambda pair: -pair[0])  # stable: of equal points, moments that the video found come first
    return [moment for _, moment in fused]


def share_time(moment: Moment, other: Moment) -> bool:
    """Return whether two moments are of the same video and overlap."""
    return (
        moment.video_id == other.video_id
        and moment.start_seconds < other.end_seconds
        and moment.end_seconds > other.start_seconds
    )


def moment_values(moment: Moment) -> dict[str, Any]:
    """Return a moment as an object of JSON, without its curve."""
    values = {name: value for name, value in vars(moment).items() if name not in ("curve", "similar", "occurrences")}
    values["best_seconds"] = moment.best_seconds
    values["similar"] = [{name: getattr(other, name) for name in SIMILAR_KEYS} for other in moment.similar]
    values["occurrences"] = [{name: getattr(other, name) for name in OCCURRENCE_KEYS} for other in moment.occurrences]
    return values


def moment_table(moments: Sequence[Moment]) -> Iterator[str]:
    """Yield a header and a line for each moment, for the terminal."""
    yield f"{'score':>8}  {'seconds':>17}  {'percentile':>10}  {'found by':8}  video"
    for moment in moments:
        span = f"{moment.start_seconds:>7.2f} - {moment.end_seconds:>7.2f}"
        percentile = f"{'-':>10}" if moment.percentile is None else f"{moment.percentile:>10.2f}"
        caption = "" if moment.caption is None else f'  "{one_line(moment.caption[:MAX_CAPTION_CHARACTERS])}"'
        similar = f"  +{len(moment.similar)} similar" if moment.similar else ""
        yield f"{moment.score:>8.3f}  {span}  {percentile}  {moment.found_by:8}  {moment.video_id}{similar}{caption}"
        for other in moment.occurrences if len(moment.occurrences) > 1 else ():
            yield f"{other.score:>8.3f}  {other.start_seconds:>7.2f} - {other.end_seconds:>7.2f}"

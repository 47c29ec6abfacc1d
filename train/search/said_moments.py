"""Moments of the captions that a query's words are in."""

from collections.abc import Callable, Collection, Sequence

import numpy as np

from ...storage.common.counts import number_of
from ...storage.common.terminal import say
from ..data.clips import Clip
from .codes import AnyScan
from .encoders import Encoder
from .moments import Moment, ScoreCurve
from .said import Said

MOST_NAMED = 5
NO_CURVE = ScoreCurve(np.zeros(0), np.zeros(0), np.zeros(0, np.float32))


def found_said(
    captions: Sequence[Said],
    encoder: Encoder,
    query: str,
    curve_of: Callable[[np.ndarray, str], ScoreCurve] | None = None,
    scan: AnyScan | None = None,
) -> list[Moment]:
    """Return the moments that captions are about, in the same order.

    Captions without feature rows are left out, and a line names them.

    Args:
        captions: What was found.
        encoder: Scores the moments as it does what is seen.
        query: What was asked.
        curve_of: Returns the curve of a vector and a video.
        scan: Of the query's vector. None: moments have the captions' own scores, and no percentile.
    """
    within = [(said, place) for said in captions if (place := _place(said, encoder)) is not None]
    vectors = encoder.clip_vectors([clip for _, (_, _, clip) in within]) if within else np.zeros((0, 0), np.float32)
    with_rows = np.flatnonzero(np.isfinite(vectors).all(axis=1))
    placed = [within[index] for index in with_rows]
    _say_left_out(captions, {said for said, _ in placed})
    if not placed or scan is None or curve_of is None:
        return [_moment(said, place, said.score) for said, place in placed]
    clips = [clip for _, (_, _, clip) in placed]
    scores = vectors[with_rows] @ scan.query_D
    percents = scan.percent_below(scores).tolist()
    staged = encoder.score(query, clips, len(clips))
    totals = scores if staged is None else staged.total
    moments = []
    for index, (said, place) in enumerate(placed):
        stages = {} if staged is None else {name: float(values[index]) for name, values in staged.stages.items()}
        curve = curve_of(scan.query_D, said.video_id).part(*place[:2])
        moments.append(_moment(said, place, float(totals[index]), percents[index], stages, curve))
    return moments


def _say_left_out(captions: Sequence[Said], kept: Collection[Said]) -> None:
    left_out = [said for said in captions if said not in kept]
    if left_out:
        named = ", ".join(f"{said.video_id}#{said.start_seconds}-{said.end_seconds}" for said in left_out[:MOST_NAMED])
        more = ", ..." if len(left_out) > MOST_NAMED else ""
        say(
            f"note: {number_of(len(left_out), 'captions')} with the query's words left out, which have no feature rows "
            f"({named}{more}): their times lie before the first row of the video, or after the last one"
        )


def _place(said: Said, encoder: Encoder) -> tuple[float, float, Clip] | None:
    """Return the part of the video that a caption is about; None if its features end before it."""
    duration = encoder.duration_seconds(said.video_id)
    if said.start_seconds is None or said.end_seconds is None:
        return 0.0, duration, Clip(said.video_id, None, None)
    start, end = said.start_seconds, min(said.end_seconds, duration)
    return (start, end, Clip(said.video_id, start, end)) if start < end else None


def _moment(
    said: Said,
    place: tuple[float, float, Clip],
    score: float,
    percentile: float | None = None,
    stages: dict[str, float] | None = None,
    curve: ScoreCurve = NO_CURVE,
) -> Moment:
    start, end, _ = place
    return Moment(
        video_id=said.video_id,
        start_seconds=start,
        end_seconds=end,
        score=score,
        percentile=percentile,
        window=(start, end),
        stages=stages or {},
        curve=curve,
        found_by="words",
        said=said.text,
    )

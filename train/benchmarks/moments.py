"""Moment retrieval: finding the part of a video that a text describes (Charades-STA, QVHighlights).

The moments for a query are those that ``vlalign-search`` finds in the query's video: the same search windows, merged in
the same way. Captions are not searched, since they are the queries.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...storage.captions.files import choose_protocol, read_captions
from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.common.progress import progress
from ...storage.common.terminal import number_of
from ...storage.dataset.folder import DatasetFolder
from ...storage.records import Caption
from ..data.usable_captions import captions_of_split
from ..search.index import SEARCH_WINDOW_SECONDS, plan_search_windows
from ..search.moments import Hit, ScoreCurve, merge_hits
from ..search.search import Search
from .moment_metrics import (
    CLIP_SECONDS,
    MAX_MOMENTS,
    LocatedQuery,
    clip_ratings,
    highlight_metrics,
    moment_metrics,
)
from .result import RANDOM, Measured

RANDOM_SEED = 0
"""Seed of the scores of the random baseline."""
NOTES = (
    "no model was trained to find where a moment begins and ends",
    f"moments are merged search windows of {', '.join(f'{s:g}' for s in SEARCH_WINDOW_SECONDS)} s and whole videos, "
    "which do not overlap; TALL takes overlapping windows and removes near ones",
)


@dataclass(frozen=True)
class MomentQuery:
    """A text, and all moments of a video that fit it."""

    text: str
    video_id: str
    moments: Sequence[Caption]

    @property
    def spans(self) -> list[tuple[float, float]]:
        """Start and end of each moment in seconds."""
        return [(m.start_seconds, m.end_seconds) for m in self.moments if m.start_seconds is not None and m.end_seconds]


def read_queries(dataset: DatasetFolder, protocol: str, split: str) -> list[MomentQuery]:
    """Return the queries of a split: the captions with times. Captions with the same query id are one query.

    Raises:
        UserError: There are no captions, or none of the split has times.
    """
    table = read_captions(choose_protocol(dataset, protocol).captions)
    queries: dict[object, MomentQuery] = {}
    for number, caption in enumerate(captions_of_split(table, split)):
        if caption.start_seconds is None:
            continue
        key = number if caption.query is None else caption.query
        before = queries[key].moments if key in queries else ()
        queries[key] = MomentQuery(caption.caption, caption.video_id, [*before, caption])
    if not queries:
        splits, codes = table.codes("split")
        counts = ", ".join(f"{name} {count:,}" for name, count in zip(splits, np.bincount(codes), strict=True))
        raise UserError(
            f"{dataset.captions}: no caption with times has split {split!r} (of all captions: {counts}); "
            "pass another --split, or --protocol"
        )
    return list(queries.values())


def measure_moments(search: Search, queries: Sequence[MomentQuery], problems: Problems) -> Measured:
    """Search for each query in its video, and compare the results with the right moments.

    Args:
        search: Search in the data set, without captions.
        queries: The texts and the right moments.
        problems: Receives the queries of videos that are not in the index, which are skipped.
    """
    usable = list(_usable(search, queries, problems))
    if not usable:
        raise UserError(f"{search.encoder.dataset.name}: no query is about a video of the index; run vlalign-extract")
    located, at_random, rated, rows = [], [], [], []
    rng = np.random.default_rng(RANDOM_SEED)
    for query in progress(usable, total=len(usable), what="moments", unit="queries"):
        found = search(query.text, videos={query.video_id}, by="video", num_results=MAX_MOMENTS)
        right_M2 = np.array(query.spans)
        located.append(LocatedQuery(_spans([(m.start_seconds, m.end_seconds) for m in found]), right_M2))
        duration = search.encoder.duration_seconds(query.video_id)
        at_random.append(LocatedQuery(random_moments(query.video_id, duration, rng), right_M2))
        if all(moment.saliency for moment in query.moments):
            curve = search.score_curve(query.text, query.video_id)
            num_clips = max(int(duration / CLIP_SECONDS), 1)
            ratings_TA = clip_ratings(query.spans, [moment.saliency for moment in query.moments], num_clips)
            rated.append((clip_scores(curve, num_clips), ratings_TA))
        rows.append(_row(query, located[-1]))
    metrics = moment_metrics(located)
    baseline: dict[str, float] = moment_metrics(at_random)
    if rated:
        metrics |= highlight_metrics(rated)
        baseline |= highlight_metrics([(rng.random(len(scores)), ratings) for scores, ratings in rated])
    videos = number_of(len({query.video_id for query in usable}), "videos")
    return Measured(
        what=f"{len(usable):,} of {len(queries):,} queries in {videos}",
        metrics={"search": metrics, RANDOM: baseline},
        rows=rows,
        notes=NOTES,
        num_items=len(usable),
    )


def _usable(search: Search, queries: Sequence[MomentQuery], problems: Problems) -> Iterator[MomentQuery]:
    """Yield the queries whose videos are in the index; report the others."""
    for query in queries:
        video_id = search.id_of(query.video_id)
        if len(search.index.rows_of(video_id)):
            yield replace(query, video_id=video_id)
        else:
            problems.add(f"query {query.text!r}: video {query.video_id!r} is not in the index; skipped")


def _spans(spans: Sequence[tuple[float, float]]) -> np.ndarray:
    return np.array(spans, dtype=np.float64).reshape(-1, 2)


def random_moments(video_id: str, duration_seconds: float, rng: np.random.Generator) -> np.ndarray:
    """Return the moments that random scores of a video's search windows give, float64 [N, 2], the best first.

    Args:
        video_id: The video.
        duration_seconds: Its duration.
        rng: Draws the scores.
    """
    windows = plan_search_windows(duration_seconds)
    scores = rng.random(len(windows)).astype(np.float32)
    lengths = (windows[:, 1] - windows[:, 0]).round(3)
    shortest = lengths == lengths.min()
    curve = ScoreCurve(windows[shortest, 0], windows[shortest, 1], scores[shortest])
    hits = [
        Hit(video_id, float(windows[i, 0]), float(windows[i, 1]), float(scores[i]), math.nan)
        for i in np.argsort(-scores, kind="stable").tolist()
    ]
    moments = merge_hits(hits, lambda _: curve)
    return _spans([(m.start_seconds, m.end_seconds) for m, _ in zip(moments, range(MAX_MOMENTS), strict=False)])


def clip_scores(curve: ScoreCurve, num_clips: int) -> np.ndarray:
    """Return the score of each clip of 2 s, float64 [T]: the mean of the scores in its time, or the nearest score.

    Args:
        curve: Scores over the time of the video.
        num_clips: Number of clips.
    """
    middles = curve.center_seconds
    scores_T = np.zeros(num_clips)
    for clip in range(num_clips):
        inside = (middles >= clip * CLIP_SECONDS) & (middles < (clip + 1) * CLIP_SECONDS)
        nearest = np.abs(middles - (clip + 0.5) * CLIP_SECONDS).argmin()
        scores_T[clip] = curve.scores[inside].mean() if inside.any() else curve.scores[nearest]
    return scores_T


def _row(query: MomentQuery, located: LocatedQuery) -> Mapping[str, Any]:
    return {
        "query": query.text,
        "video_id": query.video_id,
        "right": located.right_M2.tolist(),
        "found": located.found_N2.tolist(),
    }

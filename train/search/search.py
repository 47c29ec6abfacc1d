"""Free text -> the best clips of a data set."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...storage.captions import read_captions, read_captions_about
from ..checkpoint import Run
from ..data.pairs import Clip, make_pairs
from ..scoring import stage_scores


@dataclass(frozen=True)
class Hit:
    video_id: str
    start_seconds: float
    end_seconds: float
    score: float


def searchable_clips(run: Run) -> list[Clip]:
    """Every captioned clip whose video has features, and, whole, every video without a caption, by id: their order in the shards is
    that in which their extraction ended, and of clips with equal scores the first one here comes first."""
    has_captions = read_captions_about(run.dataset.captions) is not None
    clips = make_pairs(read_captions(run.dataset.captions)).clips if has_captions else ()
    captioned = [c for c in clips if c.video_id in run.features]
    captioned = [
        c for c in captioned if c.start_seconds is None or c.start_seconds < run.features.duration_seconds(c.video_id)
    ]
    known = {clip.video_id for clip in captioned}
    return captioned + [
        Clip(video_id, None, None) for video_id in sorted(run.features.video_ids()) if video_id not in known
    ]


def search(run: Run, query: str, clips: Sequence[Clip], num_results: int, rerank: int) -> list[Hit]:
    """The clips that score highest for ``query``, best first, by the same scores as in evaluation: the early stages find ``rerank``
    candidates, and the fusion layers, where the run has some, put those in order."""
    scorer = run.scorer
    caption = scorer.weights.tag_query(query)
    shortlist = max(rerank, num_results) if scorer.has_early else None
    scores = stage_scores(scorer, [caption], clips, rerank=shortlist).fused(run.config.score_weights)[0][0]
    hits = []
    for index in np.argsort(-scores, kind="stable")[:num_results]:
        clip, duration = clips[index], run.features.duration_seconds(clips[index].video_id)
        end = duration if clip.end_seconds is None else min(clip.end_seconds, duration)
        hits.append(Hit(clip.video_id, clip.start_seconds or 0.0, end, float(scores[index])))
    return hits

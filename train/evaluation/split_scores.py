"""The scores of a split, in memory if they fit, and how long they will take."""

import time
from collections.abc import Sequence

import numpy as np

from ...storage.common.errors import SettingError
from ...storage.common.terminal import say
from ...storage.records import Caption
from ..data.clips import Clip, evenly
from ..scoring.scorer import Scorer, stage_scores
from ..scoring.scores import Scores
from ..scoring.tiles import TiledScores

MOST_BYTES = 2 << 30
"""Largest size of all stages' scores that are held in memory."""
TIMED = 64
"""Number of captions and of clips of which all pairs are fused, to tell how long all will take."""
LONG_SECONDS = 600
USUAL_RERANK = 100


def split_scores(
    scorer: Scorer, captions: Sequence[Caption], clips: Sequence[Clip], *, rerank: int | None, normalize: str
) -> Scores:
    """Score every caption with every clip, in memory if they fit.

    Args:
        scorer: The model and its inputs.
        captions: What the rows of the scores are.
        clips: What the columns of the scores are.
        rerank: Number of best clips of each caption, and of best captions of each clip, that the fusion layers score.
            None: all.
        normalize: How scores will be normalised; anything but "none" needs all of them in memory.

    Raises:
        SettingError: They do not fit, and cannot be computed in parts.
    """
    num_pairs = len(captions) * len(clips)
    num_bytes = num_pairs * len(scorer.config.score_weights) * np.dtype(np.float32).itemsize
    if num_bytes <= MOST_BYTES:
        if scorer.has_late and rerank is None:
            _say_how_long(scorer, captions, clips)
        return stage_scores(scorer, captions, clips, rerank=rerank, both_ways=True, show_progress=True)
    size = f"the scores of {num_pairs:,} pairs take {num_bytes / 1e9:,.0f} GB, more than is held in memory"
    if normalize != "none":
        raise SettingError("normalize", normalize, f"{size} (limit: {MOST_BYTES / 1e9:.0f} GB); leave it out")
    if scorer.has_late and rerank is None:
        fix = f"have the fusion layers score the best {USUAL_RERANK} only" if scorer.has_early else "ask about fewer"
        raise SettingError("rerank", "is missing", f"{size}; {fix}")
    return TiledScores(scorer, captions, clips, rerank=rerank if scorer.has_late else None)


def _say_how_long(scorer: Scorer, captions: Sequence[Caption], clips: Sequence[Clip]) -> None:
    """Say how long fusing all pairs will take, if that is long, and what would be faster."""
    num_pairs = len(captions) * len(clips)
    if num_pairs < 100 * TIMED**2:
        return
    some_captions = [captions[i] for i in evenly(len(captions), TIMED)]
    some_clips = [clips[i] for i in evenly(len(clips), TIMED)]
    stage_scores(scorer, some_captions[:8], some_clips[:8])  # the first call prepares more than it computes
    started = time.monotonic()
    stage_scores(scorer, some_captions, some_clips)
    seconds_a_pair = (time.monotonic() - started) / (len(some_captions) * len(some_clips))
    if (seconds := num_pairs * seconds_a_pair) < LONG_SECONDS:
        return
    line = f"note: fusing all {num_pairs:,} pairs will take about {_in_words(seconds)}"
    if scorer.has_early:
        fewer = USUAL_RERANK * (len(captions) + len(clips)) * seconds_a_pair
        line += f"; with rerank {USUAL_RERANK}, about {_in_words(min(fewer, seconds))}"
    say(line)


def _in_words(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{max(seconds / 60, 1):.0f} min"

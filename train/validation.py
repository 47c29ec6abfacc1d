"""How a run is judged while it trains, by the task that it is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .data.clips import evenly
from .data.examples import Examples, PairExamples
from .data.pairs import make_pairs
from .data.segment_examples import SegmentExamples
from .data.segments import label_frames
from .metrics import retrieval_metrics
from .scoring import Scorer, stage_scores
from .tasks.ask_segmentation import frame_scores
from .tasks.ask_vqa import answer_scores

MOST_PAIRS = 20_000
"""Upper limit of the pairs that the fusion layers see in a validation."""
RERANK = 20
MOST_QUESTIONS, MOST_VIDEOS = 2000, 50


@dataclass(frozen=True)
class Validation:
    """A way to judge a run while it trains."""

    figure: str
    """Name of the figure that chooses the best model; less is better."""
    measure: Callable[[Scorer, Examples], dict[str, float]]
    """Returns the figures by name; empty if there is no validation split."""


def measure_retrieval(scorer: Scorer, examples: Examples) -> dict[str, float]:
    """Rank the validation clips for one caption of each, or of as many as the fusion layers should see."""
    assert isinstance(examples, PairExamples)
    valid = examples.pairs["validation"]
    rerank = RERANK if scorer.has_early else None
    most = MOST_PAIRS // RERANK if rerank else int(MOST_PAIRS**0.5)
    captions_of = valid.captions_of_clips()
    pairs = make_pairs(valid.captions.take([captions_of[clip][0] for clip in evenly(len(valid.clips), most)]))
    if not pairs.clips:
        return {}
    scores = stage_scores(scorer, pairs.captions, pairs.clips, rerank=rerank)
    by_caption = scores.fused(scorer.config.score_weights).by_caption
    metrics = retrieval_metrics(by_caption, pairs.clip_of_caption)["text_to_video"]
    return {"validation_mean_rank": metrics["mean_rank"], "validation_R@1": metrics["R@1"]}


def measure_answers(scorer: Scorer, examples: Examples) -> dict[str, float]:
    """Return the share of validation questions that are answered wrongly, in percent."""
    assert isinstance(examples, PairExamples)
    valid = examples.pairs["validation"]
    pairs = make_pairs(valid.captions.take(evenly(len(valid.captions), MOST_QUESTIONS)))
    if not pairs.captions:
        return {}
    best = answer_scores(scorer, pairs, examples.labels).asked.argmax(axis=1)
    right = np.mean([examples.labels[i] == c.answer for i, c in zip(best, pairs.captions, strict=True)])
    return {"validation_error": 100 * (1 - float(right))}


def measure_segments(scorer: Scorer, examples: Examples) -> dict[str, float]:
    """Return the share of the validation videos' seconds that get a wrong label, in percent."""
    assert isinstance(examples, SegmentExamples)
    videos = examples.videos["validation"]
    num_wrong = num_frames = 0
    for index in evenly(len(videos), MOST_VIDEOS):
        labels_T = frame_scores(scorer, videos[index]).argmax(axis=1)
        num_wrong += int((labels_T != label_frames(videos[index], examples.index_of)).sum())
        num_frames += len(labels_T)
    return {"validation_error": 100 * num_wrong / num_frames} if num_frames else {}


VALIDATIONS = {
    "retrieval": Validation("validation_mean_rank", measure_retrieval),
    "vqa": Validation("validation_error", measure_answers),
    "segmentation": Validation("validation_error", measure_segments),
}
"""{task: how a run that is for it is judged}; a run that is for none in particular is judged by retrieval."""

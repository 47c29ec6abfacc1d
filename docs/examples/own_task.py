"""A task and a metric of one's own, for a run that exists. Put this file into the current folder. Then::

vlalign-evaluate RUN --task own_task:MultipleChoice --num-choices 5
vlalign-evaluate RUN --metric own_task:mean_reciprocal_rank
"""

from dataclasses import dataclass

import numpy as np
from vlalign.storage import read_captions
from vlalign.storage.common.problems import Problems
from vlalign.storage.common.settings import Settings, setting
from vlalign.train import EvaluationRequest, Task, TaskResult
from vlalign.train.data.pairs import read_pairs
from vlalign.train.data.usable_captions import captions_of_split
from vlalign.train.evaluation.coverage import split_coverage
from vlalign.train.runs.load import Run
from vlalign.train.scoring.scorer import stage_scores


@dataclass(frozen=True, kw_only=True)
class ChoiceSettings(Settings):
    """Options of the task."""

    num_choices: int = setting(5, "number of clips to choose from", ge=2)


class MultipleChoice(Task[ChoiceSettings]):
    """How often a caption's own clip has the best score among a few clips, in percent."""

    name = "multiple_choice"
    description = "each caption chooses its clip among a few"
    settings_type = ChoiceSettings
    main_metrics = ("accuracy",)

    def evaluate(self, run: Run, request: EvaluationRequest[ChoiceSettings], problems: Problems) -> TaskResult:
        """Score all captions and clips; the wrong choices of a caption are drawn with its index as seed."""
        pairs = read_pairs(run.dataset, run.features, problems)[request.split]
        scores = stage_scores(run.scorer, pairs.captions, pairs.clips).by_caption(request.score_weights)
        right = []
        for caption, own in enumerate(pairs.clip_of_caption):
            others = np.delete(np.arange(len(pairs.clips)), own)
            wrong = np.random.default_rng(caption).permutation(others)[: request.settings.num_choices - 1]
            right.append(bool((scores[caption, own] > scores[caption, wrong]).all()))
        listed = captions_of_split(read_captions(run.dataset.captions), request.split)
        rows = ({"caption": c.caption, "right": r} for c, r in zip(pairs.captions, right, strict=True))
        coverage = split_coverage(listed, pairs.captions, run.features)
        return TaskResult(coverage, {"accuracy": 100 * np.mean(right)}, rows, page={})


def mean_reciprocal_rank(similarity: np.ndarray, text_to_video: np.ndarray) -> dict[str, float]:
    """Return the mean of 1 / rank of the right video, text to video: [num_texts, num_videos], [num_texts]."""
    right = similarity[np.arange(len(similarity)), text_to_video]
    return {"MRR": float(np.mean(1 / (similarity >= right[:, None]).sum(axis=1)))}

"""Retrieval on a split: metrics, and what was retrieved."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ...storage.captions import read_captions
from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ..checkpoint import Run
from ..config import NEEDS_QUERIES
from ..data.coverage import measure
from ..data.pairs import Pairs, evenly, of_split, read_pairs, why_none
from ..metrics import count, retrieval_metrics
from ..objectives import OBJECTIVES
from ..runs import open_recordings
from ..scoring import StageScores, stage_scores
from .codewords import read_codebook
from .normalization import Normalized, normalization_errors, normalize
from .question import Answers, Question, split_checksum

GALLERY_QUERIES = 8
GALLERY_RESULTS = 5


def gallery(scores: np.ndarray, pairs: Pairs) -> list[dict[str, Any]]:
    """The best clips for a few captions of clips spread evenly over the split."""
    chosen = evenly(len(pairs.clips), GALLERY_QUERIES)
    queries = []
    for clip, captions in enumerate(pairs.captions_of_clips()):
        if clip not in chosen:
            continue
        row = scores[captions[0]]
        best = np.argsort(-row, kind="stable")[:GALLERY_RESULTS]
        queries.append(
            {
                "caption": pairs.captions[captions[0]].caption,
                "rank_of_right": int((row > row[clip]).sum()) + 1,
                "results": [{**vars(pairs.clips[i]), "score": float(row[i]), "right": bool(i == clip)} for i in best],
            }
        )
    return queries


def answers(scores: np.ndarray, pairs: Pairs) -> Iterator[dict[str, Any]]:
    """Each caption with its clip, that clip's rank (a tied one counts half), and the clip that came first."""
    right = pairs.clip_of_caption
    counts = count(lambda rows: scores[rows], scores[np.arange(len(right)), right], right, "average")
    for number, caption in enumerate(pairs.captions):
        best = int(scores[number].argmax())
        yield {
            "caption": caption.caption,
            "clip": vars(pairs.clips[right[number]]),
            "rank": 1 + counts.above[number].item() + counts.tied[number].item() / 2,
            "score": scores[number, right[number]].item(),
            "first": vars(pairs.clips[best]),
            "first_score": scores[number, best].item(),
        }


def stage_metrics(scores: StageScores, right: np.ndarray, question: Question) -> dict[str, dict[str, Any]]:
    """{stage: metrics of its score alone} (TACo's Table 11). Where not all pairs were fused, a late stage orders what was."""
    return {stage: ranked(scores.fused({stage: 1.0}), right, question.ties) for stage in scores.stages}


def ranked(fused: tuple[np.ndarray, np.ndarray], right: np.ndarray, ties: str) -> dict[str, Any]:
    """Metrics of ``StageScores.fused``."""
    by_caption, by_clip = fused
    metrics = retrieval_metrics(by_caption, right, ties)
    return (
        metrics
        if by_clip is by_caption
        else metrics | {"video_to_text": retrieval_metrics(by_clip, right, ties)["video_to_text"]}
    )


def normalized(scores: StageScores, right: np.ndarray, stage: str, question: Question) -> Normalized:
    """The fused scores, normalised as it was asked. Raises ``UserError`` where there is nothing to do it with.

    Training queries are known to the stage ``stage`` alone, by their vectors: NCL's biases are added to that part of the score.
    """
    by_caption, by_clip = scores.fused(question.weights)
    name, gamma, weight = question.normalize, question.temperature, question.weights.get(stage, 0.0)
    if name in NEEDS_QUERIES:
        if scores.queries is None or not len(scores.queries.texts):
            raise UserError(
                f"--normalize {name}: the run kept no training queries; train one with --normalized-loss, or pass another way"
            )
        others = [other for other, w in question.weights.items() if w and other != stage]
        if not weight or (others and name == "qbnorm"):
            alone = " ".join(f"--{other.removeprefix('fusion_')}-weight 0" for other in others)
            raise UserError(
                f"--normalize {name}: is for the {stage} score{f'; pass {alone}' if alone else ', which weighs 0'}"
            )
        own = scores.stages[stage]
        found = normalize(name, own, gamma, right, scores.queries)
        if not others:
            return found
        changed = by_caption + weight * (found.by_caption - own), by_clip + weight * (found.by_clip - own)
        return Normalized(*changed, found.notes)
    found = normalize(name, by_caption, gamma, right)
    return found if by_clip is by_caption else replace(found, by_clip=normalize(name, by_clip, gamma, right).by_clip)


def retrieve(run: Run, question: Question, problems: Problems) -> Answers:
    """Scores every caption of a split against every clip."""
    if question.rerank is not None and run.scorer.has_late and not run.scorer.has_early:
        raise UserError(
            f"--rerank {question.rerank}: {run.folder.name} was trained without an early loss that could find candidates"
        )
    recordings = open_recordings(run.dataset, run.config)
    usable = read_pairs(run.dataset, run.features, problems, recordings)
    pairs = usable[question.split]
    if not pairs.clips:
        there = ", ".join(name for name in usable if usable[name].clips)
        why = why_none(run.dataset, run.features, question.split, recordings)
        raise UserError(f"{run.dataset.captions}: {why}; pass another --split ({there})")
    if question.ties == "coot" and len(pairs.captions) != len(pairs.clips):
        raise UserError(
            f"--ties coot: is for one caption a clip; {question.split} has {len(pairs.captions):,} captions of {len(pairs.clips):,} clips"
        )
    scores = stage_scores(run.scorer, pairs.captions, pairs.clips, rerank=question.rerank, both_ways=True, show=True)
    right = pairs.clip_of_caption
    found = normalized(scores, right, OBJECTIVES[run.config.objective].stage, question)
    fused = found.by_caption, found.by_clip
    result = {
        **measure(
            of_split(read_captions(run.dataset.captions), question.split), pairs.captions, run.features, recordings
        ).result(),
        "split_checksum": split_checksum(pairs.captions),
        "ties": question.ties,
        "rerank": question.rerank if run.scorer.has_late else None,
        "weights": question.weights,
        "normalization": {
            "name": question.normalize,
            "temperature": question.temperature,
            "error": normalization_errors(*fused, question.temperature, right),
            "notes": found.notes,
        },
        "metrics": ranked(fused, right, question.ties),
        "stages": stage_metrics(scores, right, question),
    }
    codebook = None
    if run.config.objective == "cmcm" and run.config.codebook_size:
        codebook = read_codebook(run.scorer, pairs)
        result["codebook"] = codebook["sharing"] | {"table": codebook["table"]}
    return Answers(result, answers(fused[0], pairs), {"queries": gallery(fused[0], pairs), "codebook": codebook})

"""Asking a run for retrieval: scores, metrics, and the best clips of some captions."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypedDict

import numpy as np

from ...storage.captions.files import read_captions
from ...storage.common.errors import SettingError, UserError
from ...storage.common.problems import Problems
from ...storage.stores.store import Store
from ..data.coverage import measure, split_checksum
from ..data.pair_cache import read_pairs
from ..data.pairs import Pairs
from ..data.usable import of_split, why_none
from ..metrics import RECALL_AT, RetrievalMetrics
from ..runs.checkpoint import Run
from ..scoring.scores import StageScores, TotalScores
from .codewords import Codeword, Sharing, read_codebook
from .normalization import Normalized, normalize
from .query_list import list_queries
from .ranking import Ranked, Weightings, rank_split
from .retrieval_settings import DEPARTURES, NEEDS_QUERIES, RetrievalSettings
from .split_scores import split_scores
from .task import Question, TaskResult


class NormalizationFigures(TypedDict):
    """How scores were normalised."""

    name: str
    temperature: float
    error: dict[str, float]
    """``normalization_errors`` of both directions."""
    notes: list[str]


class CodebookFigures(Sharing):
    """How a split uses the codebook."""

    table: list[Codeword]


class FiguresOfCodebook(TypedDict, total=False):
    """Fields of ``metrics.json`` that only runs with a codebook have."""

    codebook: CodebookFigures


class RetrievalFigures(FiguresOfCodebook):
    """Fields of ``metrics.json``."""

    split_checksum: str
    ties: str
    rerank: int | None
    weights: dict[str, float]
    """{stage: weight in the fused score}"""
    normalization: NormalizationFigures
    metrics: RetrievalMetrics
    stages: dict[str, RetrievalMetrics]
    """{stage: metrics of its score alone}"""
    without: dict[str, float]
    """{stage: R@1, text to video, of the sum of the others}, if several have a weight and scores are not normalised."""


class QueryRow(TypedDict):
    """A line of ``queries.jsonl``."""

    caption: str
    clip: dict[str, str | float | None]
    """Video, start and end of the right clip."""
    rank: float
    """Rank of the right clip; a tie counts half."""
    score: float
    first: dict[str, str | float | None]
    """Video, start and end of the clip that ranks first."""
    first_score: float


def retrieve(run: Run, question: Question[RetrievalSettings], problems: Problems) -> TaskResult:
    """Score every caption of a split with every clip.

    Raises:
        UserError: The split has no captions that can be used, or a setting does not fit the run or the split.
    """
    settings = question.settings
    if settings.rerank is not None and not run.scorer.has_early:
        problem = f"{run.folder.name} was trained without an early loss, which finds the candidates"
        raise SettingError("rerank", settings.rerank, problem)
    recordings = run.stores.recordings
    pairs = _pairs_of_split(run, question, recordings, problems)
    scores = split_scores(run.scorer, pairs.captions, pairs.clips, rerank=settings.rerank, normalize=settings.normalize)
    normalized = None
    if isinstance(scores, StageScores) and settings.normalize != "none":
        normalized = normalized_scores(scores, pairs.clip_of_caption, run.config.objective.stage, question)
    weightings = Weightings(question.score_weights, _left_out(question), normalized)
    ranked = rank_split(scores, pairs, weightings, settings.ties, _temperature(settings))
    listed = of_split(read_captions(run.dataset.captions), question.split)
    figures = _figures(question, ranked, normalized, pairs)
    codebook = None
    if run.scorer.model.codebook is not None and run.scorer.model.codebook.size:
        codebook = read_codebook(run.scorer, pairs)
        figures["codebook"] = {**codebook["sharing"], "table": codebook["table"]}
    page = {
        "recall_at": RECALL_AT,
        "listed": list_queries(run, pairs, ranked.ranks, ranked.stage_ranks, ranked.found),
        "overview": ranked.overview,
        "codebook": codebook,
        "tried_weights": run.about["result"].get("stage_weights_tried", []),
    }
    return TaskResult(
        coverage=measure(listed, pairs.captions, run.features, recordings),
        figures=figures,
        rows=_rows(ranked, pairs),
        page=page,
    )


def _pairs_of_split(
    run: Run, question: Question[RetrievalSettings], recordings: Store | None, problems: Problems
) -> Pairs:
    usable = read_pairs(run.dataset, run.features, problems, recordings)
    pairs = usable[question.split]
    if not pairs.clips:
        others = ", ".join(name for name in usable if usable[name].clips)
        why = why_none(run.dataset, run.features, question.split, recordings)
        raise UserError(f"{run.dataset.captions}: {why}; pass another split ({others})")
    if question.settings.ties == "coot" and len(pairs.captions) != len(pairs.clips):
        counts = f"{len(pairs.captions):,} captions of {len(pairs.clips):,} clips"
        problem = f"needs exactly one caption for each clip; the {question.split} split has {counts}"
        raise SettingError("ties", "coot", problem)
    return pairs


def _figures(
    question: Question[RetrievalSettings], ranked: Ranked, normalized: Normalized | None, pairs: Pairs
) -> RetrievalFigures:
    settings = question.settings
    return {
        "split_checksum": split_checksum(pairs.captions),
        "ties": settings.ties,
        "rerank": settings.rerank,
        "weights": dict(question.score_weights),
        "normalization": {
            "name": settings.normalize,
            "temperature": _temperature(settings),
            "error": ranked.error,
            "notes": [*DEPARTURES.get(settings.normalize, []), *(normalized.notes if normalized else [])],
        },
        "metrics": ranked.metrics,
        "stages": ranked.stages,
        "without": ranked.without,
    }


def _left_out(question: Question[RetrievalSettings]) -> list[str]:
    """Return the stages without which the split is ranked, too."""
    weighted = [stage for stage, weight in question.score_weights.items() if weight]
    return weighted if len(weighted) > 1 and question.settings.normalize == "none" else []


def _temperature(settings: RetrievalSettings) -> float:
    if settings.temperature is None:
        raise ValueError("settings without a temperature: pass what Retrieval.resolve returned")
    return settings.temperature


def normalized_scores(
    scores: StageScores, clip_of_caption: np.ndarray, stage: str, question: Question[RetrievalSettings]
) -> Normalized:
    """Return the fused scores, normalised as the question says.

    Args:
        scores: Of all stages.
        clip_of_caption: [num_captions], index of the right clip.
        stage: The stage whose vectors of training queries the run keeps. NCL's biases are added to its part of the
            score.
        question: What is asked.

    Raises:
        SettingError: The run has no training queries, or other stages are part of the score.
    """
    total = scores.fused(question.score_weights)
    name, temperature = question.settings.normalize, _temperature(question.settings)
    if name in NEEDS_QUERIES:
        return _normalized_by_queries(scores, clip_of_caption, stage, question, total)
    normalized = normalize(name, total.by_caption, temperature, clip_of_caption)
    if total.by_clip is total.by_caption:
        return normalized
    return replace(normalized, by_clip=normalize(name, total.by_clip, temperature, clip_of_caption).by_clip)


def _normalized_by_queries(
    scores: StageScores,
    clip_of_caption: np.ndarray,
    stage: str,
    question: Question[RetrievalSettings],
    total: TotalScores,
) -> Normalized:
    name, weight = question.settings.normalize, question.score_weights.get(stage, 0.0)
    if scores.queries is None or not len(scores.queries.texts):
        problem = "the run kept no training queries; train one with --normalized-loss, or pass another way"
        raise SettingError("normalize", name, problem)
    others = [other for other, w in question.score_weights.items() if w and other != stage]
    if not weight or (others and name == "qbnorm"):
        fix = f"set the weight of {', '.join(others)} to 0" if others else f"give {stage} a weight"
        raise SettingError("normalize", name, f"applies to the {stage} score alone; {fix}")
    before = scores.stages[stage]
    normalized = normalize(name, before, _temperature(question.settings), clip_of_caption, scores.queries)
    if not others:
        return normalized
    return Normalized(
        total.by_caption + weight * (normalized.by_caption - before),
        total.by_clip + weight * (normalized.by_clip - before),
        normalized.notes,
    )


def _rows(ranked: Ranked, pairs: Pairs) -> Iterator[QueryRow]:
    """Yield each caption with its clip, that clip's rank (a tie counts half), and the clip that ranks first."""
    first = ranked.first
    for index, caption in enumerate(pairs.captions):
        yield {
            "caption": caption.caption,
            "clip": vars(pairs.clips[pairs.clip_of_caption[index]]),
            "rank": ranked.ranks[index].item(),
            "score": first.right_scores[index].item(),
            "first": vars(pairs.clips[int(first.clips[index])]),
            "first_score": first.scores[index].item(),
        }

"""Retrieval: rank the clips of a split for each caption, and the captions for each clip."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

import numpy as np

from ...storage.captions.files import read_captions
from ...storage.common.errors import SettingError, UserError, refuse_unreadable
from ...storage.common.problems import Problems
from ...storage.common.settings import Settings, setting
from ...storage.common.terminal import say
from ...storage.records import Caption
from ..data.clips import Clip, evenly
from ..metrics import MEASURES, RECALL_AT, TIES, RetrievalMetrics
from ..recipes.train_config import TrainConfig
from ..scoring.scores import Scores, StageScores
from .own_metrics import OwnMetrics, own_metrics
from .task import EvaluationRequest, Metrics, Task, TaskResult

if TYPE_CHECKING:
    from ...storage.stores.store import Store
    from ..data.pairs import Pairs
    from ..runs.load import Run
    from ..scoring.scorer import Scorer
    from .embedding_space import Similarities
    from .normalization import Biases, Normalized
    from .ranking import RankedQueries, SplitRanking
    from .representation import FalseRates, QueueSize

MAX_BYTES = 2 << 30
"""Upper limit of the bytes of all stages' scores in memory."""
NUM_TIMED = 64
"""Number of captions, and of clips, whose pairs are fused to estimate how long all pairs will take."""
LONG_SECONDS = 600
USUAL_RERANK = 100
NORMALIZATIONS = {
    "none": "scores as they are",
    "ncl": "inductive: NCL's biases, from training queries that the run saved (its section 3.4)",
    "ncl-tuned": "inductive: the same biases with a strength chosen on the training queries, and none where the "
    "test queries speak against them (ours)",
    "ncl-oracle": "transductive: NCL's biases, from the test queries and the number of captions of each clip "
    "(NCL's upper bound)",
    "dsl": "transductive: CAMoE's dual softmax over all queries of the split",
    "qbnorm": "inductive: QB-Norm's dynamic inverted softmax, over training queries that the run saved",
}
"""Ways to normalise scores before they are ranked: {name: description}."""
NEEDS_QUERIES = ("ncl", "ncl-tuned", "qbnorm")
"""Normalisations that need the training queries that a run saved."""
USUAL_DRAWS = {"smit": 5}
"""{data set: number of random draws of test clips over which its papers report means}: Spoken Moments, section 5.1;
CMCM, section 4.1."""


class NormalizationResult(TypedDict):
    """How scores were normalised."""

    name: str
    temperature: float
    num_queries: int
    """Number of saved training queries of each direction that the normalisation uses; 0 if it uses none."""
    error: dict[str, float]
    """``normalization_error`` of both directions (NCL, Figure 2)."""
    error_before: dict[str, float]
    """The same error for the original scores."""
    false_rates: list[FalseRates]
    """By clips' sums of retrieval probabilities, for the original scores, text to video (NCL, Figure 3)."""
    queue_sizes: list[QueueSize]
    """R@1 with the biases of fewer training queries (NCL, Figure 5); empty for normalisations other than "ncl"."""
    notes: list[str]


class DrawResults(TypedDict):
    """Metrics of random draws of a split's clips, each ranked alone."""

    number: int
    size: int
    """Number of clips of a draw."""
    metrics: RetrievalMetrics
    """Means over the draws."""
    deviation: dict[str, dict[str, float]]
    """{direction: {metric: sample standard deviation over the draws}}; 0 for a single draw."""
    each: list[RetrievalMetrics]
    """Metrics of draw 1, 2, ..."""


class UnknownWords(TypedDict):
    """Captions with words that are not in the run's vocabulary."""

    captions: int
    """The number of them."""
    example: str
    """One of the words."""
    note: str
    """Treatment of such words."""


class OptionalResults(TypedDict, total=False):
    """Fields of ``metrics.json`` that not all evaluations have."""

    codebook: Mapping[str, Any]
    """Only of runs with a codebook: ``codewords.Sharing``, with the ``table`` of all ``codewords.Codeword``."""
    own_metrics: OwnMetrics
    """Custom metrics; empty without any."""
    draws: DrawResults
    """Only with ``RetrievalSettings.draws``."""
    unknown_words: UnknownWords
    """Only of runs with a vocabulary that lacks some."""


class RetrievalResults(OptionalResults):
    """Fields of ``metrics.json``."""

    split_checksum: str
    ties: str
    rerank: int | None
    weights: dict[str, float]
    """{stage: weight in the fused score}"""
    normalization: NormalizationResult
    similarities: Similarities | None
    """Mean cosines within and across captions and clips (NCL, Figure 8)."""
    metrics: RetrievalMetrics
    intervals: dict[str, dict[str, list[float]]]
    """{direction: {metric: both ends of its 95 % interval over videos}}"""
    stages: dict[str, RetrievalMetrics]
    """{stage: metrics of its score alone}"""
    without: dict[str, float]
    """{stage: R@1, text to video, of the sum of the others}, if several have a weight and scores are not normalised."""


class FoundClip(TypedDict):
    """A clip that a caption found."""

    video_id: str
    start_seconds: float | None
    end_seconds: float | None
    score: float


class QueryRow(TypedDict):
    """A line of ``queries.jsonl``: a caption. Lines of earlier versions lack ``direction`` and ``found``."""

    direction: Literal["text_to_video"]
    caption: str
    clip: dict[str, str | float | None]
    """Video, start and end of the right clip."""
    rank: float
    """Rank of the right clip; a tie counts half."""
    score: float
    first: dict[str, str | float | None]
    """Video, start and end of the clip that ranks first."""
    first_score: float
    found: list[FoundClip]
    """The best clips, at most ten."""


class FoundCaption(TypedDict):
    """A caption that a clip found."""

    caption: str
    clip: dict[str, str | float | None]
    """Video, start and end of the caption's own clip."""
    score: float


class ClipRow(TypedDict):
    """A line of ``queries.jsonl`` for a clip, after the captions' lines."""

    direction: Literal["video_to_text"]
    clip: dict[str, str | float | None]
    """Video, start and end."""
    rank: float
    """Rank of the clip's best caption; a tie counts half."""
    score: float
    """Score of that caption."""
    found: list[FoundCaption]
    """The best captions, at most ten."""


@dataclass(frozen=True, kw_only=True)
class RetrievalSettings(Settings):
    """Settings of scoring and ranking."""

    ties: str = setting("average", "how ties between equal scores are counted", choices=TIES)
    rerank: int | None = setting(
        None,
        "the fusion layers score only the K best clips of each caption, and the K best captions of each clip "
        "(default: all pairs)",
        ge=1,
        metavar="K",
    )
    normalize: str | None = setting(
        None,
        "how scores are normalised before they are ranked (default: as in the run's paper: ncl for a run of "
        "objective ncl with --normalized-loss, else none)",
        choices=NORMALIZATIONS,
    )
    temperature: float | None = setting(
        None,
        "temperature that turns scores into probabilities, for --normalize (default: the run's own)",
        gt=0,
        metavar="T",
    )
    draws: int | None = setting(
        None,
        "report mean metrics of this many random draws of --draw-size clips, each ranked alone; 0: all "
        "clips are ranked together (default: 5 for the test split of smit, as in its papers, and 0 for others)",
        ge=0,
    )
    draw_size: int = setting(1000, "clips of a draw", ge=2)


class Retrieval(Task[RetrievalSettings]):
    """Retrieval of clips by caption, and of captions by clip.

    ``metrics.json`` has the ``metrics`` of both directions (``RetrievalMetrics``), their 95 % ``intervals`` over videos
    ({direction: {metric: [low, high]}}), the metrics of each of the ``stages`` alone, R@1 ``without`` each stage, the
    ``weights`` of the stages, ``ties``, ``rerank`` and ``normalization`` (name, temperature, number of training
    queries, error of both directions and notes); for a run with a codebook also ``codebook``; for a run with a
    vocabulary ``unknown_words`` if captions have any (``captions``, ``example`` and ``note``); with custom metrics also
    ``own_metrics``, {metric: {name: value}}; with draws also ``draws`` (``DrawResults``): the ``table_metrics`` are
    then the means over the draws.
    """

    name = "retrieval"
    description = "text-to-video and video-to-text"
    settings_type = RetrievalSettings
    main_metrics = ("R@1", "R@5", "R@10", "median rank", "video to text R@1")
    takes_metrics = True
    saves_scores = True

    def page_functions(self) -> Mapping[str, Callable[..., Any]]:
        """Return the functions that draw the figures."""
        from . import normalization_figures
        from .codeword_figures import codebook_figures, grid_figure, spectrogram_figure
        from .retrieval_figures import hubness_figure, matrix_figure, weights_figure

        return {
            "codebook_figures": codebook_figures,
            "grid_figure": grid_figure,
            "hubness_figure": hubness_figure,
            "matrix_figure": matrix_figure,
            "weights_figure": weights_figure,
            "spectrogram_figure": spectrogram_figure,
            "errors_figure": normalization_figures.errors_figure,
            "rates_figure": normalization_figures.rates_figure,
            "queue_figure": normalization_figures.queue_figure,
            "space_figure": normalization_figures.space_figure,
            "similarities_figure": normalization_figures.similarities_figure,
        }

    def resolve(self, settings: RetrievalSettings, config: TrainConfig, run_name: str) -> RetrievalSettings:
        """Fill in the run's temperature, unless it is learned, and how its paper normalises scores.

        Raises:
            SettingError: ``rerank`` is set, and the run has no fusion layers.
        """
        if settings.rerank is not None and not config.has_fusion:
            problem = f"has no effect: run {run_name} (objective {config.objective.name}) has no fusion layers"
            raise SettingError("rerank", settings.rerank, f"{problem}; omit it")
        temperature = settings.temperature
        if temperature is None and not config.objective.learns_temperature:
            temperature = config.objective.temperature
        normalize = config.objective.normalization if settings.normalize is None else settings.normalize
        return replace(settings, temperature=temperature, normalize=normalize)

    def request_of(self, metrics: Metrics) -> Mapping[str, Any]:
        """Return the request of ``metrics.json``. The "ncl" of version 1.0.0 is now called "ncl-tuned"."""
        request, about = super().request_of(metrics), metrics.get("normalization")
        is_old = isinstance(about, Mapping) and about.get("name") == "ncl" and "num_queries" not in about
        return {**request, "normalize": "ncl-tuned"} if is_old else request

    def evaluate(self, run: Run, request: EvaluationRequest[RetrievalSettings], problems: Problems) -> TaskResult:
        """Score every caption of a split with every clip, and rank both ways.

        Raises:
            UserError: The split has no captions that can be used, or a setting does not fit the run or the split.
        """
        from ..data.usable_captions import captions_of_split
        from .codewords import read_codebook
        from .coverage import split_coverage
        from .embedding_space import project
        from .query_list import list_queries
        from .representation import examples

        settings = request.settings
        if settings.temperature is None:  # the run has learned it
            temperature = run.config.objective.temperature_of(run.scorer.model)
            settings = replace(settings, temperature=temperature)
            request = replace(request, settings=settings)
        if settings.rerank is not None and not run.scorer.has_early:
            problem = f"run {run.folder.name} was trained without an early loss, which finds the candidates"
            raise SettingError("rerank", settings.rerank, problem)
        recordings = run.stores.recordings
        pairs = _pairs_of_split(run, request, recordings, problems)
        num_draws = _num_draws(run, request, len(pairs.clips))
        ranked = _rank(run, request, pairs)
        ranking, normalized = ranked.ranking, ranked.normalized
        listed = captions_of_split(read_captions(run.dataset.captions), request.split)
        metrics = _metrics(request, ranked, _about_normalization(run, request, ranked, pairs), pairs)
        saved = None
        if request.metrics or request.save_scores:
            assert isinstance(ranked.scores, StageScores)  # score_split refuses others
            total = ranked.scores.by_caption(request.score_weights)
            total = normalized.rows(slice(None), total) if normalized else total
            if request.metrics:
                metrics["own_metrics"] = own_metrics(request.metrics, total, pairs.clip_of_caption)
            if request.save_scores:
                saved = {
                    "similarity": total,
                    "text_to_video": pairs.clip_of_caption,
                    "video_of_clip": pairs.clips.video,
                }
        if num_draws:
            drawn = (draw_pairs(pairs, settings.draw_size, number) for number in range(1, num_draws + 1))
            metrics["draws"] = _draw_results([_rank(run, request, each).ranking.metrics for each in drawn], settings)
        if (unknown := _unknown_words(run, pairs)) is not None:
            metrics["unknown_words"] = unknown
        codebook = None
        if run.scorer.model.codebook is not None and run.scorer.model.codebook.size:
            codebook = read_codebook(run.scorer, pairs, run.dataset.word_times)
            metrics["codebook"] = {**codebook["sharing"], "table": codebook["table"]}

        def make_page() -> dict[str, object]:
            return {
                "recall_at": RECALL_AT,
                "listed": list_queries(run, pairs, ranking.captions.ranks, ranking.stage_ranks, ranking.captions.found),
                "overview": ranking.overview,
                "examples": examples(ranking.retrieved_before, ranking.retrieved, pairs) if normalized else [],
                "space": project(vectors) if (vectors := ranked.scores.vectors) is not None else None,
                "codebook": codebook,
                "tried_weights": run.about["result"].get("stage_weights_tried", []),
            }

        return TaskResult(
            coverage=split_coverage(listed, pairs.captions, run.features, recordings),
            metrics=metrics,
            rows=_rows(ranking, pairs),
            page=make_page,
            scores=saved,
        )

    def table_metrics(self, metrics: Metrics) -> Mapping[str, float]:
        """Return the metrics of both directions; the names of video-to-text metrics include the direction.

        With draws, they are the means over the draws.
        """
        return _table_metrics(metrics.get("draws", metrics)["metrics"])

    def stage_metrics(self, metrics: Metrics) -> Mapping[str, Mapping[str, float]]:
        """Return the metrics of each stage alone."""
        return {stage: _table_metrics(metrics) for stage, metrics in metrics["stages"].items()}

    def summary(self, metrics: Metrics) -> Iterator[str]:
        """Yield the tables of metrics and stages, and the treatment of the scores."""
        if draws := metrics.get("draws"):
            yield f"mean of {draws['number']} random draws of {draws['size']:,} clips:"
            yield metrics_table(draws["metrics"])
            yield "standard deviation over the draws:"
            yield deviation_table(draws["deviation"])
            yield "all clips together:"
        yield metrics_table(metrics["metrics"], metrics.get("intervals"))
        if unknown := metrics.get("unknown_words"):
            yield (
                f"note: {unknown['captions']:,} captions have a word that is not in the run's vocabulary, such as "
                f"{unknown['example']!r}; {unknown['note']}"
            )
        if len(metrics["stages"]) > 1:
            yield stages_table(metrics["stages"], metrics["weights"], metrics["rerank"])
        yield from _normalization_lines(metrics["normalization"])
        if codebook := metrics.get("codebook"):
            shared = f"{100 * codebook['joint']:.0f} % by both clips and captions"
            in_use = f"{codebook['live']:,} of {codebook['size']:,} codewords in use"
            yield f"codebook: {in_use}, {shared}; the report shows their meanings"
        yield f"ties: {metrics['ties']}; checksum of the split's clips and captions: {metrics['split_checksum']}"


def _table_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    text_to_video, video_to_text = metrics["text_to_video"], metrics["video_to_text"]
    measures: dict[str, float] = {}
    for name in MEASURES:
        if name not in text_to_video or name not in video_to_text:  # earlier versions had fewer
            continue
        label = name.replace("_", " ")
        measures[label] = text_to_video[name]
        measures[f"video to text {label}"] = video_to_text[name]
        measures[f"mean of both {label}"] = (text_to_video[name] + video_to_text[name]) / 2
    return measures


def metrics_table(metrics: Mapping[str, Any], intervals: Mapping[str, Any] | None = None) -> str:
    """Return a table of ``RetrievalMetrics``: a row for each direction, with its 95 % intervals and chance below it."""
    lines = [_header("") + f"{'tied':>8}"]
    for direction in ("text_to_video", "video_to_text"):
        row = metrics[direction]
        lines.append(_row(direction.replace("_", " "), row) + f"{row['num_tied']:>8,}")
        if intervals is not None:
            ends = {name: f"{low:.1f}-{high:.1f}" for name, (low, high) in intervals[direction].items()}
            lines.append(f"{'  95 % interval':<16}" + "".join(f"{ends.get(name, '-'):>12}" for name in MEASURES))
        lines.append(_row("  chance", row["chance"]))
    if intervals is not None:
        lines.append("95 % interval: expected range for other test sets of this size; queries are grouped by video")
    return "\n".join(lines)


def deviation_table(deviation: Mapping[str, Mapping[str, float]]) -> str:
    """Return a table of ``DrawResults.deviation``: a row for each direction."""
    rows = [_row(direction.replace("_", " "), row) for direction, row in deviation.items()]
    return "\n".join([_header(""), *rows])


def stages_table(stages: Mapping[str, Any], weights: Mapping[str, float], rerank: int | None) -> str:
    """Return a table of the text-to-video metrics of each stage of the score alone (TACo's Table 11).

    Args:
        stages: {stage: ``RetrievalMetrics``}
        weights: {stage: weight in the fused score}
        rerank: Number of candidates that the fusion layers scored, or None for all.
    """
    lines = [_header("alone") + f"{'weight':>8}"]
    for stage, metrics in stages.items():
        label = stage.replace("_", " ") + (f" of {rerank}" if rerank and stage.startswith("fusion") else "")
        lines.append(_row(label, metrics["text_to_video"]) + f"{weights.get(stage, 0):>8g}")
    return "\n".join(lines)


def _header(label: str) -> str:
    return f"{label:<16}" + "".join(f"{name.replace('_', ' '):>12}" for name in MEASURES)


def _row(label: str, values: Mapping[str, float]) -> str:
    cells = (f"{values[name]:.1f}" if name in values else "-" for name in MEASURES)  # earlier versions had fewer
    return f"{label:<16}" + "".join(f"{cell:>12}" for cell in cells)


def _normalization_lines(about: Mapping[str, Any]) -> Iterator[str]:
    name, errors = about["name"], about["error"]
    if name != "none":
        yield f"normalised by {name}, {NORMALIZATIONS[name]}"
    for note in about["notes"]:
        yield f"note: {note}"
    both = f"{errors['text_to_video']:.4f} text to video, {errors['video_to_text']:.4f} video to text"
    yield f"normalisation error at temperature {about['temperature']:g}: {both}"


def _pairs_of_split(
    run: Run, request: EvaluationRequest[RetrievalSettings], recordings: Store | None, problems: Problems
) -> Pairs:
    from ..data.pairs import read_pairs
    from ..data.text_inputs import report_cut_recordings
    from ..data.usable_captions import why_split_is_unusable

    usable = read_pairs(run.dataset, run.features, problems, recordings)
    pairs = usable[request.split]
    if not pairs.clips:
        others = ", ".join(name for name in usable if usable[name].clips)
        why = why_split_is_unusable(run.dataset, run.features, request.split, recordings)
        raise UserError(f"{run.dataset.captions}: {why}; pass another split ({others})")
    if recordings is not None:
        report_cut_recordings(pairs.captions, recordings, run.config.data.max_text_tokens)
    if request.settings.ties == "coot" and len(pairs.captions) != len(pairs.clips):
        counts = f"{len(pairs.captions):,} captions of {len(pairs.clips):,} clips"
        problem = (
            f"needs exactly one caption for each clip, but the {request.split} split has {counts}; choose another value"
        )
        raise SettingError("ties", "coot", problem)
    return pairs


def _num_draws(run: Run, request: EvaluationRequest[RetrievalSettings], num_clips: int) -> int:
    """Return the number of random draws of the split; 0 for none.

    Raises:
        SettingError: The split has too few clips for the requested draws, or a draw size has no effect.
    """
    draws, size = request.settings.draws, request.settings.draw_size
    usual = USUAL_DRAWS.get(run.dataset.name, 0) if request.split == "test" else 0
    if not (usual if draws is None else draws) and size != RetrievalSettings.draw_size:
        raise SettingError("draw_size", size, "has no effect without draws; pass --draws also, or omit it")
    if draws is None:
        return usual if num_clips > size else 0
    if draws and num_clips <= size:
        problem = f"the {request.split} split has only {num_clips:,} usable clips; pass a --draw-size below that"
        raise SettingError("draws", draws, f"{problem}, or omit it")
    return draws


def draw_pairs(pairs: Pairs, size: int, number: int) -> Pairs:
    """Return a random draw of a split's clips, with all captions of each.

    The order of the list does not matter, nor which other clips there are: a clip's place in the draw follows from a
    hash of it and the draw's number.

    Args:
        pairs: Clips and captions of the split.
        size: Number of clips to draw.
        number: The draw, 1 or more; the same number draws the same clips.
    """
    from ..data.pairs import make_pairs

    def place(index: int) -> bytes:
        return hashlib.sha256(f"{number}:{pairs.clips[index].clip_id}".encode()).digest()

    drawn = sorted(range(len(pairs.clips)), key=place)[:size]
    return make_pairs(pairs.captions.take(np.flatnonzero(np.isin(pairs.clip_of_caption, drawn))))


def _draw_results(each: list[RetrievalMetrics], settings: RetrievalSettings) -> DrawResults:
    """Return the means and deviations of the metrics of all draws."""
    mean: Any = {way: {**each[0][way]} for way in ("text_to_video", "video_to_text")}
    deviation: dict[str, dict[str, float]] = {}
    for way, row in mean.items():
        values: Any = {name: [draw[way][name] for draw in each] for name in MEASURES}
        row |= {name: float(np.mean(of_draws)) for name, of_draws in values.items()}
        row["num_tied"] = sum(draw[way]["num_tied"] for draw in each)
        spread = {name: float(np.std(of_draws, ddof=1)) if len(each) > 1 else 0.0 for name, of_draws in values.items()}
        deviation[way] = spread
    return {
        "number": len(each),
        "size": settings.draw_size,
        "metrics": mean,
        "deviation": deviation,
        "each": each,
    }


@dataclass(frozen=True)
class _Ranked:
    """Pairs that were scored and ranked."""

    scores: Scores
    normalized: Normalized | Biases | None
    ranking: SplitRanking


def _rank(run: Run, request: EvaluationRequest[RetrievalSettings], pairs: Pairs) -> _Ranked:
    """Score every caption with every clip, and rank both ways. Raises ``UserError`` if a score is NaN."""
    from .ranking import Weightings, rank_split

    settings, normalized = request.settings, None
    scores = score_split(
        run.scorer,
        pairs.captions,
        pairs.clips,
        rerank=settings.rerank,
        normalize=_normalization(settings),
        metrics=[metric.text for metric in request.metrics],
        save=request.save_scores,
    )
    if settings.normalize != "none":
        normalized = normalized_scores(scores, pairs.clip_of_caption, run.config.objective.vector_score, request)
    weightings = Weightings(request.score_weights, _stages_to_omit(request), normalized)
    with refuse_unreadable(run.folder, "its model gives no scores for these features", errors=(ValueError,)):
        ranking = rank_split(scores, pairs, weightings, settings.ties, _temperature(settings))
    return _Ranked(scores, normalized, ranking)


def score_split(
    scorer: Scorer,
    captions: Sequence[Caption],
    clips: Sequence[Clip],
    *,
    rerank: int | None,
    normalize: str,
    metrics: Sequence[str] = (),
    save: bool = False,
) -> Scores:
    """Score every caption with every clip, in memory if they fit.

    Args:
        scorer: The model and its inputs.
        captions: Rows of the scores.
        clips: Columns of the scores.
        rerank: Number of best clips of each caption, and of best captions of each clip, that the fusion layers score.
            None: all.
        normalize: How scores will be normalised; anything but "none" and "ncl" needs all of them in memory.
        metrics: Custom metrics, which also need all scores in memory.
        save: Whether the scores will be saved, which also needs all of them in memory.

    Raises:
        SettingError: The scores do not fit into memory, and cannot be computed in parts.
    """
    from ..scoring.scorer import TiledScores, stage_scores

    num_pairs = len(captions) * len(clips)
    num_bytes = num_pairs * len(scorer.config.score_weights) * np.dtype(np.float32).itemsize
    if num_bytes <= MAX_BYTES:
        if scorer.has_late and rerank is None:
            _report_duration(scorer, captions, clips)
        return stage_scores(scorer, captions, clips, rerank=rerank, both_ways=True, show_progress=True)
    size = f"the scores of {num_pairs:,} pairs take {num_bytes / 1e9:,.0f} GB, too much for memory"
    if normalize not in ("none", "ncl"):
        raise SettingError("normalize", normalize, f"{size} (limit: {MAX_BYTES / 1e9:.0f} GB); omit it")
    if metrics:
        raise SettingError("metric", metrics[0], f"{size} (limit: {MAX_BYTES / 1e9:.0f} GB); omit it")
    if save:
        raise SettingError("save_scores", True, f"{size} (limit: {MAX_BYTES / 1e9:.0f} GB); omit it")
    if scorer.has_late and rerank is None:
        fix = (
            f"pass {USUAL_RERANK}, for the fusion layers to score only the best {USUAL_RERANK}"
            if scorer.has_early
            else "evaluate on a smaller split"
        )
        raise SettingError("rerank", "is missing", f"{size}; {fix}")
    return TiledScores(scorer, captions, clips, rerank=rerank if scorer.has_late else None)


def _unknown_words(run: Run, pairs: Pairs) -> UnknownWords | None:
    """Return the number of captions with a word outside of a learned vocabulary, and the treatment of such words."""
    from ..data.text_inputs import WordIdInputs, WordSentenceInputs

    inputs = run.scorer.text_inputs
    if not isinstance(inputs, WordIdInputs):
        return None
    unknown = [words[0] for text in pairs.captions.texts() if (words := inputs.unknown_words(text))]
    if not unknown:
        return None
    note = "only the text encoder reads it"
    solved = getattr(run.scorer.model, "solved", None)
    if not isinstance(inputs, WordSentenceInputs) or solved is None or not float(solved.sentence_share):
        note = "it is ignored (a run with --text-encoder FOLDER reads it)"
    return {"captions": len(unknown), "example": unknown[0], "note": note}


def _report_duration(scorer: Scorer, captions: Sequence[Caption], clips: Sequence[Clip]) -> None:
    """Print how long fusing all pairs will take, if it is long, and a faster way."""
    from ..scoring.scorer import stage_scores

    num_pairs = len(captions) * len(clips)
    if num_pairs < 100 * NUM_TIMED**2:
        return
    some_captions = [captions[i] for i in evenly(len(captions), NUM_TIMED)]
    some_clips = [clips[i] for i in evenly(len(clips), NUM_TIMED)]
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


def normalized_scores(
    scores: Scores, clip_of_caption: np.ndarray, stage: str, request: EvaluationRequest[RetrievalSettings]
) -> Normalized | Biases:
    """Return the fused scores, normalised as the request says, or the biases that normalise them.

    Args:
        scores: Of all stages; in memory, except for "ncl".
        clip_of_caption: [num_captions], index of the right clip.
        stage: The stage for which the run saved the vectors of training queries. NCL's biases are added to its part
            of the score.
        request: The settings, and the weights of the stages.

    Raises:
        SettingError: The run has no training queries, or other stages are part of the score.
    """
    from .normalization import normalize, training_biases

    name, temperature = _normalization(request.settings), _temperature(request.settings)
    if name in NEEDS_QUERIES:
        _check_stage(name, stage, request.score_weights)
        queries = scores.queries
        if queries is None or not queries.num_queries:
            problem = (
                "the run saved no training queries; train one with --normalized-loss, or pass another normalization"
            )
            raise SettingError("normalize", name, problem)
        if name == "ncl":
            return training_biases(queries, temperature, weight=request.score_weights[stage])
        assert isinstance(scores, StageScores)  # score_split refuses others
        return _normalized_stage(scores, clip_of_caption, stage, request)
    assert isinstance(scores, StageScores)
    total = scores.fused(request.score_weights)
    normalized = normalize(name, total.by_caption, temperature, clip_of_caption)
    if total.by_clip is total.by_caption:
        return normalized
    return replace(normalized, by_clip=normalize(name, total.by_clip, temperature, clip_of_caption).by_clip)


def _check_stage(name: str, stage: str, weights: Mapping[str, float]) -> None:
    """Raise ``SettingError`` if a score cannot be normalised by the training queries of one of its stages."""
    others = [other for other, weight in weights.items() if weight and other != stage]
    if not weights.get(stage) or (others and name == "qbnorm"):
        fix = f"set the weight of {', '.join(others)} to 0" if others else f"give {stage} a weight"
        raise SettingError("normalize", name, f"applies only to the {stage} score; {fix}")


def _normalized_stage(
    scores: StageScores, clip_of_caption: np.ndarray, stage: str, request: EvaluationRequest[RetrievalSettings]
) -> Normalized:
    """Return the fused scores, with the part of one stage normalised."""
    from .normalization import Normalized, normalize

    name, temperature = _normalization(request.settings), _temperature(request.settings)
    total, weight, before = scores.fused(request.score_weights), request.score_weights[stage], scores.stages[stage]
    normalized = normalize(name, before, temperature, clip_of_caption, scores.queries)
    if not any(w for other, w in request.score_weights.items() if other != stage):
        return normalized
    return Normalized(
        total.by_caption + weight * (normalized.by_caption - before),
        total.by_clip + weight * (normalized.by_clip - before),
        normalized.notes,
    )


def _about_normalization(
    run: Run, request: EvaluationRequest[RetrievalSettings], ranked: _Ranked, pairs: Pairs
) -> NormalizationResult:
    from .representation import false_rates, queue_sizes

    name, objective, queries = _normalization(request.settings), run.config.objective, ranked.scores.queries
    ranking, temperature = ranked.ranking, _temperature(request.settings)
    sizes: list[QueueSize] = []
    if name == "ncl" and queries is not None and isinstance(ranked.scores, StageScores):
        scores = ranked.scores.stages[objective.vector_score]
        sizes = queue_sizes(scores, queries, temperature, pairs.clip_of_caption)
    notes = [] if ranked.normalized is None else ranked.normalized.notes
    if name == "none" and objective.normalization != "none":
        notes = [f"not normalised, unlike in the paper of objective {objective.name}: omit --normalize none"]
    return {
        "name": name,
        "temperature": temperature,
        "num_queries": queries.num_queries if queries is not None and name in NEEDS_QUERIES else 0,
        "error": ranking.error,
        "error_before": ranking.error_before,
        "false_rates": false_rates(ranking.retrieved_before, pairs),
        "queue_sizes": sizes,
        "notes": notes,
    }


def _stages_to_omit(request: EvaluationRequest[RetrievalSettings]) -> list[str]:
    """Return the stages that are also left out of the ranking, one at a time."""
    weighted = [stage for stage, weight in request.score_weights.items() if weight]
    return weighted if len(weighted) > 1 and request.settings.normalize == "none" else []


def _normalization(settings: RetrievalSettings) -> str:
    if settings.normalize is None:
        raise ValueError("settings without a normalisation: pass the settings that Retrieval.resolve returned")
    return settings.normalize


def _temperature(settings: RetrievalSettings) -> float:
    if settings.temperature is None:
        raise ValueError("settings without a temperature: pass the settings that Retrieval.resolve returned")
    return settings.temperature


def _metrics(
    request: EvaluationRequest[RetrievalSettings],
    ranked: _Ranked,
    normalization: NormalizationResult,
    pairs: Pairs,
) -> RetrievalResults:
    from .coverage import split_checksum
    from .embedding_space import mean_similarities

    settings, ranking, vectors = request.settings, ranked.ranking, ranked.scores.vectors
    return {
        "split_checksum": split_checksum(pairs.captions),
        "ties": settings.ties,
        "rerank": settings.rerank,
        "weights": dict(request.score_weights),
        "normalization": normalization,
        "similarities": None if vectors is None else mean_similarities(vectors),
        "metrics": ranking.metrics,
        "intervals": {way: {name: list(ends) for name, ends in of.items()} for way, of in ranking.intervals.items()},
        "stages": ranking.stages,
        "without": ranking.without,
    }


def _rows(ranking: SplitRanking, pairs: Pairs) -> Iterator[QueryRow | ClipRow]:
    """Yield the captions and then the clips, each with its rank (a tie counts half) and its best candidates."""
    clips = [vars(clip) for clip in pairs.clips]
    for index, caption in enumerate(pairs.captions):
        found = _found_by(ranking.captions, index)
        yield {
            "direction": "text_to_video",
            "caption": caption.caption,
            "clip": clips[pairs.clip_of_caption[index]],
            "rank": ranking.captions.ranks[index].item(),
            "score": ranking.captions.right_scores[index].item(),
            "first": clips[found[0][0]],
            "first_score": found[0][1],
            "found": [cast("FoundClip", {**clips[clip], "score": score}) for clip, score in found],
        }
    texts = [caption.caption for caption in pairs.captions]
    for index, clip in enumerate(clips):
        yield {
            "direction": "video_to_text",
            "clip": clip,
            "rank": ranking.clips.ranks[index].item(),
            "score": ranking.clips.right_scores[index].item(),
            "found": [
                {"caption": texts[caption], "clip": clips[pairs.clip_of_caption[caption]], "score": score}
                for caption, score in _found_by(ranking.clips, index)
            ],
        }


def _found_by(queries: RankedQueries, index: int) -> list[tuple[int, float]]:
    """Return the best candidates of a query, each with its score."""
    return list(zip(queries.found.candidates[index].tolist(), queries.found.scores[index].tolist(), strict=True))

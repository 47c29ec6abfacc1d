"""Retrieval: rank the clips of a split for each caption, and the captions for each clip."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...storage.common.errors import SettingError
from ...storage.common.problems import Problems
from ..metrics import RECALL_AT
from ..recipes.train_config import TrainConfig
from .retrieval_settings import DEPARTURES, NORMALIZATIONS, RetrievalSettings
from .task import Figures, Question, Task, TaskResult, counted

if TYPE_CHECKING:
    from ..runs.checkpoint import Run

COLUMNS = (*(f"R@{k}" for k in RECALL_AT), "median_rank", "mean_rank")


class Retrieval(Task[RetrievalSettings]):
    """Clips by caption, and captions by clip.

    ``metrics.json`` has the ``metrics`` of both directions (``RetrievalMetrics``), those of each of the ``stages``
    alone, R@1 ``without`` each stage, the ``weights`` of the stages, ``ties``, ``rerank`` and ``normalization`` (name,
    temperature, error of both directions and notes); for a run with a codebook also ``codebook``.
    """

    name = "retrieval"
    description = "clips by caption, and captions by clip"
    settings_type = RetrievalSettings
    main_measures = ("R@1", "R@5", "R@10", "median rank", "video to text R@1")

    def page_functions(self) -> Mapping[str, Callable[..., Any]]:
        """Return what draws the figures."""
        from .codeword_figures import codebook_figures, grid_figure, spectrogram_figure
        from .retrieval_figures import hub_figure, matrix_figure, weights_figure

        return {
            "codebook_figures": codebook_figures,
            "grid_figure": grid_figure,
            "hub_figure": hub_figure,
            "matrix_figure": matrix_figure,
            "weights_figure": weights_figure,
            "spectrogram_figure": spectrogram_figure,
        }

    def resolve(self, settings: RetrievalSettings, config: TrainConfig, run_name: str) -> RetrievalSettings:
        """Fill in the run's temperature.

        Raises:
            SettingError: ``rerank`` is set, and the run has no fusion layers.
        """
        if settings.rerank is not None and not config.has_fusion:
            problem = f"changes nothing: {run_name}, of objective {config.objective.name}, has no fusion layers"
            raise SettingError("rerank", settings.rerank, f"{problem}; leave it out")
        temperature = config.objective.temperature if settings.temperature is None else settings.temperature
        return replace(settings, temperature=temperature)

    def ask(self, run: "Run", question: Question[RetrievalSettings], problems: Problems) -> TaskResult:
        """Score every caption of a split with every clip."""
        from .ask_retrieval import retrieve

        return retrieve(run, question, problems)

    def count(self, figures: Figures) -> str:
        """Return how many captions and clips were ranked."""
        return f"{counted(figures, 'captions')} and {counted(figures, 'clips')}"

    def measures(self, figures: Figures) -> Mapping[str, float]:
        """Return the metrics of both directions; those of video to text have the direction in their names."""
        return _measures(figures["metrics"])

    def stage_measures(self, figures: Figures) -> Mapping[str, Mapping[str, float]]:
        """Return the metrics of each stage alone."""
        return {stage: _measures(metrics) for stage, metrics in figures["stages"].items()}

    def summary(self, figures: Figures) -> Iterator[str]:
        """Yield the tables of metrics and stages, and what was done to the scores."""
        yield metrics_table(figures["metrics"])
        if len(figures["stages"]) > 1:
            yield stages_table(figures["stages"], figures["weights"], figures["rerank"])
        yield from _normalization_lines(figures["normalization"])
        if codebook := figures.get("codebook"):
            shared = f"{100 * codebook['joint']:.0f} % by clips and captions both"
            in_use = f"{codebook['live']:,} of {codebook['size']:,} codewords in use"
            yield f"codebook: {in_use}, {shared}; the report shows what they stand for"
        yield f"ties: {figures['ties']}; checksum of the split's clips and captions: {figures['split_checksum']}"


def _measures(metrics: Mapping[str, Any]) -> dict[str, float]:
    text_to_video, video_to_text = metrics["text_to_video"], metrics["video_to_text"]
    measures: dict[str, float] = {}
    for name in COLUMNS:
        label = name.replace("_", " ")
        measures[label] = text_to_video[name]
        measures[f"video to text {label}"] = video_to_text[name]
        measures[f"mean of both {label}"] = (text_to_video[name] + video_to_text[name]) / 2
    return measures


def metrics_table(metrics: Mapping[str, Any]) -> str:
    """Return a table of ``RetrievalMetrics``: a row for each direction, with chance below it."""
    lines = [_header("") + f"{'tied':>13}"]
    for direction in ("text_to_video", "video_to_text"):
        row = metrics[direction]
        lines.append(_row(direction.replace("_", " "), row) + f"{row['num_tied']:>13,}")
        lines.append(_row("  chance", row["chance"]))
    return "\n".join(lines)


def stages_table(stages: Mapping[str, Any], weights: Mapping[str, float], rerank: int | None) -> str:
    """Return a table of the text-to-video metrics of each stage of the score alone (TACo's Table 11).

    Args:
        stages: {stage: ``RetrievalMetrics``}
        weights: {stage: weight in the fused score}
        rerank: Number of candidates that the fusion layers scored, or None for all.
    """
    lines = [_header("alone") + f"{'weight':>13}"]
    for stage, metrics in stages.items():
        label = stage.replace("_", " ") + (f" of {rerank}" if rerank and stage.startswith("fusion") else "")
        lines.append(_row(label, metrics["text_to_video"]) + f"{weights.get(stage, 0):>13g}")
    return "\n".join(lines)


def _header(label: str) -> str:
    return f"{label:<16}" + "".join(f"{name.replace('_', ' '):>13}" for name in COLUMNS)


def _row(label: str, values: Mapping[str, float]) -> str:
    return f"{label:<16}" + "".join(f"{values[name]:>13.1f}" for name in COLUMNS)


def _normalization_lines(about: Mapping[str, Any]) -> Iterator[str]:
    name, errors = about["name"], about["error"]
    if name != "none":
        yield f"normalised by {name}, {NORMALIZATIONS[name]}"
    for note in dict.fromkeys([*DEPARTURES.get(name, []), *about["notes"]]):  # 1.0.0 did not write the first ones
        yield f"note: {note}"
    both = f"{errors['text_to_video']:.4f} text to video, {errors['video_to_text']:.4f} video to text"
    yield f"normalisation error at temperature {about['temperature']:g}: {both}"

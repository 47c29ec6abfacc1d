"""The interface of an evaluation task: what a trained run is evaluated on, with its metrics and its part of the report.

This module and the tasks' own files import torch, which takes seconds, inside functions only: commands list the tasks,
and print the metrics of an earlier evaluation, without it.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ...storage.common.problems import Problems
from ...storage.common.settings import Settings
from ...storage.common.terminal import number_of
from ..recipes.train_config import TrainConfig

if TYPE_CHECKING:
    from ..runs.load import Run
    from .coverage import Coverage

S = TypeVar("S")
"""Type of a task's settings."""
Metrics = Mapping[str, Any]
"""The content of ``metrics.json``: names and JSON values. A task's file lists its own."""


@dataclass(frozen=True, kw_only=True)
class NoSettings(Settings):
    """Settings of a task that has none."""


@dataclass(frozen=True)
class EvaluationRequest(Generic[S]):
    """The request for an evaluation, with all defaults filled in."""

    split: str
    """Name of the split: "train", "validation" or "test"."""
    score_weights: Mapping[str, float]
    """Weight of each stage in the fused score."""
    settings: S
    """The task's own settings, as ``Task.resolve`` returned them."""


@dataclass(frozen=True)
class TaskResult:
    """The result of an evaluation."""

    coverage: "Coverage"
    """The part of the split that was used."""
    metrics: Mapping[str, object]
    """The task's other fields of ``metrics.json``."""
    rows: Iterable[Mapping[str, object]]
    """The lines of ``queries.jsonl``; may be computed lazily."""
    page: Mapping[str, object]
    """Variables of the task's page of the report."""


class Task(ABC, Generic[S]):
    """One kind of evaluation.

    Class attributes describe the task; the methods evaluate a run, and print its metrics. A page of the report, the
    Jinja template ``<name>.html.jinja``, lies beside the task's file, with its script if it has one.
    """

    name: ClassVar[str]
    """Value of ``--task``, and key in ``TASKS``."""
    description: ClassVar[str]
    """A few words for ``--help``."""
    settings_type: ClassVar[type[Settings]] = NoSettings
    """Dataclass of the task's own settings. Each field is an option of ``vlalign-evaluate``."""
    caption_name: ClassVar[str] = "captions"
    """The word for the data set's captions in this task, such as "questions"."""
    item_name: ClassVar[str] = "clips"
    """The things whose number must match for metrics to be comparable with published ones: "clips" or "videos"."""
    main_metrics: ClassVar[tuple[str, ...]] = ()
    """The ``table_metrics`` that a table of runs shows; it has room for few."""

    @property
    def page(self) -> Path:
        """Return the path of the task's page of the report."""
        return Path(inspect.getfile(type(self))).with_name(f"{self.name}.html.jinja")

    @property
    def script(self) -> str:
        """Return the script of the task's page, ``<name>.js`` beside the task's file; empty if it has none."""
        path = self.page.with_name(f"{self.name}.js")
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def page_functions(self) -> Mapping[str, Callable[..., Any]]:
        """Return what the page can call, such as functions that draw figures, by name."""
        return {}

    def resolve(self, settings: S, config: TrainConfig, run_name: str) -> S:
        """Return ``settings`` with what a run's configuration decides filled in. Log what has no effect on this run."""
        return settings

    @abstractmethod
    def evaluate(self, run: "Run", request: EvaluationRequest[S], problems: Problems) -> TaskResult:
        """Evaluate a run on a split of a data set.

        Args:
            run: The run, with the data set that it is evaluated on.
            request: The split, the weights and the settings.
            problems: Receives what is skipped.

        Raises:
            UserError: The data set has nothing of the kind, or the run cannot be evaluated on it.
        """

    @abstractmethod
    def count(self, metrics: Metrics) -> str:
        """Return how much was evaluated, such as "12 questions about 3 videos"."""

    def heading(self, metrics: Metrics) -> str:
        """Return the line above the metrics: which run was evaluated on how much, of which data set."""
        trained_on = f" (trained on {metrics['trained_on']})" if metrics["trained_on"] != metrics["dataset"] else ""
        evaluated_on = f"{self.count(metrics)} of {metrics['dataset']}, {metrics['split']}"
        return f"{metrics['run']}{trained_on}: {evaluated_on}"

    def table_metrics(self, metrics: Metrics) -> Mapping[str, float]:
        """Return the metrics by which runs are compared: {name, as in tables of results: value}."""
        return {}

    def stage_metrics(self, metrics: Metrics) -> Mapping[str, Mapping[str, float]]:
        """Return the ``table_metrics`` of each stage of the score alone: {stage: metrics}; empty without stages."""
        return {}

    @abstractmethod
    def summary(self, metrics: Metrics) -> Iterator[str]:
        """Yield the lines and tables that the terminal shows under the heading."""


def counted(metrics: Metrics, name: str, label: str | None = None) -> str:
    """Return "12 clips", or "12 of 30 clips" if the split has more than were used.

    Args:
        metrics: Have ``num_<name>`` and ``num_<name>_of_split``.
        name: "captions", "clips" or "videos".
        label: The word to show instead of ``name``.
    """
    used, whole = metrics[f"num_{name}"], metrics[f"num_{name}_of_split"]
    return f"{used:,} of {whole:,} {label or name}" if used != whole else number_of(used, label or name)

"""The interface of an evaluation task: data, metrics and part of the report.

This module and the tasks' own files import torch, which takes seconds, inside functions only: commands list the tasks,
and print the metrics of an earlier evaluation, without it.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from ...storage.common.plugins import Plugin
from ...storage.common.problems import Problems
from ...storage.common.settings import Settings
from ...storage.common.terminal import number_of, one_line
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
    """The request for an evaluation, with all defaults filled in.

    Example:
        >>> from vlalign.train import EvaluationRequest
        >>> EvaluationRequest(split="test", score_weights={"pair": 1.0}, settings=None).save_scores
        False
    """

    split: str
    """Name of the split: "train", "validation" or "test"."""
    score_weights: Mapping[str, float]
    """Weight of each stage in the fused score."""
    settings: S
    """The task's own settings, as ``Task.resolve`` returned them."""
    metrics: Sequence[Plugin] = ()
    """Custom metrics, for a task that takes them."""
    save_scores: bool = False
    """Whether to return ``TaskResult.scores``, for a task that has them."""


@dataclass(frozen=True)
class TaskResult:
    """The result of an evaluation.

    Example:
        >>> from vlalign.train import TaskResult
        >>> from vlalign.train.evaluation.coverage import Counts, Coverage
        >>> counts = Counts(captions=4, clips=2, videos=2)
        >>> result = TaskResult(Coverage(counts, counts, {}), {"accuracy": 50.0}, rows=[], page={})
        >>> result.metrics["accuracy"]
        50.0
    """

    coverage: "Coverage"
    """The part of the split that was used."""
    metrics: Mapping[str, object]
    """The task's other fields of ``metrics.json``."""
    rows: Iterable[Mapping[str, object]]
    """The lines of ``queries.jsonl``; may be computed lazily."""
    page: Mapping[str, object] | Callable[[], Mapping[str, object]]
    """Variables of the task's page of the report, unused without a page; or a function that returns them, called once
    the metrics are written."""
    scores: Mapping[str, np.ndarray] | None = None
    """Arrays to save as ``scores.npz``, if ``EvaluationRequest.save_scores``."""


class Task(ABC, Generic[S]):
    """One kind of evaluation: a built-in one, or one from a custom module (``--task my_module:MyTask``).

    Class attributes describe the task; the methods evaluate a run, and print its metrics. A page of the report, the
    Jinja template ``<name>.html.jinja``, lies beside the task's file, with its script if it has one. A task without a
    page is shown by its ``table_metrics``.

    Example:
        >>> from vlalign.storage import read_captions
        >>> from vlalign.train import Task, TaskResult
        >>> from vlalign.train.data.usable_captions import captions_of_split
        >>> from vlalign.train.evaluation.coverage import split_coverage
        >>> class Words(Task):
        ...     name, description, main_metrics = "words", "length of the captions", ("words",)
        ...
        ...     def evaluate(self, run, request, problems):
        ...         captions = captions_of_split(read_captions(run.dataset.captions), request.split)
        ...         words = sum(len(caption.caption.split()) for caption in captions) / len(captions)
        ...         coverage = split_coverage(captions, captions, run.features)
        ...         return TaskResult(coverage, {"words": words}, rows=[], page={})
        >>> Words().table_metrics({"words": 4.5})
        {'words': 4.5}
    """

    name: ClassVar[str]
    """Name of the page. For a built-in task, also the value of ``--task`` and the key in ``TASKS``."""
    description: ClassVar[str]
    """A few words for ``--help``."""
    settings_type: ClassVar[type[Settings]] = NoSettings
    """Dataclass of the task's own settings. Each field is an option of ``vlalign-evaluate``."""
    caption_name: ClassVar[str] = "captions"
    """The word for the data set's captions in this task, such as "questions"."""
    item_name: ClassVar[str] = "clips"
    """The items counted to decide whether metrics are comparable with published ones: "clips" or "videos"."""
    main_metrics: ClassVar[tuple[str, ...]] = ()
    """The ``table_metrics`` that a table of runs shows; it has room for few."""
    takes_metrics: ClassVar[bool] = False
    """Whether the task passes its similarities to the metrics of ``EvaluationRequest.metrics``."""
    saves_scores: ClassVar[bool] = False
    """Whether the task can return ``TaskResult.scores``."""
    plugin: Plugin | None = None
    """The part of a custom module that defines this task; None for a built-in task."""

    @property
    def key(self) -> str:
        """The task as the user names it: its name, or "my_module:MyTask"."""
        return self.name if self.plugin is None else self.plugin.text

    @property
    def page(self) -> Path | None:
        """Return the path of the task's page of the report, or None."""
        path = self._beside(f"{self.name}.html.jinja")
        return path if path is not None and path.is_file() else None

    @property
    def script(self) -> str:
        """Return the script of the task's page, ``<name>.js`` beside the task's file; empty if it has none."""
        path = self._beside(f"{self.name}.js")
        return path.read_text(encoding="utf-8") if path is not None and path.is_file() else ""

    def _beside(self, name: str) -> Path | None:
        """Return the path of a file beside the task's; None for a task that a notebook defines."""
        try:
            return Path(inspect.getfile(type(self))).with_name(name)
        except (OSError, TypeError):
            return None

    def page_functions(self) -> Mapping[str, Callable[..., Any]]:
        """Return {name: function} for the report's page, such as functions that draw figures."""
        return {}

    def resolve(self, settings: S, config: TrainConfig, run_name: str) -> S:
        """Return ``settings``, with defaults that depend on the run's configuration filled in.

        Args:
            settings: The task's own settings, as the user gave them.
            config: The run's configuration.
            run_name: Name of the run, for messages.

        Raises:
            SettingError: A setting has no effect on this run.
        """
        return settings

    @abstractmethod
    def evaluate(self, run: "Run", request: EvaluationRequest[S], problems: Problems) -> TaskResult:
        """Evaluate a run on a split of a data set.

        Args:
            run: The run, with the data set that it is evaluated on.
            request: The split, the weights and the settings.
            problems: Receives what is skipped.

        Raises:
            UserError: The data set has nothing that this task evaluates, or the run cannot be evaluated on it.
        """

    def count(self, metrics: Metrics) -> str:
        """Return how much was evaluated, such as "12 questions about 3 videos". By default, captions and clips.

        Args:
            metrics: Contents of ``metrics.json``.
        """
        return f"{counted(metrics, 'captions', self.caption_name)} and {counted(metrics, 'clips')}"

    def heading(self, metrics: Metrics) -> str:
        """Return the line above the metrics: which run was evaluated on how much, of which data set.

        Args:
            metrics: Contents of ``metrics.json``.
        """
        trained_on = f" (trained on {metrics['trained_on']})" if metrics["trained_on"] != metrics["dataset"] else ""
        evaluated_on = f"{self.count(metrics)} of {metrics['dataset']}, {metrics['split']}"
        return f"{metrics['run']}{trained_on}: {evaluated_on}"

    def request_of(self, metrics: Metrics) -> Mapping[str, Any]:
        """Return the request of an evaluation: ``fingerprint`` of its ``metrics.json``, with the current names.

        Args:
            metrics: Contents of ``metrics.json``.

        Raises:
            KeyError, TypeError: The file is not as an evaluation writes it.
        """
        return {**metrics["fingerprint"]}

    def table_metrics(self, metrics: Metrics) -> Mapping[str, float]:
        """Return the metrics by which runs are compared: {name, as in tables of results: value}.

        By default those of ``metrics.json`` that ``main_metrics`` names.

        Args:
            metrics: Contents of ``metrics.json``.
        """
        return {name: metrics[name] for name in self.main_metrics}

    def stage_metrics(self, metrics: Metrics) -> Mapping[str, Mapping[str, float]]:
        """Return the ``table_metrics`` of each stage of the score alone: {stage: metrics}; empty without stages.

        Args:
            metrics: Contents of ``metrics.json``.
        """
        return {}

    def summary(self, metrics: Metrics) -> Iterator[str]:
        """Yield the lines and tables that the terminal shows under the heading. By default the ``table_metrics``.

        Args:
            metrics: Contents of ``metrics.json``.
        """
        yield from metric_lines(self.table_metrics(metrics))


def metric_lines(values: Mapping[str, float]) -> Iterator[str]:
    """Yield a line for each metric."""
    width = max(map(len, values), default=0)
    for name, value in values.items():
        yield f"{one_line(name):<{width}}{value:>13.4g}"


def counted(metrics: Metrics, name: str, label: str | None = None) -> str:
    """Return "12 clips", or "12 of 30 clips" if the split has more than were used.

    Args:
        metrics: Have ``num_<name>`` and ``num_<name>_of_split``.
        name: "captions", "clips" or "videos".
        label: The word to show instead of ``name``.
    """
    used, whole = metrics[f"num_{name}"], metrics[f"num_{name}_of_split"]
    return f"{used:,} of {whole:,} {label or name}" if used != whole else number_of(used, label or name)

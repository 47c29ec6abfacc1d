"""The interface of a task: one kind of question for a trained run, with its figures and its part of the report.

This module and the tasks' own files import no torch, which takes seconds: commands list the tasks, and print the
figures of an earlier evaluation, without it. What computes figures is imported when a run is asked.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ...storage.common.problems import Problems
from ...storage.common.terminal import number_of
from ..recipes.train_config import TrainConfig

if TYPE_CHECKING:
    from ..data.coverage import Coverage
    from ..runs.checkpoint import Run

S = TypeVar("S")
"""Type of a task's settings."""
Figures = Mapping[str, Any]
"""The content of ``metrics.json``: names and JSON values. A task's file lists its own."""


def option(
    default: object,
    description: str,
    *,
    parse: Callable[[str], object] = str,
    choices: Iterable[str] | None = None,
    metavar: str | None = None,
) -> Any:
    """Return a dataclass field for a setting that ``vlalign-evaluate`` offers as an option.

    Args:
        default: Value if the option is not given.
        description: Text for ``--help``.
        parse: Turns the option's text into a value.
        choices: The values that are allowed.
        metavar: Placeholder of the value in ``--help``.
    """
    about = {"help": description, "type": parse, "choices": choices, "metavar": metavar}
    return field(default=default, metadata={name: value for name, value in about.items() if value is not None})


@dataclass(frozen=True)
class NoSettings:
    """Settings of a task that has none."""


@dataclass(frozen=True)
class Question(Generic[S]):
    """A question for a run."""

    split: str
    """Name of the split: "train", "validation" or "test"."""
    score_weights: Mapping[str, float]
    """Weight of each stage in the fused score."""
    settings: S
    """The task's own settings, as ``Task.resolve`` returned them."""


@dataclass(frozen=True)
class TaskResult:
    """The answers of a run."""

    coverage: "Coverage"
    """How much of the split was used."""
    figures: Mapping[str, object]
    """The task's other fields of ``metrics.json``."""
    rows: Iterable[Mapping[str, object]]
    """The lines of ``queries.jsonl``; may be computed lazily."""
    page: Mapping[str, object]
    """Variables of the task's page of the report."""


class Task(ABC, Generic[S]):
    """One kind of question.

    Class attributes describe the task; the methods ask a run, and say what it answered. A page of the report, the Jinja
    template ``<name>.html.jinja``, lies beside the task's file, with its script if it has one.
    """

    name: ClassVar[str]
    """Value of ``--task``, and key in ``TASKS``."""
    description: ClassVar[str]
    """A few words for ``--help``."""
    settings_type: ClassVar[type] = NoSettings
    """Dataclass of the task's own settings. Each field is made by ``option``, and is one of ``vlalign-evaluate``."""
    caption_name: ClassVar[str] = "captions"
    """The word for the data set's captions in this task, such as "questions"."""
    item_name: ClassVar[str] = "clips"
    """The things whose number must match for figures to be comparable with published ones: "clips" or "videos"."""
    main_measures: ClassVar[tuple[str, ...]] = ()
    """Those of ``measures`` that a table of runs shows; it has room for few."""

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
    def ask(self, run: "Run", question: Question[S], problems: Problems) -> TaskResult:
        """Ask a run about a split of its data set.

        Args:
            run: The run, with the data set that it is asked about.
            question: What is asked.
            problems: Receives what is left out.

        Raises:
            UserError: The data set has nothing of the kind, or the run cannot be asked this.
        """

    @abstractmethod
    def count(self, figures: Figures) -> str:
        """Return how much was asked, such as "12 questions about 3 videos"."""

    def heading(self, figures: Figures) -> str:
        """Return the line above the figures: which run was asked how much, of which data set."""
        trained_on = f" (trained on {figures['trained_on']})" if figures["trained_on"] != figures["dataset"] else ""
        asked = f"{self.count(figures)} of {figures['dataset']}, {figures['split']}"
        return f"{figures['run']}{trained_on}: {asked}"

    def measures(self, figures: Figures) -> Mapping[str, float]:
        """Return the figures by which runs are compared: {name, as in tables of results: value}."""
        return {}

    def stage_measures(self, figures: Figures) -> Mapping[str, Mapping[str, float]]:
        """Return the ``measures`` of each stage of the score alone: {stage: measures}; empty without stages."""
        return {}

    @abstractmethod
    def summary(self, figures: Figures) -> Iterator[str]:
        """Yield the lines and tables that the terminal shows under the heading."""


def counted(figures: Figures, name: str, called: str | None = None) -> str:
    """Return "12 clips", or "12 of 30 clips" if the split has more than were used.

    Args:
        figures: Have ``num_<name>`` and ``num_<name>_of_split``.
        name: "captions", "clips" or "videos".
        called: The word to show instead of ``name``.
    """
    used, whole = figures[f"num_{name}"], figures[f"num_{name}_of_split"]
    return f"{used:,} of {whole:,} {called or name}" if used != whole else number_of(used, called or name)

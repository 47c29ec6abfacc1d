"""Running every row of a paper's table, compared with the paper. ``vlalign-train --suite`` wraps ``run_suite``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...storage.common.errors import SettingError, UserError
from ...storage.common.problems import Problems
from ...storage.common.progress import Listener
from ...storage.common.terminal import say
from ...storage.common.writing import check_folders
from ...storage.dataset.folder import DatasetFolder, find_prepared
from ..evaluation.evaluate import EvaluationSettings, evaluate
from ..evaluation.retrieval import RetrievalSettings
from ..loop.training import TrainedRun, is_first_process, train
from ..recipes.recipes import RECIPES
from ..runs.folder import settings_text
from .run_metrics import RunMetrics, parse_run_metrics
from .seeds import shown_seeds
from .suite_files import Row, Suite, all_suites, given_for, read_suite, row_config, row_settings
from .table import Cell, Column, Number, ResultsTable, mean_of, write_table


@dataclass(frozen=True)
class RowResult:
    """The metrics of a row of a suite."""

    row: Row
    paper: tuple[float | None, ...]
    """The paper's values, in the order of the suite's columns; None for a dash."""
    ours: tuple[Number | None, ...]
    """Our runs' values, in the same order; None for a row that failed or is another method's, and for a metric that a
    run does not have."""


@dataclass(frozen=True)
class SuiteResult:
    """The results of running a paper's table."""

    rows: tuple[RowResult, ...]
    table: ResultsTable
    """Three lines for each row: the paper's values, ours, and the difference; only the first for other methods."""
    files: tuple[Path, ...]
    """Files of the table; in a training by several processes, only the first process has them."""
    num_failed: int
    """Rows that could not be trained or evaluated."""
    num_skipped: int
    """Captions and videos that could not be used, in all runs."""


def list_suites() -> ResultsTable:
    """Return a table of all suites."""
    columns = tuple(Column(name, is_text=name != "rows") for name in ("suite", "data sets", "rows", "table"))
    rows = [(s.name, ", ".join(s.datasets), len(s.rows), f"{s.source}: {s.title}") for s in all_suites()]
    return ResultsTable(columns, tuple(rows))


def run_suite(
    dataset: Path | str,
    suite_name: str,
    *,
    seeds: Sequence[int] = (0,),
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    on_progress: Listener | None = None,
) -> SuiteResult:
    """Train and evaluate every row of a paper's table, and compare with the paper's values.

    Complete runs are reused, unfinished ones resume. A row that fails is reported, and the others continue. The
    table is also written into ``comparisons/`` in the data set's folder.

    Args:
        dataset: Folder of one of the data sets of the table, ``<root>/<data set>``.
        suite_name: One of ``suite_files.suite_names()``.
        seeds: Each row has a run for each seed.
        device: As for ``train``.
        settings: Settings for all rows, such as a lower number of steps; the runs then differ from the paper's.
        on_progress: Called with the progress of each training and evaluation.

    Raises:
        SettingError: There is no such suite, it has no values for the data set, or a setting cannot be used.
        UserError: The data set is not prepared.
    """
    suite = read_suite(suite_name)
    folder = find_prepared(dataset, having="captions", hint="vlalign-preprocess")
    if folder.name not in suite.datasets:
        problem = f"{suite.source} has no values for {folder.name}; expected --dataset {', '.join(suite.datasets)}"
        raise SettingError("suite", suite_name, problem)
    given = {name: value for name, value in (settings or {}).items() if value is not None}
    check_folders(folder.comparisons)
    _check_settings(suite, folder.name, given)
    problems = Problems(quiet=not is_first_process(), file=folder.problems("suite"))
    run = _SuiteRun(
        dataset=folder,
        suite=suite,
        seeds=seeds,
        given=given,
        device=device,
        on_progress=on_progress,
        problems=problems,
    )
    from ..distributed import meet_workers  # torch takes seconds to import

    with problems:
        with meet_workers(device):
            for row in suite.rows_for(folder.name):
                run.train(row)
        if not is_first_process():
            return SuiteResult((), ResultsTable((), ()), (), len(run.failed), 0)
        table, results = run.compare()
    name = "-".join(filter(None, (suite.name, settings_text(given)[:100], f"seeds{shown_seeds(seeds)}")))
    files = tuple(write_table(table, folder.comparisons, name))
    return SuiteResult(results, table, files, len(run.failed), run.num_skipped)


def _check_settings(suite: Suite, dataset: str, given: Mapping[str, Any]) -> None:
    """Before any training, raise ``SettingError`` for settings that cannot be used, or have no effect in any row."""
    rows = suite.rows_for(dataset)
    used = [given_for(suite, row, dataset, given) for row in rows]
    for name, value in given.items():
        if not any(name in of_row for of_row in used):
            objectives = " or ".join({row_config(suite, row, dataset, given).objective.name: None for row in rows})
            problem = f"has no effect in any row of {suite.name}, which trains objective {objectives}; omit it"
            raise SettingError(name, value, problem)


@dataclass
class _SuiteRun:
    """A suite that is being run, and its rows so far."""

    dataset: DatasetFolder
    """The data set that the table is about."""
    suite: Suite
    seeds: Sequence[int]
    given: Mapping[str, Any]
    """Settings for all rows."""
    device: str
    on_progress: Listener | None
    problems: Problems
    """Receives rows that fail."""
    trained: dict[str, dict[int, TrainedRun]] = field(default_factory=dict)
    """{row: {seed: run}}"""
    failed: set[str] = field(default_factory=set)
    """Names of rows that failed."""

    def _fail(self, row: Row, why: object) -> None:
        self.failed.add(row.name)
        self.problems.add(f"{self.suite.name}, row {row.name}: {why}; skipped")

    def train(self, row: Row) -> None:
        """Train a row with each seed. A failure is reported; rows that start from this row then fail too."""
        suite, dataset = self.suite, self.dataset.name
        say(f"{suite.name}, row {row.name}")
        recipe, settings = row_settings(suite, row, dataset, given_for(suite, row, dataset, self.given))
        if row.init in self.failed:
            self._fail(row, f"starts from row {row.init}, which failed")
            return
        try:
            for seed in self.seeds:
                self.trained.setdefault(row.name, {})[seed] = train(
                    self.dataset.root / (row.trained_on or dataset),
                    recipe=recipe,
                    init=str(self.trained[row.init][seed].folder) if row.init else None,
                    settings={**settings, "seed": seed},
                    may_be_unused=True,
                    device=self.device,
                    on_progress=self.on_progress,
                )
        except UserError as error:
            self._fail(row, error)

    def evaluate(self, row: Row) -> list[RunMetrics]:
        """Return the metrics of a row's runs; empty for a row that failed or is another method's."""
        if row.other_method or row.name in self.failed:
            return []
        task_settings = RetrievalSettings(**row.task_settings) if row.task_settings else None
        settings = EvaluationSettings(task_settings=task_settings, device=self.device)
        on = self.dataset.path if row.trained_on else None
        recipe = self.suite.datasets[self.dataset.name].recipe
        protocol = RECIPES.get(recipe, {}).get("protocol") if on else None
        try:
            return [
                parse_run_metrics(
                    evaluate(
                        run.folder,
                        on=on,
                        protocol=protocol,
                        settings=settings,
                        on_progress=self.on_progress,
                    ).metrics
                )
                for run in self.trained[row.name].values()
            ]
        except UserError as error:
            self._fail(row, error)
            return []

    def compare(self) -> tuple[ResultsTable, tuple[RowResult, ...]]:
        """Evaluate all rows for which the paper has values, and return the table and its rows."""
        suite, dataset = self.suite, self.dataset.name
        rows = suite.printed_rows(dataset)
        evaluations = [self.evaluate(row) for row in rows]
        results = tuple(self._result(row, found) for row, found in zip(rows, evaluations, strict=True))
        notes = {note: None for found in evaluations for each in found for note in each.notes}
        return suite_table(suite, dataset, results, self.given, len(self.seeds), list(notes)), results

    def _result(self, row: Row, found: Sequence[RunMetrics]) -> RowResult:
        values = [each.values if row.stage is None else each.stages.get(row.stage, {}) for each in found]
        ours = [[value[name] for value in values if name in value] for name in self.suite.columns]
        means = tuple(mean_of(numbers) if numbers else None for numbers in ours)
        return RowResult(row, tuple(row.published[self.dataset.name]), means)

    @property
    def num_skipped(self) -> int:
        """Captions and videos that could not be used, in all runs."""
        return sum(run.num_skipped for runs in self.trained.values() for run in runs.values())


def suite_table(
    suite: Suite,
    dataset: str,
    results: Sequence[RowResult],
    given: Mapping[str, Any],
    num_seeds: int,
    notes: Sequence[str],
) -> ResultsTable:
    """Return the table of a suite: the paper's values, ours and the difference, a line each for every row. Rows of
    other methods have the first line only.

    Its last notes list where it departs from the paper. CSV has no place for notes, so a column has them.
    """
    departures = tuple(str(departure) for departure in suite.departures_for(dataset))
    departures = departures or (f"no departures of this table from {suite.paper} are known",)
    columns = (Column("row", is_text=True), Column("whose", is_text=True), *(Column(name) for name in suite.columns))
    columns += (Column("departures", is_text=True, only_in_csv=True),)
    rows: list[tuple[Cell, ...]] = []
    for result in results:
        paper = [None if value is None else Number(value) for value in result.paper]
        rows.append((result.row.name, "paper", *paper, None))
        if result.row.other_method:
            continue
        pairs = list(zip(result.ours, result.paper, strict=True))
        difference = [Number(o.value - p, is_difference=True) if o and p is not None else None for o, p in pairs]
        rows.append((result.row.name, "ours", *result.ours, departures))
        rows.append((result.row.name, "difference", *difference, None))
    lines = [f"paper: {suite.source}, {suite.title}"]
    if num_seeds > 1:
        lines.append(f"±: sample standard deviation over {num_seeds} seeds")
    if given:
        changed = ", ".join(f"{name} {value}" for name, value in given.items())
        lines.append(f"not the paper's settings: {changed}")
    return ResultsTable(columns, tuple(rows), (*lines, *suite.notes, *notes, *departures))

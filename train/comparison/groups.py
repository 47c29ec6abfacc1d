"""The table of a data set's runs: runs that differ only in the seed share a row."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ...storage.common.errors import SettingError, UserError
from ...storage.common.problems import Problems
from ...storage.common.terminal import number_of
from ...storage.dataset.folder import DatasetFolder
from ..runs.folder import changed_settings
from .published import Published, published_values
from .records import RunRecord, read_records, unfinished_runs
from .run_metrics import RunMetrics
from .table import Cell, Column, Number, ResultsTable, mean_of

LOWER_IS_BETTER = ("rank", "error", "chance")
"""Words in the names of metrics that are better when they are lower."""
FACTS = ("run", "recipe", "objective", "features", "task", "split", "trained_on", "checksum", "seeds", "is_whole")
"""Columns to sort and filter by, besides settings and metrics."""


@dataclass(frozen=True)
class RunsOverview:
    """All runs that were evaluated on a data set."""

    table: ResultsTable
    num_unreadable: int
    """Runs that were skipped because their files cannot be read."""


def list_runs(dataset: DatasetFolder, *, sort: str | None = None, conditions: Sequence[str] = ()) -> RunsOverview:
    """Return a table of a data set's runs: mean and deviation over seeds, grouped by equal settings.

    Args:
        dataset: The data set.
        sort: A metric, setting or fact to sort by, the best first; None: the first metric.
        conditions: Conditions that all shown runs meet, such as "objective=taco" or "R@1>30".

    Raises:
        SettingError: ``sort`` or a condition names something that no run has.
        UserError: The data set has no runs.
    """
    with Problems() as problems:  # without a file: a command that only looks writes nothing
        groups = group_runs(read_records(dataset, problems))
    unfinished = unfinished_runs(dataset.runs)
    if not groups and not unfinished and not problems.count:
        raise UserError(f"{dataset.runs}: has no runs; train one with vlalign-train --dataset {dataset.name}")
    table = runs_table(sort_groups(filter_groups(groups, conditions), sort))
    notes = [f"not finished: {', '.join(folder.name for folder in unfinished)}"] if unfinished else []
    return RunsOverview(ResultsTable(table.columns, table.rows, (*table.notes, *notes)), problems.count)


def list_evaluations(dataset: DatasetFolder, run: str | None = None) -> RunsOverview:
    """Return a table of all evaluations on a data set, side by side: each split, protocol and setting is a row.

    Args:
        dataset: The data set.
        run: Name or folder of the only run to show; None: all runs.

    Raises:
        SettingError: There is no such run.
        UserError: Nothing was evaluated on the data set.
    """
    with Problems() as problems:
        records = read_records(dataset, problems)
    chosen = [record for record in records if run is None or run.rstrip("/") in (record.name, str(record.folder))]
    if run is not None and not chosen:
        names = ", ".join(record.name for record in records) or "none"
        raise SettingError("evaluations", run, f"no such run; runs: {names}")
    found: list[tuple[str, str, RunMetrics]] = []
    for record in chosen:
        of_run = {} if record.metrics is None else {"defaults": record.metrics}
        found += [(record.name, changes, metrics) for changes, metrics in (of_run | dict(record.other_results)).items()]
    if not found:
        raise UserError(f"{dataset.runs}: has no evaluations; run vlalign-evaluate --dataset {dataset.name}")
    main, rest = _metric_names([metrics for _, _, metrics in found])
    columns = [Column(name, is_text=True) for name in ("run", "evaluation", "protocol", "split")]
    columns += [Column(name, only_in_csv=name in rest) for name in (*main, *rest)]
    columns += [Column(name, is_text=True) for name in ("test set", "used")]
    rows = [
        (
            name,
            changes,
            metrics.test.protocol or None,
            metrics.test.split,
            *(None if (value := metrics.values.get(each)) is None else Number(value) for each in (*main, *rest)),
            metrics.test.checksum,
            _used(metrics),
        )
        for name, changes, metrics in found
    ]
    notes = _notes_on_tests([metrics for _, _, metrics in found])
    return RunsOverview(ResultsTable(tuple(columns), tuple(rows), notes), problems.count)


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ in their seed alone, evaluated in the same way."""

    runs: tuple[RunRecord, ...]

    @property
    def first(self) -> RunRecord:
        """One of the runs."""
        return self.runs[0]

    @property
    def name(self) -> str:
        """The name of the only run; or the common name with all seeds; or the first name and the number of others."""
        if len(self.runs) == 1:
            return self.first.name
        stems = {re.sub(r"-?seed\d+$", "", run.name) for run in self.runs}
        seeds = ",".join(str(seed) for seed in sorted(run.config.optimization.seed for run in self.runs))
        return f"{stems.pop()}-seeds{seeds}" if len(stems) == 1 else f"{self.first.name} and {len(self.runs) - 1} more"

    def mean_metric(self, name: str) -> Number | None:
        """Return the mean of a metric over the runs; None if they do not have it."""
        values = [run.metrics.values.get(name) for run in self.runs if run.metrics is not None]
        numbers = [value for value in values if value is not None]
        return mean_of(numbers) if numbers else None

    def other_results(self, changes: str) -> list[RunMetrics]:
        """Return the runs' metrics for these changes of the default request."""
        return [run.other_results[changes] for run in self.runs if changes in run.other_results]

    def fact(self, name: str) -> Any:
        """Return a fact (``FACTS``), a setting or a metric's mean; None if the runs do not have it."""
        config, metrics = self.first.config, self.first.metrics
        facts = {
            "run": self.name,
            "recipe": config.recipe,
            "objective": config.objective.name,
            "features": config.data.features,
            "trained_on": config.data.dataset,
            "seeds": len(self.runs),
            "task": metrics.task if metrics else None,
            "split": metrics.test.split if metrics else None,
            "checksum": metrics.test.checksum if metrics else None,
            "is_whole": metrics.test.is_whole if metrics else None,
        }
        if name in facts:
            return facts[name]
        number = self.mean_metric(name)
        return config.flat().get(name) if number is None else number.value


def group_runs(records: Sequence[RunRecord]) -> list[RunGroup]:
    """Return the runs in groups that differ in their seed alone.

    A run with the settings and the seed of another one is a copy, not a sample: it starts a group of its own.
    """
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        settings = {name: value for name, value in record.config.flat().items() if name != "seed"}
        evaluated = record.metrics and (record.metrics.request, vars(record.metrics.test))
        key = json.dumps([settings, record.inputs, evaluated], sort_keys=True, default=str)
        while any(record.config.optimization.seed == other.config.optimization.seed for other in groups.get(key, [])):
            key += " again"
        groups.setdefault(key, []).append(record)
    return [RunGroup(tuple(runs)) for runs in groups.values()]


def sort_groups(groups: Sequence[RunGroup], by: str | None) -> list[RunGroup]:
    """Return the groups, the best first. Groups without the value are last.

    Args:
        groups: The groups.
        by: A metric, a setting or a fact; None: the metric that most groups show first.

    Raises:
        SettingError: No group has it.
    """
    if by is None:
        firsts = [group.first.metrics.main[0] for group in groups if group.first.metrics and group.first.metrics.main]
        by = max(firsts, key=firsts.count) if firsts else "run"
    _check_name(groups, "sort", by, by)
    sortable = [group for group in groups if group.fact(by) is not None]
    is_metric = any(group.mean_metric(by) is not None for group in sortable)
    best_is_high = is_metric and not any(word in by for word in LOWER_IS_BETTER)
    sortable.sort(key=lambda group: _comparable(group.fact(by)), reverse=best_is_high)
    return sortable + [group for group in groups if group.fact(by) is None]


def _comparable(value: Any) -> tuple[int, float, str]:
    is_number = isinstance(value, int | float)
    return (0, float(value), "") if is_number else (1, 0.0, str(value))


def filter_groups(groups: Sequence[RunGroup], conditions: Sequence[str]) -> list[RunGroup]:
    """Return the groups for which all conditions hold, such as "objective=taco", "R@1>30" or "run!=*small*".

    Raises:
        SettingError: A condition has another form, or names something that no run has.
    """
    selected = list(groups)
    for condition in conditions:
        found = re.fullmatch(r"\s*([^<>=!]+?)\s*(!=|>=|<=|=|>|<)\s*(.*?)\s*", condition)
        if found is None:
            raise SettingError("filter", condition, 'expected NAME=VALUE, NAME!=VALUE or NAME>NUMBER, such as "R@1>30"')
        name, relation, value = found.groups()
        _check_name(groups, "filter", condition, name)
        selected = [group for group in selected if _holds(group.fact(name), relation, value, condition)]
    return selected


def _check_name(groups: Sequence[RunGroup], option: str, value: str, name: str) -> None:
    names = {n for group in groups if group.first.metrics for n in group.first.metrics.values}
    settings = {n for group in groups for n in group.first.config.flat()}
    if groups and name not in {*FACTS, *names, *settings}:
        others = ", ".join([*FACTS, *sorted(names)])
        raise SettingError(option, value, f"no run has {name!r}; expected a setting, or one of {others}")


def _holds(actual: Any, relation: str, value: str, condition: str) -> bool:
    if relation in ("=", "!="):
        text = f"{actual:g}" if isinstance(actual, float) else "" if actual is None else str(actual)
        return (fnmatchcase(text.lower(), value.lower())) == (relation == "=")
    try:
        limit = float(value)
    except ValueError:
        raise SettingError("filter", condition, f"expected a number after {relation}") from None
    if isinstance(actual, bool) or not isinstance(actual, int | float):
        return False
    return {">": actual > limit, "<": actual < limit, ">=": actual >= limit, "<=": actual <= limit}[relation]


def runs_table(groups: Sequence[RunGroup]) -> ResultsTable:
    """Return the table of groups: settings, metrics, test set, and a paper's values where there are some."""
    evaluated = [group.first.metrics for group in groups if group.first.metrics]
    main, rest = _metric_names(evaluated)
    papers = [published_values(group.first.config, group.first.metrics) for group in groups]
    text, number = ("run", "recipe", "settings"), ("seeds", *main, *rest)
    columns = [Column(name, is_text=True) for name in text]
    columns += [Column(name, only_in_csv=name in rest) for name in number]
    columns += [Column(name, is_text=True) for name in ("test set", "used")]
    has_papers = any(papers)
    columns += (
        [Column("paper", is_text=True), Column("departures", is_text=True, only_in_csv=True)] if has_papers else []
    )
    varying = _varying(groups)
    rows: list[tuple[Cell, ...]] = []
    for group, paper in zip(groups, papers, strict=True):
        metrics = group.first.metrics
        row: list[Cell] = [group.name, group.first.config.recipe or None, _settings(group, varying) or None]
        row += [len(group.runs), *(group.mean_metric(name) for name in (*main, *rest))]
        missing = "no test result" if any(run.other_results for run in group.runs) else "not evaluated"
        row += [metrics.test.checksum, _used(metrics)] if metrics else [None, missing]
        row += [_cited(paper, main), _departures([paper]) or None] if has_papers else []
        rows.append(tuple(row))
    notes = ["±: sample standard deviation over seeds"] if any(len(group.runs) > 1 for group in groups) else []
    notes += _notes_on_tests(evaluated)
    notes += [line for group in groups for line in _other_results(group)]
    return ResultsTable(tuple(columns), tuple(rows), (*notes, *_departures(papers)))


def _departures(papers: Sequence[Published | None]) -> tuple[str, ...]:
    """Return the departures of the cited tables from their papers, each once."""
    return tuple(dict.fromkeys(str(point) for paper in papers if paper for point in paper.departures))


def _other_results(group: RunGroup) -> Iterator[str]:
    """Yield a line for each non-default request that the runs were evaluated with: its first metric in tables."""
    for changes in dict.fromkeys(changes for run in group.runs for changes in run.other_results):
        found = group.other_results(changes)
        name = next(iter(found[0].main), None)
        value = f": {name} {mean_of([each.values[name] for each in found])}" if name else ""
        seeds = f", {number_of(len(found), 'runs')}" if len(group.runs) > 1 else ""
        yield f"other results, not in the table: {group.name}, {changes}{value}{seeds}"


def _varying(groups: Sequence[RunGroup]) -> set[str]:
    """Return which of features, protocol, init, training data and parts of the request differ between groups."""
    seen: dict[str, set[str]] = {}
    for group in groups:
        for name, value in _shown_if_varying(group).items():
            seen.setdefault(name, set()).add(json.dumps(value, sort_keys=True, default=str))
    return {name for name, values in seen.items() if len(values) > 1}


def _shown_if_varying(group: RunGroup) -> dict[str, Any]:
    """Return the settings that a table shows only if they differ between its rows."""
    config, metrics = group.first.config, group.first.metrics
    about = {
        "features": config.data.features,
        "protocol": config.data.protocol,
        "init": config.init,
        "trained_on": config.data.dataset,
    }
    request = {n: v for n, v in metrics.request.items() if n not in ("task", "temperature")} if metrics else {}
    return about | request


def _settings(group: RunGroup, varying: set[str]) -> str:
    settings = changed_settings(group.first.config)
    for name, value in _shown_if_varying(group).items():
        if name in varying and value not in ("", None):
            settings[name] = value
    return " ".join(f"{name}={_shown(value)}" for name, value in settings.items())


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}:{_shown(part)}" for name, part in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _metric_names(evaluated: Sequence[RunMetrics]) -> tuple[list[str], list[str]]:
    """Return (metrics in tables, metrics in CSV only)."""
    main = list(dict.fromkeys(name for metrics in evaluated for name in metrics.main))
    return main, [name for name in dict.fromkeys(n for m in evaluated for n in m.values) if name not in main]


def _notes_on_tests(evaluated: Sequence[RunMetrics]) -> tuple[str, ...]:
    differ = len({metrics.test.checksum for metrics in evaluated}) > 1
    return ("test sets differ: compare only runs with the same checksum",) if differ else ()


def _used(metrics: RunMetrics) -> str:
    return f"{'whole' if metrics.test.is_whole else 'partial'}: {metrics.test.size}"


def _cited(paper: Published | None, main: Sequence[str]) -> str | None:
    if paper is None:
        return None
    values = " ".join(f"{name} {value:g}" for name, value in paper.values.items() if name in main)
    return f"{values} ({paper.source})"

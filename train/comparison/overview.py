"""The runs of a data set: as a table, and two of them in detail. ``vlalign-runs`` wraps these calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.common.writing import check_folders
from ...storage.dataset.folder import DatasetFolder
from .groups import filter_groups, group_runs, runs_table, sort_groups
from .pairs import PairedRuns, pair_runs, write_pair_page
from .records import choose_record, read_records, unfinished_runs
from .table import Table


@dataclass(frozen=True)
class RunsOverview:
    """All runs that were asked about a data set."""

    table: Table
    num_unreadable: int
    """Runs that were left out because their files cannot be read."""


def list_runs(dataset: DatasetFolder, *, sort: str | None = None, conditions: Sequence[str] = ()) -> RunsOverview:
    """Return a table of a data set's runs: mean and deviation over seeds, grouped by equal settings.

    Args:
        dataset: The data set.
        sort: A measure, setting or fact to sort by, the best first; None: the first measure.
        conditions: What the runs shown must fulfil, such as "objective=taco" or "R@1>30".

    Raises:
        SettingError: ``sort`` or a condition names what no run has.
        UserError: The data set has no runs.
    """
    with Problems() as problems:  # without a file: a command that only looks writes nothing
        groups = group_runs(read_records(dataset, problems))
    unfinished = unfinished_runs(dataset.runs)
    if not groups and not unfinished and not problems.count:
        raise UserError(f"{dataset.runs}: no runs there; train one with vlalign-train --dataset {dataset.name}")
    table = runs_table(sort_groups(filter_groups(groups, conditions), sort))
    notes = [f"not finished: {', '.join(folder.name for folder in unfinished)}"] if unfinished else []
    return RunsOverview(Table(table.columns, table.rows, (*table.notes, *notes)), problems.count)


def compare_runs(dataset: DatasetFolder, first: str, second: str, *, seed: int = 0) -> tuple[PairedRuns, Path]:
    """Compare two runs query by query, and write a page with the queries that got better and worse.

    Args:
        dataset: What both were asked about.
        first: Name or folder of a run.
        second: Name or folder of another one.
        seed: Of the bootstrap's draws.

    Returns:
        The comparison, and the path of the page.

    Raises:
        UserError: A run is missing or was not evaluated, or they were asked something else.
    """
    check_folders(dataset.comparisons)
    with Problems(file=dataset.problems("runs")) as problems:
        records = read_records(dataset, problems)
    pair = pair_runs(choose_record(records, first), choose_record(records, second), seed=seed)
    return pair, write_pair_page(pair, dataset)

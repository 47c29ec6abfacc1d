"""Two runs compared query by query: which got better or worse, and whether the difference is more than chance."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from ...storage.common.errors import UserError
from ...storage.common.files import numbered_jsonl, write_text
from ...storage.common.problems import Problems
from ...storage.common.validation import is_text
from ...storage.common.writing import check_folders
from ...storage.dataset.folder import DatasetFolder
from ...storage.stores.thumbnails import ThumbnailStore
from ..data.clips import Clip
from ..evaluation.thumbnails import images_of
from ..intervals import Difference, paired_bootstrap
from ..metrics import RECALL_AT
from ..runs.files import QUERIES_FILE
from .records import RunRecord, choose_record, read_records
from .run_metrics import RunMetrics
from .table import Cell, Column, Number, ResultsTable

SHOWN_QUERIES = 50
"""Maximum number of improved queries on the page, and of worse ones."""


@dataclass(frozen=True)
class QueryResult:
    """The result of a query with one run."""

    caption: str
    clip: Clip
    """The right clip."""
    rank: float
    top_clip: Clip
    """The clip that the run ranks first."""


@dataclass(frozen=True)
class Change:
    """The results of a query with both runs."""

    before: QueryResult
    after: QueryResult

    @property
    def gain(self) -> float:
        """The difference of the reciprocal ranks: from rank 2 to 1 is more than from 100 to 50."""
        return 1 / self.after.rank - 1 / self.before.rank


@dataclass(frozen=True)
class PairedRuns:
    """Two runs on the same test set."""

    first: RunRecord
    second: RunRecord
    changes: tuple[Change, ...]
    """All queries."""
    differences: Mapping[str, Difference]
    """{metric: difference, second minus first}"""

    @property
    def better(self) -> list[Change]:
        """Queries whose right clip ranks higher in the second run, the largest gains first."""
        return sorted((change for change in self.changes if change.gain > 0), key=lambda change: -change.gain)

    @property
    def worse(self) -> list[Change]:
        """Queries whose right clip ranks lower in the second run, the largest losses first."""
        return sorted((change for change in self.changes if change.gain < 0), key=lambda change: change.gain)


def compare_runs(dataset: DatasetFolder, first: str, second: str, *, seed: int = 0) -> tuple[PairedRuns, Path]:
    """Compare two runs query by query, and write a page with the queries that got better and worse.

    Args:
        dataset: The data set that both were evaluated on.
        first: Name or folder of a run.
        second: Name or folder of another run.
        seed: Seed of the bootstrap's draws.

    Returns:
        The comparison, and the path of the page.

    Raises:
        UserError: A run is missing or was not evaluated, or the runs were evaluated on different test sets.
    """
    check_folders(dataset.comparisons)
    with Problems(file=dataset.problems("runs")) as problems:
        records = read_records(dataset, problems)
    pair = pair_runs(choose_record(records, first), choose_record(records, second), seed=seed)
    return pair, write_pair_page(pair, dataset)


def pair_runs(first: RunRecord, second: RunRecord, *, seed: int = 0) -> PairedRuns:
    """Compare two runs query by query.

    Args:
        first: An evaluated run.
        second: Another run, evaluated with the same request.
        seed: Seed of the bootstrap's draws.

    Raises:
        UserError: They were evaluated on different test sets, or their queries cannot be read.
    """
    _check_same_test(first, second)
    results = [sorted(read_query_results(record.results / QUERIES_FILE), key=_query) for record in (first, second)]
    if [_query(result) for result in results[0]] != [_query(result) for result in results[1]] or not results[0]:
        what = "the queries do not match the checksum of the test set; run vlalign-evaluate again for both runs"
        raise UserError(f"{first.results / QUERIES_FILE} and {second.results / QUERIES_FILE}: {what}")
    ranks = [np.array([result.rank for result in side]) for side in results]
    values = {f"R@{k}": [100.0 * (side < k + 1) for side in ranks] for k in RECALL_AT} | {"mean rank": ranks}
    videos = np.array([result.clip.video_id for result in results[0]])
    differences = {name: paired_bootstrap(sides[0], sides[1], videos, seed=seed) for name, sides in values.items()}
    changes = tuple(Change(before, after) for before, after in zip(*results, strict=True))
    return PairedRuns(first, second, changes, differences)


def _check_same_test(first: RunRecord, second: RunRecord) -> None:
    tests: list[RunMetrics] = []
    for record in (first, second):
        if record.metrics is None or record.metrics.task != "retrieval":
            raise UserError(f"{record.folder}: has no queries with ranks; expected a run evaluated for retrieval")
        tests.append(record.metrics)
    if tests[0].test.checksum != tests[1].test.checksum:
        sides = " and ".join(f"{each.test.checksum} ({each.test.size}, {each.test.split})" for each in tests)
        raise UserError(f"{first.name} and {second.name}: test sets differ, {sides}; evaluate both on the same split")


def _query(result: QueryResult) -> tuple[str, str, float, float]:
    clip = result.clip
    return (
        result.caption,
        clip.video_id,
        -1.0 if clip.start_seconds is None else clip.start_seconds,
        clip.end_seconds or 0.0,
    )


def read_query_results(path: Path) -> list[QueryResult]:
    """Return the results of the captions in ``queries.jsonl`` of a retrieval.

    Raises:
        UserError: The file is missing, or has an invalid line.
    """
    if not path.is_file():
        raise UserError(f"{path}: not found; run vlalign-evaluate again")
    results = []
    for number, row in numbered_jsonl(path):
        try:
            if row.get("direction") != "video_to_text":
                results.append(_query_result(row))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            what = "not a valid file of vlalign-evaluate; run vlalign-evaluate again"
            raise UserError(f"{path}, line {number}: {what}") from None
    return results


def _query_result(row: Mapping[str, Any]) -> QueryResult:
    rank = float(row["rank"])
    if not is_text(row["caption"]) or not 1 <= rank < 1e12:
        raise ValueError("no caption or no rank")
    return QueryResult(row["caption"], _clip(row["clip"]), rank, _clip(row["first"]))


def _clip(about: Mapping[str, Any]) -> Clip:
    times = [None if about[name] is None else float(about[name]) for name in ("start_seconds", "end_seconds")]
    if not is_text(about["video_id"]) or not all(time is None or abs(time) < 1e12 for time in times):
        raise ValueError("no clip")
    return Clip(about["video_id"], times[0], times[1])


def pair_table(pair: PairedRuns) -> ResultsTable:
    """Return a table with each run's metrics, the differences, and the intervals of the differences."""
    names = ("measure", pair.first.name, pair.second.name, "difference", "95 % interval")
    rows: list[tuple[Cell, ...]] = []
    sides = [np.array([getattr(change, side).rank for change in pair.changes]) for side in ("before", "after")]
    for name, interval in pair.differences.items():
        values = [100 * (r < int(name[2:]) + 1).mean() if name.startswith("R@") else r.mean() for r in sides]
        text = f"{interval.low:+.1f} to {interval.high:+.1f}{'' if interval.has_zero else ' *'}"
        difference = Number(interval.difference, is_difference=True)
        rows.append((name, Number(float(values[0])), Number(float(values[1])), difference, text))
    alike = [name for name, interval in pair.differences.items() if interval.has_zero]
    verdict = f"cannot be told apart by {', '.join(alike)}" if alike else "differ in each measure"
    notes = (
        f"from text to video, these two runs {verdict}",
        f"{len(pair.better):,} of {len(pair.changes):,} queries are better in the second run, "
        f"{len(pair.worse):,} worse",
        "difference: second minus first; interval: paired bootstrap over videos, 10,000 resamples; *: 0 is outside",
    )
    columns = tuple(Column(name, is_text=index == 0) for index, name in enumerate(names))
    return ResultsTable(columns, tuple(rows), notes)


def write_pair_page(pair: PairedRuns, dataset: DatasetFolder) -> Path:
    """Write a page with the queries that got better and worse, with thumbnails; return its path.

    Args:
        pair: Both runs.
        dataset: The data set that they were evaluated on; has the thumbnails.
    """
    thumbnails = ThumbnailStore(dataset.thumbnails)
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader([Path(__file__).parent, Path(__file__).parents[1] / "evaluation"]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    table = pair_table(pair)
    html = templates.get_template("paired_runs.html.jinja").render(
        pair=pair,
        dataset=dataset.name,
        columns=[column.name for column in table.columns],
        rows=[[str(cell) for cell in row] for row in table.rows],
        notes=table.notes,
        sections=(("Worse", pair.worse), ("Better", pair.better)),
        max_shown=SHOWN_QUERIES,
        image_of=lambda clip: next(iter(images_of(thumbnails, vars(clip))), None),
    )
    path = dataset.comparisons / f"{pair.first.name[:100]}-vs-{pair.second.name[:100]}.html"
    write_text(path, html)
    return path

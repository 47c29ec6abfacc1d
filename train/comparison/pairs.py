"""Two runs beside each other, query by query: which got better and which worse, and whether it is more than chance."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from ...storage.common.errors import UserError
from ...storage.common.files import numbered_jsonl, write_text
from ...storage.common.validation import is_text
from ...storage.dataset.folder import DatasetFolder
from ...storage.stores.thumbnails import ThumbnailStore
from ..data.clips import Clip
from ..evaluation.thumbnails import images_of
from ..metrics import RECALL_AT
from ..runs.files import QUERIES_FILE
from .measures import Measured
from .records import RunRecord
from .statistics import Interval, paired_bootstrap
from .table import Cell, Column, Number, Table

SHOWN_QUERIES = 50
"""Most queries of the page that got better, and that got worse."""


@dataclass(frozen=True)
class Answer:
    """The answer of a run to a query."""

    caption: str
    clip: Clip
    """The right one."""
    rank: float
    first: Clip
    """The clip that the run ranks first."""


@dataclass(frozen=True)
class Change:
    """A query, as both runs answer it."""

    before: Answer
    after: Answer

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
    intervals: Mapping[str, Interval]
    """{measure: difference, second minus first}"""

    @property
    def better(self) -> list[Change]:
        """Queries whose right clip ranks higher in the second run, the largest gains first."""
        return sorted((change for change in self.changes if change.gain > 0), key=lambda change: -change.gain)

    @property
    def worse(self) -> list[Change]:
        """Queries whose right clip ranks lower in the second run, the largest losses first."""
        return sorted((change for change in self.changes if change.gain < 0), key=lambda change: change.gain)


def pair_runs(first: RunRecord, second: RunRecord, *, seed: int = 0) -> PairedRuns:
    """Compare two runs query by query.

    Args:
        first: An evaluated run.
        second: Another one, asked the same.
        seed: Of the bootstrap's draws.

    Raises:
        UserError: They were asked something else, or their queries cannot be read.
    """
    _check_same_test(first, second)
    answers = [sorted(read_answers(record.answers / QUERIES_FILE), key=_query) for record in (first, second)]
    if [_query(answer) for answer in answers[0]] != [_query(answer) for answer in answers[1]] or not answers[0]:
        what = "have other queries than their test sets' checksum says; run vlalign-evaluate again for both"
        raise UserError(f"{first.answers / QUERIES_FILE} and {second.answers / QUERIES_FILE}: {what}")
    ranks = [np.array([answer.rank for answer in side]) for side in answers]
    values = {f"R@{k}": [100.0 * (side < k + 1) for side in ranks] for k in RECALL_AT} | {"mean rank": ranks}
    intervals = {name: paired_bootstrap(sides[0], sides[1], seed=seed) for name, sides in values.items()}
    changes = tuple(Change(before, after) for before, after in zip(*answers, strict=True))
    return PairedRuns(first, second, changes, intervals)


def _check_same_test(first: RunRecord, second: RunRecord) -> None:
    tests: list[Measured] = []
    for record in (first, second):
        if record.measured is None or record.measured.task != "retrieval":
            raise UserError(f"{record.folder}: has no queries with ranks; expected a run evaluated for retrieval")
        tests.append(record.measured)
    if tests[0].test.checksum != tests[1].test.checksum:
        sides = " and ".join(f"{each.test.checksum} ({each.test.told}, {each.test.split})" for each in tests)
        raise UserError(f"{first.name} and {second.name}: test sets differ, {sides}; evaluate both on the same split")


def _query(answer: Answer) -> tuple[str, str, float, float]:
    clip = answer.clip
    return (
        answer.caption,
        clip.video_id,
        -1.0 if clip.start_seconds is None else clip.start_seconds,
        clip.end_seconds or 0.0,
    )


def read_answers(path: Path) -> list[Answer]:
    """Return what ``queries.jsonl`` of a retrieval says.

    Raises:
        UserError: It is missing, or a line is not as an evaluation writes it.
    """
    if not path.is_file():
        raise UserError(f"{path}: not found; run vlalign-evaluate again")
    answers = []
    for number, row in numbered_jsonl(path):
        try:
            answers.append(_answer(row))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            what = "not as an evaluation writes it; run vlalign-evaluate again"
            raise UserError(f"{path}, line {number}: {what}") from None
    return answers


def _answer(row: Mapping[str, Any]) -> Answer:
    rank = float(row["rank"])
    if not is_text(row["caption"]) or not 1 <= rank < 1e12:
        raise ValueError("no caption or no rank")
    return Answer(row["caption"], _clip(row["clip"]), rank, _clip(row["first"]))


def _clip(about: Mapping[str, Any]) -> Clip:
    times = [None if about[name] is None else float(about[name]) for name in ("start_seconds", "end_seconds")]
    if not is_text(about["video_id"]) or not all(time is None or abs(time) < 1e12 for time in times):
        raise ValueError("no clip")
    return Clip(about["video_id"], times[0], times[1])


def pair_table(pair: PairedRuns) -> Table:
    """Return a table of both runs' measures, their difference and its interval."""
    names = ("measure", pair.first.name, pair.second.name, "difference", "95 % interval")
    rows: list[tuple[Cell, ...]] = []
    sides = [np.array([getattr(change, side).rank for change in pair.changes]) for side in ("before", "after")]
    for name, interval in pair.intervals.items():
        values = [100 * (r < int(name[2:]) + 1).mean() if name.startswith("R@") else r.mean() for r in sides]
        text = f"{interval.low:+.1f} to {interval.high:+.1f}{'' if interval.has_zero else ' *'}"
        difference = Number(interval.difference, is_difference=True)
        rows.append((name, Number(float(values[0])), Number(float(values[1])), difference, text))
    notes = (
        f"{len(pair.better):,} of {len(pair.changes):,} queries got better, {len(pair.worse):,} worse",
        "interval: paired bootstrap over queries, 10,000 resamples; *: it does not hold 0; a tie counts half",
    )
    columns = tuple(Column(name, is_text=index == 0) for index, name in enumerate(names))
    return Table(columns, tuple(rows), notes)


def write_pair_page(pair: PairedRuns, dataset: DatasetFolder) -> Path:
    """Write a page with the queries that got better and worse, with thumbnails; return its path.

    Args:
        pair: Both runs.
        dataset: What they were asked about; has the thumbnails.
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
    html = templates.get_template("pairs.html.jinja").render(
        pair=pair,
        dataset=dataset.name,
        columns=[column.name for column in table.columns],
        rows=[[str(cell) for cell in row] for row in table.rows],
        notes=table.notes,
        sections=(("Worse", pair.worse), ("Better", pair.better)),
        most=SHOWN_QUERIES,
        image_of=lambda clip: next(iter(images_of(thumbnails, vars(clip))), None),
    )
    path = dataset.comparisons / f"{pair.first.name[:100]}-vs-{pair.second.name[:100]}.html"
    write_text(path, html)
    return path

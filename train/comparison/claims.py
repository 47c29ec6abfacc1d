"""Every table, figure and theorem of the five papers, and its state in this package.

``claim_data`` has a JSON file for each paper: its name as ``paper``, and ``claims``, a list of objects with the fields
of ``Claim``. docs/make_claims.py writes the page of all of them, docs/claims.md.
"""

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ...storage.common.files import read_json
from ...storage.common.problems import Problems
from ...storage.common.validation import DATASET_NAME
from ...storage.dataset.folder import DatasetFolder
from .groups import RunsOverview
from .published import published_rows
from .records import read_records
from .suite_files import read_suite
from .table import Column, ResultsTable

FOLDER = Path(__file__).with_name("claim_data")
STATES = {
    "runs": "runs on stand-in data",
    "carried": "carried, not run",
    "missing": "not carried",
    "drawing": "drawing or example",
}
"""{state: its text on the page}. "runs": a test runs the command on made-up data; "carried": there are values but no
test; "missing": nothing computes it; "drawing": it shows the method or chosen examples, with nothing to compute.
"""
ITEM = re.compile(r"(Table|Figure|Theorem) \d+")
NOTHING_REPRODUCED = "no row has been reproduced on a paper's own data so far"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A table, figure or theorem that a paper prints."""

    paper: str
    item: str
    """Its number, such as "Table 3"."""
    title: str
    state: str
    """A key of ``STATES``."""
    suites: tuple[str, ...] = ()
    """The suites that train its rows."""
    command: str = ""
    """The command that computes it, unless its suites' command does."""
    test: str = ""
    """The test that runs it: the path of its file and its name, such as ``tests/test_x.py::test_y``."""
    why: str = ""
    """The missing parts and the reason; empty if it is complete."""

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"state {self.state!r} of {self.name}: expected one of {', '.join(STATES)}")
        if not ITEM.fullmatch(self.item):
            raise ValueError(f"item {self.item!r}: expected a name such as 'Table 3', 'Figure 2' or 'Theorem 1'")
        if (self.state == "runs") != bool(self.test):
            raise ValueError(f"test of {self.name}: a claim that runs names its test, and no other does")
        if self.state == "runs" and not self.commands:
            raise ValueError(f"command of {self.name}: is missing")
        if self.state in ("carried", "missing") and not self.why:
            raise ValueError(f"why of {self.name}: is missing")

    @property
    def name(self) -> str:
        """Paper and number, such as "TACo, Table 3"."""
        return f"{self.paper}, {self.item}"

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that compute it, one for each data set."""
        if self.command:
            return (self.command,)
        each = ((name, dataset) for name in self.suites for dataset in read_suite(name).datasets)
        return tuple(f"vlalign-train --dataset {dataset} --suite {name}" for name, dataset in each)

    @property
    def num_rows(self) -> int:
        """Number of the paper's rows in the suites, over all data sets."""
        suites = [read_suite(name) for name in self.suites]
        return sum(len(suite.printed_rows(dataset)) for suite in suites for dataset in suite.datasets)


@lru_cache(maxsize=1)
def all_claims() -> tuple[Claim, ...]:
    """Return the claims of all papers, in the order of the files.

    Raises:
        TypeError, ValueError: A file is not as it should be.
    """
    files = [read_json(path) for path in sorted(FOLDER.glob("*.json"))]
    return tuple(
        Claim(paper=about["paper"], **{**claim, "suites": tuple(claim.get("suites", ()))})
        for about in files
        for claim in about["claims"]
    )


def list_claims(root: Path) -> RunsOverview:
    """Return a table of all claims, with the number of their rows that have a run here.

    Args:
        root: Folder of all data sets. A run counts if it has exactly the settings of a row, on whatever data.
    """
    with Problems() as problems:
        run_rows = Counter(table for table, _, _ in rows_with_a_run(root, problems))
    names = ("claim", "state", "rows", "with a run", "command", "about")
    columns = tuple(Column(name, is_text=name not in ("rows", "with a run")) for name in names)
    columns += (Column("limits", is_text=True, only_in_csv=True), Column("test", is_text=True, only_in_csv=True))
    rows = []
    for claim in all_claims():
        num_run = sum(run_rows[read_suite(name).source] for name in claim.suites)
        counts = (claim.num_rows, num_run) if claim.suites else (None, None)
        state = STATES[claim.state] + (", in part" if claim.why and claim.state == "runs" else "")
        commands = claim.commands or (None,)
        rows.append((claim.name, state, *counts, commands[0], claim.title, claim.why or None, claim.test or None))
    notes = (
        f"with a run: rows for which a run under {root} has exactly the paper's settings, on whatever data",
        NOTHING_REPRODUCED,
        *(f"{claim.name}: {claim.why}" for claim in all_claims() if claim.why),
    )
    return RunsOverview(ResultsTable(columns, tuple(rows), notes), problems.count)


def rows_with_a_run(root: Path, problems: Problems) -> set[tuple[str, str, str]]:
    """Return the rows of papers' tables with a run of exactly the row's settings: (paper and table, row, data set).

    Args:
        root: Folder of all data sets.
        problems: Gets a line for each run that cannot be read.
    """
    found = set()
    for path in sorted(root.glob("*")):
        if not (path.is_dir() and DATASET_NAME.fullmatch(path.name)):
            continue
        for record in read_records(DatasetFolder(root, path.name), problems):
            for metrics in (record.metrics, *record.other_results.values()):
                for published in published_rows(record.config, metrics):
                    table, _, row = published.source.partition(": ")
                    found.add((table, row, path.name))
    return found

"""A table of results, and how it is written: as text, CSV, Markdown and LaTeX."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...storage.common.files import write_text
from ...storage.common.terminal import one_line


@dataclass(frozen=True)
class Number:
    """A value, and its deviation if it is a mean."""

    value: float
    deviation: float | None = None
    """Sample standard deviation over seeds; None for a single run."""
    is_difference: bool = False
    """True for a difference, which is shown with its sign."""

    def __str__(self) -> str:
        text = f"{self.value:{'+' if self.is_difference else ''}.{_decimals(self.value)}f}"
        return text if self.deviation is None else f"{text} ± {self.deviation:.{_decimals(self.value)}f}"


def _decimals(value: float) -> int:
    return 1 if abs(value) < 10_000 else 0


def mean_of(values: Sequence[float]) -> Number:
    """Return the mean, with the sample standard deviation (n - 1) if there are two values or more."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Number(float(np.mean(values)), deviation)


Cell = str | int | Number | tuple[str, ...] | None
"""A tuple is shown as several texts, separated by semicolons. None is shown as a dash: nothing is known."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    is_text: bool = False
    """True for a column of texts, which are left-aligned."""
    only_in_csv: bool = False
    """A detail that would make other formats too wide."""


@dataclass(frozen=True)
class ResultsTable:
    """A table of results."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    """Lines below the table."""

    def shown(self) -> "ResultsTable":
        """Return the table without the columns that only CSV has."""
        shown = [index for index, column in enumerate(self.columns) if not column.only_in_csv]
        rows = tuple(tuple(row[index] for index in shown) for row in self.rows)
        return ResultsTable(tuple(self.columns[index] for index in shown), rows, self.notes)


def _text(cell: Cell) -> str:
    if isinstance(cell, tuple):
        return "; ".join(map(one_line, cell))
    return "-" if cell is None else f"{cell:,}" if isinstance(cell, int) else one_line(str(cell))


def as_text(table: ResultsTable) -> str:
    """Return the table in columns of fixed width, for a terminal."""
    table = table.shown()
    cells = [[column.name for column in table.columns], *([_text(cell) for cell in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = [
            text.ljust(width) if column.is_text else text.rjust(width)
            for text, width, column in zip(row, widths, table.columns, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join([*lines, *(f"note: {one_line(note)}" for note in table.notes)])


def as_csv(table: ResultsTable) -> str:
    """Return the table as CSV, with all digits; a deviation has a column of its own."""
    has_deviation = [any(map(_has_deviation, cells)) for cells in zip(*table.rows, strict=True)] or [False] * len(
        table.columns
    )
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = []
    for column, has in zip(table.columns, has_deviation, strict=True):
        names += [column.name, f"{column.name} deviation"] if has else [column.name]
    writer.writerow(map(_harmless_in_a_sheet, names))
    for row in table.rows:
        values: list[str | int | float | None] = []
        for cell, has in zip(row, has_deviation, strict=True):
            values.append(cell.value if isinstance(cell, Number) else _harmless_in_a_sheet(cell))
            if has:
                values.append(cell.deviation if isinstance(cell, Number) else None)
        writer.writerow(values)
    return file.getvalue().rstrip("\n")


def _has_deviation(cell: Cell) -> bool:
    return isinstance(cell, Number) and cell.deviation is not None


def _harmless_in_a_sheet(cell: str | int | tuple[str, ...] | None) -> str | int | None:
    """Return the cell; a text that a spreadsheet would compute gets an apostrophe before it."""
    if cell is None or isinstance(cell, int):
        return cell
    text = _text(cell)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def as_markdown(table: ResultsTable) -> str:
    """Return the table in GitHub's Markdown."""
    table = table.shown()
    rule = ["---" if column.is_text else "---:" for column in table.columns]
    rows = [[_markdown(column.name) for column in table.columns], rule]
    rows += [[_markdown(_text(cell)) for cell in row] for row in table.rows]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, *(f"\n{_markdown(one_line(note))}" for note in table.notes)])


def _markdown(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else "&amp;" if c == "&" else c for c in text)


LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    **{c: f"\\{c}" for c in "$&#%_"},
}


def as_latex(table: ResultsTable) -> str:
    """Return the table as a ``tabular`` of LaTeX with booktabs."""
    table = table.shown()
    lines = [
        r"\begin{tabular}{" + "".join("l" if column.is_text else "r" for column in table.columns) + "}",
        r"\toprule",
    ]
    lines += [" & ".join(_latex(column.name) for column in table.columns) + r" \\", r"\midrule"]
    lines += [" & ".join(_latex(_text(cell)) for cell in row) + r" \\" for row in table.rows]
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join([*lines, *(f"% {one_line(note)}" for note in table.notes)])


def _latex(text: str) -> str:
    return "".join(LATEX.get(c, c) for c in text)


FORMATS: dict[str, Callable[[ResultsTable], str]] = {
    "text": as_text,
    "csv": as_csv,
    "markdown": as_markdown,
    "latex": as_latex,
}
"""{name: function that writes a table}"""


def write_table(table: ResultsTable, folder: Path, name: str) -> Iterator[Path]:
    """Write a table as Markdown, for people, and as CSV, for programs; yield both paths."""
    for suffix, written in ((".md", as_markdown(table)), (".csv", as_csv(table))):
        path = folder / f"{name}{suffix}"
        write_text(path, written + "\n")
        yield path

"""The rows of a user's table: text with unknown encoding and delimiter (CSV), JSON Lines, or Parquet.

Properties inferred from the file's bytes are reported in one line. ``csv.Sniffer`` is not used: it mistakes letters in
captions for delimiters.
"""

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ....storage.common.errors import UserError
from ....storage.common.files import check_regular
from ....storage.untrusted.parquet import ParquetReader
from ..encodings import Note, decode

TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
SUFFIXES = ".csv, .tsv, .txt, .jsonl or .parquet file"
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
MAX_COLUMNS = 500
MAX_VALUES = 1 << 20
"""Number of values that a table may have in addition to eight for each character of its text."""
ROW_BYTES, VALUE_BYTES = 250, 60
"""Estimated memory of a row, and of each of its values."""
SAVE_AS = "save it as CSV UTF-8"


@dataclass(frozen=True)
class UserTable:
    """The content of a table."""

    columns: list[str]
    rows: list[tuple[str, list[Any]]]
    """For each row, its place in the file and its values: one for each column (None if it is missing), followed by any
    fields beyond the last column."""


def read_table(path: Path, is_known: Callable[[str], bool], note: Note) -> UserTable:
    """Return the content of a file.

    Args:
        path: File to read.
        is_known: Returns whether a column has a known name; used to find the delimiter.
        note: Reports what was inferred from the bytes of the file.

    Raises:
        UserError: The file cannot be read as a table.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _parquet(path)
    if suffix != ".jsonl" and suffix not in TEXT_SUFFIXES:
        hint = ""
        if suffix in (".xlsx", ".xls", ".ods"):
            hint = f"; {SAVE_AS}"
        elif suffix == ".json":
            hint = "; write one object per line"
        raise UserError(f"{path}: expected a {SUFFIXES}{hint}")
    check_regular(path)
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        raise UserError(f"{path}: a folder; expected a {SUFFIXES}") from None
    text = decode(data, path, note, save_as=SAVE_AS)
    return _json_lines(path, text) if suffix == ".jsonl" else _csv(path, text, is_known, note)


def _csv(path: Path, text: str, is_known: Callable[[str], bool], note: Note) -> UserTable:
    lines, skipped = io.StringIO(text, newline=""), 0
    stated = re.match(r'"?sep=(.)"?[;,\t]*\r?\n', text, re.IGNORECASE)  # Excel's extra first line
    if stated:
        lines.readline()
        skipped, delimiter = 1, stated[1]
    else:
        delimiter = max(DELIMITERS, key=lambda candidate: _count_known(text, candidate, is_known))
    reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True)
    columns: list[str] | None = None
    rows: list[tuple[str, list[Any]]] = []
    line = 0
    try:
        for row in reader:
            if columns is None:
                columns = row or None
                _check_columns(path, len(row))
            elif any(field.strip() for field in row):  # skips lines with nothing but delimiters, as spreadsheets add
                _check_cells(path, len(columns), len(rows), len(text))
                rows.append((f"line {reader.line_num + skipped}", row + [None] * (len(columns) - len(row))))
            line = reader.line_num
    except csv.Error as error:
        reason = "a quote that is opened here is never closed" if "unexpected end" in str(error) else str(error)
        raise UserError(
            f"{path}, line {line + 1 + skipped}: not valid CSV ({reason}); put captions in quotes, and double the "
            "quotes in them"
        ) from None
    if columns and delimiter != ("\t" if path.suffix.lower() == ".tsv" else ","):
        note(f"columns are separated by {DELIMITERS.get(delimiter, repr(delimiter))}")
    return UserTable(columns or [], rows)


def _check_columns(path: Path, number: int) -> None:
    if number > MAX_COLUMNS:
        raise UserError(f"{path}: more than {MAX_COLUMNS} columns; expected video_id, caption and a few more")


def _check_cells(path: Path, num_columns: int, num_rows: int, num_characters: int) -> None:
    """Raise ``UserError`` if filling up short rows to the number of columns would take too much memory."""
    if num_columns * num_rows > 8 * num_characters + MAX_VALUES:
        raise UserError(
            f"{path}: {num_columns} columns, but most rows have few values; write tables with fewer columns"
        )


def _count_known(text: str, delimiter: str, is_known: Callable[[str], bool]) -> tuple[int, int]:
    """Split the first row that is not blank at a delimiter; return its numbers of known columns and of all columns."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        names = next(filter(None, rows), [])
    except csv.Error:
        return 0, 0
    return sum(map(is_known, names)), len(names)


def _json_lines(path: Path, text: str) -> UserTable:
    columns: dict[str, None] = {}
    objects: list[tuple[str, dict[str, Any]]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            pairs = json.loads(line, object_pairs_hook=_Pairs)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: not valid JSON ({error}); expected one object per line") from None
        if not isinstance(pairs, _Pairs):
            raise UserError(f"{path}, line {number}: expected a JSON object, got {type(pairs).__name__}")
        row = dict(pairs)
        if len(row) < len(pairs):
            name = next(name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number]))
            raise UserError(f"{path}, line {number}: key {name!r} twice in one object; expected each key once")
        columns |= dict.fromkeys(row)
        _check_columns(path, len(columns))
        objects.append((f"line {number}", row))
    _check_cells(path, len(columns), len(objects), len(text))
    return UserTable(list(columns), [(where, [row.get(name) for name in columns]) for where, row in objects])


class _Pairs(list):
    """A JSON object as a list of (key, value), including duplicate keys."""


def _parquet(path: Path) -> UserTable:
    try:
        with ParquetReader(path) as file:
            names = file.schema.names
            _check_columns(path, len(names))
            table = file.read(names, row_bytes=ROW_BYTES + VALUE_BYTES * len(names))
        rows = [list(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
    except (OSError, ValueError, KeyError, MemoryError, pa.ArrowException) as error:
        reason = (str(error) or "it needs too much memory").splitlines()[0]
        raise UserError(f"{path}: not a readable Parquet file ({reason}); {SAVE_AS}") from None
    return UserTable(table.column_names, [(f"row {number}", row) for number, row in enumerate(rows, start=1)])

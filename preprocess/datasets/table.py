"""The rows of somebody's own table: text of unknown encoding and delimiter (CSV), JSON Lines, or Parquet.

What is not said by the file itself but found out from its bytes is noted in one line. ``csv.Sniffer`` is not asked: it takes letters
of captions for delimiters.
"""

import codecs
import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...storage.common.errors import UserError

TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
SUFFIXES = ".csv, .tsv, .txt, .jsonl or .parquet file"
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
MOST_ACCENTS = 0.5
"""Of the letters of words that have any: a French word has some among others, a Russian one in Windows-1251 is nothing else."""
SAVE_AS = "save it as CSV UTF-8"

Note = Callable[[str], None]


@dataclass(frozen=True)
class Table:
    columns: list[str]
    rows: list[tuple[str, list[Any]]]
    """(where the row is, a value for each column; None where it has none; and what it has beyond the columns)."""


def read_table(path: Path, knows: Callable[[str], bool], note: Note) -> Table:
    """``knows``: whether a column has a known name, which tells the delimiter. Raises ``UserError`` for what is no table."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _parquet(path)
    if suffix != ".jsonl" and suffix not in TEXT_SUFFIXES:
        hint = (
            f"; {SAVE_AS}"
            if suffix in (".xlsx", ".xls", ".ods")
            else "; write one object a line"
            if suffix == ".json"
            else ""
        )
        raise UserError(f"{path}: expected a {SUFFIXES}{hint}")
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        raise UserError(f"{path}: a folder, expected a {SUFFIXES}") from None
    text = decode(data, path, note)
    return _json_lines(path, text) if suffix == ".jsonl" else _csv(path, text, knows, note)


def decode(data: bytes, path: Path, note: Note) -> str:
    """UTF-8, or what the byte order mark or the zeros of UTF-16 say, or Windows-1252 where the bytes are no UTF-8 but can be that."""
    if data.startswith(WORKBOOKS):
        raise UserError(f"{path}: an Excel workbook or another archive, expected text; {SAVE_AS}")
    mark, encoding = next(((mark, name) for mark, name in MARKS if data.startswith(mark)), (b"", "utf-8"))
    if not mark:
        start = data[:64]
        even, odd = start[::2].count(0), start[1::2].count(0)
        if max(even, odd) > len(start) // 4 and min(even, odd) <= len(start) // 16:
            encoding = "utf-16-be" if even > odd else "utf-16-le"
    try:
        text = data[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            raise UserError(f"{path}: no {encoding.upper()} though it begins so ({error.reason}); {SAVE_AS}") from None
        return _western(data, path, error.start, note)
    if "\0" in text:
        raise UserError(f"{path}: holds zero bytes, expected text; {SAVE_AS}")
    if encoding != "utf-8":
        note(f"read as {encoding.upper()}, {'as its byte order mark says' if mark else 'as its zero bytes show'}")
    return text


def _western(data: bytes, path: Path, bad: int, note: Note) -> str:
    """``data``, which is no UTF-8 at ``bad``, as Windows-1252, or Latin-1 where that has no such byte."""
    place = f"line {data.count(10, 0, bad) + 1}: byte 0x{data[bad]:02x} is no UTF-8"
    if any(character > "\x7f" and character != "\ufffd" for character in data.decode("utf-8", "replace")):
        raise UserError(f"{path}, {place}, though other characters are: damaged, or of two encodings; {SAVE_AS}")
    words = [word for word in re.findall(rb"[A-Za-z\x80-\xff]{3,}", data) if not word.isascii()]
    if sum(byte > 0x7F for word in words for byte in word) > MOST_ACCENTS * sum(map(len, words)):
        raise UserError(f"{path}, {place}, and its words are not written as in a western encoding; {SAVE_AS}")
    try:
        text, name = data.decode("cp1252"), "Windows-1252"
    except UnicodeDecodeError:
        text, name = data.decode("latin-1"), "Latin-1"
    if "\0" in text:
        raise UserError(f"{path}: holds zero bytes, expected text; {SAVE_AS}")
    word = re.search(r"\w*[^\x00-\x7f]\w*", text)[0]
    note(f"{place}; read as {name}, in which there stands {word!r}; if that is wrong, {SAVE_AS}")
    return text


def _csv(path: Path, text: str, knows: Callable[[str], bool], note: Note) -> Table:
    lines, skipped = io.StringIO(text, newline=""), 0
    said = re.match(r'"?sep=(.)"?[;,\t]*\r?\n', text, re.IGNORECASE)  # Excel's own first line
    if said:
        lines.readline()
        skipped, delimiter = 1, said[1]
    else:
        delimiter = max(DELIMITERS, key=lambda one: _names_known(text, one, knows))
    reader = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True)
    columns: list[str] | None = None
    rows: list[tuple[str, list[Any]]] = []
    line = 0
    try:
        for row in reader:
            if columns is None:
                columns = row or None
            elif any(
                field.strip() for field in row
            ):  # neither a blank line nor one of delimiters alone, as spreadsheets add
                rows.append((f"line {reader.line_num + skipped}", row + [None] * (len(columns) - len(row))))
            line = reader.line_num
    except csv.Error as error:
        what = "a quote that is opened here is never closed" if "unexpected end" in str(error) else str(error)
        raise UserError(
            f"{path}, line {line + 1 + skipped}: no CSV ({what}); expected quotes around a caption, and those inside it doubled"
        ) from None
    if columns and delimiter != ("\t" if path.suffix.lower() == ".tsv" else ","):
        note(f"columns are separated by {DELIMITERS.get(delimiter, repr(delimiter))}")
    return Table(columns or [], rows)


def _names_known(text: str, delimiter: str, knows: Callable[[str], bool]) -> tuple[int, int]:
    """How many columns of the first row that is not blank are known, and how many it has."""
    try:
        names = next(
            filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)), []
        )
    except csv.Error:
        return 0, 0
    return sum(map(knows, names)), len(names)


def _json_lines(path: Path, text: str) -> Table:
    columns: dict[str, int] = {}
    objects = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            pairs = json.loads(line, object_pairs_hook=_Pairs)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: no JSON ({error}); expected one object a line") from None
        if not isinstance(pairs, _Pairs):
            raise UserError(f"{path}, line {number}: expected a JSON object, got {type(pairs).__name__}")
        row = dict(pairs)
        if len(row) < len(pairs):
            raise UserError(f"{path}, line {number}: a name occurs twice in one object; expected each once")
        for name in row:
            columns.setdefault(name, len(columns))
        objects.append((f"line {number}", row))
    return Table(list(columns), [(place, [row.get(name) for name in columns]) for place, row in objects])


class _Pairs(list):
    """A JSON object as it stands, a name that it has twice included."""


def _parquet(path: Path) -> Table:
    try:
        table = pq.read_table(path)
        table.validate(full=True)
        rows = [list(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
    except (OSError, ValueError, KeyError, MemoryError, pa.ArrowException) as error:
        words = (str(error) or "it needs too much memory").splitlines()[0]
        raise UserError(f"{path}: no readable Parquet file ({words})") from None
    return Table(table.column_names, [(f"row {number}", row) for number, row in enumerate(rows, start=1)])

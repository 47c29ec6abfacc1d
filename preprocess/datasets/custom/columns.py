"""The meaning of the columns of a user's table."""

import difflib
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....storage.common.errors import UserError
from ....storage.common.validation import is_number, is_text
from ..encodings import Note
from .table import UserTable

REQUIRED = ("video_id", "caption")
OPTIONAL = ("start_seconds", "end_seconds", "split")
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
"""A number with a decimal point, or without one."""
EXPECTED = f"expected {', '.join(REQUIRED)}, and optionally {', '.join(OPTIONAL)}"

UNITS = {"": 1.0} | dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0)
UNITS |= dict.fromkeys(("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"), 1e-3)
TIMES = {
    "start_seconds": "start starts start_time start_times starttime time_start start_timestamp begin begin_time from "
    "t_start tstart clip_start segment_start video_start",
    "end_seconds": "end ends end_time end_times endtime time_end end_timestamp stop stop_time to t_end tend clip_end "
    "segment_end video_end",
    "duration": "duration dur length clip_duration clip_length",
}
NAMES = {
    "video_id": "video_id videoid id video vid vid_id video_name video_file video_filename video_path video_key "
    "filename file_name file path clip_id youtube_id yt_id ytid youtubeid you_tube_id",
    "caption": "caption captions text sentence sentences description descriptions desc transcript transcription "
    "subtitle subtitles narration utterance query annotation",
    "split": "split splits subset set partition",
}
KNOWN = {name: (meaning, 1.0) for meaning, names in NAMES.items() for name in names.split()}
KNOWN |= {
    "_".join(filter(None, (name, unit))): (meaning, factor)
    for meaning, names in TIMES.items()
    for name in names.split()
    for unit, factor in UNITS.items()
}
"""Maps each known column name to its meaning and to the factor that converts its numbers to seconds."""
WEAK = ("id", "clip_id", "path")
"""Columns that are read as the video's id only if no other column is; beside another, they probably number the rows."""
_TIME_WORDS = (
    "start starts begin from end ends stop to time times timestamp timestamps timecode onset offset segment segments "
    "window windows interval span frame frames clip"
)
TIME_WORDS = frozenset(_TIME_WORDS.split())
"""If no known column has times, an unknown column with numbers or times and with one of these words in its name is an
error."""

SPLIT_NAMES: dict[str, str] = {
    **dict.fromkeys(("train", "training", "trn"), "train"),
    **dict.fromkeys(("test", "testing", "tst"), "test"),
    **dict.fromkeys(("validation", "val", "valid", "validate", "dev", "development"), "validation"),
}
"""Maps each known name of a split to its name in this package."""


@dataclass(frozen=True)
class TableColumn:
    """A column of the table."""

    name: str
    """Name as in the file."""
    index: int
    factor: float = 1.0
    """Converts its numbers to seconds."""


ColumnByMeaning = Mapping[str, TableColumn]
"""Maps each meaning, such as ``start_seconds``, to its column."""


@dataclass(frozen=True)
class ChosenColumns:
    """The columns of a table, by their use."""

    by_meaning: ColumnByMeaning
    extra: Sequence[TableColumn]
    """Columns of numbers without a known meaning, available to custom objectives."""


def plain_name(name: str) -> str:
    """Return a column name in lower case with underscores: ``Start Time (s)`` and ``startTime_s`` are
    ``start_time_s``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(name))
    return re.sub(r"[\W_]+", "_", words.casefold()).strip("_")


def choose_columns(path: Path, table: UserTable, note: Note) -> ChosenColumns:
    """Return the columns by meaning; report nonstandard names, extra columns and ignored columns.

    Columns without a known meaning are kept if they contain only numbers.

    Raises:
        UserError: A required column is missing, two columns have the same meaning, or a column that may hold times or
            splits is not understood.
    """
    candidates, unknown = _candidates(table)
    for meaning, same in candidates.items():
        if len(same) > 1:
            names = " and ".join(repr(column.name) for column in same)
            which = "one" if len(same) == 2 else "all but one"
            raise UserError(f"{path}: columns {names} both mean {meaning}; rename or remove {which}")
    columns = {meaning: same[0] for meaning, same in candidates.items() if same}
    _check_required(path, table, columns)
    _check_unknown(path, table, columns, unknown)
    _check_ends(path, columns)
    renamed = [
        f"{column.name!r} as {_described(meaning, column)}"
        for meaning, column in columns.items()
        if column.name != meaning or meaning == "duration"
    ]
    if renamed:
        note(f"columns are read as follows: {', '.join(renamed)}")
    extra = []
    for column in unknown:
        nearest = _nearest(column.name, columns)
        if reason := _why_not_numbers(table, column):
            note(f"column {column.name!r} is ignored{nearest}: {reason}")
        elif column.name.strip() in [kept.name for kept in extra]:
            note(f"column {column.name!r} is ignored: an earlier one has the same name")
        else:
            extra.append(TableColumn(column.name.strip(), column.index))
            note(f"column {column.name!r} is kept for your own objectives{nearest}: its values are numbers")
    return ChosenColumns(columns, extra)


def _why_not_numbers(table: UserTable, column: TableColumn) -> str:
    """Return the reason why a column without a known meaning is not kept; empty if it is kept."""
    if not column.name.strip() or not is_text(column.name):
        return "it has no name"
    for where, row in table.rows:
        try:
            number_in(row[column.index])
        except ValueError:
            return f"{str(row[column.index])[:40]!r} in {where} is not a number, and only columns of numbers are kept"
    return ""


def number_in(value: Any) -> float | None:
    """Return the number in a field; None if it is blank, or NaN as in tables of pandas.

    Raises:
        ValueError: It holds anything else.
    """
    text = value.strip() if isinstance(value, str) else None
    if value is None or text == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    if text is not None and NUMBER.fullmatch(text):
        value = float(text)
    if not is_number(value):
        raise ValueError("no finite number")
    return float(value)


def _candidates(table: UserTable) -> tuple[dict[str, list[TableColumn]], list[TableColumn]]:
    """Return the columns of each meaning, and the columns without a known meaning.

    Blank columns are in neither, except for required columns.
    """
    candidates: dict[str, list[TableColumn]] = defaultdict(list)
    unknown: list[TableColumn] = []
    for index, name in enumerate(table.columns):
        meaning, factor = KNOWN.get(plain_name(name), ("", 1.0))
        if meaning and (meaning in REQUIRED or not _is_blank(table, index)):
            candidates[meaning].append(TableColumn(name, index, factor))
        elif not _is_blank(table, index):
            unknown.append(TableColumn(name, index))
    weak = [column for column in candidates["video_id"] if plain_name(column.name) in WEAK]
    if len(weak) < len(candidates["video_id"]):
        unknown += weak
        candidates["video_id"] = [column for column in candidates["video_id"] if column not in weak]
    if candidates["end_seconds"] or not candidates["start_seconds"]:
        unknown += candidates.pop("duration", [])
    return candidates, unknown


def _is_blank(table: UserTable, index: int) -> bool:
    return all(row[index] is None or (isinstance(row[index], str) and not row[index].strip()) for _, row in table.rows)


def _described(meaning: str, column: TableColumn) -> str:
    if meaning == "duration":
        return "a clip's length, so that end is start + length"
    return meaning + (", in milliseconds" if column.factor != 1 else "")


def _nearest(name: str, columns: ColumnByMeaning) -> str:
    """Return a hint about the known name most similar to ``name``; empty if no name is similar."""
    near = difflib.get_close_matches(plain_name(name), KNOWN, n=1, cutoff=0.7)
    if not near:
        return ""
    meaning = KNOWN[near[0]][0]
    given = (
        f", already read from {columns[meaning].name!r}"
        if meaning in columns and columns[meaning].name != meaning
        else ""
    )
    return f" (nearest known: {meaning}{given})"


def _check_required(path: Path, table: UserTable, columns: ColumnByMeaning) -> None:
    missing = [name for name in REQUIRED if name not in columns]
    if not missing:
        return
    names = [repr(name) + ("" if name in KNOWN else _nearest(name, {})) for name in sorted(table.columns) if name]
    existing = ", ".join(names) or "none with a name"
    may_lack_header = not columns and path.suffix.lower() not in (".jsonl", ".parquet")
    header = "; is the first line a header?" if may_lack_header else ""
    raise UserError(f"{path}: no column {' and no column '.join(missing)}; it has {existing}; {EXPECTED}{header}")


def _check_ends(path: Path, columns: ColumnByMeaning) -> None:
    if "start_seconds" in columns and not columns.keys() & {"end_seconds", "duration"}:
        name = columns["start_seconds"].name
        raise UserError(f"{path}: column {name!r} but none for the end; add end_seconds, or remove the column")
    if "end_seconds" in columns and "start_seconds" not in columns:
        name = columns["end_seconds"].name
        raise UserError(f"{path}: column {name!r} but none for the start; add start_seconds, or remove the column")


def _check_unknown(path: Path, table: UserTable, columns: ColumnByMeaning, unknown: Sequence[TableColumn]) -> None:
    """Reject an unknown column that may hold times or splits, unless a known column holds them."""
    for column in unknown:
        name = plain_name(column.name)
        near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.7)
        meaning = KNOWN[near[0]][0] if near else ""
        values = [row[column.index] for _, row in table.rows]
        has_time_word = bool(TIME_WORDS & set(name.split("_")))
        is_near = meaning in TIMES and meaning != "duration"
        if "start_seconds" not in columns and (has_time_word or is_near) and any(map(_may_be_time, values)):
            hint = "does it say when clips start and end?" if has_time_word else f"nearest: {meaning}"
            raise UserError(f"{path}: unknown column {column.name!r} ({hint}); {EXPECTED}; rename it, or remove it")
        if "split" not in columns and (meaning == "split" or any(isinstance(v, str) and len(v) > 2 for v in values)):
            splits = {str(value).strip().casefold() for value in values} - {""}
            if splits and splits <= SPLIT_NAMES.keys():
                hint = f"nearest: split, since its values are {', '.join(sorted(splits))}"
                raise UserError(f"{path}: unknown column {column.name!r} ({hint}); {EXPECTED}; rename it, or remove it")


def _may_be_time(value: Any) -> bool:
    """Return whether a value is a number, a time, a range, or a list of them."""
    if isinstance(value, list):
        return any(map(_may_be_time, value))
    return isinstance(value, int | float) or (
        isinstance(value, str) and bool(re.fullmatch(r"[\d\s:.,;>\[\]()-]+s?", value) and re.search(r"\d", value))
    )

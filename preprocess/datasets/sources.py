"""The files that a data set's authors publish: found by their names, read with errors that say file and row."""

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.records import Caption, VideoRecord

Record = VideoRecord | Caption

csv.field_size_limit(1 << 27)  # a caption may be long; Python's own limit is 128 KiB


@dataclass(frozen=True)
class Annotations:
    """What a reader reads from."""

    folder: Path
    published: Mapping[str, str]
    """{official file name: where its authors publish it}"""
    problems: Problems
    """For rows that are left out: one line each, with file and row."""

    def find(self, *names: str) -> list[Path]:
        """Official files, in ``folder`` or anywhere below. Raises ``UserError`` that lists all that are missing, with their sources."""
        found = [self.find_optional(name) for name in names]
        if missing := [name for name, path in zip(names, found, strict=True) if path is None]:
            sources = "; ".join(f"{name} ({self.published[name]})" for name in missing)
            raise UserError(f"{self.folder}: missing {sources}; put them there, or pass --annotations DIR")
        return found

    def find_optional(self, name: str) -> Path | None:
        """The file nearest to the top, None where there is none. ``name`` may have folders before it."""
        found = sorted(self.folder.rglob(name), key=lambda path: (len(path.parts), path))
        return found[0] if found else None

    def read_json(self, path: Path, kind: type = dict) -> Any:
        """A name that an object has twice is reported, and its first value kept; a BOM is passed over.

        Raises ``UserError`` where the file is no JSON in UTF-8, or another kind of value at the top.
        """

        def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            values: dict[str, Any] = {}
            for name, value in pairs:
                if name in values:
                    self.drop(path, f"entry {name!r}", "the second of this name")
                else:
                    values[name] = value
            return values

        try:
            value = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=once)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{path}: no JSON in UTF-8 ({error}); expected the file as its authors publish it"
            ) from None
        if not isinstance(value, kind):
            raise UserError(
                f"{path}: a JSON {type(value).__name__}, expected a {kind.__name__}, as its authors publish it"
            )
        return value

    def drop(self, path: Path, row: str, why: str) -> None:
        """Reports a row that is left out."""
        self.problems.add(f"{path}, {row}: {why}; left out")

    def within(self, caption: Caption, duration_seconds: Any) -> Caption:
        """The caption, its clip cut at the video's end where it goes on after it, which is counted.

        Raises ``ValueError`` where it also starts there, or where the duration is no number.
        """
        last = round(seconds(duration_seconds), 2)  # 70.29 is published as 70.28999999999999
        if caption.end_seconds is None or caption.end_seconds <= last:
            return caption
        cut = replace(caption, end_seconds=last)
        self.note("ends after the video, cut at its duration")
        return cut

    def note(self, change: str) -> None:
        """Counts a row that is kept, but not as it stands in the file."""
        self.problems.changed[change] += 1


@dataclass(frozen=True)
class Dataset:
    """A row of ``DATASETS``."""

    read: Callable[[Annotations, str], Iterator[Record]]
    """From the files and the name of a protocol. All captions of a video come together; videos need not be listed."""
    published: Mapping[str, str]
    protocols: Sequence[str] = field(default=("",))
    """Which splits and captions; the first one is usual."""
    facts: Callable[[Annotations, str], dict[str, Any]] | None = None
    """What else there is to be said of the files: {what: number}."""
    task: str = "retrieval"
    """What runs are asked on it: kept with the captions, for ``vlalign-train`` and ``vlalign-evaluate``."""
    steps: Callable[[Annotations], dict[str, list[str]]] | None = None
    """{task: its steps in order}, whether shown in a video or not; kept with the captions."""


@contextmanager
def as_published(path: Path, row: str = "") -> Iterator[None]:
    """Whatever cannot be found in a file of another shape becomes one line: ``UserError``."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(
            f"{path}{', ' if row else ''}{row}: {what}; expected the file as its authors publish it"
        ) from None


def read_rows(path: Path, columns: Sequence[str], *, header: bool = True) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, row) of a CSV file in UTF-8 that has at least ``columns``; without a header, just those. Raises ``UserError``."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            reader = csv.DictReader(file, fieldnames=None if header else columns, strict=True)
            if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
                raise UserError(f"{path}: no column {', '.join(missing)}; expected the file as its authors publish it")
            for row in reader:
                if None in row or None in row.values():
                    raise UserError(f"{path}, line {reader.line_num}: expected {len(reader.fieldnames)} fields")
                yield reader.line_num, row
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(f"{path}: no CSV in UTF-8 ({error}); expected the file as its authors publish it") from None


def read_lines(path: Path) -> list[str]:
    """Without blank ones. Raises ``UserError`` where the file is no text in UTF-8."""
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: no text in UTF-8 ({error}); expected the file as its authors publish it") from None


def seconds(value: Any) -> float:
    """Raises ``ValueError`` for what is no finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no time, expected seconds")
    return number


def text(value: Any) -> str:
    """A caption: on one line, without blanks around it. Raises ``ValueError`` for what is empty or none."""
    if not isinstance(value, str) or not (clean := " ".join(value.split())):
        raise ValueError(f"the caption is {value!r}, expected a sentence")
    clean.encode()  # half of a surrogate pair is a ValueError, too
    return clean

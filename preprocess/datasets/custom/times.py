"""Times as users write them: seconds, milliseconds, ``mm:ss`` or ``hh:mm:ss``, with a decimal point or comma."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ..sources import seconds
from .columns import NUMBER, TIMES, ColumnByMeaning
from .table import UserTable

TIME_FORMS = "seconds, mm:ss or hh:mm:ss"

COMMA = re.compile(r"[+-]?\d*,\d+", re.ASCII)
CLOCK = re.compile(r"(?:(?P<h>\d+):(?=\d+:))?(?P<m>\d+):(?P<s>\d{1,2})(?:[.,](?P<fraction>\d+))?", re.ASCII)


class AmbiguousCommaError(ValueError):
    """A time has a comma, but other times of the file have a decimal point, so that the comma is ambiguous."""


class TimeReader:
    """Reads the times of one file and remembers how they were written."""

    def __init__(self, table: UserTable, columns: ColumnByMeaning) -> None:
        """Search all times of a table for a decimal point, which decides the meaning of a comma."""
        self.columns = {meaning: column for meaning, column in columns.items() if meaning in TIMES}
        values = (row[column.index] for _, row in table.rows for column in self.columns.values())
        texts = [value.strip() for value in values if isinstance(value, str)]
        self.has_points = any("." in text and NUMBER.fullmatch(text) for text in texts)
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        """{notation: the first such time and its meaning}, for notations other than plain seconds."""
        self.after_an_hour: list[bool] = []
        """For each time that was written with hours above 0, whether it is a whole number of minutes."""

    def read(self, row: Sequence[Any], meaning: str) -> float | None:
        """Return the time in one column of a row, in seconds; None if there is no such column or its field is blank.

        Raises:
            ValueError: The value is not a time.
        """
        if (column := self.columns.get(meaning)) is None:
            return None
        value = row[column.index]
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        try:
            return self._seconds(value.strip() if isinstance(value, str) else value, column.factor)
        except ValueError as error:
            reason = str(error) if isinstance(error, AmbiguousCommaError) else f"expected {TIME_FORMS}"
            raise ValueError(f"{column.name} is {value!r}, {reason}") from None

    def _seconds(self, value: Any, factor: float) -> float:
        if not isinstance(value, str):
            if isinstance(value, bool):
                raise ValueError("not a time")
            return seconds(value) * factor
        if NUMBER.fullmatch(value):
            self.counts["seconds"] += 1
            return seconds(value) * factor
        if COMMA.fullmatch(value):
            if self.has_points:
                raise AmbiguousCommaError(
                    "which is ambiguous, since other times have a decimal point; write it with a point"
                )
            return self._count("with a decimal comma", value, float(value.replace(",", ".")) * factor)
        match = CLOCK.fullmatch(value)
        if match and int(match["s"]) < 60 and (match["h"] is None or int(match["m"]) < 60):
            whole = int(match["h"] or 0) * 3600 + int(match["m"]) * 60 + int(match["s"])
            exact = float(f"{whole}.{match['fraction'] or 0}")
            if whole >= 3600 and match["h"] is not None:
                self.after_an_hour.append(exact % 60 == 0)
            return self._count("as mm:ss" if match["h"] is None else "as hh:mm:ss", value, exact)
        raise ValueError("not a time")

    def _count(self, form: str, value: str, number: float) -> float:
        self.counts[form] += 1
        self.first.setdefault(form, f"{value!r} as {number:g} s")
        return number

    def notes(self) -> Iterator[str]:
        """Yield a line for each notation other than plain seconds."""
        for form, example in self.first.items():
            others = self.counts["seconds"]
            mixed = f"; the other {others:,} as seconds" if others and form == next(iter(self.first)) else ""
            yield f"{self.counts[form]:,} times are read {form}, such as {example}{mixed}"
        if self.after_an_hour and all(self.after_an_hour):
            yield (
                "all times after the first hour are whole minutes: spreadsheets write mm:ss as hh:mm:00; "
                "if that happened here, write seconds instead"
            )

"""Rows of a user's table as captions."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from ....storage.records import SPLITS, Caption
from .columns import REQUIRED, SPLIT_NAMES, ChosenColumns, ColumnByMeaning, number_in
from .times import TimeReader

LONG_CLIP_SECONDS = 600


class RowReader:
    """Makes captions of rows and counts how their splits were understood."""

    def __init__(self, columns: ChosenColumns, times: TimeReader, num_columns: int) -> None:
        """Set the meanings of the columns, the reader of their times, and the number of all columns."""
        self.columns, self.extra, self.times, self.num_columns = columns.by_meaning, columns.extra, times, num_columns
        self.splits: Counter[tuple[str, str]] = Counter()
        """Counts (split as written, split as read)."""
        self.without_split = 0

    def caption(self, row: Sequence[Any]) -> Caption:
        """Return the caption in a row.

        Raises:
            ValueError: The row cannot be used. The message gives the reason.
        """
        if extra := [field for field in row[self.num_columns :] if field]:
            raise ValueError(f"{len(extra)} more fields than columns, expected captions with commas in double quotes")
        (id_name, video_id), (name, text) = ((self.columns[m].name, row[self.columns[m].index]) for m in REQUIRED)
        if not isinstance(video_id, str) or not video_id.strip():
            raise ValueError(f"{id_name} is {video_id!r}, expected a name")
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{name} is {text!r}, expected a sentence")
        try:
            (video_id + text).encode()
        except UnicodeEncodeError:
            raise ValueError("half of a surrogate pair, expected valid Unicode") from None
        start, end = (self.times.read(row, meaning) for meaning in ("start_seconds", "end_seconds"))
        if start is not None and (length := self.times.read(row, "duration")) is not None:
            end = start + length
        return Caption(
            video_id=video_id.strip(),
            caption=text.strip(),
            split=self._split(row),
            start_seconds=start,
            end_seconds=end,
            extra=self._extra(row),
        )

    def _extra(self, row: Sequence[Any]) -> dict[str, float]:
        numbers = {column.name: number_in(row[column.index]) for column in self.extra}
        return {name: number for name, number in numbers.items() if number is not None}

    def _split(self, row: Sequence[Any]) -> str:
        column = self.columns.get("split")
        value = row[column.index] if column else "train"
        if value is None or value == "":
            self.without_split += 1
            return "train"
        split = SPLIT_NAMES.get(value.strip().casefold()) if isinstance(value, str) else None
        if split is None:
            raise ValueError(f"{column.name if column else ''} is {value!r}, expected one of {', '.join(SPLITS)}")
        if split != value:
            self.splits[value, split] += 1
        return split

    def notes(self) -> Iterator[str]:
        """Yield lines about splits with other names, and about captions without a split."""
        if self.splits:
            counts = (f"{written!r} as {split} ({count:,})" for (written, split), count in self.splits.items())
            yield f"splits are read as follows: {', '.join(counts)}"
        if self.without_split:
            yield f"{self.without_split:,} captions have no split: they go to train"


def clip_notes(captions: Sequence[Caption], columns: ColumnByMeaning, times: TimeReader) -> Iterator[str]:
    """Yield lines about captions without times, and about clips that are so long that their unit may be wrong."""
    clips = [(c.start_seconds, c.end_seconds) for c in captions]
    lengths = [end - start for start, end in clips if start is not None and end is not None]
    if "start_seconds" not in columns:
        yield "no columns start_seconds and end_seconds: each caption is about its whole video"
    elif len(lengths) < len(captions):
        num_whole = len(captions) - len(lengths)
        yield f"{num_whole:,} of {len(captions):,} captions have no times: they are about their whole video"
    in_seconds = not times.first and all(column.factor == 1 for column in times.columns.values())
    if lengths and in_seconds and median(lengths) > LONG_CLIP_SECONDS:
        yield (
            f"half of the clips are longer than {median(lengths):,.0f} s, read as seconds; if these are milliseconds, "
            "name the columns start_ms and end_ms"
        )

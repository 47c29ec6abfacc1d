"""Captions whose columns and rows are arrays, in memory or mapped; a record is made when it is asked for."""

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, overload

import numpy as np

from ..common.errors import refuse_unreadable
from ..records import Caption

CODED = ("video_id", "split")
"""Fields of which many captions have the same: each caption has a number instead."""
TIMES = ("start_seconds", "end_seconds")
IN_ROWS = tuple(field.name for field in fields(Caption) if field.name not in (*CODED, *TIMES))
"""All other fields: a caption's row is a JSON list of them, so that one place in the file has nearly all of it."""
TYPES = {
    "row_starts": ("I64", 1),
    **{name: ("F64", 1) for name in TIMES},
    **{f"{name}.codes": ("I32", 1) for name in CODED},
    "rows": ("U8", 1),
    **{f"{name}.{part}": kind for name in CODED for part, kind in (("starts", ("I64", 1)), ("texts", ("U8", 1)))},
}
"""The tensors of a caption table, in the order in which they are written."""
TODO = "remove it; if that does not help, run vlalign-preprocess again"
RECORDS_AT_ONCE = 4096
"""Captions that iteration makes at a time."""
_DECODER = json.JSONDecoder(strict=False)  # control characters stand in a row as they are


class Texts(Sequence[str]):
    """Texts one after the other in an array of bytes; each is decoded when it is asked for."""

    def __init__(self, starts: np.ndarray, utf8: np.ndarray, chosen: np.ndarray | None = None) -> None:
        """Take texts.

        Args:
            starts: int64 [N + 1], where each text begins, and where the last one ends.
            utf8: uint8, the texts.
            chosen: Numbers of the texts that are shown, in order; all by default.
        """
        self._starts, self._utf8, self._chosen = starts, utf8, chosen

    def __len__(self) -> int:
        return len(self._starts) - 1 if self._chosen is None else len(self._chosen)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return self.take(np.arange(*index.indices(len(self))))
        number = range(len(self))[index]
        number = number if self._chosen is None else self._chosen[number]
        return self._utf8[self._starts[number] : self._starts[number + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), RECORDS_AT_ONCE):
            yield from self[first : first + RECORDS_AT_ONCE]

    @property
    def chosen(self) -> np.ndarray:
        """The numbers of the texts that are shown, among all that the array holds."""
        return np.arange(len(self), dtype=np.int32) if self._chosen is None else self._chosen

    def choose(self, indices: np.ndarray) -> "Texts":
        """Return the texts at these indices, without decoding them."""
        return Texts(self._starts, self._utf8, indices if self._chosen is None else self._chosen[indices])

    def take(self, indices: np.ndarray) -> list[str]:
        """Return the texts at these indices."""
        numbers = indices if self._chosen is None else self._chosen[indices]
        spans = zip(self._starts[numbers].tolist(), self._starts[numbers + 1].tolist(), strict=True)
        return [self._utf8[first:last].tobytes().decode() for first, last in spans]


def by_appearance(codes: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Number codes again in the order in which they first appear.

    Args:
        codes: [N], integers from 0 to ``count`` - 1; -1 for none.
        count: Number of codes.

    Returns:
        The new codes [N], and the index at which each new code first appears.
    """
    first = np.full(count + 1, len(codes))  # the last entry belongs to code -1
    first[codes[::-1]] = np.arange(len(codes))[::-1]  # if an index occurs twice, the last assignment counts
    first[-1] = len(codes)
    found = np.flatnonzero(first < len(codes))
    order = found[np.argsort(first[found])]
    new_codes = np.full(count + 1, -1, dtype=np.int32)
    new_codes[order] = np.arange(len(order))
    return new_codes[codes], first[order]


class CaptionTable(Sequence[Caption]):
    """Captions in arrays; a ``Caption`` is made when it is asked for."""

    def __init__(
        self, tensors: Mapping[str, np.ndarray], where: str = "captions", key: str = "", rows: np.ndarray | None = None
    ) -> None:
        """Make a table.

        Args:
            tensors: Arrays as in ``TYPES``.
            where: Where they are from, for messages.
            key: Tells these captions from others; empty for captions in memory.
            rows: The captions that the table shows, in order: indices into the arrays; all by default.
        """
        self._tensors, self.where, self.key, self._rows = tensors, where, key, rows
        self._texts = {name: Texts(tensors[f"{name}.starts"], tensors[f"{name}.texts"]) for name in CODED}
        self._json = Texts(tensors["row_starts"], tensors["rows"])

    def __len__(self) -> int:
        return len(self._json) if self._rows is None else len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Caption: ...

    @overload
    def __getitem__(self, index: slice) -> list[Caption]: ...

    def __getitem__(self, index: int | slice) -> Caption | list[Caption]:
        if isinstance(index, slice):
            return self._records(self._rows_at(index))
        index = range(len(self))[index]
        return self._records(self._rows_at(slice(index, index + 1)))[0]

    def __iter__(self) -> Iterator[Caption]:
        for first in range(0, len(self), RECORDS_AT_ONCE):
            yield from self[first : first + RECORDS_AT_ONCE]

    def take(self, indices: Sequence[int] | np.ndarray) -> "CaptionTable":
        """Return the captions at ``indices`` as a table that shares the arrays."""
        chosen = indices if isinstance(indices, np.ndarray) else np.array(indices, dtype=np.int64)
        rows = chosen if self._rows is None else self._rows[chosen]
        return CaptionTable(self._tensors, self.where, self.key, rows)

    def by_videos(self, most: int) -> Iterator["CaptionTable"]:
        """Yield the captions in parts of about ``most``, all captions of a video in the same part.

        There is one part if captions of several videos alternate.
        """
        codes = self._tensors["video_id.codes"]  # in the order of their first appearance

        def code_at(place: int) -> int:
            return int(codes[place if self._rows is None else self._rows[place]])

        def never_decrease() -> bool:
            parts = (codes[self._rows_at(slice(first, first + most + 1))] for first in range(0, len(self), most))
            return all(bool(np.all(part[1:] >= part[:-1])) for part in parts)

        first, last = 0, len(self)
        if last > most and never_decrease():
            while last - first > most:
                after = bisect_right(range(last), code_at(first + most - 1), lo=first, key=code_at)
                yield self.take(np.arange(first, after))
                first = after
        if first < last or not last:
            yield self.take(np.arange(first, last))

    @property
    def whole(self) -> "CaptionTable":
        """All captions of the arrays."""
        return CaptionTable(self._tensors, self.where, self.key)

    @property
    def rows(self) -> np.ndarray:
        """The captions that the table shows: indices into ``whole`` [num_captions]."""
        return self._rows_at(slice(None))

    @property
    def video_ids(self) -> Texts:
        """The videos of ``whole``."""
        return self._texts["video_id"]

    def texts(self) -> Iterator[str]:
        """Yield the text of each caption, in order. No records are made."""
        return self._field("caption")

    def numbers(self, column: str) -> np.ndarray:
        """Return a column of times: float64 [num_captions], NaN for None."""
        return self._of_rows(self._tensors[column])

    def codes(self, column: str) -> tuple[Sequence[str], np.ndarray]:
        """Return a column of texts as codes.

        Returns:
            The distinct texts in the order of their first appearance, and for each caption the index of its text, or -1
            for None: int32 [num_captions].
        """
        if column in CODED:
            return self._coded(column)
        index_of: dict[Any, int] = {}
        coder = (-1 if text is None else index_of.setdefault(text, len(index_of)) for text in self._field(column))
        codes = np.fromiter(coder, np.int32, len(self))
        return list(index_of), codes

    def videos(self) -> tuple[Texts, np.ndarray]:
        """Return ``codes`` of the videos."""
        return self._coded("video_id")

    def _coded(self, column: str) -> tuple[Texts, np.ndarray]:
        with refuse_unreadable(self.where, "damaged captions", TODO):
            texts, codes = self._texts[column], self._of_rows(self._tensors[f"{column}.codes"])
            new_codes, firsts = by_appearance(codes, len(texts))
            return texts.choose(codes[firsts]), new_codes

    def _of_rows(self, values: np.ndarray) -> np.ndarray:
        return values if self._rows is None else values[self._rows]

    def _rows_at(self, places: slice) -> np.ndarray:
        return np.arange(*places.indices(len(self))) if self._rows is None else self._rows[places]

    def _field(self, column: str) -> Iterator[Any]:
        place = IN_ROWS.index(column)
        for first in range(0, len(self), RECORDS_AT_ONCE):
            with refuse_unreadable(self.where, "damaged captions", TODO):
                rows = self._json.take(self._rows_at(slice(first, first + RECORDS_AT_ONCE)))
                values = [_DECODER.decode(row)[place] for row in rows]
            yield from values

    def _records(self, rows: np.ndarray) -> list[Caption]:
        with refuse_unreadable(self.where, "damaged captions", TODO):
            coded = [self._texts[name].take(self._tensors[f"{name}.codes"][rows]) for name in CODED]
            times = [self._tensors[name][rows].tolist() for name in TIMES]
            names, rest = (*CODED, *TIMES), self._json.take(rows)
            return [
                Caption(
                    **dict(zip(names, (video_id, split, *map(_none_if_nan, of_row)), strict=True)),
                    **dict(zip(IN_ROWS, _DECODER.decode(row), strict=True)),
                )
                for video_id, split, *of_row, row in zip(*coded, *times, rest, strict=True)
            ]


def _none_if_nan(number: float) -> float | None:
    return None if math.isnan(number) else number

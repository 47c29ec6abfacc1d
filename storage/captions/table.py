"""Captions in arrays, in memory or mapped from a file: encoded from Arrow, and decoded when a record is read.

Video, split and times are separate arrays. All other fields of a caption are one JSON list: most of a caption is at one
place in the file.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute

from ..common.errors import refuse_unreadable
from ..common.tensor_files import TensorWriter
from ..records import Caption

pc: Any = pyarrow.compute  # its functions are created at import, where type checkers do not see them

CODED_FIELDS = ("video_id", "split")
"""Fields whose texts repeat: each caption has the number of its text instead."""
TIME_FIELDS = ("start_seconds", "end_seconds")
EXTRA = "extra"
"""Field with the numbers in the user's columns: one column each in Parquet, one tensor here if there are any."""
EXTRA_PREFIX = f"{EXTRA}."
"""Prefix of such a column's name in Parquet."""
JSON_FIELDS = tuple(field.name for field in fields(Caption) if field.name not in (*CODED_FIELDS, *TIME_FIELDS, EXTRA))
"""All other fields: a caption's row is a JSON list of them, at one place in the file."""
TENSOR_TYPES = {
    "row_starts": ("I64", 1),
    **{name: ("F64", 1) for name in TIME_FIELDS},
    **{f"{name}.codes": ("I32", 1) for name in CODED_FIELDS},
    "rows": ("U8", 1),
    **{
        f"{name}.{part}": kind for name in CODED_FIELDS for part, kind in (("starts", ("I64", 1)), ("texts", ("U8", 1)))
    },
}
"""The tensors of a caption table, in the order in which they are written."""
REMEDY = "remove it; if that does not help, run vlalign-preprocess again"
RECORDS_AT_ONCE = 4096
"""Number of captions that iteration reads at a time."""
_DECODER = json.JSONDecoder(strict=False)  # rows contain unescaped control characters


class Texts(Sequence[str]):
    """Texts stored one after the other in an array of bytes; each is decoded on demand."""

    def __init__(self, starts: np.ndarray, utf8: np.ndarray, selected: np.ndarray | None = None) -> None:
        """Wrap an array of texts.

        Args:
            starts: int64 [N + 1], start of each text, and end of the last one.
            utf8: uint8, the texts.
            selected: Numbers of the texts of this sequence, in order; all by default.
        """
        self._starts, self._utf8, self._selected = starts, utf8, selected

    def __len__(self) -> int:
        return len(self._starts) - 1 if self._selected is None else len(self._selected)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return self.take(np.arange(*index.indices(len(self))))
        number = range(len(self))[index]
        number = number if self._selected is None else self._selected[number]
        return self._utf8[self._starts[number] : self._starts[number + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), RECORDS_AT_ONCE):
            yield from self[first : first + RECORDS_AT_ONCE]

    @property
    def selected(self) -> np.ndarray:
        """The numbers of these texts, among all in the array."""
        return np.arange(len(self), dtype=np.int32) if self._selected is None else self._selected

    def select(self, indices: np.ndarray) -> "Texts":
        """Return the texts at these indices, without decoding them."""
        return Texts(self._starts, self._utf8, indices if self._selected is None else self._selected[indices])

    def take(self, indices: np.ndarray) -> list[str]:
        """Return the texts at these indices."""
        numbers = indices if self._selected is None else self._selected[indices]
        spans = zip(self._starts[numbers].tolist(), self._starts[numbers + 1].tolist(), strict=True)
        return [self._utf8[first:last].tobytes().decode() for first, last in spans]


def by_appearance(codes: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Renumber codes in the order in which they first appear.

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
    """Captions in arrays; a ``Caption`` is made on demand."""

    def __init__(
        self,
        tensors: Mapping[str, np.ndarray],
        where: str = "captions",
        key: str = "",
        selected: np.ndarray | None = None,
        extra_columns: Sequence[str] = (),
    ) -> None:
        """Make a table.

        Args:
            tensors: Arrays as in ``TENSOR_TYPES``.
            where: Their origin, for messages.
            key: Identifies these captions; empty for captions in memory.
            selected: The captions of this table, in order: indices into the arrays; all by default.
            extra_columns: Names of the columns in the tensor "extra" [num_captions * num_columns], caption by caption,
                NaN for a missing number.
        """
        self.extra_columns = tuple(extra_columns)
        """Names of the columns of the user's own."""
        self._tensors, self.where, self.key, self._selected = tensors, where, key, selected
        self._texts = {name: Texts(tensors[f"{name}.starts"], tensors[f"{name}.texts"]) for name in CODED_FIELDS}
        self._json = Texts(tensors["row_starts"], tensors["rows"])

    def __len__(self) -> int:
        return len(self._json) if self._selected is None else len(self._selected)

    @overload
    def __getitem__(self, index: int) -> Caption: ...

    @overload
    def __getitem__(self, index: slice) -> list[Caption]: ...

    def __getitem__(self, index: int | slice) -> Caption | list[Caption]:
        if isinstance(index, slice):
            return self._records(self._indices_at(index))
        index = range(len(self))[index]
        return self._records(self._indices_at(slice(index, index + 1)))[0]

    def __iter__(self) -> Iterator[Caption]:
        for first in range(0, len(self), RECORDS_AT_ONCE):
            yield from self[first : first + RECORDS_AT_ONCE]

    def take(self, indices: Sequence[int] | np.ndarray) -> "CaptionTable":
        """Return the captions at ``indices`` as a table that shares the arrays."""
        of_shown = indices if isinstance(indices, np.ndarray) else np.array(indices, dtype=np.int64)
        selected = of_shown if self._selected is None else self._selected[of_shown]
        return CaptionTable(self._tensors, self.where, self.key, selected, self.extra_columns)

    def by_videos(self, size: int) -> Iterator["CaptionTable"]:
        """Yield the captions in parts of about ``size``; captions of one video stay together.

        If captions of several videos alternate, there is one part.
        """
        codes = self._tensors["video_id.codes"]  # in the order of their first appearance

        def code_at(place: int) -> int:
            return int(codes[place if self._selected is None else self._selected[place]])

        def never_decrease() -> bool:
            parts = (codes[self._indices_at(slice(first, first + size + 1))] for first in range(0, len(self), size))
            return all(bool(np.all(part[1:] >= part[:-1])) for part in parts)

        first, last = 0, len(self)
        if last > size and never_decrease():
            while last - first > size:
                after = bisect_right(range(last), code_at(first + size - 1), lo=first, key=code_at)
                yield self.take(np.arange(first, after))
                first = after
        if first < last or not last:
            yield self.take(np.arange(first, last))

    @property
    def whole(self) -> "CaptionTable":
        """All captions of the arrays."""
        return CaptionTable(self._tensors, self.where, self.key, None, self.extra_columns)

    @property
    def selected(self) -> np.ndarray:
        """The captions of this table: indices into ``whole`` [num_captions]."""
        return self._indices_at(slice(None))

    @property
    def video_ids(self) -> Texts:
        """The distinct video ids of ``whole``."""
        return self._texts["video_id"]

    def texts(self) -> Iterator[str]:
        """Yield the text of each caption, in order. No records are made."""
        return self._field("caption")

    def numbers(self, column: str) -> np.ndarray:
        """Return a column of times: float64 [num_captions], NaN for None."""
        return self._of_selected(self._tensors[column])

    def extra_numbers(self, column: str) -> np.ndarray:
        """Return one of ``extra_columns``: float64 [num_captions], NaN for a missing number."""
        with refuse_unreadable(self.where, "damaged captions", REMEDY):
            return self._of_selected(self._extra_numbers()[:, self.extra_columns.index(column)])

    def _extra_numbers(self) -> np.ndarray:
        return self._tensors[EXTRA].reshape(len(self._json), len(self.extra_columns))

    def codes(self, column: str) -> tuple[Sequence[str], np.ndarray]:
        """Return a column of texts as codes.

        Returns:
            The distinct texts in the order of their first appearance, and for each caption the index of its text, or -1
            for None: int32 [num_captions].
        """
        if column in CODED_FIELDS:
            return self._coded(column)
        index_of: dict[Any, int] = {}
        coder = (-1 if text is None else index_of.setdefault(text, len(index_of)) for text in self._field(column))
        codes = np.fromiter(coder, np.int32, len(self))
        return list(index_of), codes

    def videos(self) -> tuple[Texts, np.ndarray]:
        """Return the video ids as ``codes`` does."""
        return self._coded("video_id")

    def _coded(self, column: str) -> tuple[Texts, np.ndarray]:
        with refuse_unreadable(self.where, "damaged captions", REMEDY):
            texts, codes = self._texts[column], self._of_selected(self._tensors[f"{column}.codes"])
            new_codes, firsts = by_appearance(codes, len(texts))
            return texts.select(codes[firsts]), new_codes

    def _of_selected(self, values: np.ndarray) -> np.ndarray:
        return values if self._selected is None else values[self._selected]

    def _indices_at(self, places: slice) -> np.ndarray:
        return np.arange(*places.indices(len(self))) if self._selected is None else self._selected[places]

    def _field(self, column: str) -> Iterator[Any]:
        place = JSON_FIELDS.index(column)
        for first in range(0, len(self), RECORDS_AT_ONCE):
            with refuse_unreadable(self.where, "damaged captions", REMEDY):
                rows = self._json.take(self._indices_at(slice(first, first + RECORDS_AT_ONCE)))
                values = [_DECODER.decode(row)[place] for row in rows]
            yield from values

    def _records(self, indices: np.ndarray) -> list[Caption]:
        with refuse_unreadable(self.where, "damaged captions", REMEDY):
            coded = [self._texts[name].take(self._tensors[f"{name}.codes"][indices]) for name in CODED_FIELDS]
            times = [self._tensors[name][indices].tolist() for name in TIME_FIELDS]
            names, rest = (*CODED_FIELDS, *TIME_FIELDS), self._json.take(indices)
            return [
                Caption(
                    **dict(zip(names, (video_id, split, *map(_none_if_nan, of_row)), strict=True)),
                    **dict(zip(JSON_FIELDS, _DECODER.decode(row), strict=True)),
                    extra=extra,
                )
                for video_id, split, *of_row, row, extra in zip(*coded, *times, rest, self._extra(indices), strict=True)
            ]

    def _extra(self, indices: np.ndarray) -> Iterable[dict[str, float]]:
        if not self.extra_columns:
            return ({} for _ in indices)
        return (
            {name: number for name, number in zip(self.extra_columns, row, strict=True) if not math.isnan(number)}
            for row in self._extra_numbers()[indices].tolist()
        )


def _none_if_nan(number: float) -> float | None:
    return None if math.isnan(number) else number


# From Arrow to arrays


@dataclass(frozen=True)
class EncodedCaptions:
    """Some captions as arrays."""

    times: dict[str, np.ndarray]
    codes: dict[str, tuple[list[str], np.ndarray]]
    """{field of ``CODED_FIELDS``: its texts in these captions, and for each caption the index of its text, or -1}"""
    lengths: np.ndarray
    """Bytes of each caption's row."""
    json_bytes: np.ndarray
    """The rows, concatenated."""
    extra: np.ndarray | None = None
    """The numbers in the user's own columns, caption by caption; None if there are no such columns."""

    def __len__(self) -> int:
        return len(self.lengths)


def encode_captions(batch: pa.RecordBatch) -> EncodedCaptions:
    """Return captions as arrays."""
    rows = _as_json(batch)
    _, ends, utf8 = rows.buffers()
    offsets = np.frombuffer(ends, np.int32, len(rows) + 1, rows.offset * 4).astype(np.int64)
    texts = np.frombuffer(utf8, np.uint8) if len(rows) else np.zeros(0, np.uint8)
    times = {name: batch.column(name).to_numpy(zero_copy_only=False).astype(np.float64) for name in TIME_FIELDS}
    codes = {name: _code(batch.column(name)) for name in CODED_FIELDS}
    own = [column for name, column in zip(batch.schema.names, batch, strict=True) if name.startswith(EXTRA_PREFIX)]
    extra = np.stack([column.to_numpy(zero_copy_only=False) for column in own], axis=1).ravel() if own else None
    return EncodedCaptions(times, codes, np.diff(offsets), texts[offsets[0] : offsets[-1]], extra)


def _code(column: pa.Array) -> tuple[list[str], np.ndarray]:
    encoded = column.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.fill_null(-1).to_numpy()


class _TextCodes:
    """Codes of all texts that were encoded so far."""

    def __init__(self) -> None:
        self._code_of: dict[str, dict[str, int]] = {name: {} for name in CODED_FIELDS}

    def of(self, encoded: EncodedCaptions) -> dict[str, np.ndarray]:
        """Return the codes of some captions."""
        arrays = {}
        for name, (texts, indices) in encoded.codes.items():
            code_of = self._code_of[name]
            codes = [code_of.setdefault(text, len(code_of)) for text in texts]
            arrays[f"{name}.codes"] = np.array([*codes, -1], np.int32)[indices]
        return arrays

    def texts(self) -> dict[str, np.ndarray]:
        """Return the texts that have codes, in order of their codes."""
        arrays = {}
        for name, code_of in self._code_of.items():
            encoded = [text.encode() for text in code_of]
            arrays[f"{name}.starts"] = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
            arrays[f"{name}.texts"] = np.frombuffer(b"".join(encoded), np.uint8)
        return arrays


def _as_json(batch: pa.RecordBatch) -> pa.Array:
    """Return a JSON list of the fields ``JSON_FIELDS`` for each caption."""
    parts = []
    for name in JSON_FIELDS:
        column = batch.column(name)
        if pa.types.is_list(column.type):
            parts.append(_json_list(column))
        else:
            parts.append(_json_value(column))
        parts.append(",")
    return pc.binary_join_element_wise("[", *parts[:-1], "]", "")


def _json_value(column: pa.Array) -> pa.Array:
    if not pa.types.is_string(column.type):
        return pc.coalesce(column.cast(pa.string()), "null")
    escaped = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
    return pc.coalesce(pc.binary_join_element_wise('"', escaped, '"', ""), "null")


def _json_list(column: pa.ListArray) -> pa.Array:
    lengths = pc.list_value_length(column).fill_null(0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = pa.ListArray.from_arrays(pa.array(offsets), _json_value(column.flatten()))
    return pc.binary_join_element_wise("[", pc.binary_join(values, ","), "]", "")


def table_in_memory(table: pa.Table) -> CaptionTable:
    """Return a table of captions with arrays in memory."""
    codes = _TextCodes()
    none = pa.RecordBatch.from_pylist([], table.schema)
    encoded = [encode_captions(batch) for batch in (none, *table.to_batches())]
    each = [
        part.times | codes.of(part) | {"rows": part.json_bytes} | ({} if part.extra is None else {EXTRA: part.extra})
        for part in encoded
    ]
    arrays = {name: np.concatenate([of_part[name] for of_part in each]) for name in each[0]}
    starts = np.cumsum([0, *np.concatenate([part.lengths for part in encoded])], dtype=np.int64)
    columns = [name.removeprefix(EXTRA_PREFIX) for name in table.schema.names if name.startswith(EXTRA_PREFIX)]
    return CaptionTable(arrays | {"row_starts": starts} | codes.texts(), extra_columns=columns)


def write_captions(
    writer: TensorWriter, parts: Iterable[EncodedCaptions], num_captions: int, num_extra: int = 0
) -> None:
    """Write the tensors of a caption table.

    Args:
        writer: Writes the file.
        parts: The captions, in order.
        num_captions: Number of captions in all parts.
        num_extra: Number of columns of the user's own.

    Raises:
        ValueError: There are more or fewer captions than ``num_captions``.
    """
    codes, done, size = _TextCodes(), 0, 0
    writer.reserve("row_starts", "I64", num_captions + 1)
    for name in TIME_FIELDS:
        writer.reserve(name, "F64", num_captions)
    if num_extra:
        writer.reserve(EXTRA, "F64", num_captions * num_extra)
    for name in CODED_FIELDS:
        writer.reserve(f"{name}.codes", "I32", num_captions)
    writer.fill("row_starts", 0, np.zeros(1, np.int64))
    writer.append("rows", np.zeros(0, np.uint8))
    for part in parts:
        writer.fill("row_starts", done + 1, size + np.cumsum(part.lengths))
        writer.append("rows", part.json_bytes)
        for name, values in (part.times | codes.of(part)).items():
            writer.fill(name, done, values)
        if part.extra is not None:
            writer.fill(EXTRA, done * num_extra, part.extra)
        done, size = done + len(part), size + len(part.json_bytes)
    if done != num_captions:
        raise ValueError(f"{done:,} captions, expected {num_captions:,}")
    writer.append("rows", np.full(-writer.size % 8, ord(" "), np.uint8))  # aligns the next tensor
    for name, values in sorted(codes.texts().items(), key=lambda item: -item[1].itemsize):
        writer.append(name, values)

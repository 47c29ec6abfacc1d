"""The caption table, in Parquet."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .common.errors import READ_ERRORS, UserError, refuse_unreadable
from .files import check_regular, read_json, write_json, written_whole
from .layout import DatasetFolder
from .records import Caption

_COLUMN_TYPES = {
    str: pa.string(),
    str | None: pa.string(),
    float | None: pa.float64(),
    int | None: pa.int32(),
    list[str]: pa.list_(pa.string()),
    list[int]: pa.list_(pa.int32()),
}
_FIRST_COLUMNS = ("video_id", "start_seconds", "end_seconds")
_FIELDS = {field.name: field for field in fields(Caption)}
RECORD_SCHEMA = pa.schema(
    [(name, _COLUMN_TYPES[_FIELDS[name].type]) for name in dict.fromkeys((*_FIRST_COLUMNS, *_FIELDS))]
)
"""The columns that make a ``Caption``: its fields."""
CAPTION_SCHEMA = pa.schema([pa.field("clip_id", pa.string()), *RECORD_SCHEMA])
OPTIONAL_COLUMNS = {name for name, field in _FIELDS.items() if field.metadata.get("added_later")}
"""Columns that older tables lack. Their values are None."""
INPUT_FIELDS = tuple(name for name, field in _FIELDS.items() if not field.metadata.get("tagged"))
"""Fields that come from the annotations rather than from tagging."""
ABOUT_NAME = "about.json"
RECORDS_AT_ONCE = 4096
"""Captions that iteration makes at a time."""


def write_table(path: Path, table: pa.Table) -> None:
    """Write a file of Parquet, whole or not at all."""
    with written_whole(path) as partial:
        pq.write_table(table, partial)


def _table(captions: Iterable[Caption]) -> pa.Table:
    rows = [{name: getattr(caption, name) for name in CAPTION_SCHEMA.names} for caption in captions]
    return pa.Table.from_pylist(rows, schema=CAPTION_SCHEMA)


def part_path(folder: Path, number: int) -> Path:
    """Return the path of a part of the caption table."""
    return folder / f"part-{number:05d}.parquet"


def write_part(folder: Path, number: int, captions: Sequence[Caption], about: Mapping[str, Any]) -> None:
    """Write one part of the caption table.

    Args:
        folder: Folder of the table. Its parts hold the captions of a data set, in order.
        number: Number of the part, from 0.
        captions: Captions of the part.
        about: How they were made; kept in the file.
    """
    write_table(part_path(folder, number), _table(captions).replace_schema_metadata({"vlalign": json.dumps(about)}))


def read_part_about(path: Path) -> dict[str, Any]:
    """Return the ``about`` of ``write_part``; empty if the file is missing or has none."""
    return json.loads((_read_schema(path).metadata or {}).get(b"vlalign", b"{}")) if path.exists() else {}


def read_captions_about(folder: Path) -> dict[str, Any] | None:
    """Return where the captions come from and how they were tagged; None if the table is missing or not complete."""
    return read_json(folder / ABOUT_NAME) if (folder / ABOUT_NAME).exists() else None


def write_captions_about(folder: Path, about: Mapping[str, Any]) -> None:
    """Write where the captions come from. Write it last: its presence says that the table is complete."""
    write_json(folder / ABOUT_NAME, about)


def choose_protocol(dataset: DatasetFolder, protocol: str) -> DatasetFolder:
    """Return the data set with the captions of a protocol.

    Args:
        dataset: The data set.
        protocol: Name of the protocol; empty for the usual one.

    Raises:
        UserError: The captions of this protocol are missing.
    """
    if protocol in ("", (read_captions_about(dataset.captions) or {}).get("protocol")):
        return dataset
    chosen = replace(dataset, protocol=protocol)
    if read_captions_about(chosen.captions) is None:
        raise UserError(
            f"{chosen.captions}: not found; run vlalign-preprocess --dataset {dataset.name} --protocol {protocol} first"
        )
    return chosen


def _refuse_damaged(path: Path) -> Any:
    check_regular(path)
    errors = (*READ_ERRORS, pa.ArrowException)
    return refuse_unreadable(path, "not a readable Parquet file", "run vlalign-preprocess again", errors)


def _read_schema(path: Path) -> pa.Schema:
    with _refuse_damaged(path):
        return pq.read_schema(path)


def read_table(path: Path, columns: Sequence[str]) -> pa.Table:
    """Read and check columns of a whole file, so that no damage appears later. Raises ``UserError`` for damage."""
    with _refuse_damaged(path):
        with pq.ParquetFile(path) as file:  # pq.read_table imports pandas, if it is there: seconds for a small table
            if missing := sorted(set(columns) - set(file.schema_arrow.names)):
                raise ValueError(f"columns missing: {', '.join(missing)}")
            table = file.read(columns=list(columns))
        table.validate(full=True)
        return table


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
    order = np.argsort(first)[: np.count_nonzero(first < len(codes))]
    new_codes = np.full(count + 1, -1, dtype=np.int32)
    new_codes[order] = np.arange(len(order))
    return new_codes[codes], first[order]


class CaptionTable(Sequence[Caption]):
    """Captions in columns; a ``Caption`` is made when it is asked for.

    It needs a quarter of the memory of a list of records, which matters for a hundred million captions.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch], rows: np.ndarray | None = None) -> None:
        """Make a table.

        Args:
            batches: Columns of ``RECORD_SCHEMA``.
            rows: Rows of the batches that the table shows, in order; all by default.
        """
        self._batches = list(batches)
        self._ends = np.cumsum([len(batch) for batch in self._batches], dtype=np.int64)
        self._rows = np.arange(self._ends[-1] if self._batches else 0) if rows is None else rows

    @classmethod
    def of(cls, captions: Iterable[Caption]) -> "CaptionTable":
        """Make a table of records."""
        return cls(_table(captions).select(RECORD_SCHEMA.names).to_batches())

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Caption: ...

    @overload
    def __getitem__(self, index: slice) -> list[Caption]: ...

    def __getitem__(self, index: int | slice) -> Caption | list[Caption]:
        if isinstance(index, slice):
            return self._records(self._rows[index])
        return self._records(self._rows[[index]])[0]

    def __iter__(self) -> Iterator[Caption]:
        for first in range(0, len(self), RECORDS_AT_ONCE):
            yield from self[first : first + RECORDS_AT_ONCE]

    def take(self, indices: Sequence[int] | np.ndarray) -> "CaptionTable":
        """Return the captions at ``indices`` as a table that shares the columns."""
        return CaptionTable(self._batches, self._rows[np.asarray(indices, dtype=np.int64)])

    def texts(self) -> Iterator[str]:
        """Yield the text of each caption, in order. No records are made."""
        column = CAPTION_SCHEMA.field("caption")
        whole = pa.chunked_array([batch.column(column.name) for batch in self._batches], column.type)
        for first in range(0, len(self), RECORDS_AT_ONCE):
            yield from whole.take(pa.array(self._rows[first : first + RECORDS_AT_ONCE])).to_pylist()

    def numbers(self, column: str) -> np.ndarray:
        """Return a column of numbers: float64 [num_captions], NaN for None."""
        parts = [batch.column(column).to_numpy(zero_copy_only=False) for batch in self._batches]
        return np.concatenate([np.zeros(0), *parts]).astype(np.float64, copy=False)[self._rows]

    def codes(self, column: str) -> tuple[list[str], np.ndarray]:
        """Return a column of texts as codes.

        Returns:
            The distinct texts in the order of their first appearance, and for each caption the index of its text, or -1
            for None: int32 [num_captions].
        """
        whole = pa.chunked_array([batch.column(column) for batch in self._batches], CAPTION_SCHEMA.field(column).type)
        parts = whole.dictionary_encode().unify_dictionaries().chunks
        texts = parts[0].dictionary.to_pylist() if parts else []
        per_row = [np.zeros(0, np.int32), *(part.indices.fill_null(-1).to_numpy() for part in parts)]
        codes = np.concatenate(per_row)[self._rows]
        new_codes, firsts = by_appearance(codes, len(texts))
        return [texts[code] for code in codes[firsts]], new_codes

    def _records(self, rows: np.ndarray) -> list[Caption]:
        records: dict[int, Caption] = {}
        batch_of_row = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(batch_of_row):
            indices = np.flatnonzero(batch_of_row == number)
            batch = self._batches[number]
            in_batch = pa.array(rows[indices] - (self._ends[number] - len(batch)))
            for index, values in zip(indices.tolist(), batch.take(in_batch).to_pylist(), strict=True):
                records[index] = Caption(**values)
        return [records[index] for index in range(len(rows))]


def read_captions(folder: Path) -> CaptionTable:
    """Read all parts of a caption table, in order. Raises ``UserError`` if it is missing, not complete or damaged."""
    if read_captions_about(folder) is None:
        raise UserError(f"{folder / ABOUT_NAME}: not found; run vlalign-preprocess first")
    batches = []
    for path in sorted(folder.glob("part-*.parquet")):
        columns = _read_schema(path).names
        missing = set(CAPTION_SCHEMA.names) - set(columns) - OPTIONAL_COLUMNS
        if missing:
            raise UserError(f"{path}: columns missing: {', '.join(sorted(missing))}; run vlalign-preprocess again")
        table = read_table(path, [name for name in RECORD_SCHEMA.names if name in columns])
        with _refuse_damaged(path):  # columns of other types
            batches += pa.concat_tables([RECORD_SCHEMA.empty_table(), table], promote_options="default").to_batches()
    return CaptionTable(batches)


class CaptionTime(NamedTuple):
    """A caption's text, and what it is about."""

    video_id: str
    start_seconds: float | None
    end_seconds: float | None
    text: str


def caption_parts(dataset: DatasetFolder) -> list[Path]:
    """Return the files of all complete caption tables of a data set: the usual one, and those of its protocols."""
    top = replace(dataset, protocol="").captions
    folders = [top, *sorted(path.parent for path in top.glob(f"*/{ABOUT_NAME}"))]
    complete = [folder for folder in folders if (folder / ABOUT_NAME).exists()]
    return [part for folder in complete for part in sorted(folder.glob("part-*.parquet"))]


def read_times(part: Path) -> Iterator[CaptionTime]:
    """Yield the captions of a part without their words.

    Raises:
        UserError: The file is damaged.
    """
    table = read_table(part, ["video_id", "start_seconds", "end_seconds", "caption"])
    with _refuse_damaged(part):  # columns of other types
        table = table.cast(pa.schema([CAPTION_SCHEMA.field(name) for name in table.column_names]))
    for batch in table.to_batches(RECORDS_AT_ONCE):
        yield from map(CaptionTime._make, zip(*batch.to_pydict().values(), strict=True))

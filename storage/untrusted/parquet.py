"""Read untrusted Parquet files with memory in proportion to the size of the file.

A page of 20 bytes may hold a text of a megabyte a million times, or a billion equal numbers. The sizes in the file's
footer are chosen by its writer and prove nothing. Arrow's reader is bound only by the page headers: it does not
unpack or decode more than they state. Therefore the headers are added up before anything is read; texts are read as
dictionaries, where each takes memory once, and are repeated only after their lengths are added up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from ..common.files import check_regular
from .limits import Budget

pc: Any = pyarrow.compute  # its functions are made when it is imported, so that type checkers do not see them

MAX_FOOTER_BYTES = 1 << 20
"""Limit of the footer, in addition to a sixteenth of the file: Arrow needs 300 times the footer's size in memory."""
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 8}
"""{physical type: bytes of a value in memory}; for a text, bytes of its index in the dictionary."""
LEVEL_BYTES = 4
"""Bytes of each value's levels: how deeply it is nested, and whether it begins a list."""
DICTIONARY_PAGE = 2
ENCODING_FIELDS = {5: 2, 7: 2, 8: 4}
"""{field with the details of a kind of page: field with the encoding in these details}"""
FRONT_CODED = 7
"""Encoding that stores how much of the previous text each text repeats (DELTA_BYTE_ARRAY)."""


class ParquetReader:
    """An open Parquet file. Use it in a ``with`` statement.

    Args:
        path: The file.

    Raises:
        UserError: It is a pipe, a socket or a device.
        ValueError, OSError, pa.ArrowException: It is damaged, or takes more memory than a file of its size may.
    """

    def __init__(self, path: Path) -> None:
        check_regular(path)
        self._path, self._size = path, path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(self._size - 8, 0))
            footer_bytes = int.from_bytes(file.read(4), "little")
            if not 0 < footer_bytes <= min(MAX_FOOTER_BYTES + self._size // 16, self._size - 8):
                raise ValueError(f"its metadata takes {footer_bytes:,} of its {self._size:,} bytes")
            file.seek(self._size - 8 - footer_bytes)
            self._chunks = _chunks_of(file.read(footer_bytes))
        self._file = pq.ParquetFile(path)
        self.schema: pa.Schema = self._file.schema_arrow
        self.metadata: pq.FileMetaData = self._file.metadata
        if len(self._chunks) != self.metadata.num_row_groups:
            raise ValueError("its column metadata is damaged")

    def __enter__(self) -> "ParquetReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, columns: Sequence[str], groups: Sequence[int] | None = None, *, row_bytes: int = 0) -> pa.Table:
        """Return columns without dictionaries, after a full check for damage.

        Args:
            columns: Names of columns.
            groups: Numbers of the groups of rows; all by default.
            row_bytes: Bytes that the caller needs for each row, in addition to the row's values.
        """
        if missing := [name for name in columns if name not in self.schema.names]:
            raise ValueError(f"columns missing: {', '.join(missing)}")
        groups = range(self.metadata.num_row_groups) if groups is None else groups
        budget = Budget(self._size)
        num_rows = sum(self.metadata.row_group(group).num_rows for group in groups)
        budget.take(num_rows * row_bytes, f"its {num_rows:,} rows")
        tables = [self._read_group(group, columns, budget) for group in groups]
        schema = pa.schema([(name, _plain_type(self.schema.field(name).type)) for name in columns])
        parts = [table.cast(schema) for table in tables]
        return pa.concat_tables(parts) if parts else schema.empty_table()  # which imports pandas

    def _read_group(self, group: int, columns: Sequence[str], budget: Budget) -> pa.Table:
        """Return columns of a group, with texts as dictionaries."""
        num_rows, chunks = self.metadata.row_group(group).num_rows, self._chunks[group]
        described = [self._file.schema.column(index) for index in range(len(self._file.schema))]
        if [chunk.path for chunk in chunks] != [column.path for column in described]:
            raise ValueError("its columns differ from its schema")
        indices = [index for index, chunk in enumerate(chunks) if chunk.name in columns]
        texts = [chunks[index].path for index in indices if self._is_text(index)]
        packed = 0
        with self._path.open("rb") as file:
            for index in indices:
                chunk, kind = chunks[index], described[index].physical_type
                width = LEVEL_BYTES + (WIDTHS.get(kind) or described[index].length)
                is_text, is_bytes = self._is_text(index), kind == "BYTE_ARRAY"
                chunk_bytes, unpacked = _sizes(file, chunk, width, is_text=is_text, is_bytes=is_bytes)
                budget.take(max(unpacked, num_rows * width), f"its column {chunk.name[:80]!r}")
                packed += chunk_bytes
                if packed > self._size:
                    raise ValueError("its columns overlap")
        with pq.ParquetFile(self._path, metadata=self.metadata, read_dictionary=texts) as file:
            table = file.read_row_group(group, columns=list(columns))
        table.validate(full=True)
        budget.take(sum(map(_expanded, table.columns)), "its texts")
        return table

    def _is_text(self, index: int) -> bool:
        column = self._file.schema.column(index)
        return column.physical_type == "BYTE_ARRAY" and _has_texts(self.schema.field(column.path.split(".")[0]).type)


def _sizes(file: BinaryIO, chunk: "_Chunk", width: int, *, is_text: bool, is_bytes: bool) -> tuple[int, int]:
    """Return how many bytes a column of a group takes in the file, and at most in memory.

    Arrow reads pages until they have as many values as the column, wherever the column ends.
    """
    first = chunk.data_page_offset
    if 0 < chunk.dictionary_page_offset < first:
        first = chunk.dictionary_page_offset
    unpacked = longest = num_repeated = num_seen = 0
    file.seek(first)
    while num_seen < chunk.num_values:
        page = _Page(file)
        unpacked += max(page.unpacked_bytes, page.num_values * width)
        longest = max(longest, page.unpacked_bytes)
        if page.kind != DICTIONARY_PAGE:
            num_seen += page.num_values
            num_repeated += page.num_values if FRONT_CODED in page.encodings or not is_text else 0
        file.seek(page.packed_bytes, 1)
    if is_bytes:  # each of these texts may be as long as the whole page
        unpacked += num_repeated * longest
    return file.tell() - first, unpacked


def _has_texts(kind: pa.DataType) -> bool:
    """Return True for texts and lists of texts, which Arrow reads as dictionaries."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _has_texts(kind.value_type)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def _expanded(column: pa.ChunkedArray | pa.Array) -> int:
    """Return the size of a column after its dictionaries are expanded, in bytes."""
    if isinstance(column, pa.ChunkedArray):
        return sum(map(_expanded, column.chunks))
    kind = column.type
    if pa.types.is_dictionary(kind):
        if not _has_texts(kind):
            return 8 * len(column)
        lengths = pc.take(pc.binary_length(column.dictionary).cast(pa.int64()), column.indices)
        return 8 * len(column) + (pc.sum(lengths).as_py() or 0)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return 8 * len(column) + _expanded(column.flatten())
    return column.nbytes


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without dictionaries."""
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_plain_type(kind.value_type)))
    return kind.value_type if pa.types.is_dictionary(kind) else kind


# The footer and the page headers, in Thrift's compact protocol. Source: Apache Parquet, parquet.thrift. Arrow's own
# reader ends the process for some damaged footers when it is asked about a column.


@dataclass(frozen=True)
class _Chunk:
    """A column of a group of rows."""

    path: str
    num_values: int
    data_page_offset: int
    dictionary_page_offset: int
    """Offset of the dictionary page; 0 if there is none."""

    @property
    def name(self) -> str:
        """Name of the column that it is a part of."""
        return self.path.split(".")[0]


def _chunks_of(footer: bytes) -> list[list[_Chunk]]:
    """Return the columns of each group of rows, from FileMetaData."""
    try:
        groups = dict(_fields(BytesIO(footer))).get(4, ())
        return [[_chunk_of(dict(dict(chunk)[3])) for chunk in dict(group)[1]] for group in groups]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ValueError("its column metadata is damaged") from None


def _chunk_of(about: dict[int, Any]) -> _Chunk:
    path = b".".join(about[3]).decode()
    offsets = about[5], about[9], about.get(11, 0)
    if not all(type(offset) is int and 0 <= offset < 1 << 62 for offset in offsets):
        raise ValueError("a column at an impossible offset")
    return _Chunk(path, *offsets)


class _Page:
    """A page header: the sizes of the page's content, and the number of values. Arrow reads no more than these.

    Args:
        file: File at the start of the header; afterwards, at the start of the content.
    """

    def __init__(self, file: BinaryIO) -> None:
        fields = dict(_fields(file))
        self.kind, self.unpacked_bytes, self.packed_bytes = (_size(fields.get(number)) for number in (1, 2, 3))
        details = [(dict(fields[n]), place) for n, place in ENCODING_FIELDS.items() if isinstance(fields.get(n), list)]
        self.num_values = max((_size(of.get(1)) for of, _ in details), default=0)
        self.encodings = {of.get(place) for of, place in details}


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError("a page of impossible size")
    return value


def _fields(file: BinaryIO, depth: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of the fields of a structure: integers, structures as lists of fields, and lists as tuples.

    Texts are skipped.
    """
    number, known = 0, set()
    while head := _byte(file):
        kind = head & 15
        number = number + (head >> 4) if head >> 4 else _integer(file)
        if number in known or depth > 6:
            raise ValueError("its metadata is damaged")
        known.add(number)
        if kind in (4, 5, 6):
            yield number, _integer(file)
        elif kind == 8:
            file.seek(_varint(file), 1)
        elif kind == 9:
            yield number, tuple(_items(file, depth))
        elif kind == 12:
            yield number, list(_fields(file, depth + 1))
        elif kind in (3, 7):
            file.seek(1 if kind == 3 else 8, 1)
        elif kind not in (1, 2):  # a truth value has no content
            raise ValueError("its metadata is damaged")


def _items(file: BinaryIO, depth: int) -> Iterator[Any]:
    """Yield the items of a list: integers, texts and structures."""
    head = _byte(file)
    kind = head & 15
    for _ in range(head >> 4 if head >> 4 < 15 else _varint(file)):
        if kind in (4, 5, 6):
            yield _integer(file)
        elif kind == 8:
            yield file.read(_varint(file))
        elif kind == 12:
            yield list(_fields(file, depth + 1))
        elif kind in (1, 2, 3):
            _byte(file)
        else:
            raise ValueError("its metadata is damaged")


def _byte(file: BinaryIO) -> int:
    if not (content := file.read(1)):
        raise ValueError("it is truncated")
    return content[0]


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 63, 7):
        byte = _byte(file)
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("its metadata is damaged")


def _integer(file: BinaryIO) -> int:
    value = _varint(file)
    return value >> 1 ^ -(value & 1)

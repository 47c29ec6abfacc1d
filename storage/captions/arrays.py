"""Captions of Arrow, as the arrays of a ``CaptionTable``."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from ..common.tensor_files import TensorWriter
from .table import CODED, IN_ROWS, TIMES, CaptionTable

pc: Any = pyarrow.compute  # its functions are made when it is imported, so that type checkers do not see them


@dataclass(frozen=True)
class EncodedRows:
    """Some captions as arrays."""

    times: dict[str, np.ndarray]
    codes: dict[str, tuple[list[str], np.ndarray]]
    """{field of ``CODED``: its texts in these captions, and for each caption the index of its text, or -1 for None}"""
    lengths: np.ndarray
    """Bytes of each caption's row."""
    rows: np.ndarray
    """The rows, one after the other."""

    def __len__(self) -> int:
        return len(self.lengths)


def encode_rows(batch: pa.RecordBatch) -> EncodedRows:
    """Return captions as arrays."""
    rows = _as_json(batch)
    _, ends, utf8 = rows.buffers()
    offsets = np.frombuffer(ends, np.int32, len(rows) + 1, rows.offset * 4).astype(np.int64)
    texts = np.frombuffer(utf8, np.uint8) if len(rows) else np.zeros(0, np.uint8)
    times = {name: batch.column(name).to_numpy(zero_copy_only=False).astype(np.float64) for name in TIMES}
    codes = {name: _code(batch.column(name)) for name in CODED}
    return EncodedRows(times, codes, np.diff(offsets), texts[offsets[0] : offsets[-1]])


def _code(column: pa.Array) -> tuple[list[str], np.ndarray]:
    encoded = column.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.fill_null(-1).to_numpy()


class _Codes:
    """Codes of all texts that were met so far."""

    def __init__(self) -> None:
        self._code_of: dict[str, dict[str, int]] = {name: {} for name in CODED}

    def of(self, encoded: EncodedRows) -> dict[str, np.ndarray]:
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
    """Return a JSON list of the fields ``IN_ROWS`` for each caption."""
    parts = []
    for name in IN_ROWS:
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


def in_memory(table: pa.Table) -> CaptionTable:
    """Return captions whose arrays are in memory."""
    codes = _Codes()
    none = pa.RecordBatch.from_pylist([], table.schema)
    encoded = [encode_rows(batch) for batch in (none, *table.to_batches())]
    each = [part.times | codes.of(part) | {"rows": part.rows} for part in encoded]
    arrays = {name: np.concatenate([of_part[name] for of_part in each]) for name in each[0]}
    starts = np.cumsum([0, *np.concatenate([part.lengths for part in encoded])], dtype=np.int64)
    return CaptionTable(arrays | {"row_starts": starts} | codes.texts())


def write_rows(writer: TensorWriter, parts: Iterable[EncodedRows], num_captions: int) -> None:
    """Write the tensors of a caption table.

    Args:
        writer: Gets them.
        parts: The captions, in order.
        num_captions: Number of captions in all parts.

    Raises:
        ValueError: There are more or fewer captions.
    """
    codes, done, size = _Codes(), 0, 0
    writer.reserve("row_starts", "I64", num_captions + 1)
    for name in TIMES:
        writer.reserve(name, "F64", num_captions)
    for name in CODED:
        writer.reserve(f"{name}.codes", "I32", num_captions)
    writer.fill("row_starts", 0, np.zeros(1, np.int64))
    writer.append("rows", np.zeros(0, np.uint8))
    for part in parts:
        writer.fill("row_starts", done + 1, size + np.cumsum(part.lengths))
        writer.append("rows", part.rows)
        for name, values in (part.times | codes.of(part)).items():
            writer.fill(name, done, values)
        done, size = done + len(part), size + len(part.rows)
    if done != num_captions:
        raise ValueError(f"{done:,} captions, expected {num_captions:,}")
    writer.append("rows", np.full(-writer.size % 8, ord(" "), np.uint8))  # what follows is aligned
    for name, values in sorted(codes.texts().items(), key=lambda item: -item[1].itemsize):
        writer.append(name, values)

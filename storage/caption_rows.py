"""Captions of Arrow, as the arrays of a ``CaptionTable``."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from .caption_table import CODED, IN_ROWS, TIMES, CaptionTable
from .mapped import TensorWriter

pc: Any = pyarrow.compute  # its functions are made when it is imported, so that type checkers do not see them


class RowEncoder:
    """Encodes batches of captions, one after the other."""

    def __init__(self) -> None:
        self._code_of: dict[str, dict[str, int]] = {name: {} for name in CODED}

    def encode(self, batch: pa.RecordBatch) -> dict[str, np.ndarray]:
        """Return the arrays of a batch: codes, times, ``rows``, and the ``lengths`` of its captions there."""
        rows = _as_json(batch)
        arrays = {f"{name}.codes": self._codes(name, batch.column(name)) for name in CODED}
        arrays |= {name: batch.column(name).to_numpy(zero_copy_only=False).astype(np.float64) for name in TIMES}
        _, ends, utf8 = rows.buffers()
        offsets = np.frombuffer(ends, np.int32, len(rows) + 1, rows.offset * 4).astype(np.int64)
        texts = np.frombuffer(utf8, np.uint8) if len(rows) else np.zeros(0, np.uint8)
        return arrays | {"lengths": np.diff(offsets), "rows": texts[offsets[0] : offsets[-1]]}

    def texts(self) -> dict[str, np.ndarray]:
        """Return the texts that have codes, in order of their codes."""
        arrays = {}
        for name, code_of in self._code_of.items():
            encoded = [text.encode() for text in code_of]
            arrays[f"{name}.starts"] = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
            arrays[f"{name}.texts"] = np.frombuffer(b"".join(encoded), np.uint8)
        return arrays

    def _codes(self, name: str, column: pa.Array) -> np.ndarray:
        code_of, encoded = self._code_of[name], column.dictionary_encode()
        codes = [code_of.setdefault(text, len(code_of)) for text in encoded.dictionary.to_pylist()]
        return np.array([*codes, -1], np.int32)[encoded.indices.fill_null(-1).to_numpy()]


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
    encoder = RowEncoder()
    none = pa.RecordBatch.from_pylist([], table.schema)
    encoded = [encoder.encode(batch) for batch in (none, *table.to_batches())]
    arrays = {name: np.concatenate([of_batch[name] for of_batch in encoded]) for name in encoded[0]}
    starts = np.cumsum([0, *arrays.pop("lengths")], dtype=np.int64)
    return CaptionTable(arrays | {"row_starts": starts} | encoder.texts())


def write_rows(writer: TensorWriter, batches: Iterable[pa.RecordBatch], num_captions: int) -> None:
    """Write the tensors of a caption table.

    Args:
        writer: Gets them.
        batches: The captions.
        num_captions: Number of captions in all batches.

    Raises:
        ValueError: There are more or fewer captions.
    """
    encoder, done, size = RowEncoder(), 0, 0
    writer.room("row_starts", "I64", num_captions + 1)
    for name in TIMES:
        writer.room(name, "F64", num_captions)
    for name in CODED:
        writer.room(f"{name}.codes", "I32", num_captions)
    writer.put("row_starts", 0, np.zeros(1, np.int64))
    writer.append("rows", np.zeros(0, np.uint8))
    for batch in batches:
        arrays = encoder.encode(batch)
        writer.put("row_starts", done + 1, size + np.cumsum(arrays.pop("lengths")))
        rows = arrays.pop("rows")
        writer.append("rows", rows)
        for name, values in arrays.items():
            writer.put(name, done, values)
        done, size = done + len(batch), size + len(rows)
    if done != num_captions:
        raise ValueError(f"{done:,} captions, expected {num_captions:,}")
    writer.append("rows", np.full(-writer.size % 8, ord(" "), np.uint8))  # what follows is aligned
    for name, values in sorted(encoder.texts().items(), key=lambda item: -item[1].itemsize):
        writer.append(name, values)

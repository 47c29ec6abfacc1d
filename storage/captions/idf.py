"""The IDF table, and the counts that it is made of, in Parquet."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from ..common.errors import UserError
from .files import part_path, read_table, write_table

IDF_SCHEMA = pa.schema(
    [("word", pa.string()), ("part_of_speech", pa.string()), ("document_count", pa.int64()), ("idf", pa.float64())]
)
COUNT_SCHEMA = pa.schema([("word", pa.string()), ("part_of_speech", pa.string()), ("document_count", pa.int64())])
ENTRY_BYTES = 500
"""Memory that an entry takes."""


@dataclass(frozen=True, kw_only=True)
class IdfEntry:
    """A row of ``idf.parquet``."""

    word: str
    part_of_speech: str
    document_count: int
    """Training captions that contain the word with this tag."""
    idf: float


def write_idf(path: Path | str, entries: list[IdfEntry]) -> None:
    """Write the IDF table."""
    write_table(Path(path), pa.Table.from_pylist([asdict(entry) for entry in entries], schema=IDF_SCHEMA))


def read_idf(path: Path | str) -> list[IdfEntry]:
    """Read the IDF table. Raises ``UserError`` if it is missing or damaged."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path}: not found; run vlalign-preprocess first")
    table = read_table(path, IDF_SCHEMA.names, ENTRY_BYTES)
    if table.schema.types != IDF_SCHEMA.types or any(column.null_count for column in table.columns):
        raise UserError(f"{path}: not the columns of an IDF table; run vlalign-preprocess again")
    return [IdfEntry(**row) for row in table.to_pylist()]


def write_counts(folder: Path, number: int, counts: Mapping[tuple[str, str], int]) -> None:
    """Write in how many training captions of a part each (word, tag) occurs."""
    rows = [
        {"word": word, "part_of_speech": tag, "document_count": count} for (word, tag), count in sorted(counts.items())
    ]
    write_table(part_path(folder / "counts", number), pa.Table.from_pylist(rows, schema=COUNT_SCHEMA))


def read_counts(path: Path) -> Counter[tuple[str, str]]:
    """Read the counts of a part (``write_counts``)."""
    columns = read_table(path, COUNT_SCHEMA.names, ENTRY_BYTES).to_pydict()
    return Counter(
        dict(zip(zip(columns["word"], columns["part_of_speech"], strict=True), columns["document_count"], strict=True))
    )

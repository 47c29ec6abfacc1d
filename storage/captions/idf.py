"""The IDF table and its counts, in Parquet.

The table has a row for each word and part of speech. The first two numbers of a row, a count and an IDF, are for
captions with the word and this tag. The last two are for all captions with the word (TACo, Eq. 7), and are equal in all
rows of a word. Tables of older versions have only the first two.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from ..common.errors import UserError
from .files import column_names, part_path, read_table, write_table

TAG_SCHEMA = pa.schema(
    [("word", pa.string()), ("part_of_speech", pa.string()), ("document_count", pa.int64()), ("idf", pa.float64())]
)
TOKEN_COLUMNS = (pa.field("token_count", pa.int64()), pa.field("token_idf", pa.float64()))
IDF_SCHEMA = pa.schema([*TAG_SCHEMA, *TOKEN_COLUMNS])
ANY_TAG = ""
"""Part of speech in counts of all captions with a word, whatever its tags are."""
COUNT_SCHEMA = pa.schema([("word", pa.string()), ("part_of_speech", pa.string()), ("document_count", pa.int64())])
ENTRY_BYTES = 500
"""Bytes of memory that an entry takes."""


@dataclass(frozen=True, kw_only=True)
class IdfEntry:
    """A row of ``idf.parquet``.

    Example:
        >>> from vlalign.storage import IdfEntry
        >>> IdfEntry(word="onion", part_of_speech="NOUN", document_count=2, idf=2.0).of_token
        2.0
    """

    word: str
    """The word, in lower case."""
    part_of_speech: str
    """Tag of the word, such as NOUN or VERB."""
    document_count: int
    """Training captions that contain the word with this tag."""
    idf: float
    """log(number of training captions / (1 + ``document_count``))."""
    token_count: int | None = None
    """Training captions that contain the word with any tag. None in tables of earlier versions."""
    token_idf: float | None = None
    """log(number of training captions / (1 + ``token_count``)), TACo's Eq. 7. None in tables of earlier versions."""

    @property
    def of_token(self) -> float:
        """``token_idf``, or ``idf`` in tables of earlier versions."""
        return self.idf if self.token_idf is None else self.token_idf


def write_idf(path: Path | str, entries: list[IdfEntry]) -> None:
    """Write the IDF table, without the last two columns if an entry of an older table lacks them.

    Args:
        path: The file ``idf.parquet``, which is replaced.
        entries: An entry for each word and part of speech.

    Raises:
        OSError: The disk is full, or cannot be written.

    Example:
        >>> from vlalign.storage import IdfEntry, read_idf, write_idf
        >>> write_idf("idf.parquet", [IdfEntry(word="onion", part_of_speech="NOUN", document_count=2, idf=2.0)])
        >>> read_idf("idf.parquet")[0].word
        'onion'
    """
    schema = TAG_SCHEMA if any(entry.token_idf is None for entry in entries) else IDF_SCHEMA
    write_table(Path(path), pa.Table.from_pylist([asdict(entry) for entry in entries], schema=schema))


def read_idf(path: Path | str) -> list[IdfEntry]:
    """Read the IDF table.

    Args:
        path: The file ``idf.parquet``.

    Returns:
        An entry for each word and part of speech.

    Raises:
        UserError: The table is missing or damaged.

    Example:
        >>> from vlalign.storage import read_idf
        >>> entries = read_idf("vlalign_data/demo/idf.parquet")
        >>> [entry.idf for entry in entries if entry.word == "onion"]
        [2.0]
    """
    path = Path(path)
    schema = IDF_SCHEMA if has_token_idf(path) else TAG_SCHEMA
    table = read_table(path, schema.names, ENTRY_BYTES)
    if table.schema.types != schema.types or any(column.null_count for column in table.columns):
        raise UserError(f"{path}: not an IDF table (other columns); run vlalign-preprocess again")
    return [IdfEntry(**row) for row in table.to_pylist()]


def has_token_idf(path: Path) -> bool:
    """Return whether an IDF table has the counts of Eq. 7. Raises ``UserError`` if it is missing or damaged."""
    if not path.exists():
        raise UserError(f"{path}: not found; run vlalign-preprocess first")
    return {field.name for field in TOKEN_COLUMNS} <= set(column_names(path))


def write_counts(folder: Path, number: int, counts: Mapping[tuple[str, str], int]) -> None:
    """Write how many training captions of a part contain each (word, tag); the tag may be ``ANY_TAG``."""
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

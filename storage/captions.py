"""The caption table and the IDF table, in Parquet."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from .console import UserError
from .files import written_whole
from .records import Caption

CAPTION_SCHEMA = pa.schema(
    [
        ("clip_id", pa.string()),
        ("video_id", pa.string()),
        ("start_seconds", pa.float64()),
        ("end_seconds", pa.float64()),
        ("caption", pa.string()),
        ("split", pa.string()),
        ("words", pa.list_(pa.string())),
        ("word_starts", pa.list_(pa.int32())),
        ("pos_tags", pa.list_(pa.string())),
    ]
)
IDF_SCHEMA = pa.schema([("word", pa.string()), ("part_of_speech", pa.string()), ("document_count", pa.int64()), ("idf", pa.float64())])
TABLE_NAME = "captions.parquet"


@dataclass(frozen=True, kw_only=True)
class IdfEntry:
    """A row of ``idf.parquet``."""

    word: str
    part_of_speech: str
    document_count: int
    """Training captions that have the word with this tag."""
    idf: float


def _write(path: Path, rows: list[dict], schema: pa.Schema, about: dict | None = None) -> None:
    if about is not None:
        schema = schema.with_metadata({"vlalign": json.dumps(about)})
    with written_whole(path) as partial:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), partial)


def write_captions(folder: Path, captions: list[Caption], about: dict) -> None:
    """``about``: where they come from and how they were tagged; kept in the file's metadata."""
    _write(folder / TABLE_NAME, [asdict(c) | {"clip_id": c.clip_id} for c in captions], CAPTION_SCHEMA, about)


def read_captions_about(folder: Path) -> dict | None:
    """The ``about`` of ``write_captions``; None where there is no table yet."""
    path = folder / TABLE_NAME
    if not path.exists():
        return None
    return json.loads((_open(path).metadata or {}).get(b"vlalign", b"{}"))


def _open(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path}: not a readable Parquet file ({error}); run vlalign-preprocess again") from None


def read_captions(folder: Path) -> list[Caption]:
    path = folder / TABLE_NAME
    if not path.exists():
        raise UserError(f"{path}: not found; run vlalign-preprocess first")
    missing = set(CAPTION_SCHEMA.names) - set(_open(path).names)
    if missing:
        raise UserError(f"{path}: columns missing: {', '.join(sorted(missing))}; run vlalign-preprocess again")
    columns = [name for name in CAPTION_SCHEMA.names if name != "clip_id"]
    return [Caption(**row) for row in pq.read_table(path, columns=columns).to_pylist()]


def write_idf(path: Path, entries: list[IdfEntry]) -> None:
    _write(path, [asdict(entry) for entry in entries], IDF_SCHEMA)


def read_idf(path: Path) -> list[IdfEntry]:
    if not path.exists():
        raise UserError(f"{path}: not found; run vlalign-preprocess first")
    _open(path)
    return [IdfEntry(**row) for row in pq.read_table(path, columns=IDF_SCHEMA.names).to_pylist()]

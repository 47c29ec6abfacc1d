"""The caption table and the IDF table, in Parquet."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from .console import UserError
from .files import read_json, write_json, written_whole
from .layout import DatasetFolder
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
        ("task", pa.string()),
        ("step", pa.int32()),
        ("answer", pa.string()),
        ("question_type", pa.string()),
        ("recording", pa.string()),
    ]
)
LATER_COLUMNS = {"recording"}
"""Tables from before there were any lack them: nothing in those was spoken."""
IDF_SCHEMA = pa.schema([("word", pa.string()), ("part_of_speech", pa.string()), ("document_count", pa.int64()), ("idf", pa.float64())])
COUNT_SCHEMA = pa.schema([("word", pa.string()), ("part_of_speech", pa.string()), ("document_count", pa.int64())])
ABOUT_NAME = "about.json"


@dataclass(frozen=True, kw_only=True)
class IdfEntry:
    """A row of ``idf.parquet``."""

    word: str
    part_of_speech: str
    document_count: int
    """Training captions that have the word with this tag."""
    idf: float


def _write(path: Path, rows: Iterable[dict], schema: pa.Schema, about: dict | None = None) -> None:
    if about is not None:
        schema = schema.with_metadata({"vlalign": json.dumps(about)})
    with written_whole(path) as partial:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), partial)


def part_path(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.parquet"


def write_part(folder: Path, number: int, captions: Sequence[Caption], about: dict) -> None:
    """One of the tables in ``folder``, which together hold a data set's captions in order. ``about`` is kept in the file."""
    rows = ({name: getattr(c, name) for name in CAPTION_SCHEMA.names} for c in captions)
    _write(part_path(folder, number), rows, CAPTION_SCHEMA, about)


def read_part_about(path: Path) -> dict:
    """The ``about`` of ``write_part``; empty where there is no such file, or one without."""
    return json.loads((_open(path).metadata or {}).get(b"vlalign", b"{}")) if path.exists() else {}


def read_captions_about(folder: Path) -> dict | None:
    """Where the captions come from and how they were tagged; None where there are none, or not yet all of them."""
    return read_json(folder / ABOUT_NAME) if (folder / ABOUT_NAME).exists() else None


def write_captions_about(folder: Path, about: dict) -> None:
    """To be written last: its presence says that all of the captions are there."""
    write_json(folder / ABOUT_NAME, about)


def choose_protocol(dataset: DatasetFolder, protocol: str) -> DatasetFolder:
    """The data set with the captions of a protocol, by its name; empty: the usual ones. Raises ``UserError`` where there are none."""
    if protocol in ("", (read_captions_about(dataset.captions) or {}).get("protocol")):
        return dataset
    chosen = replace(dataset, protocol=protocol)
    if read_captions_about(chosen.captions) is None:
        raise UserError(f"{chosen.captions}: not found; run vlalign-preprocess --dataset {dataset.name} --protocol {protocol} first")
    return chosen


def _open(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path}: not a readable Parquet file ({error}); run vlalign-preprocess again") from None


def read_captions(folder: Path) -> list[Caption]:
    """All parts, in order."""
    if read_captions_about(folder) is None:
        raise UserError(f"{folder / ABOUT_NAME}: not found; run vlalign-preprocess first")
    captions = []
    for path in sorted(folder.glob("part-*.parquet")):
        there = set(_open(path).names)
        missing = set(CAPTION_SCHEMA.names) - there - LATER_COLUMNS
        if missing:
            raise UserError(f"{path}: columns missing: {', '.join(sorted(missing))}; run vlalign-preprocess again")
        columns = [name for name in CAPTION_SCHEMA.names if name in there and name != "clip_id"]
        captions += [Caption(**row) for row in pq.read_table(path, columns=columns).to_pylist()]
    return captions


def write_idf(path: Path, entries: list[IdfEntry]) -> None:
    _write(path, [asdict(entry) for entry in entries], IDF_SCHEMA)


def read_idf(path: Path) -> list[IdfEntry]:
    if not path.exists():
        raise UserError(f"{path}: not found; run vlalign-preprocess first")
    _open(path)
    return [IdfEntry(**row) for row in pq.read_table(path, columns=IDF_SCHEMA.names).to_pylist()]


def write_counts(folder: Path, number: int, counts: Mapping[tuple[str, str], int]) -> None:
    """In how many training captions of a part each (word, tag) occurs."""
    rows = ({"word": word, "part_of_speech": tag, "document_count": count} for (word, tag), count in sorted(counts.items()))
    _write(part_path(folder / "counts", number), rows, COUNT_SCHEMA)


def read_counts(path: Path) -> Counter[tuple[str, str]]:
    columns = pq.read_table(path, columns=COUNT_SCHEMA.names).to_pydict()
    return Counter(dict(zip(zip(columns["word"], columns["part_of_speech"], strict=True), columns["document_count"], strict=True)))

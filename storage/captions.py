"""The caption table and the IDF table, in Parquet."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .common.errors import UserError
from .files import check_regular, read_json, write_json, written_whole
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
RECORD_SCHEMA = pa.schema([field for field in CAPTION_SCHEMA if field.name != "clip_id"])
"""A record works ``clip_id`` out."""
RECORDS = 4096
"""Made at a time where all are gone through."""
IDF_SCHEMA = pa.schema(
    [("word", pa.string()), ("part_of_speech", pa.string()), ("document_count", pa.int64()), ("idf", pa.float64())]
)
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


def _write(path: Path, table: pa.Table) -> None:
    with written_whole(path) as partial:
        pq.write_table(table, partial)


def _table(captions: Iterable[Caption]) -> pa.Table:
    rows = [{name: getattr(c, name) for name in CAPTION_SCHEMA.names} for c in captions]
    return pa.Table.from_pylist(rows, schema=CAPTION_SCHEMA)


def part_path(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.parquet"


def write_part(folder: Path, number: int, captions: Sequence[Caption], about: dict) -> None:
    """One of the tables in ``folder``, which together hold a data set's captions in order. ``about`` is kept in the file."""
    _write(part_path(folder, number), _table(captions).replace_schema_metadata({"vlalign": json.dumps(about)}))


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
        raise UserError(
            f"{chosen.captions}: not found; run vlalign-preprocess --dataset {dataset.name} --protocol {protocol} first"
        )
    return chosen


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    check_regular(path)
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, MemoryError, pa.ArrowException) as error:
        words = " ".join(str(error).split())[:300]
        raise UserError(f"{path}: not a readable Parquet file ({words}); run vlalign-preprocess again") from None


def _open(path: Path) -> pa.Schema:
    with _reading(path):
        return pq.read_schema(path)


def _read(path: Path, columns: Sequence[str]) -> pa.Table:
    """Whole: nothing in it is found to be broken later."""
    with _reading(path):
        table = pq.read_table(path, columns=list(columns))
        table.validate(full=True)
        return table


def by_appearance(codes: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes of 0 to ``count`` - 1 (-1: none) numbered anew in the order in which they first come, and where each of those first comes."""
    first = np.full(count + 1, len(codes))  # the last one is that of -1
    first[codes[::-1]] = np.arange(len(codes))[::-1]  # of equal indices the last counts
    first[-1] = len(codes)
    order = np.argsort(first)[: np.count_nonzero(first < len(codes))]
    number_of = np.full(count + 1, -1, dtype=np.int32)
    number_of[order] = np.arange(len(order))
    return number_of[codes], first[order]


class CaptionTable(Sequence[Caption]):
    """Captions in columns, each a record when it is asked for: a quarter of the memory, where a data set has a hundred million of them."""

    def __init__(self, batches: Sequence[pa.RecordBatch], rows: np.ndarray | None = None) -> None:
        self._batches = list(batches)
        self._ends = np.cumsum([len(batch) for batch in self._batches], dtype=np.int64)
        self._rows = np.arange(self._ends[-1] if self._batches else 0) if rows is None else rows

    @classmethod
    def of(cls, captions: Iterable[Caption]) -> "CaptionTable":
        return cls(_table(captions).select(RECORD_SCHEMA.names).to_batches())

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int | slice) -> Caption | list[Caption]:
        if isinstance(place, slice):
            return self._records(self._rows[place])
        return self._records(self._rows[[place]])[0]

    def __iter__(self) -> Iterator[Caption]:
        for first in range(0, len(self), RECORDS):
            yield from self[first : first + RECORDS]

    def take(self, places: Sequence[int] | np.ndarray) -> "CaptionTable":
        """Those at ``places``; nothing is copied."""
        return CaptionTable(self._batches, self._rows[np.asarray(places, dtype=np.int64)])

    def numbers(self, column: str) -> np.ndarray:
        """float64 [num_captions], NaN where there is none."""
        parts = [batch.column(column).to_numpy(zero_copy_only=False) for batch in self._batches]
        return np.concatenate([np.zeros(0), *parts]).astype(np.float64, copy=False)[self._rows]

    def codes(self, column: str) -> tuple[list[str], np.ndarray]:
        """The different texts of a column, in the order in which they first come, and the number of each caption's; -1: none."""
        whole = pa.chunked_array([batch.column(column) for batch in self._batches], CAPTION_SCHEMA.field(column).type)
        parts = whole.dictionary_encode().unify_dictionaries().chunks
        texts = parts[0].dictionary.to_pylist() if parts else []
        codes = np.concatenate([np.zeros(0, np.int32), *(part.indices.fill_null(-1).to_numpy() for part in parts)])[
            self._rows
        ]
        renumbered, firsts = by_appearance(codes, len(texts))
        return [texts[code] for code in codes[firsts]], renumbered

    def _records(self, rows: np.ndarray) -> list[Caption]:
        found: list[Caption | None] = [None] * len(rows)
        batch_of_row = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(batch_of_row):
            places = np.flatnonzero(batch_of_row == number)
            batch = self._batches[number]
            wanted = pa.array(rows[places] - (self._ends[number] - len(batch)))
            for place, values in zip(places, batch.take(wanted).to_pylist(), strict=True):
                found[place] = Caption(**values)
        return found


def read_captions(folder: Path) -> CaptionTable:
    """All parts, in order."""
    if read_captions_about(folder) is None:
        raise UserError(f"{folder / ABOUT_NAME}: not found; run vlalign-preprocess first")
    batches = []
    for path in sorted(folder.glob("part-*.parquet")):
        there = _open(path).names
        missing = set(CAPTION_SCHEMA.names) - set(there) - LATER_COLUMNS
        if missing:
            raise UserError(f"{path}: columns missing: {', '.join(sorted(missing))}; run vlalign-preprocess again")
        table = _read(path, [name for name in RECORD_SCHEMA.names if name in there])
        with _reading(path):  # columns of other kinds than ours
            batches += pa.concat_tables([RECORD_SCHEMA.empty_table(), table], promote_options="default").to_batches()
    return CaptionTable(batches)


def write_idf(path: Path, entries: list[IdfEntry]) -> None:
    _write(path, pa.Table.from_pylist([asdict(entry) for entry in entries], schema=IDF_SCHEMA))


def read_idf(path: Path) -> list[IdfEntry]:
    if not path.exists():
        raise UserError(f"{path}: not found; run vlalign-preprocess first")
    return [IdfEntry(**row) for row in _read(path, IDF_SCHEMA.names).to_pylist()]


def write_counts(folder: Path, number: int, counts: Mapping[tuple[str, str], int]) -> None:
    """In how many training captions of a part each (word, tag) occurs."""
    rows = [
        {"word": word, "part_of_speech": tag, "document_count": count} for (word, tag), count in sorted(counts.items())
    ]
    _write(part_path(folder / "counts", number), pa.Table.from_pylist(rows, schema=COUNT_SCHEMA))


def read_counts(path: Path) -> Counter[tuple[str, str]]:
    columns = _read(path, COUNT_SCHEMA.names).to_pydict()
    return Counter(
        dict(zip(zip(columns["word"], columns["part_of_speech"], strict=True), columns["document_count"], strict=True))
    )

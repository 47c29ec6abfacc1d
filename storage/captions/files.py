"""The caption table, in Parquet."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import chain
from os.path import basename, splitext
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ..common.errors import READ_ERRORS, UserError, refuse_unreadable
from ..common.files import check_regular, read_json, write_json
from ..common.process_pool import OrderedMap
from ..common.progress import progress
from ..common.tensor_files import SUFFIX, CachedTensors, TensorWriter
from ..common.validation import is_text
from ..common.writing import atomic_write
from ..dataset.folder import DatasetFolder
from ..records import Caption
from ..untrusted.parquet import ParquetReader
from .table import (
    EXTRA,
    EXTRA_PREFIX,
    RECORDS_AT_ONCE,
    TENSOR_TYPES,
    CaptionTable,
    EncodedCaptions,
    encode_captions,
    table_in_memory,
    write_captions,
)

_COLUMN_TYPES = {
    str: pa.string(),
    str | None: pa.string(),
    float | None: pa.float64(),
    int | None: pa.int32(),
    list[str]: pa.list_(pa.string()),
    list[int]: pa.list_(pa.int32()),
}
_FIRST_COLUMNS = ("video_id", "start_seconds", "end_seconds")
_FIELDS = {field.name: field for field in fields(Caption) if field.name != EXTRA}
RECORD_SCHEMA = pa.schema(
    [(name, _COLUMN_TYPES[_FIELDS[name].type]) for name in dict.fromkeys((*_FIRST_COLUMNS, *_FIELDS))]
)
"""The columns that make a ``Caption``: its fields."""
CAPTION_SCHEMA = pa.schema([pa.field("clip_id", pa.string()), *RECORD_SCHEMA])
"""The columns of every caption table. Columns of the user's own follow, with ``EXTRA_PREFIX``."""
OPTIONAL_COLUMNS = {name for name, field in _FIELDS.items() if field.metadata.get("added_later")}
"""Columns that older tables lack. Their values are None, or empty lists."""
MOMENT_FIELDS = ("query", "saliency")
"""Fields that only moments of queries have (QVHighlights)."""
INPUT_FIELDS = tuple(
    name for name, field in _FIELDS.items() if not field.metadata.get("tagged") and name not in MOMENT_FIELDS
)
"""Fields from the annotations, not from tagging, without ``MOMENT_FIELDS``."""
MATCH_AGAIN = "run vlalign-preprocess again, which matches captions to listed videos by file names"
"""What to do if there are videos ``matched_by_name``, for messages."""
ABOUT_NAME = "about.json"
OTHER_LANGUAGES = "other_languages"
"""Field of ``about.json``: {language that the tagger does not support: share of captions}; missing if negligible."""

EXTRA_COLUMNS = "extra_columns"
"""Field of ``about.json`` and of the metadata of each part: names of the columns of the user's own; missing if none."""


def _are_steps(value: Any) -> bool:
    """Return True for lists of texts by name."""
    return isinstance(value, dict) and all(
        isinstance(each, list) and all(map(is_text, each)) for each in value.values()
    )


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _are_shares(value: Any) -> bool:
    return isinstance(value, dict) and all(type(each) in (int, float) and 0 <= each <= 1 for each in value.values())


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value)) and len(set(value)) == len(value)


ABOUT_RULES = {
    "protocol": (is_text, "a text"),
    "task": (is_text, "a text"),
    "steps": (_are_steps, "lists of texts by task"),
    "speech": (_is_flag, "true or false"),
    "text_in_frames": (_is_flag, "true or false"),
    OTHER_LANGUAGES: (_are_shares, "a number from 0 to 1 for each language"),
    EXTRA_COLUMNS: (_are_names, "a list of different names"),
}
"""{field of ``about.json``: (check of a value, description of valid values)}"""
CACHE_NAME = f"captions{SUFFIX}"
"""File with the content of all parts, for memory mapping."""
CACHE_FORMAT = 2
MAX_CAPTIONS = 1 << 31
"""Numbers of captions are stored in four bytes."""
ENCODED_AT_ONCE = 1 << 16
"""Number of captions that are encoded at a time."""


def write_table(path: Path, table: pa.Table) -> None:
    """Write a Parquet file, whole or not at all."""
    with atomic_write(path) as partial:
        pq.write_table(table, partial)


def extra_columns(captions: Iterable[Caption]) -> list[str]:
    """Return the names of the columns of the user's own, in the order of their first appearance."""
    return list(dict.fromkeys(name for caption in captions for name in caption.extra))


def _table(captions: Iterable[Caption]) -> pa.Table:
    listed = list(captions)
    rows = [{name: getattr(caption, name) for name in CAPTION_SCHEMA.names} for caption in listed]
    table = pa.Table.from_pylist(rows, schema=CAPTION_SCHEMA)
    for name in extra_columns(listed):
        table = table.append_column(
            f"{EXTRA_PREFIX}{name}", pa.array([caption.extra.get(name) for caption in listed], pa.float64())
        )
    return table


def caption_table(captions: Iterable[Caption]) -> CaptionTable:
    """Return records as a table in memory."""
    return table_in_memory(_table(captions))


def part_path(folder: Path, number: int) -> Path:
    """Return the path of a part of the caption table."""
    return folder / f"part-{number:05d}.parquet"


def write_part(folder: Path, number: int, captions: Sequence[Caption], about: Mapping[str, Any]) -> None:
    """Write one part of the caption table.

    Args:
        folder: Folder of the table. Its parts have the captions of a data set, in order.
        number: Number of the part, from 0.
        captions: Captions of the part.
        about: Description of their origin, stored in the file.
    """
    write_table(part_path(folder, number), _table(captions).replace_schema_metadata({"vlalign": json.dumps(about)}))


def read_part_about(path: Path) -> dict[str, Any]:
    """Return the ``about`` of ``write_part``; empty if the file is missing or has none."""
    if not path.exists():
        return {}
    text = (_read_metadata(path).metadata or {}).get(b"vlalign", b"{}")
    with refuse_unreadable(path, "not a part of a caption table", "run vlalign-preprocess again"):
        about = json.loads(text)
        if not isinstance(about, dict):
            raise ValueError(f"its metadata is a {type(about).__name__}, expected an object")
        return about


def read_captions_about(folder: Path) -> dict[str, Any] | None:
    """Return the origin and tagging of the captions; None if the table is missing or not complete.

    Raises:
        UserError: The description is damaged.
    """
    path = folder / ABOUT_NAME
    if not path.exists():
        return None
    about = read_json(path)
    if not isinstance(about, dict):
        raise UserError(
            f"{path}: a {type(about).__name__}; expected an object; remove the file and run vlalign-preprocess again"
        )
    for name, (is_right, expected) in ABOUT_RULES.items():
        if name in about and not is_right(about[name]):
            raise UserError(f"{path}: its {name!r} is not {expected}; remove the file and run vlalign-preprocess again")
    return about


def write_captions_about(folder: Path, about: Mapping[str, Any]) -> None:
    """Write the origin and tagging of the captions. Write it last: its presence marks the table as complete."""
    write_json(folder / ABOUT_NAME, about)


def choose_protocol(dataset: DatasetFolder, protocol: str) -> DatasetFolder:
    """Return the data set with the captions of a protocol.

    Args:
        dataset: The data set.
        protocol: Name of the protocol; empty for the default one.

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


def _read_metadata(path: Path) -> pq.FileMetaData:
    with _refuse_damaged(path), ParquetReader(path) as file:
        return file.metadata


def column_names(path: Path) -> list[str]:
    """Return the names of a file's columns. Raises ``UserError`` if it is damaged."""
    return _read_metadata(path).schema.to_arrow_schema().names


def read_table(path: Path, columns: Sequence[str], row_bytes: int = 0) -> pa.Table:
    """Read columns of a whole file and check them, to detect damage now.

    Args:
        path: The file.
        columns: Names of the columns.
        row_bytes: Bytes in memory of the objects that the caller makes from a row.

    Raises:
        UserError: It is damaged, or takes more memory than allowed for its size.
    """
    with _refuse_damaged(path), ParquetReader(path) as file:
        return file.read(columns, row_bytes=row_bytes)


def read_captions(folder: Path | str, parallel_map: OrderedMap | None = None) -> CaptionTable:
    """Return the captions of all parts, in order.

    Their content is mapped from one file beside the parts, which preprocessing writes. If it is missing, or if parts
    have changed, it is written at the first call. All processes of a machine share its memory.

    Args:
        folder: Folder of the table.
        parallel_map: Encodes the parts if the file must be written (default: in this process).

    Returns:
        A sequence of ``Caption``; each is read from the mapped file on demand.

    Raises:
        UserError: The table is missing, not complete or damaged.

    Example:
        >>> from vlalign.storage import read_captions
        >>> captions = read_captions("vlalign_data/demo/captions")
        >>> len(captions), captions[0].video_id, captions[0].split
        (24, 'demo0000', 'train')
    """
    folder = Path(folder)
    about = read_captions_about(folder)
    if about is None:
        raise UserError(f"{folder / ABOUT_NAME}: not found; run vlalign-preprocess first")
    paths = sorted(folder.glob("part-*.parquet"))
    facts = [(path.name, stat.st_size, stat.st_mtime_ns) for path in paths for stat in (path.stat(),)]
    key = hashlib.sha256(json.dumps([about, facts], sort_keys=True).encode()).hexdigest()
    path, columns = folder / CACHE_NAME, about.get(EXTRA_COLUMNS, [])
    types = TENSOR_TYPES | ({EXTRA: ("F64", 1)} if columns else {})
    cached = CachedTensors(
        path, types, CACHE_FORMAT, key, lambda writer: _write_cache(writer, paths, columns, parallel_map)
    )
    return CaptionTable(cached.open(), str(path), key, extra_columns=columns)


def _write_cache(
    writer: TensorWriter, paths: Sequence[Path], columns: Sequence[str], parallel_map: OrderedMap | None
) -> None:
    num_captions = sum(_read_metadata(path).num_rows for path in paths)
    if num_captions >= MAX_CAPTIONS:
        raise UserError(
            f"{paths[0].parent}: {num_captions:,} captions; expected fewer than {MAX_CAPTIONS:,}; split the data set"
        )
    encode = partial(_encode_part, columns=columns)
    encoded = parallel_map(encode, paths, doing="writing captions") if parallel_map else map(encode, paths)
    shown = progress(encoded, total=num_captions, what="writing captions", unit="captions", size=_num_rows)
    write_captions(writer, chain.from_iterable(shown), num_captions, len(columns))


def _num_rows(parts: list[EncodedCaptions]) -> int:
    return sum(map(len, parts))


def _encode_part(path: Path, columns: Sequence[str]) -> list[EncodedCaptions]:
    return [encode_captions(batch) for batch in _read_part(path, columns).to_batches(ENCODED_AT_ONCE)]


def _read_part(path: Path, own: Sequence[str]) -> pa.Table:
    """Return the caption columns and the user's columns, which are empty in a part that lacks them."""
    schema = pa.schema([*RECORD_SCHEMA, *(pa.field(f"{EXTRA_PREFIX}{name}", pa.float64()) for name in own)])
    columns = column_names(path)
    if missing := set(CAPTION_SCHEMA.names) - set(columns) - OPTIONAL_COLUMNS:
        raise UserError(f"{path}: columns missing: {', '.join(sorted(missing))}; run vlalign-preprocess again")
    table = read_table(path, [name for name in schema.names if name in columns])
    with _refuse_damaged(path):  # columns of other types
        return pa.concat_tables([schema.empty_table(), table], promote_options="default")


class TimedCaption(NamedTuple):
    """A caption's text, its video and its times."""

    video_id: str
    start_seconds: float | None
    end_seconds: float | None
    text: str


def caption_parts(dataset: DatasetFolder) -> list[Path]:
    """Return the files of all complete caption tables of a data set, for all protocols."""
    top = replace(dataset, protocol="").captions
    folders = [top, *sorted(path.parent for path in top.glob(f"*/{ABOUT_NAME}"))]
    complete = [folder for folder in folders if (folder / ABOUT_NAME).exists()]
    return [part for folder in complete for part in sorted(folder.glob("part-*.parquet"))]


def read_timed_captions(part: Path) -> Iterator[TimedCaption]:
    """Yield the captions of a part without their words.

    Raises:
        UserError: The file is damaged.
    """
    table = read_table(part, ["video_id", "start_seconds", "end_seconds", "caption"])
    with _refuse_damaged(part):  # columns of other types
        table = table.cast(pa.schema([CAPTION_SCHEMA.field(name) for name in table.column_names]))
    for batch in table.to_batches(RECORDS_AT_ONCE):
        yield from map(TimedCaption._make, zip(*batch.to_pydict().values(), strict=True))


def matched_by_name(named: Iterable[str], listed: Iterable[str]) -> list[str]:
    """Return the videos that ``vlalign-preprocess`` would match to captions by their file names.

    Args:
        named: Ids in captions, which no listed video has.
        listed: Ids of listed videos that no caption names.

    Returns:
        The videos, sorted, whose file name is one of ``named``, maybe with a suffix, and is the name of no other video.
    """
    names = {name for path in map(basename, named) for name in (path, splitext(path)[0])}
    listed = list(listed)
    counts = Counter(map(basename, listed))
    return sorted(video_id for video_id in listed if (name := basename(video_id)) in names and counts[name] == 1)


def named_videos(parts: Iterable[Path]) -> set[str]:
    """Return the ids of the videos, and of the spoken captions' recordings, that parts of the captions name.

    Raises:
        UserError: A file is damaged.
    """
    names: set[str] = set()
    for part in parts:
        columns = [name for name in ("video_id", "recording") if name in column_names(part)]
        table = read_table(part, columns)
        with _refuse_damaged(part):  # columns of other types
            table = table.cast(pa.schema([CAPTION_SCHEMA.field(name) for name in table.column_names]))
        for column in table.columns:
            names.update(column.unique().to_pylist())
    return names - {None}

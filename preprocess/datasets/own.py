"""Anybody's own captions: a CSV, JSONL or Parquet file with the columns video_id and caption, and, where wanted, start_seconds and
end_seconds, and split (train, validation or test)."""

import csv
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...storage.console import Problems, UserError
from ...storage.files import numbered_jsonl
from ...storage.records import Caption, VideoRecord
from ..census import SPLITS
from .sources import seconds

REQUIRED = ("video_id", "caption")
OPTIONAL = ("start_seconds", "end_seconds", "split")
SUFFIXES = ".csv, .jsonl or .parquet file"


def read(annotations: Path | None, seed: int, problems: Problems) -> Iterator[VideoRecord | Caption]:
    """Bad rows are reported with their number and left out; a file without the columns is refused.

    Without a column ``split``, 80 % of the videos go to train, 10 % to validation, 10 % to test, by a hash of seed and id.
    """
    assert annotations is not None
    rows = list(_numbered_rows(annotations))
    if not rows:
        raise UserError(f"{annotations}: no rows; expected columns {', '.join(REQUIRED)} and a row for each caption")
    columns = {name for _, row in rows for name in row if name is not None}
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise UserError(
            f"{annotations}: no column {' and no column '.join(missing)}; it has {', '.join(sorted(map(str, columns)))}; expected "
            f"{', '.join(REQUIRED)}, and if wanted {', '.join(OPTIONAL)}"
        )
    captions = []
    for place, row in rows:
        try:
            captions.append(_caption(row))
        except ValueError as error:
            problems.add(f"{annotations}, {place}: {error}; left out")
    of_video: dict[str, list[Caption]] = {}
    for caption in captions:
        of_video.setdefault(caption.video_id, []).append(caption)
    splits = {} if "split" in columns else split_videos(sorted(of_video), seed)
    for video_id, its_captions in of_video.items():
        yield from (replace(c, split=splits[video_id]) for c in its_captions) if splits else its_captions


def split_videos(video_ids: list[str], seed: int) -> dict[str, str]:
    """A tenth, and at least one of three videos or more, to each of test and validation; the rest to train."""
    order = sorted(video_ids, key=lambda video_id: hashlib.sha256(f"{seed}:{video_id}".encode()).digest())
    num_held = max(round(0.1 * len(order)), 1) if len(order) >= 3 else 0
    return {v: "test" if i < num_held else "validation" if i < 2 * num_held else "train" for i, v in enumerate(order)}


def _numbered_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if path.suffix == ".jsonl":
        yield from ((f"line {number}", row) for number, row in numbered_jsonl(path))
    elif path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8-sig") as file:
            try:
                reader = csv.DictReader(file)
                yield from ((f"line {reader.line_num}", row) for row in reader)
            except (csv.Error, UnicodeDecodeError) as error:
                raise UserError(f"{path}: no CSV in UTF-8 ({error})") from None
    elif path.suffix == ".parquet":
        try:
            table = pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"{path}: no readable Parquet file ({str(error).splitlines()[0]})") from None
        yield from ((f"row {number}", row) for number, row in enumerate(table.to_pylist(), start=1))
    else:
        raise UserError(f"{path}: expected a {SUFFIXES}")


def _caption(row: dict[str, Any]) -> Caption:
    if None in row:  # csv's name for what has no column
        raise ValueError(f"{len(row[None])} more fields than columns, expected captions with commas in double quotes")
    video_id, text = row.get("video_id"), row.get("caption")
    if not isinstance(video_id, str) or not video_id.strip():
        raise ValueError(f"video_id is {video_id!r}, expected a name")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"caption is {text!r}, expected a sentence")
    try:
        (video_id + text).encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair, expected valid Unicode") from None
    split = row.get("split") or "train"
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}, expected one of {', '.join(SPLITS)}")
    start, end = (_seconds(row, name) for name in ("start_seconds", "end_seconds"))
    return Caption(video_id=video_id.strip(), caption=text.strip(), split=split, start_seconds=start, end_seconds=end)


def _seconds(row: dict[str, Any], name: str) -> float | None:
    value = row.get(name)
    if value in (None, ""):
        return None
    try:
        return seconds(value)
    except ValueError:
        raise ValueError(f"{name} is {value!r}, expected seconds") from None

"""A user's own captions, from a CSV, JSONL or Parquet file.

The file has the columns ``video_id`` and ``caption`` and, optionally, ``start_seconds`` and ``end_seconds``, and
``split`` (train, validation or test). Other common names and notations are understood, and each one is reported in
one line. Further columns are kept if they hold numbers, for objectives of the user's own. A column that may hold times
or splits but is not understood is an error: ignoring it would attach captions to the wrong clips.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ....storage.common.errors import UserError
from ....storage.common.problems import Problems
from ....storage.common.terminal import say
from ....storage.records import SPLITS, Caption, VideoRecord
from ..encodings import Note
from .columns import KNOWN, REQUIRED, choose_columns, plain_name
from .ids import with_video_ids
from .rows import RowReader, clip_notes
from .table import SUFFIXES, read_table
from .times import TimeReader

__all__ = ["REQUIRED", "SUFFIXES", "draw_splits", "read", "split_videos"]


def read(
    annotations: Path, seed: int, problems: Problems, videos: Sequence[VideoRecord] | None = None
) -> Iterator[VideoRecord | Caption]:
    """Yield the captions in a file, grouped by video.

    Rows that cannot be used are reported with their number and skipped.

    Args:
        annotations: The file.
        seed: Decides the splits if the file has no column ``split``.
        problems: Receives the rows that are skipped. If it is quiet, nothing else is logged either.
        videos: Known videos, empty if none is known yet. The captions' video ids are matched to the ids of these
            videos. With None, ids are used as they are and nothing is logged about them.

    Raises:
        UserError: The file cannot be read, or its columns are not understood.
    """

    def note(message: str) -> None:
        if not problems.quiet:
            say(f"note: {annotations}: {message}")

    captions, has_splits = _read_captions(annotations, problems, note)
    if not captions:
        return
    if videos is not None:
        captions = with_video_ids(captions, videos, note)
    of_video: dict[str, list[Caption]] = {}
    for caption in captions:
        of_video.setdefault(caption.video_id, []).append(caption)
    splits = {} if has_splits else draw_splits(list(of_video), seed, note)
    for video_id, captions_of_video in of_video.items():
        for caption in captions_of_video:
            yield caption if has_splits else replace(caption, split=splits[video_id])


def _read_captions(path: Path, problems: Problems, note: Note) -> tuple[list[Caption], bool]:
    """Return the captions in the order of the file, and whether it has a column for the split."""
    table = read_table(path, lambda name: plain_name(name) in KNOWN, note)
    if not table.rows:
        raise UserError(f"{path}: no rows; expected columns {', '.join(REQUIRED)} and a row for each caption")
    chosen = choose_columns(path, table, note)
    columns = chosen.by_meaning
    times = TimeReader(table, columns)
    rows = RowReader(chosen, times, len(table.columns))
    captions = []
    for where, row in table.rows:
        try:
            captions.append(rows.caption(row))
        except ValueError as error:
            problems.add(f"{path}, {where}: {error}; skipped")
    if captions:
        for message in (*times.notes(), *rows.notes(), *clip_notes(captions, columns, times)):
            note(message)
    return captions, "split" in columns


def draw_splits(video_ids: Sequence[str], seed: int, note: Note, why: str = "no column split") -> dict[str, str]:
    """Return the split of each video (``split_videos``); report the reason for drawing, and the splits' sizes."""
    splits = split_videos(sorted(video_ids), seed)
    sizes = Counter(splits.values())
    shares = ", ".join(f"{sizes[split]:,} to {split}" for split in SPLITS)
    note(f"{why}: of {len(splits):,} videos {shares} (by --seed {seed})")
    return splits


def split_videos(video_ids: Sequence[str], seed: int) -> dict[str, str]:
    """Return the split of each video, chosen by a hash of seed and id.

    Test and validation get a tenth of the videos each, and at least one each if there are three videos or more; the
    rest is train.
    """
    order = sorted(video_ids, key=lambda video_id: hashlib.sha256(f"{seed}:{video_id}".encode()).digest())
    num_held = max(round(0.1 * len(order)), 1) if len(order) >= 3 else 0
    return {v: "test" if i < num_held else "validation" if i < 2 * num_held else "train" for i, v in enumerate(order)}

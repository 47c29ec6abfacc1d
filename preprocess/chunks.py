"""The records of a data set in pieces, so that several processes can read them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from ..storage.common.problems import Problems
from ..storage.records import SPLITS, Caption, VideoRecord
from .datasets.sources import Piece, Record

PIECE_RECORDS = 500
"""Records after which a piece of records ends with a video."""

MOST_CHARACTERS = 20_000
"""Longest caption: about 25 minutes of speech. Tagging one takes a second, or ten if it is nothing but signs."""

Read = Callable[[Problems], Iterator[Record]]
"""Yields the records of a data set, the same ones in each call."""
ReadPiece = Callable[[Any, Problems], Iterable[Record]]
"""Yields the records of a piece, the same ones on each machine."""


@dataclass(frozen=True)
class Pieces:
    """The records of a data set in pieces of whole videos."""

    split: Callable[[Problems], Iterator[Piece]]
    """Yields the pieces, in order, the same ones in each call."""
    read: ReadPiece
    source: Path | None = None
    """The file that decides the pieces. None if ``split`` has read the records already: other processes gain nothing
    then."""


def in_one_process(read: Read) -> Pieces:
    """Return the pieces of what a reader yields."""
    return Pieces(lambda problems: _whole_videos(read(problems)), _as_it_is)


def _whole_videos(records: Iterable[Record]) -> Iterator[Piece]:
    piece: list[Record] = []
    for _, of_video in groupby(records, key=lambda record: record.video_id):
        piece += of_video
        if len(piece) >= PIECE_RECORDS:
            yield Piece(piece)
            piece = []
    if piece:
        yield Piece(piece)


def _as_it_is(piece: list[Record], _: Problems) -> list[Record]:
    return piece


def captions_among(
    records: Iterable[Record], problems: Problems, videos: list[VideoRecord] | None = None
) -> Iterator[Caption]:
    """Yield the captions that belong to a split; append the videos to the list, if there is one.

    Captions of more than ``MOST_CHARACTERS`` are cut there, and counted.
    """
    for record in records:
        if isinstance(record, VideoRecord):
            if videos is not None:
                videos.append(record)
        elif record.split in SPLITS:
            if len(record.caption) > MOST_CHARACTERS:
                problems.changed[f"longer than {MOST_CHARACTERS:,} characters, cut there"] += 1
                record = replace(record, caption=record.caption[:MOST_CHARACTERS].rstrip())
            yield record
        else:
            problems.add(f"caption of video {record.video_id!r}: split {record.split!r}; expected {', '.join(SPLITS)}")

"""The records of a data set in chunks, which several processes can read."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from ..storage.common.problems import Problems
from ..storage.records import SPLITS, Caption, VideoRecord
from .datasets.sources import Chunk, Record

CHUNK_RECORDS = 500
"""A chunk ends after the video that brings it to this many records."""

MAX_CAPTION_CHARACTERS = 20_000
"""Maximum length of a caption: about 25 minutes of speech. Tagging it takes a second, or ten if it is all symbols."""

Read = Callable[[Problems], Iterator[Record]]
"""Yields the records of a data set, the same ones in each call."""
ReadChunk = Callable[[Any, Problems], Iterable[Record]]
"""Yields the records of a chunk, the same ones on each machine."""


@dataclass(frozen=True)
class ChunkedRecords:
    """The records of a data set in chunks of whole videos."""

    split: Callable[[Problems], Iterator[Chunk]]
    """Yields the chunks, in order, the same ones in each call."""
    read: ReadChunk
    source: Path | None = None
    """The file that is split into chunks. None if ``split`` itself reads the records; more processes would gain nothing
    then."""
    videos_sha256: str = ""
    """Hash of the list of videos if ``read`` matches captions to them by file names."""


def in_one_process(read: Read) -> ChunkedRecords:
    """Return the records of a reader as chunks."""
    return ChunkedRecords(lambda problems: _whole_videos(read(problems)), _as_it_is)


def _whole_videos(records: Iterable[Record]) -> Iterator[Chunk]:
    chunk: list[Record] = []
    for _, of_video in groupby(records, key=lambda record: record.video_id):
        chunk += of_video
        if len(chunk) >= CHUNK_RECORDS:
            yield Chunk(chunk)
            chunk = []
    if chunk:
        yield Chunk(chunk)


def _as_it_is(chunk: list[Record], _: Problems) -> list[Record]:
    return chunk


def captions_among(
    records: Iterable[Record], problems: Problems, videos: list[VideoRecord] | None = None
) -> Iterator[Caption]:
    """Yield the captions that belong to a split; append the videos to ``videos``, if given.

    Captions longer than ``MAX_CAPTION_CHARACTERS`` are cut to this length and counted.
    """
    for record in records:
        if isinstance(record, VideoRecord):
            if videos is not None:
                videos.append(record)
        elif record.split in SPLITS:
            if len(record.caption) > MAX_CAPTION_CHARACTERS:
                problems.changed[f"longer than {MAX_CAPTION_CHARACTERS:,} characters, cut there"] += 1
                record = replace(record, caption=record.caption[:MAX_CAPTION_CHARACTERS].rstrip())
            yield record
        else:
            problems.add(f"caption of video {record.video_id!r}: split {record.split!r}; expected {', '.join(SPLITS)}")

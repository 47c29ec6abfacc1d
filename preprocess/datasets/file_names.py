"""Captions of published data sets, matched to videos in subfolders by the names of their files."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ...storage.common.problems import Problems
from ...storage.dataset.folder import DatasetFolder
from ...storage.records import Caption, VideoRecord
from .sources import Record

MATCHED = "matched to a video in a subfolder by its file name"
"""The change of a caption, as counted in ``Problems.changed``."""


def ids_by_name(videos: Iterable[VideoRecord]) -> dict[str, str]:
    """Return {file name without its suffix: video id} for the videos in subfolders whose names no other video has."""
    ids = [video.video_id for video in videos]
    counts = Counter(map(_name_of, ids))
    return {name: video_id for video_id in ids if (name := _name_of(video_id)) != video_id and counts[name] == 1}


def _name_of(video_id: str) -> str:
    return video_id.rpartition("/")[2]


def with_listed_ids(records: Iterable[Record], ids: Mapping[str, str], problems: Problems) -> Iterator[Record]:
    """Yield the records, with the video ids of captions replaced as in ``ids``; count these captions."""
    for record in records:
        if isinstance(record, Caption) and record.video_id in ids:
            problems.changed[MATCHED] += 1
            record = replace(record, video_id=ids[record.video_id])
        yield record


def read_with_listed_ids(
    dataset: DatasetFolder,
    videos_sha256: str,
    read: Callable[[Any, Problems], Iterable[Record]],
    content: Any,
    problems: Problems,
) -> Iterator[Record]:
    """Read a chunk, and yield its records with the ids of the listed videos.

    Each process reads the list for itself: a million names are too many to send with each chunk.
    """
    return with_listed_ids(read(content, problems), _listed_ids(dataset, videos_sha256), problems)


@lru_cache(maxsize=1)
def _listed_ids(dataset: DatasetFolder, videos_sha256: str) -> dict[str, str]:
    """Return ``ids_by_name`` of the data set's list, which is read again only if it has another hash."""
    del videos_sha256
    return ids_by_name(dataset.read_videos())

"""Captions of published data sets, matched to videos in subfolders by the names of their files."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ...storage.common.problems import Problems
from ...storage.dataset.folder import DatasetFolder
from ...storage.records import Caption, VideoRecord
from .custom.ids import without_suffix
from .sources import Record

MATCHED = "matched to a video in a subfolder by its file name"
"""The change of a caption, as counted in ``Problems.changed``."""


def ids_by_name(videos: Iterable[VideoRecord]) -> dict[str, str]:
    """Return {file name without its suffix: video id} for the videos in subfolders whose names no other video has."""
    ids = [video.video_id for video in videos]
    counts = Counter(map(_name_of, ids))
    return {name: video_id for video_id in ids if (name := _name_of(video_id)) != video_id and counts[name] == 1}


def why_unmatched(named: Iterable[str], listed: Iterable[str]) -> dict[str, str]:
    """Return {id: what the list has instead, and what to do} for ids in captions that are the file name of several
    listed videos, or of one in another case.

    Args:
        named: Ids in captions, which no listed video has.
        listed: Ids of the listed videos.
    """
    of_name: dict[str, list[str]] = defaultdict(list)
    for video_id in sorted(listed):
        of_name[_name_of(video_id).casefold()].append(video_id)
    reasons = {}
    for video_id in named:
        name = video_id if video_id.casefold() in of_name else without_suffix(video_id)
        near = of_name.get(name.casefold(), [])
        same = [other for other in near if _name_of(other) == name]
        if len(same) > 1:
            reasons[video_id] = (
                f"lists {len(same):,} videos with this file name, such as {same[0]!r} and {same[1]!r}; keep only one "
                "of the files, and its line in the list, and run this command again"
            )
        elif near and not same:
            reasons[video_id] = (
                f"lists {near[0]!r}, which differs in upper or lower case; rename the file and run vlalign-extract, or "
                "change the id in the captions, and run this command again"
            )
    return reasons


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

"""Video ids as users write them, matched to the ids of the videos that exist."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ....storage.dataset.media_types import IMAGE_SUFFIXES, SOUND_SUFFIXES, VIDEO_SUFFIXES
from ....storage.records import Caption, VideoRecord
from ..encodings import Note

MAX_FOLDERS = 32
"""Maximum number of last parts of a path by which videos are matched, besides the whole path."""
MEDIA_SUFFIXES = (*VIDEO_SUFFIXES, *SOUND_SUFFIXES, *IMAGE_SUFFIXES)


def with_video_ids(captions: Sequence[Caption], videos: Sequence[VideoRecord], note: Note) -> list[Caption]:
    """Return the captions, with ids replaced by those of ``videos`` where it is clear which video is meant; report how
    many were replaced."""
    given = list(dict.fromkeys(caption.video_id for caption in captions))
    if not videos:
        like_files = [name for name in given if _looks_like_file(name)]
        if like_files:
            note(
                f"{len(like_files):,} of {len(given):,} ids look like file names, such as {like_files[0]!r}, but no "
                "videos are listed yet to match them with; run vlalign-extract --videos FOLDER, and then this command "
                "again"
            )
        composed = {name: _composed(name) for name in given}  # as extraction will name the videos
        return [
            replace(c, video_id=composed[c.video_id]) if composed[c.video_id] != c.video_id else c for c in captions
        ]
    matches = match_ids(given, videos)
    if matches:
        name, video_id = next(iter(matches.items()))
        note(
            f"{len(matches):,} of {len(given):,} ids are matched to videos by their paths, such as {name!r} to "
            f"{video_id!r}"
        )
    return [replace(c, video_id=matches[c.video_id]) if c.video_id in matches else c for c in captions]


def match_ids(given: Sequence[str], videos: Sequence[VideoRecord]) -> dict[str, str]:
    """Map ids as users write them to the ids of videos. Ids that need no change, or match no video, are not in the
    result.

    A given id can have a suffix, backslashes, ``./`` or more folders than the video's id, or lack folders that the
    video's id has. Accents may be separate characters, as in names from macOS. An id is matched only if it can mean
    exactly one video and no different path is matched to that video.
    """
    ids = {video.video_id for video in videos}
    listed = {_composed(video_id): video_id for video_id in ids} | {video_id: video_id for video_id in ids}
    known = {_composed(video.video_id): _composed(video.path) for video in videos}
    of_path = {path: video_id for video_id, path in known.items()}
    of_path |= {video_id.strip(): video_id for video_id in known if video_id.strip() not in known}
    of_tail: dict[str, set[str]] = defaultdict(set)
    for video_id in known:
        for tail in _tails(video_id):
            of_tail[tail].add(video_id)
    matches: dict[str, str] = {}
    names_of: dict[str, set[str]] = defaultdict(set)
    """For each video, the different paths that are matched to it."""
    for asked in given:
        text = _composed(asked)
        if asked in ids:
            names_of[asked].add(text)
            continue
        path = _as_path(text)
        name = path if path in known else without_suffix(path)
        if text in of_path:
            candidates = {of_path[text]}
        elif name in known:
            candidates = {name}
        else:
            candidates = {tail for tail in _tails(name) if tail in known} or of_tail.get(name, set())
        if len(candidates) == 1:
            (found,) = candidates
            matches[asked] = listed[found]
            names_of[listed[found]].add(name if found != of_path.get(text) else found)
    return {text: video_id for text, video_id in matches.items() if _are_one_path(names_of[video_id])}


def _are_one_path(names: set[str]) -> bool:
    """Return whether all paths are the same path, with more or fewer of its leading folders."""
    longest = _tails(max(names, key=len))
    return all(name in longest for name in names)


def _composed(name: str) -> str:
    """Return a name in Unicode's composed form (NFC), in which an accent is part of its letter."""
    return unicodedata.normalize("NFC", name)


def _looks_like_file(name: str) -> bool:
    return without_suffix(name) != name or "\\" in name or name.startswith(("/", "./"))


def _as_path(text: str) -> str:
    path = re.sub(r"^[A-Za-z]:", "", text.strip().replace("\\", "/"))
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def without_suffix(name: str) -> str:
    """Return the name of a file without the suffix of a video, a sound recording or an image, if it has one."""
    stem, point, suffix = name.rpartition(".")
    return stem if stem and point + suffix.lower() in MEDIA_SUFFIXES else name


def _tails(path: str) -> list[str]:
    """Return the path, and its last parts, the longest first: at most ``MAX_FOLDERS`` parts of a very deep path."""
    parts = path.split("/")
    firsts = [0, *range(max(1, len(parts) - MAX_FOLDERS), len(parts))]
    return ["/".join(parts[first:]) for first in firsts]

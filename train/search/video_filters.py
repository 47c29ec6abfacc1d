"""Filters of the videos that are searched: by split, length, folder, date and captions."""

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from functools import cached_property

from ...storage.captions.files import read_captions, read_captions_about
from ...storage.common.errors import SettingError, UserError
from ...storage.common.terminal import number_of
from ...storage.dataset.folder import DatasetFolder
from ...storage.dataset.synced import read_sync_record
from ...storage.dataset.trusted_folders import AllowedFolders
from ...storage.records import SPLITS, Caption, VideoRecord
from .caption_index import CaptionIndex
from .search import Search

FIRST_YEAR = 1971
"""Files have no times before 1970, in any time zone."""
MAX_NAMED = 8
"""Folders that an error names."""


def splits_of_videos(captions: Iterable[Caption]) -> dict[str, str]:
    """Return {id of a captioned video: split of its first caption}.

    Args:
        captions: All captions, in order.
    """
    found: dict[str, str] = {}
    for caption in captions:
        found.setdefault(caption.video_id, caption.split)
    return found


@dataclass(frozen=True)
class VideoFacts:
    """What filters know of the videos of a search. Each fact is read when a filter needs it first."""

    search: Search
    known_splits: dict[str, str] | None = field(default=None, repr=False)
    """``splits_of_videos``, if the captions were read before."""

    @cached_property
    def split_of(self) -> dict[str, str]:
        """{id of a captioned video: split of its first caption}"""
        if self.known_splits is not None:
            return self.known_splits
        captions = self._dataset.captions
        return {} if read_captions_about(captions) is None else splits_of_videos(read_captions(captions))

    @cached_property
    def folder_of(self) -> dict[str, str]:
        """{video id: folder of its file}, such as "2025/holiday": below the data set's folder, a synchronised one, or
        else the one that all other files share. Of an address, it is all but the last part."""
        home = str(self._dataset.path.absolute())
        tops = [home, *(folder.path for folder in read_sync_record(self._dataset).folders)]
        inside, others = {}, {}
        for video in self._records:
            if video.url:
                inside[video.video_id] = os.path.dirname(video.url.partition("://")[2])
                continue
            folder = os.path.dirname(os.path.normpath(os.path.join(home, video.path)))
            top = max((top for top in tops if f"{folder}/".startswith(f"{top.rstrip('/')}/")), key=len, default=None)
            if top is None:
                others[video.video_id] = folder
            else:
                inside[video.video_id] = folder[len(top) :].strip("/")
        shared = _shared_folder(others.values())
        return inside | {video_id: folder[len(shared) :].strip("/") for video_id, folder in others.items()}

    @cached_property
    def folders(self) -> list[str]:
        """Folders that videos lie in, and the folders of these, sorted."""
        found = set()
        for folder in set(self.folder_of.values()):
            parts = folder.split("/") if folder else []
            found.update("/".join(parts[:count]) for count in range(1, len(parts) + 1))
        return sorted(found)

    @cached_property
    def time_of(self) -> dict[str, float]:
        """{video id: when its file was changed, in seconds since 1970}: as the last sync saw it, else as the file says
        that may be read."""
        home, files = str(self._dataset.path.absolute()), read_sync_record(self._dataset).files
        allowed, found = AllowedFolders.of(self._dataset), {}
        for video in self._records:
            if video.url:
                continue
            path = os.path.normpath(os.path.join(home, video.path))
            if path in files:
                found[video.video_id] = files[path].mtime_ns / 1e9
                continue
            with suppress(OSError, UserError, ValueError):
                descriptor, _ = allowed.open(self._dataset.video_path(video))
                try:
                    found[video.video_id] = os.fstat(descriptor).st_mtime
                finally:
                    os.close(descriptor)
        return found

    @cached_property
    def language_of(self) -> dict[str, str]:
        """{id of a captioned video: language of its captions}"""
        captions = self.search.caption_index
        return {} if captions is None else captions.languages_of_videos()

    @property
    def languages(self) -> list[str]:
        """Languages of the captions, that of most captions first."""
        captions = self.search.caption_index
        return [] if captions is None else list(captions.languages)

    @property
    def captions(self) -> CaptionIndex | None:
        """The texts of captions; None without any."""
        return self.search.caption_index

    @property
    def _dataset(self) -> DatasetFolder:
        return self.search.encoder.dataset

    @cached_property
    def _records(self) -> list[VideoRecord]:
        ids = set(self.search.index.video_ids)
        return [video for video in self._dataset.read_videos() if video.video_id in ids]


@dataclass(frozen=True)
class VideoFilters:
    """Which videos are searched."""

    split: str | None = None
    """Only videos whose first caption is in this split; None: any."""
    has_caption: bool | None = None
    """Only videos with (True) or without (False) a known caption; None: both."""
    min_seconds: float = 0.0
    """Only videos at least as long."""
    max_seconds: float = float("inf")
    """Only videos at most as long."""
    folder: str | None = None
    """Only videos whose files lie in this folder or in one of its folders (``VideoFacts.folder_of``)."""
    since: str | None = None
    """Only videos whose files were changed on this day or later, such as "2026-01-31"."""
    until: str | None = None
    """Only videos whose files were changed on this day or before."""
    caption: str | None = None
    """Only videos of which one caption or subtitle has all these words, or other forms of them."""
    caption_language: str | None = None
    """Only videos whose captions are in this language, such as "de"."""

    def __post_init__(self) -> None:
        if self.split is not None and self.split not in SPLITS:
            raise SettingError("split", self.split, f"expected one of {', '.join(SPLITS)}")
        if not 0 <= self.min_seconds < float("inf"):
            raise SettingError("min_seconds", self.min_seconds, "expected 0 or more")
        if not self.max_seconds >= self.min_seconds:
            raise SettingError("max_seconds", self.max_seconds, f"expected {self.min_seconds:g}, the minimum, or more")
        since, until = _day("since", self.since), _day("until", self.until)
        if since is not None and until is not None and until < since:
            raise SettingError("until", self.until, f"expected {since}, the first day, or later")

    def videos(self, facts: VideoFacts) -> set[str] | None:
        """Return the ids of the videos that pass; None for all.

        Args:
            facts: What is known of the videos.

        Raises:
            SettingError: No video lies in the folder, or has captions in the language; or there are no captions to
                compare with.
        """
        if self == VideoFilters():
            return None
        search, split_of = facts.search, facts.split_of if self._reads_captions else {}
        passing = {
            video_id
            for video_id in search.index.video_ids
            if (self.split is None or split_of.get(video_id) == self.split)
            and (self.has_caption is None or (video_id in split_of) == self.has_caption)
        }
        if (self.min_seconds, self.max_seconds) != (0, float("inf")):
            passing = {video_id for video_id in passing if self._is_long_enough(video_id, facts)}
        if self.folder is not None:
            passing &= self._in_folder(self.folder, facts)
        if self.since is not None or self.until is not None:
            first, end = self._times()
            passing &= {video_id for video_id, changed in facts.time_of.items() if first <= changed < end}
        if self.caption is not None:
            if facts.captions is None:
                raise SettingError("caption", self.caption, _no_captions(facts))
            passing &= facts.captions.videos_with(self.caption)
        if self.caption_language is not None:
            passing &= self._in_language(self.caption_language, facts)
        return passing

    def warnings(self, facts: VideoFacts) -> list[str]:
        """Return what the filters could not tell, a sentence each.

        Args:
            facts: What is known of the videos.
        """
        if self.since is None and self.until is None:
            return []
        num_undated = len(set(facts.search.index.video_ids) - facts.time_of.keys())
        without = f"{number_of(num_undated, 'videos')} without a known date: not searched"
        return [without] if num_undated else []

    @property
    def _reads_captions(self) -> bool:
        return self.split is not None or self.has_caption is not None

    def _is_long_enough(self, video_id: str, facts: VideoFacts) -> bool:
        try:
            return self.min_seconds <= facts.search.encoder.duration_seconds(video_id) <= self.max_seconds
        except KeyError:  # its features were removed meanwhile
            return False

    def _times(self) -> tuple[float, float]:
        """Return the first second that passes, and the one after the last, in this machine's time zone."""
        since, until = _day("since", self.since), _day("until", self.until)
        first = float("-inf") if since is None else datetime.combine(since, time.min).timestamp()
        end = None if until is None else datetime.combine(until + timedelta(days=1), time.min).timestamp()
        return first, float("inf") if end is None else end

    @staticmethod
    def _in_folder(folder: str, facts: VideoFacts) -> set[str]:
        wanted = "/".join(part for part in folder.split("/") if part not in ("", "."))
        found = {video_id for video_id, of in facts.folder_of.items() if f"{of}/".startswith(f"{wanted}/")}
        if not found or not wanted:
            raise SettingError(
                "folder", folder, _expected("no video lies in it", facts.folders, "there are no folders")
            )
        return found

    @staticmethod
    def _in_language(language: str, facts: VideoFacts) -> set[str]:
        found = {video_id for video_id, of in facts.language_of.items() if of == language}
        if not found:
            known = sorted(set(facts.language_of.values()))
            problem = _expected("no video has captions in it", known, _no_captions(facts))
            raise SettingError("caption_language", language, problem)
        return found


def _expected(problem: str, known: Collection[str], otherwise: str) -> str:
    """Return a problem with the values that there are."""
    if not known:
        return f"{problem}: {otherwise}"
    named = list(known)[:MAX_NAMED]
    more = f", or {len(known) - MAX_NAMED:,} more" if len(known) > MAX_NAMED else ""
    return f"{problem}; expected {'one of ' if len(known) > 1 else ''}{', '.join(named)}{more}"


def _no_captions(facts: VideoFacts) -> str:
    return f"{facts.search.encoder.dataset.name} has no captions; run vlalign-preprocess with captions or subtitles"


def _shared_folder(folders: Collection[str]) -> str:
    """Return the deepest folder that all of some lie in."""
    try:
        return os.path.commonpath(folders) if folders else ""
    except ValueError:  # of two drives
        return ""


def _day(name: str, text: str | None) -> date | None:
    try:
        day = None if text is None else date.fromisoformat(text)
    except ValueError:
        raise SettingError(name, text, "expected a day, such as 2026-01-31") from None
    if day is not None and not FIRST_YEAR <= day.year < date.max.year:
        raise SettingError(name, text, f"expected a day from {FIRST_YEAR} on")
    return day

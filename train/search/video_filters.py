"""Filters of the videos that are searched: by split, length, folder, date and captions."""

import os
import unicodedata
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from functools import cached_property

from ...storage.captions.files import read_captions, read_captions_about
from ...storage.common.errors import SettingError, UserError
from ...storage.common.terminal import number_of
from ...storage.dataset.folder import DatasetFolder
from ...storage.dataset.synced import SyncRecord, read_sync_record
from ...storage.dataset.trusted_folders import AllowedFolders
from ...storage.records import Caption, VideoRecord
from .caption_index import CaptionIndex
from .query_checks import check_lengths, check_split, check_text, check_time, read_days
from .search import Search

MAX_NAMED = 8
"""Maximum number of folders or languages that an error lists."""
MAX_PARTS = 2
"""Maximum number of parts in the name of a folder that is outside the data set and the synchronised folders."""


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
    """The facts about a search's videos that filters use. Each fact is read when a filter needs it first."""

    search: Search
    known_splits: dict[str, str] | None = field(default=None, repr=False)
    """``splits_of_videos``, if the captions were read before."""
    known_videos: Collection[VideoRecord] | None = field(default=None, repr=False)
    """The list of videos, if it was read before."""
    _looked_at: dict[str, float | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    """``time_of`` as far as it was read; None for a video without a known time."""

    @cached_property
    def split_of(self) -> dict[str, str]:
        """{id of a captioned video: split of its first caption}"""
        if self.known_splits is not None:
            return self.known_splits
        captions = self._dataset.captions
        return {} if read_captions_about(captions) is None else splits_of_videos(read_captions(captions))

    @cached_property
    def folder_of(self) -> dict[str, str]:
        """{video id: folder of its file}, such as "2025/holiday": relative to the data set's or a synchronised folder.

        Folders of other files are relative to their common folder or this user's home, and have at most the last
        ``MAX_PARTS`` parts, since clients of the page see them. The folder of a URL is all but its last part.
        """
        home = str(self._dataset.path.absolute())
        tops = [home, *(folder.path for folder in self._sync_record.folders)]
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
        folders = inside | {video_id: _end_of(folder, shared) for video_id, folder in others.items()}
        return {video_id: unicodedata.normalize("NFC", folder) for video_id, folder in folders.items()}

    @cached_property
    def folders(self) -> list[str]:
        """Folders that contain videos, and their parent folders, sorted."""
        found = set()
        for folder in set(self.folder_of.values()):
            parts = folder.split("/") if folder else []
            found.update("/".join(parts[:count]) for count in range(1, len(parts) + 1))
        return sorted(found)

    @cached_property
    def time_of(self) -> dict[str, float]:
        """{video id: when its file was changed, in seconds since 1970}, as recorded by the last sync, or else read from
        the file if that is allowed.

        Raises:
            SearchTimeout: There are many files. The next call continues with the remaining ones.
        """
        allowed, looked_at = AllowedFolders.of(self._dataset), self._looked_at
        for video in self._records:
            if video.video_id not in looked_at:
                check_time()
                looked_at[video.video_id] = self._time_of(video, allowed)
        return {video_id: seconds for video_id, seconds in looked_at.items() if seconds is not None}

    def _time_of(self, video: VideoRecord, allowed: AllowedFolders) -> float | None:
        if video.url:
            return None
        seen = self._sync_record.files.get(os.path.normpath(os.path.join(self._dataset.path.absolute(), video.path)))
        if seen is not None:
            return seen.mtime_ns / 1e9
        try:
            descriptor, _ = allowed.open(self._dataset.video_path(video))
        except (OSError, UserError, ValueError):
            return None
        try:
            return os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)

    @cached_property
    def language_of(self) -> dict[str, str]:
        """{id of a captioned video: language of its captions}"""
        captions = self.search.caption_index
        return {} if captions is None else captions.languages_of_videos()

    @property
    def languages(self) -> list[str]:
        """Languages of the captions, the most frequent first."""
        captions = self.search.caption_index
        return [] if captions is None else list(captions.languages)

    @property
    def captions(self) -> CaptionIndex | None:
        """The caption index; None without captions."""
        return self.search.caption_index

    @property
    def _dataset(self) -> DatasetFolder:
        return self.search.encoder.dataset

    @cached_property
    def _records(self) -> list[VideoRecord]:
        ids = set(self.search.index.video_ids)
        listed = self._dataset.read_videos() if self.known_videos is None else self.known_videos
        return [video for video in listed if video.video_id in ids]

    @cached_property
    def _sync_record(self) -> SyncRecord:
        return read_sync_record(self._dataset)


@dataclass(frozen=True)
class VideoFilters:
    """Filters of the searched videos."""

    split: str | None = None
    """Only videos whose first caption is in this split; None for any."""
    has_caption: bool | None = None
    """Only videos with (True) or without (False) a known caption; None: both."""
    min_seconds: float = 0.0
    """Only videos at least as long."""
    max_seconds: float = float("inf")
    """Only videos at most as long."""
    folder: str | None = None
    """Only videos whose files are in this folder or a subfolder (``VideoFacts.folder_of``)."""
    since: str | None = None
    """Only videos whose files were changed on this day or later, such as "2026-01-31"."""
    until: str | None = None
    """Only videos whose files were changed on this day or before."""
    caption: str | None = None
    """Only videos with a caption or subtitle that has all these words, or other forms of them."""
    caption_language: str | None = None
    """Only videos whose captions are in this language, such as "de"."""

    def __post_init__(self) -> None:
        check_split(self.split)
        check_lengths(self.min_seconds, self.max_seconds)
        read_days(self.since, self.until)
        check_text("caption", self.caption or "")

    def videos(self, facts: VideoFacts) -> set[str] | None:
        """Return the ids of the videos that pass; None for all.

        Args:
            facts: Facts about the videos.

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
        """Return a sentence for each fact that the filters could not determine.

        Args:
            facts: Facts about the videos.
        """
        if self.since is None and self.until is None:
            return []
        num_undated = len(set(facts.search.index.video_ids) - facts.time_of.keys())
        without = f"{number_of(num_undated, 'videos')} without a known date are not searched"
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
        """Return when the first day starts and the last ends, in seconds since 1970, by this machine's time zone."""
        since, until = read_days(self.since, self.until)
        first = float("-inf") if since is None else datetime.combine(since, time.min).timestamp()
        end = None if until is None else datetime.combine(until + timedelta(days=1), time.min).timestamp()
        return first, float("inf") if end is None else end

    @staticmethod
    def _in_folder(folder: str, facts: VideoFacts) -> set[str]:
        composed = unicodedata.normalize("NFC", folder)
        wanted = "/".join(part for part in composed.split("/") if part not in ("", "."))
        found = {video_id for video_id, of in facts.folder_of.items() if f"{of}/".startswith(f"{wanted}/")}
        if not found or not wanted:
            raise SettingError(
                "folder", folder, _expected("no video is in it", facts.folders, "there are no folders; omit it")
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
    """Return the text of a problem, with the values that exist."""
    if not known:
        return f"{problem}: {otherwise}"
    named = list(known)[:MAX_NAMED]
    more = f", or {len(known) - MAX_NAMED:,} more" if len(known) > MAX_NAMED else ""
    return f"{problem}; expected {'one of ' if len(known) > 1 else ''}{', '.join(named)}{more}"


def _no_captions(facts: VideoFacts) -> str:
    return f"{facts.search.encoder.dataset.name} has no captions; run vlalign-preprocess with captions or subtitles"


def _shared_folder(folders: Collection[str]) -> str:
    """Return the deepest folder that contains all of the folders."""
    try:
        return os.path.commonpath(folders) if folders else ""
    except ValueError:  # of two drives
        return ""


def _end_of(folder: str, shared: str) -> str:
    """Return the part of a folder's path that may be shown: its end, below the shared folder or the user's home."""
    own = os.path.expanduser("~").rstrip("/")
    top = max((top for top in (shared, own) if f"{folder}/".startswith(f"{top.rstrip('/')}/")), key=len, default="")
    return "/".join([part for part in folder[len(top) :].split("/") if part][-MAX_PARTS:])

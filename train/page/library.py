"""Everything that the page shows of a video besides scores: its file, clips, frames, thumbnails, captions and split."""

import os
import threading
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Mapping
from itertools import chain
from pathlib import Path

from ...storage.captions.files import read_captions, read_captions_about
from ...storage.common.errors import UserError
from ...storage.dataset.folder import DatasetFolder
from ...storage.dataset.media_types import IMAGE_SUFFIXES, MEDIA_TYPES, SOUND_SUFFIXES, VIDEO_SUFFIXES, Shown, how_shown
from ...storage.dataset.trusted_folders import AllowedFolders
from ...storage.records import SPLITS, Caption, VideoRecord
from ...storage.stores.thumbnails import ThumbnailStore
from ..data.clips import evenly
from ..search.video_filters import splits_of_videos
from .browser_clips import ClipCache, ClipError
from .concurrency import Busy
from .pictures import FrameCache, FrameError, Picture

MAX_CAPTIONS = 3
MAX_SUGGESTIONS, MAX_SUGGESTION_CHARACTERS = 4, 60
SHOWN_SUFFIXES = VIDEO_SUFFIXES + SOUND_SUFFIXES + IMAGE_SUFFIXES
UNREADABLE = "the file of this video was moved or deleted, or is outside the folders that may be read"


class NotFound(Exception):
    """Something that does not exist or may not be served. The message is for the person who asked."""


class VideoLibrary:
    """The videos of a data set. Nothing is found by path, only by id."""

    def __init__(self, dataset: DatasetFolder, clips: ClipCache, frames: FrameCache) -> None:
        """Read the lists of videos and captions. Raises ``UserError`` if one is damaged."""
        self.dataset = dataset
        self._videos = {video.video_id: video for video in dataset.read_videos()}
        self._thumbnails = ThumbnailStore(dataset.thumbnails)
        self._clips, self._frames = clips, frames
        self._thumbnails_lock = threading.Lock()
        self._captions: dict[str, list[Caption]] = defaultdict(list)
        if read_captions_about(dataset.captions) is not None:
            for caption in read_captions(dataset.captions):
                self._captions[caption.video_id].append(caption)
        self.split_of = splits_of_videos(chain.from_iterable(self._captions.values()))
        """{id of a captioned video: split of its first caption}"""
        self.splits = [split for split in SPLITS if split in set(self.split_of.values())]
        """Splits that captioned videos are in."""
        every = (caption.caption for captions in self._captions.values() for caption in captions)
        short = [text for text in every if len(text) <= MAX_SUGGESTION_CHARACTERS]
        self.suggestions = list(dict.fromkeys(short[index] for index in evenly(len(short), MAX_SUGGESTIONS)))
        """Short captions, as examples of queries."""

    @property
    def by_id(self) -> Mapping[str, VideoRecord]:
        """The list of videos, by their ids."""
        return self._videos

    @property
    def videos(self) -> Collection[VideoRecord]:
        """The list of videos."""
        return self._videos.values()

    def captions_at(self, video_id: str, start_seconds: float, end_seconds: float) -> list[str]:
        """Return up to ``MAX_CAPTIONS`` captions that overlap a part of a video."""
        found = []
        for caption in self._captions.get(video_id, []):
            start = caption.start_seconds or 0.0
            end = float("inf") if caption.end_seconds is None else caption.end_seconds
            if start < end_seconds and end > start_seconds:
                found.append(caption.caption)
        return found[:MAX_CAPTIONS]

    def first_caption(self, video_id: str) -> str | None:
        """Return the first caption of a video; None without one."""
        return next((caption.caption for caption in self._captions.get(video_id, [])), None)

    def file_path(self, video_id: str) -> str:
        """Return the absolute path of a video's file, as listed; empty if it is not on this machine."""
        video = self._videos.get(video_id)
        return "" if video is None or video.url else self.dataset.video_file(video)

    def other_file_name(self, video_id: str) -> str | None:
        """Return the name of a video's file, without its folder, if the id was not made from it, for example after the
        file was renamed; else None."""
        video = self._videos.get(video_id)
        if video is None or video.url or video.scene is not None:  # files of the demo have names of their own
            return None
        name, own = unicodedata.normalize("NFC", os.path.basename(video.path)), os.path.basename(video_id)
        return None if own in (name, os.path.splitext(name)[0]) else name

    def how_shown(self, video_id: str) -> Shown:
        """Return how browsers show a video."""
        video = self._videos.get(video_id)
        return "thumbnails" if video is None else how_shown(video)

    def file(self, video_id: str) -> tuple[int, Path, str]:
        """Open the file of a video that browsers play; return its descriptor, to be closed by the caller, its path, and
        its media type.

        Raises:
            NotFound: There is no such video, or its file is gone or may not be served.
        """
        if self.how_shown(video_id) != "file" and video_id in self._videos:
            raise NotFound("browsers cannot play this file; the page shows clips or thumbnails of it")
        descriptor, path, _ = self._opened(video_id)
        if path.suffix.lower() not in SHOWN_SUFFIXES:  # the listed name may be a link to any file
            os.close(descriptor)
            raise NotFound("the file of this video has no video suffix")
        return descriptor, path, MEDIA_TYPES[Path(self._videos[video_id].path).suffix.lower()]

    def clip(self, video_id: str, start_seconds: float, end_seconds: float) -> Path:
        """Return the file of a clip (WebM, for all browsers) of any video on this machine.

        Raises:
            NotFound: There is no such video, its file is gone or may not be served, or no clip can be made of it.
            Busy: Too many clips are asked for.
        """
        if self.how_shown(video_id) == "thumbnails" and video_id in self._videos:
            raise NotFound("no clips can be made of this video; the page shows its thumbnails")
        try:
            descriptor, path, allowed = self._opened(video_id)
            os.close(descriptor)
            return self._clips.path(path, start_seconds, end_seconds, allowed.folders)
        except ClipError as error:
            raise NotFound(f"no clip can be made of this video: {error}") from None

    def _opened(self, video_id: str) -> tuple[int, Path, AllowedFolders]:
        """Open the file of a video under the root or in an allowed folder; return its descriptor, real path and
        the allowed folders.
        """
        video = self._videos.get(video_id)
        if video is None:
            raise NotFound("no such video in this data set")
        try:
            allowed = AllowedFolders.of(self.dataset)
            descriptor, real_path = allowed.open(self.dataset.video_path(video))
        except (UserError, OSError, ValueError):  # ValueError: a path with a zero byte
            raise NotFound(UNREADABLE) from None
        return descriptor, Path(real_path), allowed

    def picture(self, video_id: str, seconds: float) -> Picture:
        """Return the frame that a video shows at a second, as JPEG of at most 640 px a side; if its file cannot be read
        in time or is on another machine, the nearest thumbnail.

        Raises:
            NotFound: There is neither a frame nor a thumbnail.
            Busy: Too many frames are asked for, and there is no thumbnail.
        """
        try:
            return self._frame(video_id, seconds)
        except (NotFound, FrameError, Busy) as error:
            with self._thumbnails_lock:
                thumbnail = self._thumbnails.nearest(video_id, seconds)
            if thumbnail is not None:
                return Picture("thumbnail", thumbnail.seconds, thumbnail.jpeg)
            if isinstance(error, Busy):
                raise
            raise NotFound(f"no frame of this video ({error}), and no thumbnail") from None

    def _frame(self, video_id: str, seconds: float) -> Picture:
        video = self._videos.get(video_id)
        if video is not None and video.url:
            raise NotFound("its file is on another machine")
        descriptor, path, allowed = self._opened(video_id)
        os.close(descriptor)
        return self._frames.frame(path, seconds, allowed.folders)

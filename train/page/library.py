"""Content that the page shows besides scores: files, thumbnails, captions and splits of its videos, by id."""

import os
import threading
from collections import defaultdict
from pathlib import Path

from ...storage.captions.files import read_captions, read_captions_about
from ...storage.common.errors import UserError
from ...storage.dataset.folder import DatasetFolder
from ...storage.dataset.media_types import IMAGE_SUFFIXES, MEDIA_TYPES, SOUND_SUFFIXES, VIDEO_SUFFIXES, Shown, how_shown
from ...storage.dataset.trusted_folders import AllowedFolders
from ...storage.records import SPLITS, Caption
from ...storage.stores.thumbnails import ThumbnailStore
from .browser_clips import Clips, NoClip

MOST_CAPTIONS = 3
SHOWN_SUFFIXES = VIDEO_SUFFIXES + SOUND_SUFFIXES + IMAGE_SUFFIXES
NOT_READ = "the file of this video was moved or deleted, or lies where it may not be read"


class Missing(Exception):
    """Something that is not there or may not be served. The message is for the person who asked."""


class Library:
    """The videos of a data set. Nothing is found by path, only by id."""

    def __init__(self, dataset: DatasetFolder, clips: Clips) -> None:
        """Read the lists. Raises ``UserError`` if one is damaged."""
        self.dataset = dataset
        self._videos = {video.video_id: video for video in dataset.read_videos()}
        self._thumbnails = ThumbnailStore(dataset.thumbnails)
        self._clips = clips
        self._reading = threading.Lock()
        self._captions: dict[str, list[Caption]] = defaultdict(list)
        if read_captions_about(dataset.captions) is not None:
            for caption in read_captions(dataset.captions):
                self._captions[caption.video_id].append(caption)
        self._split = {video_id: captions[0].split for video_id, captions in self._captions.items()}
        self.splits = [split for split in SPLITS if split in set(self._split.values())]
        """Splits that captioned videos are in."""

    def split_of(self, video_id: str) -> str | None:
        """Return the split of a video; None if no caption is known."""
        return self._split.get(video_id)

    def captions_at(self, video_id: str, start_seconds: float, end_seconds: float) -> list[str]:
        """Return up to ``MOST_CAPTIONS`` captions that are about a time between two times."""
        found = []
        for caption in self._captions.get(video_id, []):
            start = caption.start_seconds or 0.0
            end = float("inf") if caption.end_seconds is None else caption.end_seconds
            if start < end_seconds and end > start_seconds:
                found.append(caption.caption)
        return found[:MOST_CAPTIONS]

    def how_shown(self, video_id: str) -> Shown:
        """Return how browsers show a video."""
        video = self._videos.get(video_id)
        return "pictures" if video is None else how_shown(video)

    def file(self, video_id: str) -> tuple[int, Path, str]:
        """Open the file of a video that browsers play; return its descriptor, to be closed by the caller, its path, and
        its media type.

        Raises:
            Missing: There is no such video, or its file is gone or may not be served.
        """
        if self.how_shown(video_id) != "file" and video_id in self._videos:
            raise Missing("browsers do not play this file; clips or pictures of it are shown")
        descriptor, path, _ = self._opened(video_id)
        if path.suffix.lower() not in SHOWN_SUFFIXES:  # the name in the list may be that of a link to any file
            os.close(descriptor)
            raise Missing("the file of this video has no name of a video")
        return descriptor, path, MEDIA_TYPES[Path(self._videos[video_id].path).suffix.lower()]

    def clip(self, video_id: str, start_seconds: float, end_seconds: float) -> Path:
        """Return the file of a clip that browsers play (WebM) of any video on this machine.

        Raises:
            Missing: There is no such video, its file is gone or may not be served, or no clip can be made of it.
            Busy: Too many clips are asked for.
        """
        if self.how_shown(video_id) == "pictures" and video_id in self._videos:
            raise Missing("there are no clips of this; its pictures are shown")
        try:
            descriptor, path, allowed = self._opened(video_id)
            os.close(descriptor)
            return self._clips.path(path, start_seconds, end_seconds, allowed.folders)
        except NoClip as error:
            raise Missing(f"no clip of this video: {error}") from None

    def _opened(self, video_id: str) -> tuple[int, Path, AllowedFolders]:
        """Open the file of a video under the root or in a folder that the user named; return its descriptor, where it
        lies after all links, and the folders."""
        video = self._videos.get(video_id)
        if video is None:
            raise Missing("no such video in this data set")
        try:
            allowed = AllowedFolders.of(self.dataset)
            descriptor, real_path = allowed.open(self.dataset.video_path(video))
        except (UserError, OSError, ValueError):  # the last of a path with a zero byte
            raise Missing(NOT_READ) from None
        return descriptor, Path(real_path), allowed

    def picture(self, video_id: str, seconds: float) -> bytes:
        """Return the thumbnail nearest to a time, as JPEG.

        Raises:
            Missing: The video has none.
        """
        with self._reading:
            thumbnails = self._thumbnails.get(video_id)
        if not thumbnails:
            raise Missing("no picture of this video")
        return min(thumbnails, key=lambda thumbnail: abs(thumbnail.seconds - seconds)).jpeg

"""The files of moments: their paths, and the facts that a confined decoder reads from them."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ...storage.common.errors import UserError
from ...storage.dataset.folder import DatasetFolder
from ...storage.dataset.trusted_folders import AllowedFolders
from ...storage.records import VideoRecord

if TYPE_CHECKING:
    import numpy as np

    from ...extract.decoding.clip_file import ClipWritten
    from ...extract.decoding.errors import VideoError
    from ...extract.decoding.span import SpanProbed
    from ...extract.videos.frames import FrameReader
    from ...extract.videos.spans import ClipKind, SpanReader
    from ..search.moments import Moment

FRAME_SECONDS = 30.0
"""Time limit for decoding a frame."""


class SourceError(Exception):
    """The file of a video cannot be used. The message gives the reason."""


@dataclass(frozen=True)
class SourceFile:
    """The file of a video."""

    path: Path
    """Real path, with links resolved."""
    folders: Sequence[str]
    """Folders that must contain it when it is opened."""


@dataclass(frozen=True)
class Part:
    """A part of a video that no search has found."""

    video_id: str
    start_seconds: float
    end_seconds: float


class SourceVideos:
    """The videos of a data set as files. Close it after use: a decoder process may wait for the next request."""

    def __init__(
        self,
        dataset: DatasetFolder,
        videos: Mapping[str, VideoRecord],
        *,
        with_folders: bool = True,
        wait_seconds: float | None = None,
    ) -> None:
        """Take the list of videos.

        Args:
            dataset: The data set.
            videos: {id: video}
            with_folders: Whether exports and errors may name folders of this machine; if not, they have file names
                only.
            wait_seconds: Time limit for reading all videos together; None: only the decoders' own limits.
        """
        self._ends = None if wait_seconds is None else time.monotonic() + wait_seconds
        self.dataset, self._videos, self.with_folders = dataset, videos, with_folders

    @classmethod
    def of(cls, dataset: DatasetFolder) -> "SourceVideos":
        """Read a data set's list of videos."""
        return cls(dataset, {video.video_id: video for video in dataset.read_videos()})

    def file_name(self, video_id: str) -> str:
        """Return the path of a video's file as in the list, or only its name; empty if it is not on this machine."""
        video = self._videos.get(video_id)
        if video is None or video.url:
            return ""
        path = self.dataset.video_file(video)
        if ".." in path.split("/"):  # the folder was given so; other programs may not resolve it
            path = os.path.realpath(path)
        return path if self.with_folders else os.path.basename(path)

    def url(self, video_id: str) -> str:
        """Return the address at which editors and players find a video's file: a ``file:`` URL, or a relative one.

        Raises:
            SourceError: It is not on this machine.
        """
        from urllib.parse import quote

        name = self.file_name(video_id)
        if not name:
            raise SourceError(self._why_no_file(video_id))
        return Path(name).as_uri() if self.with_folders else quote(name)

    def _why_no_file(self, video_id: str) -> str:
        if video_id in self._videos:
            return "its file is on another machine"
        return "it is not in the list of videos"

    def find(self, video_id: str) -> SourceFile:
        """Return the file of a video, if it is under the root or in an allowed folder.

        Raises:
            SourceError: It is elsewhere, or missing.
        """
        video = self._videos.get(video_id)
        if video is None or video.url:
            raise SourceError(self._why_no_file(video_id))
        try:
            allowed = AllowedFolders.of(self.dataset)
            descriptor, real_path = allowed.open(self.dataset.video_path(video))
        except (UserError, OSError, ValueError):
            raise SourceError("its file was moved or deleted, or is outside the folders that may be read") from None
        os.close(descriptor)
        return SourceFile(Path(real_path), allowed.folders)

    @cached_property
    def reader(self) -> "SpanReader":
        """Reads parts of videos."""
        from ...extract.videos.spans import SpanReader  # loads decoders, which most searches do not need

        return SpanReader()

    @cached_property
    def _frames(self) -> "FrameReader":
        from ...extract.videos.frames import FrameReader

        return FrameReader()

    def _seconds_left(self) -> float | None:
        """Return how long reading may still take; None: only the decoders' own limits.

        Raises:
            SourceError: The time limit has passed.
        """
        if self._ends is None:
            return None
        if (left := self._ends - time.monotonic()) <= 0:
            raise SourceError("the time limit for reading videos passed before it was read")
        return left

    def _source_error(self, error: "VideoError") -> SourceError:
        from ...extract.decoding.errors import without_last_words

        return SourceError(str(error) if self.with_folders else without_last_words(error))

    def probe(self, moment: "Moment | Part") -> "SpanProbed":
        """Return the facts about the frames of a moment.

        Raises:
            SourceError: They cannot be read.
        """
        from ...extract.decoding.errors import VideoError

        file = self.find(moment.video_id)
        try:
            return self.reader.probe(
                file.path,
                moment.start_seconds,
                moment.end_seconds,
                folders=file.folders,
                wait_seconds=self._seconds_left(),
            )
        except VideoError as error:
            raise self._source_error(error) from None

    def cut(
        self, moment: "Moment | Part", kind: "ClipKind", file: IO[bytes], max_bytes: int | None = None
    ) -> "ClipWritten":
        """Write a moment as a file of its own.

        Args:
            moment: The part of a video.
            kind: How it is cut.
            file: Receives the clip.
            max_bytes: Largest size of the clip; None: the decoders' own limit.

        Raises:
            SourceError: It cannot be read, or not be cut.
        """
        from ...extract.decoding.clip_file import MAX_CLIP_BYTES
        from ...extract.decoding.errors import VideoError

        source = self.find(moment.video_id)
        try:
            return self.reader.write(
                source.path,
                moment.start_seconds,
                moment.end_seconds,
                kind,
                file,
                folders=source.folders,
                wait_seconds=self._seconds_left(),
                max_bytes=max_bytes or MAX_CLIP_BYTES,
            )
        except VideoError as error:
            raise self._source_error(error) from None

    def frame(self, moment: "Moment") -> "np.ndarray":
        """Return the frame of a moment's best second, uint8 [H, W, 3] RGB, at most 640 px a side.

        Raises:
            SourceError: It cannot be decoded.
        """
        from ...extract.decoding.errors import VideoError

        file = self.find(moment.video_id)
        try:
            left = self._seconds_left()
            wait_seconds = FRAME_SECONDS if left is None else min(left, FRAME_SECONDS)
            return self._frames.pixels(file.path, moment.best_seconds, wait_seconds=wait_seconds, folders=file.folders)
        except VideoError as error:
            raise self._source_error(error) from None

    def close(self) -> None:
        """End the decoder processes."""
        for name in ("reader", "_frames"):
            if name in vars(self):
                vars(self).pop(name).close()

    def __enter__(self) -> "SourceVideos":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

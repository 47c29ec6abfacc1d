"""Frames of videos at any second: decoded when they are first requested, and cached."""

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...extract.decoding.errors import VideoError, without_last_words
from ...storage.common.errors import reason_of
from .concurrency import Busy, one_at_a_time

if TYPE_CHECKING:
    from ...extract.videos.frames import FrameReader

MAX_CACHED_FRAMES, MAX_CACHED_BYTES = 4_000, 64 << 20
"""A frame has about 40 kB."""
MAX_WAITING = 8
"""Maximum number of waiting requests. More are answered with thumbnails, which leaves searches responsive."""
DECODE_SECONDS = 10.0
"""Time limit for decoding a frame."""
RETRY_SECONDS = 60.0
"""After a frame of a video failed, the video is not tried again for this long."""
MAX_FAILED = 1_000

Key = tuple[Path, int, float]
"""A video's file, the time of its last change, and the requested second."""


class FrameError(Exception):
    """A frame could not be decoded. The message gives the reason."""


@dataclass(frozen=True)
class Picture:
    """An image of a video."""

    source: Literal["frame", "thumbnail"]
    """The frame that the video shows at the requested second, or the nearest thumbnail."""
    seconds: float
    """The image's own time in the video."""
    jpeg: bytes


class FrameCache:
    """Decodes one frame at a time, and holds the latest in memory."""

    def __init__(self) -> None:
        self._pictures: OrderedDict[Key, Picture] = OrderedDict()
        self._num_bytes = 0
        self._failed: OrderedDict[tuple[Path, int], tuple[float, str]] = OrderedDict()
        """{video: when a frame of it failed, and why}"""
        self._decoding, self._changing = threading.Lock(), threading.Lock()
        self._waiting = threading.BoundedSemaphore(MAX_WAITING)

    @cached_property
    def _reader(self) -> "FrameReader":
        from ...extract.videos.frames import FrameReader  # loads decoders, which most searches do not need

        return FrameReader()

    def frame(self, video: Path, seconds: float, folders: Sequence[str] | None = None) -> Picture:
        """Return the frame that a video shows at a second.

        Args:
            video: The file.
            seconds: Time in the video; rounded to milliseconds.
            folders: Folders that the file must lie in; None for any.

        Raises:
            Busy: Too many frames are asked for.
            FrameError: The video cannot be decoded there, or takes too long.
        """
        try:
            key = video, video.stat().st_mtime_ns, round(seconds, 3)
        except OSError as error:
            raise FrameError(error.strerror or "its file cannot be read") from None
        if (picture := self._cached(key)) is not None:
            return picture
        if not self._waiting.acquire(blocking=False):
            raise Busy("images")
        try:
            with one_at_a_time(self._decoding, "images"):
                return self._cached(key) or self._decode(key, folders)
        finally:
            self._waiting.release()

    def _cached(self, key: Key) -> Picture | None:
        with self._changing:
            if key in self._pictures:
                self._pictures.move_to_end(key)
                return self._pictures[key]
            failed, reason = self._failed.get(key[:2], (-RETRY_SECONDS, ""))
        if reason and time.monotonic() - failed < RETRY_SECONDS:
            raise FrameError(reason)
        return None

    def _decode(self, key: Key, folders: Sequence[str] | None) -> Picture:
        video, changed, seconds = key
        try:
            own_seconds, jpeg = self._reader.jpeg(video, seconds, wait_seconds=DECODE_SECONDS, folders=folders)
        except VideoError as error:
            with self._changing:
                self._failed[video, changed] = time.monotonic(), without_last_words(error)
                while len(self._failed) > MAX_FAILED:
                    self._failed.popitem(last=False)
            raise FrameError(without_last_words(error)) from None
        except OSError as error:  # of the decoder's process, not of the video, so the video may be tried again
            raise FrameError(error.strerror or reason_of(error)) from None
        picture = Picture("frame", own_seconds, jpeg)
        with self._changing:
            self._pictures[key] = picture
            self._num_bytes += len(jpeg)
            while len(self._pictures) > MAX_CACHED_FRAMES or self._num_bytes > MAX_CACHED_BYTES:
                self._num_bytes -= len(self._pictures.popitem(last=False)[1].jpeg)
        return picture

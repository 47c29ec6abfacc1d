"""Clips of videos that browsers cannot play: cut when they are first requested, and cached."""

import contextlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from ...extract.decoding.errors import VideoError, without_last_words
from ...extract.decoding.sandbox import missing_protections
from ...storage.common.errors import reason_of
from ...storage.common.temporary_folder import TemporaryFolder
from .concurrency import Busy, one_at_a_time

MAX_CACHED_CLIPS = 40
"""Each clip has a few megabytes."""
MAX_WAITING = 8
"""Maximum number of waiting requests. More are refused, which leaves searches and thumbnails responsive."""
CUT_SECONDS = 20.0
"""Time limit for cutting a clip."""


class ClipError(Exception):
    """A clip could not be cut. The message gives the reason."""


def sandbox_lacks() -> tuple[str, ...]:
    """Return the parts of the sandbox of decoders that this system lacks."""
    return missing_protections()


class ClipCache:
    """Cuts one clip at a time, and holds the latest in a temporary folder."""

    def __init__(self) -> None:
        self._folder = TemporaryFolder("vlalign-clips-")
        self._names = itertools.count()
        self._paths: OrderedDict[tuple[Path, int, float, float], Path] = OrderedDict()
        self._lock = threading.Lock()
        self._waiting = threading.BoundedSemaphore(MAX_WAITING)

    def path(self, video: Path, start_seconds: float, end_seconds: float, folders: Sequence[str] | None = None) -> Path:
        """Return the file of a clip, as WebM.

        Args:
            video: The file to cut the clip from.
            start_seconds: Time in the video at which the clip begins.
            end_seconds: Time in the video at which the clip ends, at most 30 s later.
            folders: Folders that the file must lie in; None for any.

        Raises:
            Busy: Too many clips are asked for.
            ClipError: The video cannot be decoded there, or takes too long.
        """
        if not self._waiting.acquire(blocking=False):
            raise Busy("clips")
        try:
            with one_at_a_time(self._lock, "clips"):
                return self._path(video, start_seconds, end_seconds, folders)
        finally:
            self._waiting.release()

    def _path(self, video: Path, start_seconds: float, end_seconds: float, folders: Sequence[str] | None) -> Path:
        from ...extract.videos.clips import cut_clip  # loads decoders, which most searches do not need

        try:
            key = video, video.stat().st_mtime_ns, start_seconds, end_seconds
            if key not in self._paths:
                content = cut_clip(video, start_seconds, end_seconds, wait_seconds=CUT_SECONDS, folders=folders)
                path = self._folder.path / f"{next(self._names)}.webm"
                self._write(path, content)
                self._paths[key] = path
        except VideoError as error:
            raise ClipError(without_last_words(error)) from None
        except OSError as error:
            raise ClipError(error.strerror or reason_of(error)) from None
        self._paths.move_to_end(key)
        while len(self._paths) > MAX_CACHED_CLIPS:
            self._paths.popitem(last=False)[1].unlink(missing_ok=True)
        return self._paths[key]

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        """Write a file. After a failure no file remains, since the cache would not count it."""
        try:
            path.write_bytes(content)
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        """Remove all clips."""
        self._folder.close()

"""Clips of videos that browsers cannot play: made when they are first asked for, and kept for a while."""

import itertools
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from .concurrency import WAIT_SECONDS, Busy

MOST_KEPT = 40
"""Clips; each has some megabytes."""
MOST_WAITING = 8
"""Requests; others are refused at once, so that searches and pictures go on being answered."""
CUT_SECONDS = 20.0
"""How long cutting a clip may take."""


class NoClip(Exception):
    """A clip could not be made. The message says why."""


def sandbox_lacks() -> tuple[str, ...]:
    """Return what this system cannot confine the decoders of clips with."""
    from ...extract.decoding.sandbox import missing_protections

    return missing_protections()


class Clips:
    """Cuts one clip at a time and keeps the latest in a folder that goes away with the program."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="vlalign-clips-")
        self._names = itertools.count()
        self._kept: OrderedDict[tuple[Path, int, float, float], Path] = OrderedDict()
        self._cutting = threading.Lock()
        self._places = threading.BoundedSemaphore(MOST_WAITING)

    def path(self, video: Path, start_seconds: float, end_seconds: float, folders: Sequence[str] | None = None) -> Path:
        """Return the file of a clip, as WebM.

        Args:
            video: The file to cut the clip from.
            start_seconds: First second of the video; time 0 of the clip.
            end_seconds: Last second of the video; at most 30 s later count.
            folders: Where the file must lie; None for anywhere.

        Raises:
            Busy: Too many clips are asked for.
            NoClip: The video cannot be decoded there, or takes too long.
        """
        if not self._places.acquire(blocking=False):
            raise Busy("too many clips at once; try again")
        try:
            if not self._cutting.acquire(timeout=WAIT_SECONDS):
                raise Busy("too many clips at once; try again")
            try:
                return self._path(video, start_seconds, end_seconds, folders)
            finally:
                self._cutting.release()
        finally:
            self._places.release()

    def _path(self, video: Path, start_seconds: float, end_seconds: float, folders: Sequence[str] | None) -> Path:
        from ...extract.decoding.errors import VideoError
        from ...extract.videos.clips import cut_clip  # here: most searches need no decoder

        try:
            key = video, video.stat().st_mtime_ns, start_seconds, end_seconds
            if key not in self._kept:
                content = cut_clip(video, start_seconds, end_seconds, wait_seconds=CUT_SECONDS, folders=folders)
                path = Path(self._folder.name) / f"{next(self._names)}.webm"
                path.write_bytes(content)
                self._kept[key] = path
        except (VideoError, OSError) as error:
            raise NoClip(str(error)) from None
        self._kept.move_to_end(key)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)[1].unlink(missing_ok=True)
        return self._kept[key]

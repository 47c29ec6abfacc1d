"""Single frames of videos for people to look at, by a decoder process, which holds whatever a file does to it."""

import threading
from collections.abc import Sequence
from pathlib import Path

from ...storage.stores.thumbnails import MAX_JPEG_BYTES, is_jpeg
from ..decoding.messages import FrameFollows, InvalidMessage, Request
from ..decoding.process import DecodeProcess
from .clips import killed_after

IDLE_SECONDS = 20.0
"""Time for which the process waits for the next frame. Starting one takes as long as several frames."""


class FrameReader:
    """Decodes one frame at a time, in a process that is kept for the next frame for a while."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._lock = threading.Lock()
        self._process: DecodeProcess | None = None
        self._idle = threading.Timer(0, self.close)

    def jpeg(
        self, path: Path, seconds: float, *, wait_seconds: float, folders: Sequence[str] | None = None
    ) -> tuple[float, bytes]:
        """Return the frame that a video shows at a second: ``decoding.single_frame``.

        Args:
            path: The video or image, in any format that can be decoded.
            seconds: Of the video, counted as its rows are; after its end, its last frame is returned.
            wait_seconds: How long the work may take.
            folders: Where the file must lie when it is opened; None for anywhere.

        Returns:
            The frame's own second, and a JPEG of at most 640 px a side.

        Raises:
            VideoError: The video cannot be decoded there, or takes too long.
        """
        with self._lock:
            self._idle.cancel()
            process = self._usable_process()
            try:
                with killed_after(process, wait_seconds, "decoding"):
                    return _receive(process, Request(str(path), [], frame_at=seconds, folders=folders))
            finally:
                self._idle = threading.Timer(IDLE_SECONDS, self.close)
                self._idle.daemon = True
                self._idle.start()

    def _usable_process(self) -> DecodeProcess:
        if self._process is not None and not self._process.usable:
            self._process.close()
            self._process = None
        self._process = self._process or DecodeProcess()
        return self._process

    def close(self) -> None:
        """End the process; the next frame starts another."""
        with self._lock:
            if self._process is not None:
                self._process.close()
                self._process = None


def _receive(process: DecodeProcess, request: Request) -> tuple[float, bytes]:
    process.start(request)
    while not isinstance(answer := process.receive(), FrameFollows):
        pass
    jpeg = process.receive_bytes(MAX_JPEG_BYTES)
    if not is_jpeg(jpeg):
        raise process.refused(InvalidMessage("a frame that is no small JPEG"))
    return answer.seconds, jpeg

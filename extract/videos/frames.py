"""Single frames of videos for people to look at, decoded by a confined process."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from ...storage.stores.thumbnails import MAX_JPEG_BYTES, is_jpeg
from ..decoding.messages import FrameFollows, InvalidMessage, PixelsFollow, Request
from ..decoding.process import DecodeProcess
from ..decoding.webm_clip import MAX_SIDE_PX
from .clips import killed_after

MAX_PIXEL_BYTES = 3 * MAX_SIDE_PX**2
Answer = TypeVar("Answer")
IDLE_SECONDS = 20.0
"""Time for which the process waits for the next request. Starting a process takes as long as several frames."""


class FrameReader:
    """Decodes single frames, in a process that is reused for a while."""

    def __init__(self) -> None:
        """Create the reader; the process starts at the first request."""
        self._lock = threading.Lock()
        self._process: DecodeProcess | None = None
        self._idle = threading.Timer(0, self.close)

    def jpeg(
        self, path: Path, seconds: float, *, wait_seconds: float, folders: Sequence[str] | None = None
    ) -> tuple[float, bytes]:
        """Return the frame that a video shows at a second (see ``decoding.single_frame``).

        Args:
            path: The video or image, in any format that can be decoded.
            seconds: Second of the video, on the clock of its stored feature vectors; after its end, its last frame is
                returned.
            wait_seconds: Time limit.
            folders: Folders that must contain the file when it is opened; None for any.

        Returns:
            The frame's own second, and a JPEG of at most 640 px a side.

        Raises:
            VideoError: The video cannot be decoded there, or takes too long.
        """
        request = Request(str(path), [], frame_at=seconds, folders=folders)
        return self._answer(request, wait_seconds, _receive)

    def pixels(
        self, path: Path, seconds: float, *, wait_seconds: float, folders: Sequence[str] | None = None
    ) -> np.ndarray:
        """Return the same frame as ``jpeg``, as uint8 [H, W, 3] RGB, without parsing an image in this process.

        Args:
            path: The video or image.
            seconds: Second of the video.
            wait_seconds: Time limit.
            folders: Folders that must contain the file when it is opened; None for any.

        Raises:
            VideoError: The video cannot be decoded there, or takes too long.
        """
        request = Request(str(path), [], frame_at=seconds, as_pixels=True, folders=folders)
        return self._answer(request, wait_seconds, _receive_pixels)

    def _answer(
        self, request: Request, wait_seconds: float, receive: Callable[[DecodeProcess, Request], Answer]
    ) -> Answer:
        with self._lock:
            self._idle.cancel()
            process = self._usable_process()
            try:
                with killed_after(process, wait_seconds, "decoding"):
                    return receive(process, request)
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
        """End the process; the next request starts another."""
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
        raise process.refused(InvalidMessage("a frame that is not a small JPEG"))
    return answer.seconds, jpeg


def _receive_pixels(process: DecodeProcess, request: Request) -> np.ndarray:
    process.start(request)
    while not isinstance(answer := process.receive(), PixelsFollow):
        pass
    content = process.receive_bytes(MAX_PIXEL_BYTES)
    height, width = answer.height, answer.width
    if not (0 < height <= MAX_SIDE_PX and 0 < width <= MAX_SIDE_PX and len(content) == height * width * 3):
        raise process.refused(InvalidMessage(f"a frame of {height}x{width}"))
    return np.frombuffer(content, np.uint8).reshape(height, width, 3)

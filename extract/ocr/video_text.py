"""A video -> the text in its frames, with times."""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..decoding.decode import DecodingFinished, DecodingStarted
from ..decoding.errors import RETRY_KINDS, VideoError
from ..decoding.messages import InvalidMessage, Request, ThumbnailFollows, WindowReady
from ..decoding.process import DecodeProcess
from ..decoding.sampling import FrameSpec, window_times
from .lines import TextLine, TextSpan, merge_lines
from .reader import TextReader

SPEC = FrameSpec(fps=1, window=1, short_side_px=720, crop_px=None, tail="none")
"""At this size, letters of 2 % of the frame's height are 14 px high."""
BLOCK_PX, MAX_DIFFERENCE = 16, 4
"""A frame has the same text as the previous one if the mean difference of each block of ``BLOCK_PX`` x ``BLOCK_PX``
pixels is at most ``MAX_DIFFERENCE``, of 255.
"""


@dataclass(frozen=True, kw_only=True)
class VideoText:
    """The text in a video's frames."""

    spans: Sequence[TextSpan]
    """The lines of text in order of their start, each with the time span in which it is shown."""
    duration_seconds: float
    partial: str
    """The parts of the video that are missing or damaged; empty if none are."""


def video_text(path: str | Path, reader: TextReader, *, folders: Sequence[str] | None = None) -> VideoText:
    """Read the text in a video or an image, one frame a second. Frames that look the same are read once.

    >>> with TextReader() as reader:  # doctest: +SKIP
    ...     video_text("talk.mp4", reader).spans
    [TextSpan(text='Chapter 3', start_seconds=12.0, end_seconds=19.0, confidence=0.99, box=(0.1, 0.1, 0.4, 0.2))]

    Args:
        path: The file. It is decoded in the sandbox of the decoders.
        reader: Reads the frames; for many videos, start it once.
        folders: Folders that must contain the file when it is opened; None for any.

    Raises:
        VideoError: The video cannot be decoded, or its text cannot be read.
    """
    excluded: list[str] = []
    failure: VideoError | None = None
    while True:
        request = Request(str(Path(path).absolute()), [SPEC], excluded_decoders=excluded, folders=folders)
        attempt = _Attempt(request, reader)
        try:
            return attempt.text()
        except VideoError as error:
            failure = failure or error
            if error.kind not in RETRY_KINDS or not attempt.decoder or attempt.decoder in excluded:
                raise failure from None
            excluded = [*excluded, attempt.decoder]


class _Attempt:
    """One attempt to decode a video. The text is read during decoding."""

    def __init__(self, request: Request, reader: TextReader) -> None:
        self._request, self._reader = request, reader
        self.decoder = ""
        """The current decoder; empty before decoding, or if the text reader failed."""

    def text(self) -> VideoText:
        with closing(DecodeProcess([SPEC])) as process:
            lines, finished = self._lines(process)
        duration = finished.duration_seconds
        starts, ends, _ = window_times(len(lines), 0, SPEC.window, SPEC.fps, duration, stride=1)
        spans = merge_lines(zip(starts.tolist(), ends.tolist(), lines, strict=True))
        return VideoText(spans=spans, duration_seconds=duration, partial=finished.partial)

    def _lines(self, process: DecodeProcess) -> tuple[list[list[TextLine]], DecodingFinished]:
        """Return the lines of each frame, and the decoder's summary."""
        lines: list[list[TextLine]] = []
        before = np.zeros(0)
        process.start(self._request)
        while True:
            message = process.receive()
            try:
                if isinstance(message, DecodingStarted):
                    self.decoder, lines = message.decoder, []
                elif isinstance(message, WindowReady):
                    message.check([SPEC] if self.decoder else [])
                    if len(lines) >= SPEC.max_windows:
                        raise InvalidMessage("more frames than the longest video has")
                    frame = np.empty(message.shape, np.uint8)
                    process.take_frames(message, frame)
                    same = bool(lines) and looks_the_same(frame, before)
                    lines.append(lines[-1] if same else self._read(frame))
                    before = before if same else frame  # the last frame that was read: slow changes add up
                    process.last_heard = time.monotonic()  # its messages were not read in the meantime
                elif isinstance(message, ThumbnailFollows):
                    process.receive_bytes()
                elif isinstance(message, DecodingFinished):
                    if message.num_frames != [len(lines)]:
                        raise InvalidMessage("the end of another video")
                    return lines, message
            except InvalidMessage as error:
                raise process.refused(error) from None

    def _read(self, frame: np.ndarray) -> list[TextLine]:
        try:
            return self._reader.read(frame)
        except VideoError:
            self.decoder = ""  # another decoder would not help
            raise


def looks_the_same(frame: np.ndarray, before: np.ndarray) -> bool:
    """Return whether two frames are so similar in every block that they show the same text.

    Args:
        frame: uint8 [H, W, 3].
        before: The other frame; if its size differs, the result is False.
    """
    if frame.shape != before.shape:
        return False
    difference = np.abs(frame.astype(np.int16) - before).mean(axis=2)
    tops, lefts = (np.arange(0, size, BLOCK_PX) for size in difference.shape)
    sums = np.add.reduceat(np.add.reduceat(difference, tops, axis=0), lefts, axis=1)
    heights, widths = (np.diff([*starts, size]) for starts, size in zip((tops, lefts), difference.shape, strict=True))
    return bool((sums <= MAX_DIFFERENCE * heights[:, None] * widths).all())

"""Probe parts of videos, and write them as clips, in a confined decoder process."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Literal

from ..decoding.clip_file import MAX_CLIP_BYTES, ClipWritten
from ..decoding.errors import VideoError
from ..decoding.messages import ClipPart, InvalidMessage, Message, Request
from ..decoding.process import DecodeProcess
from ..decoding.span import SpanProbed
from .clips import killed_after

MAX_SECONDS, ROUNDING_SECONDS = 10_000_000, 0.001
"""Upper limit of a video's length, and the maximum difference of equal times."""
ClipKind = Literal["copy", "exact"]
"""``copy``: the packets from the key frame before the part on, unchanged. ``exact``: the part encoded again, exact to
the frame.
"""


class SpanReader:
    """Reads parts of videos one after another, in a process that ends with the ``with`` block."""

    def __init__(self) -> None:
        """Create the reader; the process starts at the first request."""
        self._process: DecodeProcess | None = None

    def __enter__(self) -> "SpanReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def probe(
        self,
        path: Path,
        start_seconds: float,
        end_seconds: float,
        *,
        folders: Sequence[str] | None = None,
        wait_seconds: float | None = None,
    ) -> SpanProbed:
        """Return the facts about a part of a video (``decoding.span``).

        Args:
            path: The video.
            start_seconds: Start of the part, on the clock of stored feature vectors.
            end_seconds: Its end, exclusive.
            folders: Folders that must contain the file when it is opened; None for any.
            wait_seconds: Time limit; None for the decoder's own.

        Raises:
            VideoError: The part cannot be read, has no frames, or takes too long.
        """
        process = self._started(Request(str(path), [], span=(start_seconds, end_seconds), folders=folders))
        with _limit(process, wait_seconds, "reading it"):
            while not isinstance(answer := process.receive(), SpanProbed):
                pass
        start, end = answer.start_seconds, answer.end_seconds
        in_order = -ROUNDING_SECONDS < answer.zero_seconds <= start + ROUNDING_SECONDS and start < end < MAX_SECONDS
        if not (in_order and answer.num_frames > 0 and answer.rate_numerator >= 0 and answer.rate_denominator > 0):
            raise process.refused(InvalidMessage("a part without frames"))
        return answer

    def write(
        self,
        path: Path,
        start_seconds: float,
        end_seconds: float,
        kind: ClipKind,
        file: IO[bytes],
        *,
        folders: Sequence[str] | None = None,
        wait_seconds: float | None = None,
        max_bytes: int = MAX_CLIP_BYTES,
    ) -> ClipWritten:
        """Write a part of a video as a new file (``decoding.clip_file``).

        Args:
            path: The video.
            start_seconds: Start of the part, on the clock of stored feature vectors.
            end_seconds: Its end, exclusive.
            kind: Whether packets are copied or frames are encoded again.
            file: Receives the clip; open for writing, empty.
            folders: Folders that must contain the file when it is opened; None for any.
            wait_seconds: Time limit; None for the decoder's own.
            max_bytes: Maximum size of the clip.

        Raises:
            VideoError: The part cannot be read or copied, takes too long, or is too large.
        """
        request = Request(str(path), [], span=(start_seconds, end_seconds), clip_kind=kind, folders=folders)
        process = self._started(request)
        with _limit(process, wait_seconds, "cutting"):
            for answer in _answers(process):
                if isinstance(answer, ClipPart):
                    content = process.receive_bytes()
                    if not 0 <= answer.offset <= MAX_CLIP_BYTES - len(content):
                        raise process.refused(InvalidMessage(f"a clip with a byte {answer.offset:,}"))
                    if answer.offset + len(content) > max_bytes:
                        self.close()
                        raise VideoError("too_large", f"the clip has more than {max_bytes >> 20:,} MiB")
                    file.seek(answer.offset)
                    file.write(content)
                elif isinstance(answer, ClipWritten):
                    return answer
            raise AssertionError  # answers never end

    def _started(self, request: Request) -> DecodeProcess:
        if self._process is not None and not self._process.usable:
            self.close()
        self._process = self._process or DecodeProcess()
        self._process.start(request)
        return self._process


def _limit(process: DecodeProcess, wait_seconds: float | None, what: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if wait_seconds is None else killed_after(process, wait_seconds, what)


def _answers(process: DecodeProcess) -> Iterator[Message]:
    while True:
        yield process.receive()

"""Clips of videos for people to watch, cut by a confined decoder process."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..decoding.errors import VideoError
from ..decoding.messages import ClipFollows, Request
from ..decoding.process import DecodeProcess


def cut_clip(
    path: Path, start_seconds: float, end_seconds: float, *, wait_seconds: float, folders: Sequence[str] | None = None
) -> bytes:
    """Return a part of a video as WebM, which browsers can play (``decoding.webm_clip``).

    Args:
        path: The video, in any format that can be decoded.
        start_seconds: First second.
        end_seconds: Last second; the clip is cut after 30 s.
        wait_seconds: Time limit.
        folders: Folders that must contain the file when it is opened; None for any.

    Raises:
        VideoError: The video cannot be decoded, has nothing between these times, or takes too long.
    """
    process = DecodeProcess()
    try:
        with killed_after(process, wait_seconds, "cutting it out"):
            process.start(Request(str(path), [], clip=(start_seconds, end_seconds), folders=folders))
            while not isinstance(process.receive(), ClipFollows):
                pass
            return process.receive_bytes()
    finally:
        process.close()


@contextmanager
def killed_after(process: DecodeProcess, wait_seconds: float, what: str) -> Iterator[None]:
    """Kill a process if the block takes too long; the ``VideoError`` then reports that ``what`` took too long."""
    late = threading.Event()

    def give_up() -> None:
        late.set()
        process.kill()

    limit = threading.Timer(wait_seconds, give_up)
    limit.daemon = True
    limit.start()
    try:
        yield
    except VideoError:
        if late.is_set():
            raise VideoError("timeout", f"{what} took more than {wait_seconds:.0f} s") from None
        raise
    finally:
        limit.cancel()

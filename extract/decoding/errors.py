"""The error of a video that gives no features."""

from ...storage.common.errors import VlalignError


class VideoError(VlalignError):
    """A file gives no features, or not with this decoder.

    ``kind`` is one of: missing, unreachable, no_room, refused, unreadable, no_video, no_sound, bad_times, too_long,
    too_large, timeout, out_of_memory, crashed, changed.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    def __reduce__(self) -> tuple[type["VideoError"], tuple[str, str]]:  # so that it can be pickled
        return VideoError, (self.kind, str(self))


class DecoderRejected(Exception):
    """A decoder read a file differently from its packets, or failed where others may not."""


def short_reason(error: Exception) -> str:
    """Return the message of a library's error, in one line of at most 300 characters."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:300] or type(error).__name__

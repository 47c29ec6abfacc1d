"""The error of a video that gives no features."""

from ...storage.common.errors import VlalignError

TRANSIENT = ("unreachable", "no_room")
"""Kinds of failures that the server, the network or the disk causes, not the video. Failures of these kinds that
earlier versions listed are also tried again."""
RETRY_KINDS = ("timeout", "out_of_memory", "crashed")
"""Failures that end the decoding process; a new process then tries the next backend. All other failures are reported
after a process has tried all backends itself.
"""
NOT_OF_THE_VIDEO = (*TRANSIENT, "missing", *RETRY_KINDS)
"""Kinds of failures that the machine or the network may cause. Decoding fails with other kinds because of the file."""
LAST_WORDS = "; its last output: "
"""Separator in a message; the text after it was written by the decoder before it ended."""
FAILURE_KINDS = (
    *TRANSIENT,
    "missing",
    "refused",
    "unreadable",
    "no_video",
    "no_sound",
    "bad_times",
    "too_long",
    "too_large",
    *RETRY_KINDS,
    "changed",
    "not_storable",
    "worker_ended",
)
"""All kinds of failures in ``failures.jsonl``."""


class VideoError(VlalignError):
    """A file or its decoder yields no features.

    ``kind`` is one of ``FAILURE_KINDS`` except the last two.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    def __reduce__(self) -> tuple[type["VideoError"], tuple[str, str]]:  # for pickling
        return VideoError, (self.kind, str(self))


def without_last_words(error: VideoError) -> str:
    """Return the message of an error without the decoder's last output.

    That output names folders of this machine, and strangers may read the message.
    """
    return str(error).partition(LAST_WORDS)[0]


class DecoderRejected(Exception):
    """A decoder failed on a file that another decoder may read, or gave wrong frames.

    Frames are wrong if they do not match the file's packets, or the frames that the CPU decodes.
    """


def short_reason(error: Exception) -> str:
    """Return the message of a library's error, in one line of at most 300 characters."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:300] or type(error).__name__

"""Transcripts that Whisper and WhisperX write as JSON."""

import json
from collections.abc import Iterator

from ..sources import seconds
from .cues import Cue, Drop, plain


class NoTranscript(Exception):
    """A JSON file of another kind. The message names the missing field."""


class NothingSpoken(Exception):
    """A transcript without segments, as of a video in which nobody speaks."""


def read_segments(content: str, drop: Drop) -> Iterator[Cue]:
    """Yield the segments of a transcript, in its order. Segments may have no lines.

    Args:
        content: Content of the file.
        drop: Receives segments whose times or text cannot be read.

    Raises:
        NoTranscript: The file is not a transcript.
        NothingSpoken: The transcript has no segments.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise NoTranscript(f"not valid JSON ({error})") from None
    segments = value.get("segments") if isinstance(value, dict) else None
    if not isinstance(segments, list):
        raise NoTranscript("no list 'segments', which Whisper and WhisperX write")
    if not segments:
        raise NothingSpoken
    for number, segment in enumerate(segments, start=1):
        where = f"segment {number}"
        try:
            start, end = seconds(segment["start"]), seconds(segment["end"])
            text = segment["text"]
            if not isinstance(text, str):
                raise ValueError(f"text is {text!r}, expected a sentence")
        except (ValueError, TypeError, KeyError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            drop(where, f"{reason}; expected start, end and text")
            continue
        yield Cue(start, end, tuple(filter(None, [plain(text)])), where)

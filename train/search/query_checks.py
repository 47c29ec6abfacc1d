"""Queries (a text, a part of a video, or an image), the checks of their values, and the time limit of a search.

Heavy imports are deferred: a command refuses an invalid query immediately.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal, get_args

from ...storage.common.errors import SettingError, UserError
from ...storage.common.validation import is_text
from ...storage.dataset.media_types import IMAGE_SUFFIXES
from ...storage.records import SPLITS

SearchBy = Literal["both", "video", "text"]
"""The sides of a video that a text is compared with: its vectors ("video"), its captions and subtitles ("text"), or
both. Also the sides by which a moment was found."""
SearchGroup = Literal["video"]
"""Ways of grouping moments."""
RERANK = 50
"""Default number of candidates that fusion layers score."""
MAX_QUERY_CHARACTERS = 2000
NUM_RESULTS = 5
"""Default number of results."""
MAX_OFFSET = 100_000
"""Maximum number of moments to skip."""
FIRST_YEAR = 1971
"""Files have no times before 1970, in any time zone."""
SPAN = re.compile(r"(?P<video_id>.+)@(?P<start>\d+(?:\.\d+)?)-(?P<end>\d+(?:\.\d+)?)", re.DOTALL)
_END_TIME: ContextVar[float | None] = ContextVar("_END_TIME", default=None)
"""Time limit of this thread's search, in seconds of the monotonic clock."""
_CANCELLED: ContextVar[threading.Event | None] = ContextVar("_CANCELLED", default=None)
"""Set when the client of this thread's search has disconnected."""


@dataclass(frozen=True)
class VideoSpan:
    """A part of a video of the data set."""

    video_id: str
    start_seconds: float | None = None
    """None: from the start of the video."""
    end_seconds: float | None = None
    """None: to its end."""


ExampleQuery = VideoSpan | Path
"""A part of a video, or the path of an image."""


def parse_example(text: str, has_video: Callable[[str], bool] = lambda _: False) -> ExampleQuery:
    """Parse the argument of ``--like``.

    >>> parse_example("cat@12.5-18", {"cat"}.__contains__)
    VideoSpan(video_id='cat', start_seconds=12.5, end_seconds=18.0)

    Args:
        text: ``VIDEO@START-END`` in seconds, ``VIDEO``, or the path of an image.
        has_video: Returns whether a text is the id of a video.
    """
    if has_video(text):
        return VideoSpan(text)
    if text.lower().endswith(IMAGE_SUFFIXES) and os.path.isfile(text):  # False for any text, however long
        return Path(text)
    return parse_span(text)


def parse_span(text: str, has_video: Callable[[str], bool] = lambda _: False) -> VideoSpan:
    """Return the part of a video that a text names; no file is looked for.

    >>> parse_span("clip@1-2", {"clip@1-2"}.__contains__)
    VideoSpan(video_id='clip@1-2', start_seconds=None, end_seconds=None)

    Args:
        text: ``VIDEO@START-END`` in seconds, or ``VIDEO``, which is tried first.
        has_video: Returns whether a text is the id of a video.
    """
    if not has_video(text) and (match := SPAN.fullmatch(text)):
        return VideoSpan(match["video_id"], float(match["start"]), float(match["end"]))
    return VideoSpan(text)


class UnknownVideo(UserError):
    """No searched video has this id. The message ends with the expected values."""


class SearchTimeout(UserError):
    """A search exceeded its time limit, or its client has disconnected."""


@contextmanager
def time_limit(seconds: float, cancelled: threading.Event | None = None) -> Iterator[None]:
    """Let searches in the block end with ``SearchTimeout`` after this many seconds, or once they are cancelled.

    They check the time between blocks of windows, groups of clips and videos; a model's step is not interrupted.

    Args:
        seconds: Time limit.
        cancelled: Set once nobody waits for the search any more; None: it is not cancelled.
    """
    end, event = _END_TIME.set(time.monotonic() + seconds), _CANCELLED.set(cancelled)
    try:
        yield
    finally:
        _END_TIME.reset(end)
        _CANCELLED.reset(event)


def check_time() -> None:
    """Raise ``SearchTimeout`` if the time limit is exceeded, or the search was cancelled."""
    if (cancelled := _CANCELLED.get()) is not None and cancelled.is_set():
        raise SearchTimeout("the search was cancelled")
    if is_timed_out():
        raise SearchTimeout("the search took too long; search fewer videos, or ask for fewer moments")


def is_timed_out() -> bool:
    """Return whether the time limit is exceeded, or the search was cancelled."""
    end, cancelled = _END_TIME.get(), _CANCELLED.get()
    return (end is not None and time.monotonic() > end) or (cancelled is not None and cancelled.is_set())


def check_query(query: str) -> None:
    """Raise ``UserError`` for a query without words, one that is too long, or one that is no text."""
    if not query.strip():
        raise UserError(f"the query {query[:100]!r} is empty; expected some words, such as 'a blue cross grows'")
    if len(query) > MAX_QUERY_CHARACTERS:
        raise UserError(
            f"the query has {len(query):,} characters; expected at most {MAX_QUERY_CHARACTERS:,}, "
            "and models read only the first of them; shorten it"
        )
    if not is_text(query):
        raise UserError(f"the query {query[:100]!r} is not valid Unicode; expected UTF-8")


def check_text(name: str, text: str) -> None:
    """Raise ``SettingError`` for a text beside the query that is too long, or no text."""
    if len(text) > MAX_QUERY_CHARACTERS:
        raise SettingError(name, text, f"{len(text):,} characters; expected at most {MAX_QUERY_CHARACTERS:,}")
    if not is_text(text):
        raise SettingError(name, text, "not valid Unicode; expected UTF-8")


def check_count(name: str, value: int) -> None:
    """Raise ``SettingError`` for a number below 1."""
    if value < 1:
        raise SettingError(name, value, "expected 1 or more")


def check_by(by: str) -> None:
    """Raise ``SettingError`` for something that a text cannot be compared with."""
    if by not in get_args(SearchBy):
        raise SettingError("by", by, f"expected one of {', '.join(get_args(SearchBy))}")


def check_offset(name: str, value: int) -> None:
    """Raise ``SettingError`` for a number of moments that cannot be skipped."""
    if not 0 <= value <= MAX_OFFSET:
        raise SettingError(name, value, f"expected 0 to {MAX_OFFSET:,}")


def check_group(group: str | None) -> None:
    """Raise ``SettingError`` for something that moments cannot be grouped by."""
    if group is not None and group not in get_args(SearchGroup):
        raise SettingError("group", group, f"expected {' or '.join(get_args(SearchGroup))}, or omit it")


def check_split(split: str | None) -> None:
    """Raise ``SettingError`` for an unknown split; None is any."""
    if split is not None and split not in SPLITS:
        raise SettingError("split", split, f"expected one of {', '.join(SPLITS)}")


def check_lengths(min_seconds: float, max_seconds: float) -> None:
    """Raise ``SettingError`` for lengths that no video can have."""
    if not 0 <= min_seconds < float("inf"):
        raise SettingError("min_seconds", min_seconds, "expected 0 or more")
    if not max_seconds >= min_seconds:
        raise SettingError("max_seconds", max_seconds, f"expected {min_seconds:g} (the minimum) or more")


def read_days(since: str | None, until: str | None) -> tuple[date | None, date | None]:
    """Return the first and the last day, such as "2026-01-31"; None for no limit.

    Raises:
        SettingError: A text is not a day, or the last day comes before the first.
    """
    first, last = _day("since", since), _day("until", until)
    if first is not None and last is not None and last < first:
        raise SettingError("until", until, f"expected {first} (the first day) or later")
    return first, last


def _day(name: str, text: str | None) -> date | None:
    try:
        day = None if text is None else date.fromisoformat(text)
    except ValueError:
        raise SettingError(name, text, "expected a day, such as 2026-01-31") from None
    if day is not None and not FIRST_YEAR <= day.year < date.max.year:
        raise SettingError(name, text, f"expected a day of the years {FIRST_YEAR} to {date.max.year - 1}")
    return day

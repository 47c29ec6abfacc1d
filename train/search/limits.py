"""Limits of a query. Imports nothing heavy, so that a command refuses a wrong one at once."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

from ...storage.common.errors import SettingError, UserError
from ...storage.common.validation import is_text

SearchBy = Literal["both", "picture", "words"]
"""Targets that a text is compared with."""
MAX_QUERY_CHARACTERS = 2000
_END: ContextVar[float | None] = ContextVar("_END", default=None)
"""When the search of this thread must have ended, in seconds of the monotonic clock."""


class OutOfTime(UserError):
    """A search took longer than it may."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Let searches in the block end with ``OutOfTime`` after this many seconds.

    They look at the clock between blocks of windows, groups of clips and videos; a model's step is not interrupted.
    """
    before = _END.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _END.reset(before)


def check_time() -> None:
    """Raise ``OutOfTime`` if the time is over."""
    if is_out_of_time():
        raise OutOfTime("the search took too long; choose fewer videos, or ask for fewer moments")


def is_out_of_time() -> bool:
    """Return whether the time is over."""
    end = _END.get()
    return end is not None and time.monotonic() > end


def check_query(query: str) -> None:
    """Raise ``UserError`` for a query without words, one that is too long, or one that is no text."""
    if not query.strip():
        raise UserError("the query is empty; expected some words, such as 'a blue cross grows'")
    if len(query) > MAX_QUERY_CHARACTERS:
        raise UserError(
            f"the query has {len(query):,} characters; expected at most {MAX_QUERY_CHARACTERS:,}, and models read fewer"
        )
    if not is_text(query):
        raise UserError(f"the query {query[:100]!r} is not valid Unicode; expected UTF-8")


def check_count(name: str, value: int) -> None:
    """Raise ``SettingError`` for a number below 1."""
    if value < 1:
        raise SettingError(name, value, "expected 1 or more")


def check_by(by: str) -> None:
    """Raise ``SettingError`` for something that a text cannot be compared with."""
    if by not in get_args(SearchBy):
        raise SettingError("by", by, f"expected one of {', '.join(get_args(SearchBy))}")

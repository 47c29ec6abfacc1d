"""Messages and results, without control characters.

Messages go to the logger "vlalign": a command shows them on standard error, a caller from Python sees them where
logging is set up. Results of commands go to standard output.
"""

import contextlib
import enum
import logging
import os
import sys
import threading
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from tqdm import tqdm

logger = logging.getLogger("vlalign")
logger.addHandler(logging.NullHandler())  # a library prints nothing by default

JOINERS = "\u200c\u200d"
"""Invisible characters that some scripts and emoji need."""


def escape_controls(text: str, *, kept: str = "") -> str:
    """Return ``text`` in one line, with control characters and marks of writing direction escaped, such as ``\\x1b``.

    Args:
        text: A text.
        kept: Control characters to keep, such as newlines.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in kept or c in JOINERS or unicodedata.category(c) == "Zs" else repr(c)[1:-1]
        for c in text
    )


def one_line(text: str) -> str:
    """Return the first 1,000 characters of ``text`` in one line, with unprintable characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:1000])


def say(message: str) -> None:
    """Log a message of one line. A command shows it on standard error; standard output is for results."""
    logger.info("%s", escape_controls(message))


def warn(message: str) -> None:
    """Log a one-line warning or error, which a command shows even in quiet mode."""
    logger.warning("%s", escape_controls(message))


def show(result: str) -> None:
    """Print a result on standard output and flush it: a reader of a pipe or a file gets it immediately."""
    print(escape_controls(result, kept="\n\t"), flush=True)


@lru_cache(maxsize=1024)
def note_once(message: str) -> None:
    """Log a message once in a process, for example about a store that is opened several times."""
    say(message)


class ProgressBar(tqdm):
    """A bar of tqdm whose lock belongs to one process.

    tqdm shares its lock with forked children. A child killed while it holds the lock would block its parent for ever.
    """

    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows; a thread of the parent may hold the lock at a fork
    os.register_at_fork(after_in_child=lambda: ProgressBar.set_lock(threading.RLock()))


class Level(enum.IntEnum):
    """The verbosity of messages on standard error."""

    QUIET = logging.WARNING
    """Warnings and errors."""
    USUAL = logging.INFO
    """Also notes."""
    VERBOSE = logging.DEBUG
    """Also the time of each message and the origin of errors."""


class _StandardError(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record) if logger.level == Level.VERBOSE else record.getMessage()
        ProgressBar.write(text, file=sys.stderr)  # does not break a progress bar


def messages_are_shown() -> bool:
    """Return whether this process shows messages on standard error."""
    return any(isinstance(each, _StandardError) for each in logger.handlers)


def shown_level() -> Level | None:
    """Return the level of messages that this process prints on standard error; None for no messages."""
    return Level(logger.level) if messages_are_shown() else None


def show_messages(level: Level = Level.USUAL) -> None:
    """Show messages of this process on standard error from now on."""
    if not messages_are_shown():
        handler = _StandardError()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False


@contextlib.contextmanager
def messages_on_terminal(level: Level = Level.USUAL) -> Iterator[None]:
    """Show messages on standard error while the block runs."""
    if messages_are_shown():  # a command that runs another command
        yield
        return
    level_before, propagate = logger.level, logger.propagate
    show_messages(level)
    try:
        yield
    finally:
        logger.handlers[:] = [each for each in logger.handlers if not isinstance(each, _StandardError)]
        logger.setLevel(level_before)
        logger.propagate = propagate


def number_of(count: int, things: str) -> str:
    """Return a count with its things, such as "1 video" or "1,234 videos".

    Args:
        count: The count.
        things: The counted things: a plural in "s" or "ies", possibly after other words, such as "training clips".
    """
    one = f"{things[:-3]}y" if things.endswith("ies") else things.removesuffix("s")
    return f"{count:,} {one if count == 1 else things}"

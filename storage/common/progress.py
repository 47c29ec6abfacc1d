"""Progress of long work, sent to a listener, which displays it.

A command shows it on the terminal (``TerminalProgress``). A caller from Python passes a callback (``on_progress``) or
gets no reports.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from .terminal import ProgressBar, escape_controls, say

T = TypeVar("T")

LOG_EVERY_SECONDS = 15.0


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of one piece of work."""

    what: str
    """Name of the work, such as "extracting"."""
    unit: str
    """The things that are counted, such as "videos"; "bytes" are shown with k, M and G."""
    done: int
    """Number of finished units, including an earlier call's."""
    total: int
    earlier: int
    """Units that were done before this call began."""
    seconds: float
    """Seconds since this call began."""
    note: str
    """Text shown beside the rate; may be empty."""
    ended: bool
    """True for the last report: the work is finished, or it stopped early."""


Listener = Callable[[Progress], None]

_listener: ContextVar[Listener | None] = ContextVar("vlalign_progress", default=None)


@contextlib.contextmanager
def report_progress_to(listener: Listener | None) -> Iterator[None]:
    """Send all progress in the block to ``listener``. With None, the current listener is used."""
    if listener is None:
        yield
        return
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def progress(
    items: Iterable[T],
    *,
    total: int,
    what: str,
    unit: str,
    size: Callable[[T], int] = lambda _: 1,
    done: int = 0,
    note: Callable[[], str] = lambda: "",
) -> Iterator[T]:
    """Yield ``items`` and report progress after each.

    Args:
        items: Iterated lazily, one at a time.
        total: Total number of units.
        what: Name of the work, such as "extracting".
        unit: The counted things, such as "videos".
        size: Number of units in an item.
        done: Number of units that an earlier call finished.
        note: Text to show beside the rate.
    """
    listener = _listener.get()
    if listener is None:
        yield from items
        return
    started, count = time.monotonic(), done

    def report(ended: bool) -> None:
        seconds = time.monotonic() - started
        listener(
            Progress(
                what=what, unit=unit, done=count, total=total, earlier=done, seconds=seconds, note=note(), ended=ended
            )
        )

    try:
        for item in items:
            yield item
            count += size(item)
            report(ended=False)
    finally:
        report(ended=True)


def report_progress(state: Progress) -> None:
    """Report the progress of work that another process does."""
    if (listener := _listener.get()) is not None:
        listener(state)


class TerminalProgress:
    """Show progress on standard error: a bar on a terminal; otherwise a line every 15 seconds and one at the end."""

    def __init__(self) -> None:
        self._bar: ProgressBar | None = None
        self._last_seconds = 0.0

    def __call__(self, state: Progress) -> None:
        if sys.stderr.isatty():
            self._draw(state)
        else:
            self._log(state)

    def _draw(self, state: Progress) -> None:
        if self._bar is None:
            options = _shown(state) | {"desc": escape_controls(state.what), "dynamic_ncols": True, "smoothing": 0.05}
            self._bar = ProgressBar(total=state.total, initial=state.earlier, **options)
        self._bar.set_postfix_str(state.note, refresh=False)
        self._bar.update(state.done - self._bar.n)
        if state.ended:
            self._bar.close()
            self._bar = None

    def _log(self, state: Progress) -> None:
        whole = state.done == state.total and state.seconds >= 1
        if not state.ended and (state.seconds - self._last_seconds >= LOG_EVERY_SECONDS or whole):
            self._last_seconds = state.seconds
            meter = _shown(state) | {"prefix": state.what, "ncols": 0, "postfix": state.note or None}
            say(ProgressBar.format_meter(state.done, state.total, state.seconds, initial=state.earlier, **meter))
        if state.ended:
            self._last_seconds = 0.0


def _shown(state: Progress) -> dict[str, Any]:
    """Return how the bar shows the unit."""
    return {"unit": "B", "unit_scale": True} if state.unit == "bytes" else {"unit": f" {state.unit}"}

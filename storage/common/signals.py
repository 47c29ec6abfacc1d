"""Ctrl-C and SIGTERM: both stop a command in the same way."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FrameType

RAISE_AGAIN_SECONDS = 0.05
STUCK_SECONDS = 20.0
"""A command that still runs this long after a signal is stopped once more. The first stop may be lost in a library, or
wait for a thread that does not end.
"""


class Stopped(KeyboardInterrupt):
    """A signal asked the command to stop.

    It is a ``KeyboardInterrupt``: code that lets Ctrl-C through also lets this exception through.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        """Number of the signal."""


class CommandSignals:
    """The handler of Ctrl-C and SIGTERM while a command runs."""

    NUMBERS = signal.SIGINT, signal.SIGTERM
    SAME_STOP_SECONDS = 10.0
    """A second signal within this time belongs to the same stop and is ignored: a terminal, torchrun and a batch system
    may each send one.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._pending = 0
        self._num_holds = 0

    @property
    def came(self) -> bool:
        """True after the first signal."""
        return self._since is not None

    def take(self, number: int, _: FrameType | None) -> None:
        """Handle a signal: raise ``Stopped``, or remember the signal if it is held back."""
        if self._since is not None and time.monotonic() - self._since < self.SAME_STOP_SECONDS:
            return
        self._since = time.monotonic()
        self._take_again(number, STUCK_SECONDS)
        if self._num_holds:
            self._pending = number
            return
        raise Stopped(number)

    def _take_again(self, number: int, seconds: float) -> None:
        """Handle a signal once more after some time, unless ``ignore`` comes first."""

        def take(*_: object) -> None:
            self._since = None
            self.take(number, None)

        if hasattr(signal, "setitimer"):  # rather than a thread, because the interrupted code may hold any lock
            signal.signal(signal.SIGALRM, take)
            signal.setitimer(signal.ITIMER_REAL, seconds)
        elif seconds < STUCK_SECONDS:  # Windows, whose users press Ctrl-C again
            self._since = None
            threading.Timer(seconds, signal.raise_signal, (number,)).start()

    def raise_lost(self, lost: "sys.UnraisableHookArgs", *, otherwise: Callable[..., object]) -> None:
        """Raise a lost ``Stopped`` once more, shortly after.

        Python drops exceptions that are raised in a destructor or in the callback of a weak reference.
        """
        if isinstance(lost.exc_value, Stopped):
            self._take_again(lost.exc_value.number, RAISE_AGAIN_SECONDS)
        else:
            otherwise(lost)

    def ignore(self) -> None:
        """Ignore further signals, because the process is about to end."""
        for number in self.NUMBERS:
            signal.signal(number, signal.SIG_IGN)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back until the block ends."""
        self._num_holds += 1
        try:
            yield
        finally:
            self._num_holds -= 1
            if self._pending and not self._num_holds:
                number, self._pending = self._pending, 0
                raise Stopped(number)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Handle signals while the block runs in the main thread; signals that the caller ignores are still ignored."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {number: signal.getsignal(number) for number in self.NUMBERS}
        hook = sys.unraisablehook
        sys.unraisablehook = partial(self.raise_lost, otherwise=hook)
        try:
            self.take_over(number for number, handler in handlers.items() if handler != signal.SIG_IGN)
            yield
        finally:
            if not self.came:  # after a signal the process is about to end, which a second signal must not disturb
                sys.unraisablehook = hook
                for number, handler in handlers.items():
                    if handler is not None:
                        signal.signal(number, handler)

    def take_over(self, numbers: Iterable[int] = NUMBERS) -> None:
        """Install this handler for ``numbers``."""
        for number in numbers:
            signal.signal(number, self.take)


command_signals = CommandSignals()


def take_signals_again() -> None:
    """Install the handlers again, after a library replaced them."""
    if threading.current_thread() is threading.main_thread():
        command_signals.take_over()


def stopping() -> bool:
    """Return True after a signal; callers then wait only for files that are being written."""
    return command_signals.came


def uninterrupted() -> contextlib.AbstractContextManager[None]:
    """Finish the block even after a signal; the signal takes effect at the end of the block."""
    return command_signals.held()


def leave_signals_to_the_parent() -> None:
    """Ignore signals in a child process.

    A terminal or a batch system sends them to the child also, but the parent ends it in its own way.
    """
    for number in CommandSignals.NUMBERS:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def report_saved_work(what: Callable[[], str]) -> Iterator[None]:
    """Report the saved work of a command that is stopped in the block.

    Args:
        what: Returns a phrase such as "12 videos of this call are kept"; an empty string if nothing is saved.
    """
    try:
        yield
    except BaseException as error:  # interrupted code may fail with another error than the signal's own
        error.__dict__["kept"] = what()
        raise


def saved_work_message(error: BaseException) -> str:
    """Return the phrase that ``report_saved_work`` attached to an error; empty without one."""
    return str(error.__dict__.get("kept", ""))

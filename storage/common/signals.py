"""Ctrl-C and SIGTERM: each stops a command in the same way."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FrameType

AGAIN_SECONDS = 0.05


class Stopped(KeyboardInterrupt):
    """A signal asked the command to stop. ``KeyboardInterrupt``, so that whatever lets Ctrl-C through lets this through."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class CommandSignals:
    """Ctrl-C and SIGTERM, each of which stops a command in the same way."""

    NUMBERS = signal.SIGINT, signal.SIGTERM
    TOGETHER_SECONDS = 10.0
    """Signals that come so soon after the first are about the same stop (a terminal, torchrun and a batch system may each send one): they
    must not disturb it."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._pending = 0
        self._num_holds = 0

    @property
    def came(self) -> bool:
        return self._since is not None

    def take(self, number: int, _: FrameType | None) -> None:
        if self.came and time.monotonic() - self._since < self.TOGETHER_SECONDS:
            return
        self._since = time.monotonic()
        if self._num_holds:
            self._pending = number
            return
        raise Stopped(number)

    def again(self, lost: "sys.UnraisableHookArgs", *, otherwise: Callable[..., object]) -> None:
        """Python drops what is raised in a destructor or a weak reference's callback. A stop that fell into one is raised once more."""
        if not isinstance(lost.exc_value, Stopped):
            otherwise(lost)
            return
        self._since, number = None, lost.exc_value.number
        signal.signal(signal.SIGALRM, lambda *_: self.take(number, None))
        signal.setitimer(
            signal.ITIMER_REAL, AGAIN_SECONDS
        )  # and no thread: the code that was interrupted may hold any lock

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
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
        """While a command runs in the main thread of a process, where its caller does not ignore them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in self.NUMBERS}
        hook = sys.unraisablehook
        sys.unraisablehook = partial(self.again, otherwise=hook)
        try:
            self.take_over(number for number, handler in before.items() if handler != signal.SIG_IGN)
            yield
        finally:
            if not self.came:  # else the process is about to end, and a second one should not disturb that
                sys.unraisablehook = hook
                for number, handler in before.items():
                    if handler is not None:
                        signal.signal(number, handler)

    def take_over(self, numbers: Iterable[int] = NUMBERS) -> None:
        for number in numbers:
            signal.signal(number, self.take)


command_signals = CommandSignals()


def take_signals_again() -> None:
    """After a library has put its own handlers in the place of ours."""
    if threading.current_thread() is threading.main_thread():
        command_signals.take_over()


def stopping() -> bool:
    """Whether a signal came: nothing is then worth waiting for but what is being written."""
    return command_signals.came


def uninterrupted() -> contextlib.AbstractContextManager[None]:
    """What is begun here is finished: a signal to stop counts from its end."""
    return command_signals.held()


def leave_signals_to_the_parent() -> None:
    """In a child process: those of a terminal or a batch system reach it, too, but the parent ends it in its own way."""
    for number in CommandSignals.NUMBERS:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def keeping(what: Callable[[], str]) -> Iterator[None]:
    """``what`` says what is kept of the work done here where a signal stops it; empty: nothing."""
    try:
        yield
    except BaseException as error:  # what ends early may fail with another error than the signal's own
        error.kept = what()
        raise

"""What every command shares: one line for a mistake, exit codes, progress that reads well on a terminal and in a log."""

import argparse
import contextlib
import difflib
import errno
import os
import shlex
import signal
import sys
import tempfile
import threading
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO, TypeVar

from tqdm import tqdm

from .threads import limit_spinning

T = TypeVar("T")

EXIT_DONE, EXIT_INCOMPLETE, EXIT_MISTAKE, EXIT_SIGNAL = 0, 1, 2, 128
"""``EXIT_SIGNAL``: and the signal's number, 130 after Ctrl-C, 143 after SIGTERM."""
LOG_EVERY_SECONDS = 15.0
AGAIN_SECONDS = 0.05
LEAVE_SECONDS = 3.0
"""Once all is said after a signal, threads that still compute or fetch are waited for so long."""


class UserError(Exception):
    """Something that the user can mend. The message says what, where, what was expected and what to do, in one line."""


class Problems:
    """Single inputs that were left out while the rest went on: a line each as they come. Where there are many, the first ones are said, all
    are listed in a file, and their number is said at the end of the ``with`` statement that this is used in."""

    MAX_LINES, MAX_KEPT = 20, 1000

    def __init__(self, *, strict: bool = False, quiet: bool = False, file: Path | None = None) -> None:
        """``strict``: the first one stops the command. ``quiet``: they were said before. ``file``: where all are listed if they are more
        than ``MAX_LINES``, in place of those of an earlier call; without a file, all are said."""
        self.strict, self.quiet, self.file = strict, quiet, file
        self._lines: TextIO | None = None
        self.count = 0
        self.messages: list[str] = []
        """The first ``MAX_KEPT``."""
        self.changed: Counter[str] = Counter()
        """Inputs that were kept, but not as they were: what was changed, and how often."""

    def add(self, message: str) -> None:
        if self.strict:
            raise UserError(f"{message} (--strict stops here)")
        self.count += 1
        if self.count <= self.MAX_KEPT:
            self.messages.append(message)
        if self.quiet:
            return
        if self.count <= self.MAX_LINES or self.file is None:
            say(f"warning: {message}")
            return
        if self._lines is None:
            self._begin_list()
        if self._lines is not None:
            self._list(message)
        else:
            say(f"warning: {message}")

    def _begin_list(self) -> None:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._lines = self.file.open("w", encoding="utf-8", errors="backslashreplace", buffering=1)
        except OSError as error:
            say(f"note: problems cannot be listed in a file ({error}); all are said here")
            self.file = None
            return
        for message in self.messages[: self.MAX_LINES]:
            self._list(message)
        say(f"warning: more like this; from here on they are only listed, in {self.file}")

    def _list(self, message: str) -> None:
        self._lines.write(harmless(" ".join(message.splitlines())) + "\n")

    @property
    def where(self) -> str:
        """In words: where to read all of them."""
        return f"all listed in {self.file}" if self._lines is not None else "see above"

    def __enter__(self) -> "Problems":
        return self

    def __exit__(self, *_: object) -> None:
        if self.count > self.MAX_LINES and not self.quiet:
            say(f"{self.count:,} problems, {self.where}")
        if self._lines is not None:
            self._lines.close()

    def exit_code(self) -> int:
        return EXIT_INCOMPLETE if self.count else EXIT_DONE


def available_cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


JOINERS = "\u200c\u200d"
"""Marks that are not seen themselves; some scripts and emoji need them."""


def harmless(text: str) -> str:
    """What a terminal shows and does not obey: control characters, and marks that turn the direction of writing, become escapes such as
    ``\\x1b``. Lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" or c in JOINERS or unicodedata.category(c) == "Zs" else repr(c)[1:-1] for c in text)


def say(message: str) -> None:
    """One line on standard error, which keeps a progress bar whole; standard output is for results."""
    tqdm.write(harmless(message), file=sys.stderr)


def show(result: str) -> None:
    """A result, on standard output."""
    print(harmless(result))


@lru_cache(maxsize=1024)
def note_once(message: str) -> None:
    """As ``say``, once in a process: of what is found out each time that a store is opened."""
    say(message)


class Parser(argparse.ArgumentParser):
    """A mistake gets one line, which says what options an unknown one may have been meant for."""

    passes_on = False
    """Whether unknown options are another command's: they are in ``passed_on``."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> argparse.Namespace:
        parsed, unknown = self.parse_known_args(args, namespace)
        if self.passes_on:
            parsed.passed_on = unknown
        elif unknown:
            near = difflib.get_close_matches(unknown[0].split("=")[0], _options(self), n=3)
            self.error(f"unknown: {' '.join(unknown)}" + (f"; nearest: {', '.join(near)}" if near else ""))
        return parsed

    def convert_arg_line_to_args(self, line: str) -> list[str]:
        """Of a file with options, where a parser takes such: as a shell would read them."""
        return shlex.split(line, comments=True)

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_MISTAKE, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def _options(parser: argparse.ArgumentParser) -> list[str]:
    """Long ones, those of actions included."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    below = [option for action in actions for sub in action.choices.values() for option in _options(sub)]
    return [option for option in parser._option_string_actions if option.startswith("--")] + below


def command_parser(prog: str, description: str, example: str) -> argparse.ArgumentParser:
    parser = Parser(
        prog=prog,
        description=description,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_dataset(parser)
    return parser


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """What every command takes."""
    root = Path(os.environ.get("VLALIGN_ROOT", "vlalign_data"))
    parser.add_argument("--root", type=Path, default=root, help="folder of all data sets (default: $VLALIGN_ROOT or ./vlalign_data)")
    parser.add_argument("--dataset", help="name of the data set: its folder under --root")


class Stopped(KeyboardInterrupt):
    """A signal asked the command to stop. ``KeyboardInterrupt``, so that whatever lets Ctrl-C through lets this through."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class _Signals:
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
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)  # and no thread: the code that was interrupted may hold any lock

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


_signals = _Signals()


def take_signals_again() -> None:
    """After a library has put its own handlers in the place of ours."""
    if threading.current_thread() is threading.main_thread():
        _signals.take_over()


def stopping() -> bool:
    """Whether a signal came: nothing is then worth waiting for but what is being written."""
    return _signals.came


def uninterrupted() -> contextlib.AbstractContextManager[None]:
    """What is begun here is finished: a signal to stop counts from its end."""
    return _signals.held()


def leave_signals_to_the_parent() -> None:
    """In a child process: those of a terminal or a batch system reach it, too, but the parent ends it in its own way."""
    for number in _Signals.NUMBERS:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def keeping(what: Callable[[], str]) -> Iterator[None]:
    """``what`` says what is kept of the work done here where a signal stops it; empty: nothing."""
    try:
        yield
    except BaseException as error:  # what ends early may fail with another error than the signal's own
        error.kept = what()
        raise


@contextlib.contextmanager
def worker_processes(number: int) -> Iterator[ProcessPoolExecutor]:
    """Processes for what is written whole or not at all: they end at once where the work ends early."""
    pool = ProcessPoolExecutor(number, mp_context=get_context("spawn"), initializer=leave_signals_to_the_parent)
    try:
        yield pool
    except BaseException:
        with uninterrupted():
            for process in list((pool._processes or {}).values()):  # Python 3.14 has kill_workers() for it
                process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def run_command(command: Callable[[argparse.Namespace], int], parser: argparse.ArgumentParser, argv: list[str] | None) -> int:
    """Runs a command; returns its exit code: 0 all done, 1 something was left out or went wrong, 2 a mistake in the call, 130 or 143
    where Ctrl-C or SIGTERM stopped it."""
    args = parser.parse_args(argv)
    limit_spinning()
    with _signals.taken():
        code = _run(command, args, parser.prog)
        if stopping():
            for number in _Signals.NUMBERS:  # one more should not end what is ending; Python resets a handler of its own before it is out
                signal.signal(number, signal.SIG_IGN)
            sys.stdout.flush()
            leave = threading.Timer(LEAVE_SECONDS, os._exit, (code,))
            leave.daemon = True
            leave.start()
        return code


def _run(command: Callable[[argparse.Namespace], int], args: argparse.Namespace, prog: str) -> int:
    try:
        if (encoding := sys.getfilesystemencoding()) != "utf-8":
            raise UserError(f"file names are read as {encoding} here, and others than those would be misread; set PYTHONUTF8=1")
        return command(args)
    except (KeyboardInterrupt, Exception) as error:
        code = _code_of_stop(error)
        if isinstance(error, UserError):
            say(f"{prog}: error: {error}")
            failed = EXIT_MISTAKE
        elif isinstance(error, OSError) and not (code and isinstance(error, ConnectionError)):
            say(f"{prog}: error: {_words_of(error)}")  # a full disk, a folder that may not be written: the system's own words say which
            failed = EXIT_INCOMPLETE
        elif not code:
            raise
        if not code:
            return failed
        kept = next((kept for each in _causes(error) if (kept := getattr(each, "kept", ""))), "")
        say(f"{prog}: stopped" + (f"; {kept}, and the same command goes on from there" if kept else ""))
        return code


def _words_of(error: OSError) -> str:
    """The system's own. A full disk of which it does not say where it is, is none that a data set's files are written to."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename is not None:
        return str(error)
    return f"{error.strerror}: where standard output or a log goes, or in {tempfile.gettempdir()}; make room there"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, the one that was handled when it was raised, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__context__


def _code_of_stop(error: BaseException) -> int:
    """The exit code where a signal is behind an error: what ends early fails in many ways. 0 where none is."""
    stop = next((each for each in _causes(error) if isinstance(each, KeyboardInterrupt)), None)
    return EXIT_SIGNAL + getattr(stop, "number", signal.SIGINT) if stop else 0


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
    """``items``, with a bar on a terminal; elsewhere a line every 15 seconds and one at the end. Both give rate and time left.

    ``size``: how many of ``total`` an item stands for. ``done``: how many were done before. ``note``: said behind the rate.
    """
    if sys.stderr.isatty():
        with tqdm(total=total, initial=done, desc=harmless(what), unit=f" {unit}", dynamic_ncols=True, smoothing=0.05) as bar:
            for item in items:
                yield item
                bar.set_postfix_str(note(), refresh=False)
                bar.update(size(item))
        return
    started = last = time.monotonic()
    count = done
    for item in items:
        yield item
        count += size(item)
        now = time.monotonic()
        if now - last >= LOG_EVERY_SECONDS or (count == total and now - started >= 1):
            last = now
            meter = {"prefix": what, "unit": f" {unit}", "ncols": 0, "initial": done, "postfix": note() or None}
            say(tqdm.format_meter(count, total, now - started, **meter))

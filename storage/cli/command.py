"""Run a command: one-line errors, exit codes, messages, and an orderly stop."""

import argparse
import atexit
import errno
import io
import os
import platform
import select
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import TypeVar

from ..common.errors import EXIT_DONE, EXIT_INCOMPLETE, EXIT_MISTAKE, EXIT_SIGNAL, SettingError, UserError
from ..common.packages import missing_package_message, package_version
from ..common.plugins import message_of_plugin, trust_modules
from ..common.programs import refuse_planted_libraries, start_programs_without_current_folder
from ..common.progress import TerminalProgress, report_progress_to
from ..common.signals import command_signals, saved_work_message, stopping
from ..common.system import SIGPIPE
from ..common.terminal import Level, logger, messages_on_terminal, warn
from ..common.writing import NO_ROOM, NOT_A_FOLDER
from .parser import Parser

start_programs_without_current_folder()  # before the import of torch, which starts a program

T = TypeVar("T")
Command = Callable[[argparse.Namespace], int]
"""Runs with the parsed arguments and returns the exit code."""
EXIT_SECONDS = 3.0
"""Longest time that a stopped command waits for threads that still compute or fetch."""
SPIN_COUNT = "10000"
"""Rounds that a waiting OpenMP thread spins before it sleeps: a fraction of a millisecond.

The default of libgomp, 300,000 rounds, is several milliseconds. If another program holds the core of the thread that is
waited for, spinning uses up this process's own share of the machine. Short waits, such as between the layers of a
network on free cores, still pass without sleep. Measured in ``tests/benchmarks/busy.py``.
"""


def run_command(command: Command, parser: Parser, argv: list[str] | None) -> int:
    """Run a command and return its exit code.

    Messages and progress are shown on standard error. Known errors end the command with one line.

    Args:
        command: Called with the parsed arguments.
        parser: Parses ``argv``.
        argv: Arguments without the program's name; None for the process's arguments.

    Returns:
        0 on success, 1 if something was skipped or failed, 2 on a mistake in the call, 130 or 143 if Ctrl-C or SIGTERM
        stopped the command.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # characters that the terminal's encoding lacks
    args = parser.parse_args(argv)
    limit_spinning()
    listener = None if args.quiet else TerminalProgress()
    level = Level.QUIET if args.quiet else Level.VERBOSE if args.verbose else Level.USUAL
    with messages_on_terminal(level), report_progress_to(listener), command_signals.taken():
        logger.debug("vlalign %s on %s", package_version(), platform.platform())
        return _run(command, args, parser)


_exit_codes: list[int] = []
"""The exit code of a stopped command, once it is known."""


def _leave() -> None:
    """End the process of a stopped command before Python unloads its modules, which a waiting thread can block."""
    if _exit_codes:
        sys.stderr.flush()
        os._exit(_exit_codes[0])


atexit.register(_leave)  # the first function that is registered runs last


def load_own_parts(load: Callable[[], T], parser: Parser) -> T:
    """Load custom parts that add options to a command; return the result of ``load``.

    Loading is part of the command: the same checks come first, and errors and signals end it in the same way.

    Args:
        load: Loads the parts.
        parser: The command's parser, without the added options.

    Raises:
        SystemExit: A part cannot be loaded, or a signal came.
    """
    loaded: list[T] = []

    def command(_: argparse.Namespace) -> int:
        loaded.append(load())
        return EXIT_DONE

    with messages_on_terminal(), command_signals.taken():
        code = _run(command, argparse.Namespace(), parser)
    if code != EXIT_DONE:
        raise SystemExit(code)
    return loaded[0]


def _ended(code: int) -> int:
    """Return the exit code of a command that has ended. After a signal, make the process end soon."""
    if stopping():
        command_signals.ignore()
        sys.stdout.flush()
        _exit_codes.append(code)
        forced_exit = threading.Timer(EXIT_SECONDS, os._exit, (code,))
        forced_exit.daemon = True
        forced_exit.start()
    return code


def _run(command: Command, args: argparse.Namespace, parser: Parser) -> int:
    prog = parser.prog
    try:
        if (encoding := sys.getfilesystemencoding()) != "utf-8":
            raise UserError(f"Python reads file names as {encoding}; expected utf-8; set PYTHONUTF8=1")
        refuse_planted_libraries()
        _allow_folders(args)
        trust_modules(getattr(args, "trust", ()))
        code = command(args)
        sys.stdout.flush()
        return _ended(code)
    except (KeyboardInterrupt, Exception) as error:
        stop_code = _stop_code(error)
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's buffered output
            return _ended(EXIT_SIGNAL + SIGPIPE)
        if isinstance(error, UserError):
            warn(f"{prog}: error: {parser.message(error)}")
            error_code = error.exit_code
        elif isinstance(error, OSError) and not (stop_code and isinstance(error, ConnectionError)):
            warn(f"{prog}: error: {_system_message(error)}")
            error_code = EXIT_INCOMPLETE
        elif missing := missing_package_message(error):
            warn(f"{prog}: error: {missing}")
            error_code = EXIT_MISTAKE
        elif isinstance(error, MemoryError):
            warn(f"{prog}: error: out of memory{f' ({error})' if str(error) else ''}; --verbose shows where")
            error_code = EXIT_INCOMPLETE
        elif stop_code:
            error_code = stop_code
        elif own := message_of_plugin(error):
            warn(f"{prog}: error: {own}")
            error_code = EXIT_MISTAKE
        else:
            raise
        if not stop_code:
            logger.debug("%s", "".join(traceback.format_exception(error)).rstrip())
            return _ended(error_code)
        kept = next((kept for cause in _causes(error) if (kept := saved_work_message(cause))), "")
        warn(f"{prog}: stopped" + (f"; {kept}, and the same command resumes there" if kept else ""))
        return _ended(stop_code)  # before freeing the error's frames, which may wait for threads


def _allow_folders(args: argparse.Namespace) -> None:
    """Record the folders of ``--allow-folder``."""
    if folders := getattr(args, "allow_folder", None):
        from ..dataset.folder import DatasetFolder
        from ..dataset.trusted_folders import allow_folder

        if args.dataset is None:
            raise SettingError(
                "allow_folder", folders[0], "pass --dataset too: a folder is trusted for one data set only"
            )
        for folder in folders:
            allow_folder(DatasetFolder(args.root, args.dataset), folder)


def _nobody_reads() -> bool:
    """Return whether the program that reads standard output has ended, as ``head`` does after ten lines."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    if not hasattr(select, "poll"):  # Windows
        return True
    poll = select.poll()
    poll.register(output, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _system_message(error: OSError) -> str:
    """Return the system's message; for a full disk, if no file is named, with the places that may be full."""
    if error.errno == errno.EEXIST and error.strerror == NOT_A_FOLDER:
        return f"{error.filename}: {NOT_A_FOLDER}; remove it, or choose another place"
    if error.errno == errno.ELOOP and error.filename is not None:
        return f"{error.filename}: its path has a circle of links; remove these links"
    if error.errno not in NO_ROOM or error.filename is not None:
        return str(error)
    return f"{error.strerror}: standard output, a log file or {tempfile.gettempdir()}; free some space"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the chain of errors that caused it."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__context__


def _stop_code(error: BaseException) -> int:
    """Return the exit code if a signal caused the error, else 0. Interrupted code fails in many ways."""
    stop = next((cause for cause in _causes(error) if isinstance(cause, KeyboardInterrupt)), None)
    return EXIT_SIGNAL + getattr(stop, "number", signal.SIGINT) if stop else 0


def limit_spinning() -> None:
    """Let OpenMP threads sleep after a short wait, in this process and its children.

    Call it before torch is imported, because OpenMP reads its settings when it is loaded. A user's setting is not
    changed. Results do not change.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)

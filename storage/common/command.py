"""What every command line shares: one line for a mistake, exit codes, what happens when it is stopped."""

import argparse
import difflib
import errno
import os
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from .errors import SettingError, UserError
from .exits import EXIT_INCOMPLETE, EXIT_MISTAKE, EXIT_SIGNAL
from .progress import TerminalProgress, report_progress_to
from .signals import CommandSignals, command_signals, stopping
from .terminal import messages_on_terminal, say
from .threads import limit_spinning

LEAVE_SECONDS = 3.0
"""Once all is said after a signal, threads that still compute or fetch are waited for so long."""


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
    parser.add_argument(
        "--root", type=Path, default=root, help="folder of all data sets (default: $VLALIGN_ROOT or ./vlalign_data)"
    )
    parser.add_argument("--dataset", help="name of the data set: its folder under --root")


def run_command(
    command: Callable[[argparse.Namespace], int], parser: argparse.ArgumentParser, argv: list[str] | None
) -> int:
    """Runs a command; returns its exit code: 0 all done, 1 something was left out or went wrong, 2 a mistake in the call, 130 or 143
    where Ctrl-C or SIGTERM stopped it."""
    args = parser.parse_args(argv)
    limit_spinning()
    with messages_on_terminal(), report_progress_to(TerminalProgress()), command_signals.taken():
        code = _run(command, args, parser.prog)
        if stopping():
            for number in CommandSignals.NUMBERS:  # another signal must not disturb the exit
                signal.signal(number, signal.SIG_IGN)
            sys.stdout.flush()
            leave = threading.Timer(LEAVE_SECONDS, os._exit, (code,))
            leave.daemon = True
            leave.start()
        return code


def _run(command: Callable[[argparse.Namespace], int], args: argparse.Namespace, prog: str) -> int:
    try:
        if (encoding := sys.getfilesystemencoding()) != "utf-8":
            raise UserError(
                f"file names are read as {encoding} here, and others than those would be misread; set PYTHONUTF8=1"
            )
        return command(args)
    except (KeyboardInterrupt, Exception) as error:
        code = _code_of_stop(error)
        if isinstance(error, UserError):
            say(f"{prog}: error: {error.of_command() if isinstance(error, SettingError) else error}")
            failed = EXIT_MISTAKE
        elif isinstance(error, OSError) and not (code and isinstance(error, ConnectionError)):
            say(
                f"{prog}: error: {_words_of(error)}"
            )  # a full disk, a folder that may not be written: the system's own words say which
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

"""Code that all command lines share: one-line errors, exit codes, and an orderly stop."""

import argparse
import difflib
import errno
import os
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from .errors import SettingError, UserError
from .exits import EXIT_INCOMPLETE, EXIT_MISTAKE, EXIT_SIGNAL
from .progress import TerminalProgress, report_progress_to
from .signals import CommandSignals, command_signals, stopping, what_is_kept
from .terminal import messages_on_terminal, say
from .threads import limit_spinning

Command = Callable[[argparse.Namespace], int]
"""Runs with the parsed arguments and returns the exit code."""
EXIT_SECONDS = 3.0
"""How long a stopped command waits for threads that still compute or fetch."""


class Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line, with the nearest known options."""

    passes_on = False
    """True if unknown options belong to another command; they are then in ``passed_on`` of the result."""
    intermixed = False
    """True if options may stand between optional positional arguments."""

    # The stub has overloads for the type of ``namespace``, which nobody here uses.
    def parse_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> Any:
        """Parse ``args``, by default those of the process. Exit with code 2 on a mistake."""
        parse = self.parse_known_intermixed_args if self.intermixed else self.parse_known_args
        parsed, unknown = parse(None if args is None else list(args), namespace)
        if self.passes_on:
            parsed.passed_on = unknown
        elif unknown:
            near = difflib.get_close_matches(unknown[0].split("=")[0], _options(self), n=3)
            self.error(f"unknown: {' '.join(unknown)}" + (f"; nearest: {', '.join(near)}" if near else ""))
        return parsed

    def convert_arg_line_to_args(self, arg_line: str) -> list[str]:
        """Split a line of an options file as a shell would."""
        return shlex.split(arg_line, comments=True)

    def error(self, message: str) -> NoReturn:
        """Print a mistake in one line and exit with code 2."""
        self.exit(EXIT_MISTAKE, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def _options(parser: argparse.ArgumentParser) -> list[str]:
    """Return all long options, including those of actions."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    nested = [option for action in actions for choice in action.choices.values() for option in _options(choice)]
    return [option for option in parser._option_string_actions if option.startswith("--")] + nested


def new_parser(prog: str, description: str, example: str) -> Parser:
    """Return a parser without options, whose help ends with an example."""
    return Parser(prog=prog, description=description, **formatted(example))


def formatted(example: str) -> dict[str, Any]:
    """Return the settings of a parser, or of one action, whose help ends with ``example``."""
    return {
        "epilog": f"example:\n  {example}",
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "allow_abbrev": False,
    }


def command_parser(prog: str, description: str, example: str) -> Parser:
    """Return a parser with the options that all commands take."""
    parser = new_parser(prog, description, example)
    add_dataset(parser)
    return parser


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """Add ``--root`` and ``--dataset``."""
    root = Path(os.environ.get("VLALIGN_ROOT", "vlalign_data"))
    parser.add_argument(
        "--root", type=Path, default=root, help="folder of all data sets (default: $VLALIGN_ROOT or ./vlalign_data)"
    )
    parser.add_argument("--dataset", help="name of the data set: its folder under --root")


def run_command(command: Command, parser: argparse.ArgumentParser, argv: list[str] | None) -> int:
    """Run a command and return its exit code.

    Messages and progress are shown on standard error. Known errors end the command with one line.

    Args:
        command: Called with the parsed arguments.
        parser: Parses ``argv``.
        argv: Command line without the program's name; None for that of the process.

    Returns:
        0 if all was done, 1 if something was skipped or failed, 2 on a mistake in the call, 130 or 143 if Ctrl-C or
        SIGTERM stopped the command.
    """
    args = parser.parse_args(argv)
    limit_spinning()
    with messages_on_terminal(), report_progress_to(TerminalProgress()), command_signals.taken():
        code = _run(command, args, parser.prog)
        if stopping():
            for number in CommandSignals.NUMBERS:  # another signal must not disturb the exit
                signal.signal(number, signal.SIG_IGN)
            sys.stdout.flush()
            forced_exit = threading.Timer(EXIT_SECONDS, os._exit, (code,))
            forced_exit.daemon = True
            forced_exit.start()
        return code


def _run(command: Command, args: argparse.Namespace, prog: str) -> int:
    try:
        if (encoding := sys.getfilesystemencoding()) != "utf-8":
            raise UserError(f"file names are read as {encoding}, expected utf-8; set PYTHONUTF8=1")
        return command(args)
    except (KeyboardInterrupt, Exception) as error:
        stop_code = _stop_code(error)
        if isinstance(error, UserError):
            say(f"{prog}: error: {error.of_command() if isinstance(error, SettingError) else error}")
            error_code = EXIT_MISTAKE
        elif isinstance(error, OSError) and not (stop_code and isinstance(error, ConnectionError)):
            say(f"{prog}: error: {_system_message(error)}")
            error_code = EXIT_INCOMPLETE
        elif stop_code:
            error_code = stop_code
        else:
            raise
        if not stop_code:
            return error_code
        kept = next((kept for cause in _causes(error) if (kept := what_is_kept(cause))), "")
        say(f"{prog}: stopped" + (f"; {kept}, and the same command goes on from there" if kept else ""))
        return stop_code


def _system_message(error: OSError) -> str:
    """Return the system's message. A full disk without a path is not one that files of a data set are written to."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename is not None:
        return str(error)
    return f"{error.strerror}: standard output or a log, or {tempfile.gettempdir()}; make room there"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, the one that was handled when it was raised, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__context__


def _stop_code(error: BaseException) -> int:
    """Return the exit code if a signal caused the error, else 0. Interrupted code fails in many ways."""
    stop = next((cause for cause in _causes(error) if isinstance(cause, KeyboardInterrupt)), None)
    return EXIT_SIGNAL + getattr(stop, "number", signal.SIGINT) if stop else 0

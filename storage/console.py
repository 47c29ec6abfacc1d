"""What every command shares: one line for a mistake, exit codes, progress that reads well on a terminal and in a log."""

import argparse
import difflib
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tqdm import tqdm

from .threads import limit_spinning

T = TypeVar("T")

EXIT_DONE, EXIT_INCOMPLETE, EXIT_MISTAKE = 0, 1, 2
LOG_EVERY_SECONDS = 15.0


class UserError(Exception):
    """Something that the user can mend. The message says what, where, what was expected and what to do, in one line."""


class Problems:
    """Single inputs that were left out while the rest went on: one line each as they come, counted at the end."""

    MAX_LINES, MAX_KEPT = 20, 1000

    def __init__(self, *, strict: bool = False, quiet: bool = False) -> None:
        """``strict``: the first one stops the command. ``quiet``: they were said before."""
        self.strict, self.quiet = strict, quiet
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
        if self.count <= self.MAX_LINES:
            say(f"warning: {message}")
        elif self.count == self.MAX_LINES + 1:
            say("warning: more like this; only counted from here on")

    def exit_code(self) -> int:
        return EXIT_INCOMPLETE if self.count else EXIT_DONE


def available_cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def say(message: str) -> None:
    """One line on standard error, which keeps a progress bar whole; standard output is for results."""
    tqdm.write(message, file=sys.stderr)


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


def run_command(command: Callable[[argparse.Namespace], int], parser: argparse.ArgumentParser, argv: list[str] | None) -> int:
    """Runs a command; returns its exit code: 0 all done, 1 something was left out or went wrong, 2 a mistake in the call."""
    args = parser.parse_args(argv)
    limit_spinning()
    try:
        return command(args)
    except UserError as error:
        say(f"{parser.prog}: error: {error}")
        return EXIT_MISTAKE
    except KeyboardInterrupt:
        say(f"{parser.prog}: stopped; what was finished is kept, and the same command goes on from there")
        return EXIT_INCOMPLETE
    except OSError as error:  # a full disk, a folder that may not be written: the system's own words say which
        say(f"{parser.prog}: error: {error}")
        return EXIT_INCOMPLETE


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
        with tqdm(total=total, initial=done, desc=what, unit=f" {unit}", dynamic_ncols=True, smoothing=0.05) as bar:
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

"""Inputs that were skipped while the work continued."""

from collections import Counter
from pathlib import Path
from typing import TextIO

from .errors import EXIT_DONE, EXIT_INCOMPLETE, UserError
from .terminal import escape_controls, say, warn
from .writing import make_folder, open_to_write


class Problems:
    """Inputs that were skipped while the work continued.

    Each is logged as a line. After ``MAX_LINES``, the rest is only listed in a file, and the total is logged at the end
    of this object's ``with`` block.
    """

    MAX_LINES, MAX_KEPT, MAX_CHARACTERS = 20, 1000, 2000

    def __init__(
        self, *, strict: bool = False, quiet: bool = False, deferred: bool = False, file: Path | None = None
    ) -> None:
        """Start with no problems.

        Args:
            strict: Raise ``UserError`` at the first problem.
            quiet: Count only, because another caller logs the same problems.
            deferred: The caller logs the problems at its end. Unlike with ``quiet``, notes are logged.
            file: File that lists all problems if there are more than ``MAX_LINES``; replaces the list of an earlier
                call. Without a file, or if it or its folder is a link, all are logged.
        """
        self.strict, self.quiet, self.deferred, self.file = strict, quiet, deferred, file
        self._lines: TextIO | None = None
        self.count = 0
        """Number of problems so far."""
        self.messages: list[str] = []
        """The first ``MAX_KEPT`` problems."""
        self.changed: Counter[str] = Counter()
        """Inputs that were used in a changed form: {the change: number of inputs}."""

    def add(self, message: str) -> None:
        """Count a problem, and log it or list it in the file: one line, cut at ``MAX_CHARACTERS``."""
        message = message if len(message) <= self.MAX_CHARACTERS else f"{message[: self.MAX_CHARACTERS]} ..."
        message = escape_controls(message)
        if self.strict:
            raise UserError(f"{message} (--strict stops here)")
        self.count += 1
        if self.count <= self.MAX_KEPT:
            self.messages.append(message)
        if not (self.quiet or self.deferred):
            self._log(message)

    def _log(self, message: str) -> None:
        lines = None
        if self.count > self.MAX_LINES and self.file is not None:
            lines = self._lines or self._begin_list(self.file)
        if lines is None:
            warn(f"warning: {message}")
        else:
            lines.write(f"{message}\n")

    def _begin_list(self, file: Path) -> TextIO | None:
        """Open ``file`` and list the problems so far; return None if it cannot be written."""
        try:
            make_folder(file.parent)
            if file.parent.is_symlink():
                raise UserError(f"{file.parent}: a link; expected a folder; remove it")
            lines: TextIO = open_to_write(file, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
        except (OSError, UserError) as error:
            say(f"note: problems cannot be listed in a file ({error}); all are shown here")
            self.file = None
            return None
        for message in self.messages[: self.MAX_LINES]:
            lines.write(f"{message}\n")
        warn(f"warning: more problems follow; they are only listed in {file}")
        self._lines = lines
        return lines

    @property
    def where(self) -> str:
        """The place where all problems can be read, for messages."""
        if self.deferred:
            return "named at the end"
        return f"all listed in {self.file}" if self._lines is not None else "see above"

    def __enter__(self) -> "Problems":
        return self

    def __exit__(self, *_: object) -> None:
        if self.count > self.MAX_LINES and not (self.quiet or self.deferred):
            warn(f"{self.count:,} problems, {self.where}")
        if self._lines is not None:
            self._lines.close()

    def exit_code(self) -> int:
        """Return the exit code of a command with these problems."""
        return EXIT_INCOMPLETE if self.count else EXIT_DONE

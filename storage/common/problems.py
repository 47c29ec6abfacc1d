"""Inputs that were left out while the rest went on."""

from collections import Counter
from pathlib import Path
from typing import TextIO

from .errors import UserError
from .exits import EXIT_DONE, EXIT_INCOMPLETE
from .terminal import harmless, say


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

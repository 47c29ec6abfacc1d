"""Exceptions of vlalign, the exit codes of its commands, and one-line errors for damaged files."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from .terminal import one_line

READ_ERRORS: tuple[type[Exception], ...] = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
)
"""Errors that libraries raise for a file whose content does not match its name."""
MAX_REASON_CHARACTERS, MAX_VALUE_CHARACTERS = 300, 200
EXIT_DONE, EXIT_INCOMPLETE, EXIT_MISTAKE, EXIT_SIGNAL = 0, 1, 2, 128
"""Exit codes of all commands. ``EXIT_SIGNAL`` is added to the signal's number: 130 after Ctrl-C, 143 after SIGTERM."""


class VlalignError(Exception):
    """Base class of the errors that vlalign itself raises.

    Example:
        >>> from vlalign.storage import UserError, VlalignError
        >>> issubclass(UserError, VlalignError)
        True
    """


class UserError(VlalignError):
    """A mistake or an input that the user can fix.

    The message is one line: what happened, where, what was expected and what to do.

    Example:
        >>> from vlalign.storage import UserError, open_store
        >>> try:
        ...     open_store("vlalign_data/demo/features/absent")
        ... except UserError as error:
        ...     print("absent" in str(error), error.exit_code)
        True 2
    """

    exit_code = EXIT_MISTAKE
    """Exit code of a command that the error ends."""


class Unfinished(UserError):
    """Work stopped early for a reason outside of the call; the same call, repeated, continues the work."""

    exit_code = EXIT_INCOMPLETE


class SettingError(UserError):
    """A setting has a value that cannot be used here.

    Library code names the setting as Python does (``num_results 0: expected 1 or more``). A command names its option
    (``--num-results 0: expected 1 or more``).
    """

    def __init__(self, setting: str, value: object, problem: str) -> None:
        """Create the error for an invalid value.

        Args:
            setting: Name of the argument or field, such as "num_results".
            value: Its value.
            problem: The expected values, or the reason why this one cannot be used.
        """
        super().__init__(setting, value, problem)  # all three, for pickling
        self.setting = setting
        self.value = value
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.setting} {self._shown}: {self.problem}"

    def of_command(self) -> str:
        """Return the message with the name of the command's option."""
        return f"--{self.setting.replace('_', '-')} {self._shown}: {self.problem}"

    @property
    def _shown(self) -> str:
        """The value for a message: one line, a long value without its middle."""
        value = str(self.value)
        if len(value) > MAX_VALUE_CHARACTERS:
            half = MAX_VALUE_CHARACTERS // 2
            value = f"{value[:half]}...{value[-half:]}"
        return one_line(value) or "(empty)"


def reason_of(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type if the message is empty or unclear.

    >>> reason_of(ValueError("no rows")), reason_of(KeyError("rows"))
    ('no rows', "KeyError 'rows'")
    """
    message = next((line for line in str(error).splitlines() if line.strip()), "")
    if not message or not isinstance(error, OSError | ValueError | VlalignError):
        message = f"{type(error).__name__} {message}".strip()
    return one_line(message)[:MAX_REASON_CHARACTERS]


def unreadable(where: str | Path, what: str, error: BaseException, remedy: str = "") -> UserError:
    """Return the error for an input that cannot be read: ``WHERE: WHAT (REASON); REMEDY``.

    Args:
        where: The file and the position in it.
        what: The problem, such as "not a readable Parquet file".
        error: The error of the reading code.
        remedy: The user's remedy.
    """
    return UserError(one_line(f"{where}: {what} ({reason_of(error)})") + (f"; {remedy}" if remedy else ""))


@contextlib.contextmanager
def refuse_unreadable(
    where: str | Path, what: str, remedy: str = "", errors: tuple[type[Exception], ...] = READ_ERRORS
) -> Iterator[None]:
    """Turn ``errors`` of the block into one ``UserError`` (see ``unreadable``). A ``UserError`` is not changed."""
    try:
        yield
    except UserError:
        raise
    except errors as error:
        raise unreadable(where, what, error, remedy) from None

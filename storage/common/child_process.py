"""Child processes that do a command's work, each on its own device, and end with the command.

They print nothing: messages are sent to the command over the same connection as results.
"""

import contextlib
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from .child_connection import parent_socket, start_connected
from .errors import UserError
from .programs import python_command, without_current_folder
from .signals import command_signals, saved_work_message, stopping, uninterrupted
from .system import signal_self
from .terminal import logger, say, warn

STOP_SECONDS = 60.0
"""Time that a process has to write its finished work after a request to end."""
ORPHAN_SECONDS = 10.0
"""Time for which a process that writes no files outlives a killed command: other processes may still need it."""


@dataclass(frozen=True)
class _LogMessage:
    text: str
    is_warning: bool


@dataclass(frozen=True)
class Ended:
    """The last message of a process."""

    kept: str = ""
    """The work that it saved, if it was stopped (see ``signals.report_saved_work``)."""


@dataclass(frozen=True)
class _Crashed:
    text: str


class _SharedConnection(Connection):
    """The process's side of the connection: messages of all threads are sent whole."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._lock = threading.Lock()

    def send(self, obj: Any) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        with uninterrupted() if is_main else contextlib.nullcontext(), self._lock:
            super().send(obj)


class ChildCrashed(RuntimeError):
    """A process ended with an error that is no mistake of the user's. It has that error's traceback as text."""


class Child:
    """The command's side of a process."""

    def __init__(self, name: str, module: str, environment: Mapping[str, str] | None = None) -> None:
        """Start a process that runs ``main()`` of a module, which calls ``run_child``. Send it its task afterwards.

        Args:
            name: Its name in messages, such as "the process on cuda:1".
            module: Dotted name of the module.
            environment: Variables to add to this process's own.
        """
        # A terminal sends Ctrl-C to all processes; this one ends at the command's request instead.
        ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
        self.name = name
        self.process, self.connection = start_connected(
            python_command(f"{ignore}; from {module} import main; main()"),
            without_current_folder({**os.environ, **(environment or {})}),
        )

    def send(self, message: object) -> None:
        """Send a message, unless the process has ended: ``receive`` then reports how."""
        with contextlib.suppress(ConnectionError):
            self.connection.send(message)

    def receive(self) -> Any:
        """Return the next message, or None for a log message, which is printed.

        Raises:
            UserError: The process has ended early, or reports why it ends.
            OSError: It could not write its files.
            ChildCrashed: It ended with an unexpected error.
        """
        try:
            message = self.connection.recv()
        except (EOFError, ConnectionError):
            raise self.exit_error() from None
        if isinstance(message, _LogMessage):
            (warn if message.is_warning else say)(message.text)
            return None
        if isinstance(message, _Crashed):
            raise ChildCrashed(f"{self.name} failed:\n{message.text}")
        if isinstance(message, Exception):
            raise message
        return message

    def exit_error(self) -> UserError:
        """Wait until the process has ended; return the error that describes how."""
        code = self.process.wait()
        how = f"was killed ({signal.Signals(-code).name}), perhaps because memory ran out" if code < 0 else "ended"
        return UserError(f"{self.name} {how}; finished work is saved, and the same command resumes there")

    def stop(self, deadline: float) -> str:
        """Wait for the end of the process, and kill it at the deadline (of ``time.monotonic``); return its saved work.

        Call ``process.terminate()`` before this to end it early.
        """
        kept = ""
        with contextlib.suppress(EOFError, ConnectionError):
            while self.connection.poll(max(deadline - time.monotonic(), 0)):
                message = self.connection.recv()
                kept = message.kept if isinstance(message, Ended) else kept
        try:
            self.process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.connection.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        return kept


def wait_for_any(children: Sequence[Child]) -> list[Child]:
    """Wait until some processes have sent a message or have ended; return these."""
    ready = wait([child.connection for child in children])
    return [child for child in children if child.connection in ready]


class _ToCommand(logging.Handler):
    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # the command is gone
            self._connection.send(_LogMessage(record.getMessage(), record.levelno >= logging.WARNING))


def run_child(work: Callable[[Connection, Any], None], *, writes: bool = True) -> None:
    """Run the work of a ``Child`` in its process, and end the process.

    Args:
        work: Called with the connection to the command and the command's first message. It runs in the main thread
            and is stopped like a command.
        writes: Whether the process writes files. A process that writes none is killed when the others no longer need
            it.
    """
    connection = _SharedConnection(parent_socket().detach())
    logger.addHandler(_ToCommand(connection))
    logger.setLevel(logging.INFO)
    with command_signals.taken():
        if not writes:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        threading.Thread(target=_end_with_the_command, args=(writes,), daemon=True).start()
        last = _last_message(work, connection)
        command_signals.ignore()
        with contextlib.suppress(OSError):
            connection.send(last)
    sys.stderr.flush()
    os._exit(0)  # all is written; threads that still compute are not waited for


def _last_message(work: Callable[[Connection, Any], None], connection: Connection) -> object:
    try:
        work(connection, connection.recv())
    except BaseException as error:  # the command must receive every error
        if stopping() or isinstance(error, KeyboardInterrupt):
            return Ended(saved_work_message(error))
        return _picklable(error) if isinstance(error, UserError | OSError) else _Crashed(traceback.format_exc())
    return Ended()


def _picklable(error: UserError | OSError) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except (TypeError, AttributeError, pickle.PickleError):  # its constructor takes other arguments than its message
        return UserError(str(error))
    return error


def _end_with_the_command(is_writer: bool) -> None:
    """End this process once the command has ended or was killed. A process that writes files may finish them first."""
    sys.stdin.buffer.read()
    if is_writer:
        signal_self(signal.SIGTERM)
        time.sleep(STOP_SECONDS)
    else:
        time.sleep(ORPHAN_SECONDS)
    os._exit(1)

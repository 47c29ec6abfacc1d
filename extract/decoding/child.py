"""The child process that decodes: what a file does to its decoder ends here.

Three processes. This one, which libraries are loaded into, takes the requests, opens the files, and reads nothing of them. It forks one
that is handed each file as a descriptor and can open none (``sandbox.py``); that one decodes. Where its decoders fail, those that open a
file by its path are asked: in a process of its own for each such video, to which all other files are hidden.
Requests and answers are JSON over a socket, pictures raw bytes after their announcement. Nothing that comes from here can make the
parent run anything.
"""

import importlib
import json
import os
import pkgutil
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import av
from PIL import Image

from . import backends, handed, sandbox
from .answer import Answers, LeftToOthers, answer
from .messages import Failed, Request
from .probe import VideoError

MEMORY_BYTES = 4 << 30
MOST_WORDS_BYTES = 1 << 16
DONE, LEFT = b"done", b"left"


def respond(request: Request, answers: Answers, failure: VideoError | None = None) -> None:
    """Answers a request. ``failure``: of decoders that tried before, which had more to say. Raises ``LeftToOthers``."""
    try:
        answer(request, answers)
    except VideoError as error:
        answers.send(Failed((failure or error).kind, str(failure or error)))
    except MemoryError:
        answers.send(Failed("out_of_memory", f"it needs more than {MEMORY_BYTES >> 30} GB to be decoded"))


def decode_handed(answers: Answers, orders: socket.socket) -> None:
    """One request after the other, each with the file's descriptor."""
    sandbox.confine()
    with Connection(orders.fileno()) as line:
        while True:
            request = Request.from_json(line.recv_bytes())
            _, descriptors, _, _ = socket.recv_fds(orders, 1, 1)
            handed.take(Path(request.path), descriptors[0])
            try:
                respond(request, answers)
            except LeftToOthers as error:
                line.send_bytes(LEFT + json.dumps(error.failure and [error.failure.kind, str(error.failure)]).encode())
            else:
                line.send_bytes(DONE)


def decode_by_path(answers: Answers, request: Request, failure: VideoError | None) -> None:
    try:
        sandbox.confine(Path(request.path), backends.ffmpeg_program())
    except OSError as error:
        answers.send(Failed("missing", f"it was there a moment ago ({error.strerror})"))
    else:
        respond(request, answers, failure)


class Helper:
    """A process that is forked from this one to do ``work``. This one ends as it does where it ends badly."""

    def __init__(self, work: Callable[[], None]) -> None:
        here = os.getpid()
        self._ended, theirs = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            code = 1
            try:
                sandbox.end_with_parent(here)
                work()
                code = 0
            except (EOFError, BrokenPipeError):
                pass  # the parent is gone, or wants no more
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(theirs)

    def wait(self, orders: socket.socket | None = None) -> None:
        """Until it has ended, or something came from it by ``orders``."""
        ready, _, _ = select.select([self._ended, sys.stdin, *([orders] if orders else [])], [], [])
        if sys.stdin in ready:
            os.kill(self._process, signal.SIGKILL)
            os._exit(1)
        if orders not in ready:
            os.close(self._ended)
            code = os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])
            if code or orders:
                end_as(code)


def end_as(code: int) -> NoReturn:
    """Ends this process as another one ended: the parent reads from that what has happened."""
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code or 1)


def load_all() -> None:
    """What the libraries would load when they need it first: by then no file of theirs can be opened any more."""
    for module in pkgutil.walk_packages(av.__path__, "av."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    importlib.import_module("numpy.fft")
    importlib.import_module("numpy.ma")
    Image.init()


def serve(connection: Connection) -> None:
    """Each request: opened here, read there. Standard input is a pipe that the parent never writes to: it ends when the parent does."""
    answers, helper = Answers(connection), None
    ours, theirs = socket.socketpair()
    orders = Connection(os.dup(ours.fileno()))
    while True:
        request = Request.from_json(connection.recv_bytes())
        try:
            descriptor = handed.open_regular(Path(request.path))
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            answers.send(Failed("missing", "no such file") if missing else Failed("unreadable", error.strerror))
            continue
        helper = helper or Helper(partial(decode_handed, answers, theirs))
        orders.send_bytes(request.to_json())
        socket.send_fds(ours, [b"."], [descriptor])
        os.close(descriptor)
        helper.wait(ours)
        if (left := orders.recv_bytes(MOST_WORDS_BYTES)) != DONE:
            failure = json.loads(left[len(LEFT) :])
            rest = replace(request, elsewhere=True, sound=False)  # the sound was answered
            Helper(partial(decode_by_path, answers, rest, failure and VideoError(*map(str, failure)))).wait()


def main() -> None:
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # those of a terminal or a batch system reach the parent, too, which ends this process
        signal.signal(number, signal.SIG_IGN)
    sandbox.limit(resource.RLIMIT_AS, MEMORY_BYTES)
    sandbox.limit_files()
    sandbox.leave_network()
    load_all()
    with Connection(int(sys.argv[1])) as connection:
        try:
            serve(connection)
        except EOFError:
            return

"""The child process that decodes, so that whatever a file does to its decoder ends here.

There are three processes. This one loads the libraries, takes requests and opens files, but reads nothing of them. It
forks one that gets each file as a descriptor and can open none itself (``sandbox.py``); that one decodes. If its
decoders fail, those that open a file by its path are tried: for each such video in a process of its own, which sees no
other file. Only a process that decodes on a GPU is not confined (``nvdec_backend.py``). All this is Linux: elsewhere a
single process does everything (``serve_here``), and ``sandbox.lacks`` says so.

Requests and answers are JSON over a socket, and frames lie in memory that is shared with the parent
(``frame_memory.py``). Nothing that is sent from here can make the parent run code.
"""

import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import av
from PIL import Image

from ...storage.common.system import IS_LINUX, limit
from . import ffmpeg_backend, handed, nvdec_backend, sandbox, torchcodec_backend
from .answer import Answers, LeftToOthers, answer
from .errors import VideoError
from .frame_memory import FrameMemory
from .link import child_link
from .messages import Failed, Request

MEMORY_BYTES = 4 << 30
MAX_FAILURE_BYTES = 1 << 16
DONE, LEFT = b"done", b"left"
"""The decoding process's last message after a request: it is answered, or other decoders should try."""


def respond(request: Request, answers: Answers, failure: VideoError | None = None) -> None:
    """Answer a request, failures included.

    Args:
        request: What to decode.
        answers: The way to the parent.
        failure: That of decoders that tried before, which knew more.

    Raises:
        LeftToOthers: Other decoders should try.
    """
    try:
        answer(request, answers)
    except VideoError as error:
        failure = handed.read_failure() or failure or error
        answers.send(Failed(failure.kind, str(failure)))
    except MemoryError:
        answers.send(Failed("out_of_memory", f"it needs more than {MEMORY_BYTES >> 30} GB to be decoded"))


def decode_handed(answers: Answers, orders: socket.socket, gpu: str) -> None:
    """Answer one request after another, each with the file's descriptor.

    Args:
        answers: The way to the parent.
        orders: Where requests come from.
        gpu: The GPU whose video engine decodes, such as "cuda:0", without a sandbox; empty: none.
    """
    if not gpu or not nvdec_backend.use(gpu, MEMORY_BYTES):
        sandbox.confine()
    with Connection(orders.fileno()) as line:
        while True:
            request = Request.from_json(line.recv_bytes())
            _, descriptors, _, _ = socket.recv_fds(orders, 1, 1)
            handed.take(Path(request.path), descriptors[0])
            try:
                respond(request, answers)
            except LeftToOthers as error:
                failure = error.failure and [error.failure.kind, str(error.failure)]
                line.send_bytes(LEFT + json.dumps(failure).encode())
            else:
                line.send_bytes(DONE)


def can_use_torchcodec(request: Request) -> bool:
    """Return whether torchcodec is there and exact for a request; if so, it is loaded."""
    return (
        "torchcodec" not in request.without
        and torchcodec_backend.has_torchcodec()
        and torchcodec_backend.can_scale(wanted.resize for wanted in request.wanted)
        and torchcodec_backend.load(MEMORY_BYTES)
    )


def decode_by_path(answers: Answers, request: Request, failure: VideoError | None) -> None:
    """Answer one request with the decoders that open the file by its path."""
    if not can_use_torchcodec(request):
        request = replace(request, without=[*request.without, "torchcodec"])
    try:
        sandbox.confine(Path(request.path), ffmpeg_backend.ffmpeg_program())
    except OSError as error:
        answers.send(Failed("missing", f"it existed a moment ago ({error.strerror})"))
    else:
        respond(request, answers, failure)


class Helper:
    """A process forked from this one to do some work. If it ends badly, this process ends in the same way."""

    def __init__(self, work: Callable[[], None]) -> None:
        parent = os.getpid()
        self._ended, theirs = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            code = 1
            try:
                sandbox.end_with_parent(parent)
                work()
                code = 0
            except (EOFError, BrokenPipeError):
                pass  # the parent has ended, or wants no more
            except BaseException:  # nothing may return into the parent's code
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(theirs)

    def wait(self, orders: socket.socket | None = None) -> None:
        """Wait until the process has ended, or has sent something over ``orders``."""
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
    """End this process as another one ended, by exit code or signal: the parent reads from it what happened."""
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code or 1)


def load_all() -> None:
    """Import what the libraries would import on first use: by then they can open no file."""
    for module in pkgutil.walk_packages(av.__path__, "av."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    importlib.import_module("numpy.fft")
    importlib.import_module("numpy.ma")
    Image.init()


def serve(connection: Connection, memory: FrameMemory, gpu: str) -> None:
    """Open the file of each request here, and have it read by another process.

    Args:
        connection: Where requests come from and answers go.
        memory: Where frames are handed to the parent.
        gpu: As for ``decode_handed``.

    Standard input is a pipe to which the parent never writes; it is closed when the parent ends.
    """
    answers, helper = Answers(connection, memory), None
    ours, theirs = socket.socketpair()
    orders = Connection(os.dup(ours.fileno()))
    while True:
        request = Request.from_json(connection.recv_bytes())
        try:
            descriptor = handed.open_regular(Path(request.path), request.folders)
        except OSError as error:
            failure = handed.opening_failure(error)
            answers.send(Failed(failure.kind, str(failure)))
            continue
        helper = helper or Helper(partial(decode_handed, answers, theirs, gpu))
        orders.send_bytes(request.to_json())
        socket.send_fds(ours, [b"."], [descriptor])
        os.close(descriptor)
        helper.wait(ours)
        if (reply := orders.recv_bytes(MAX_FAILURE_BYTES)) != DONE:
            failure = json.loads(reply[len(LEFT) :])
            rest = replace(request, elsewhere=True, sound=False)  # the sound was answered
            Helper(partial(decode_by_path, answers, rest, failure and VideoError(*map(str, failure)))).wait()


def serve_here(connection: Connection, memory: FrameMemory, gpu: str) -> None:
    """Open the file of each request and read it in this process, where a process cannot be confined, or not forked.

    Args:
        connection: Where requests come from and answers go.
        memory: Where frames are handed to the parent.
        gpu: As for ``decode_handed``.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if gpu:
        nvdec_backend.use(gpu, MEMORY_BYTES)
    answers = Answers(connection, memory)
    while True:
        request = Request.from_json(connection.recv_bytes())
        path = Path(request.path)
        try:
            handed.take(path, handed.open_regular(path, request.folders))
        except OSError as error:
            failure = handed.opening_failure(error)
            answers.send(Failed(failure.kind, str(failure)))
            continue
        try:
            respond(request, answers)
        except LeftToOthers as error:
            without = request.without if can_use_torchcodec(request) else [*request.without, "torchcodec"]
            rest = replace(request, elsewhere=True, sound=False, without=without)  # the sound was answered
            respond(rest, answers, error.failure)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    """Serve requests; see ``link.start`` for the arguments."""
    # Signals of a terminal or batch system reach the parent, too; the parent ends this process.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    limit("RLIMIT_AS", MEMORY_BYTES)
    sandbox.limit_files()
    sandbox.leave_network()
    load_all()
    connection, memory, gpu = child_link()
    with connection:
        try:
            (serve if IS_LINUX else serve_here)(connection, memory, gpu)
        except (EOFError, ConnectionError):
            return

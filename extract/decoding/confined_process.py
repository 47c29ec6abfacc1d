"""A forked process that decodes, confined to one file, and its messages to the process that forked it.

This module has both ends of the connection. ``ConfinedProcess`` is the forking end, which counts processor time.
``decode_by_descriptor`` and ``decode_by_path`` run at the other end, which may be under the control of a hostile file.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from . import ffmpeg_backend, input_file, nvdec_backend, request_handler, sandbox, shots, torchcodec_backend
from .errors import VideoError
from .messages import Failed, Request
from .process_link import answer_descriptors
from .request_handler import OtherDecodersNeeded, Responder, processor_seconds, respond

MAX_FAILURE_BYTES = MAX_ORDER_BYTES = 1 << 16
DONE, TRY_OTHERS = b"done", b"others"
"""The decoding process's last message after a request: the request is answered, or other decoders should try."""
DURATION, PROGRAM = b"duration ", b"program "
"""Prefixes of its other messages: the video's length in seconds, and a request to start the ffmpeg program
(``ConfinedProcess.start_program``)."""
MAX_STREAMS, MAX_LATER, MAX_PROGRAMS = 1 << 16, 1 << 40, 4
"""Limits for requests to start the program: the stream's number, the added seconds, and the number of programs. A video
is read at most three times."""
POLL_SECONDS = 1.0


# The end that forked


class ConfinedProcess:
    """A forked process that decodes, with a limit on the processor time of each video.

    If the forked process crashes, this one ends in the same way. Its messages are untrusted, since a file may control
    it.
    """

    def __init__(self, work: Callable[[socket.socket], None]) -> None:
        parent = os.getpid()
        # Messages arrive whole or not at all, so a partial message cannot make this process wait.
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._program: ffmpeg_backend.FfmpegProcess | None = None
        self._num_programs = 0
        self._process = os.fork()
        if self._process == 0:
            code = 1
            try:
                sandbox.end_with_parent(parent)
                sandbox.close_all_but({1, 2, theirs.fileno(), *answer_descriptors()})
                work(theirs)
                code = 0
            except (EOFError, BrokenPipeError):
                pass  # the parent has ended, or wants no more
            except BaseException:  # nothing may return into the parent's code
                traceback.print_exc()
            finally:
                with contextlib.suppress(OSError):  # the pipe is full
                    sys.stderr.flush()
                os._exit(code)
        theirs.close()

    def start_counting(self, request: Request) -> None:
        """Count the processor time of ``request`` from now on."""
        self._num_parts = max(request.sound + request.needs_frames, 1)
        self._used_before, self._duration_seconds = self._used_seconds(), 0.0

    def send(self, request: Request, descriptor: int) -> None:
        """Begin a request and send it with the file's descriptor."""
        self.start_counting(request)
        self._hand(request.to_json(), [descriptor])

    def _hand(self, content: bytes, descriptors: list[int]) -> None:
        """Send bytes and descriptors without waiting; kill the process if it does not read them."""
        try:
            socket.send_fds(self._line, [content], descriptors, socket.MSG_DONTWAIT)
        except BlockingIOError:
            os.kill(self._process, signal.SIGKILL)
        except ConnectionError:  # it has ended; ``receive`` reports how
            pass

    def receive(self) -> bytes:
        """Return the next message; empty if the process has ended without an error."""
        while True:
            self.wait_for(self._line)
            message = self._line.recv(MAX_FAILURE_BYTES)
            if not message.startswith(DURATION):
                break
            with contextlib.suppress(ValueError):
                self._duration_seconds = max(self._duration_seconds, float(message[len(DURATION) :]))
        if not message:
            self._end()
        return message

    def wait_for(self, source: socket.socket | Connection) -> None:
        """Wait until ``source`` can be read; end both processes if the video takes too much processor time."""
        ready = []
        while not ready:
            ready, _, _ = select.select([source, sys.stdin], [], [], POLL_SECONDS)
            if sys.stdin in ready:
                os.kill(self._process, signal.SIGKILL)
                os._exit(1)
            if self._used_seconds() - self._used_before > self._num_parts * processor_seconds(self._duration_seconds):
                os.kill(self._process, signal.SIGKILL)
                end_as(-signal.SIGXCPU)

    def start_program(self, path: Path, order: bytes) -> None:
        """Start ffmpeg on ``path`` for the confined process, and send it the output and the log, or the error.

        ``order`` is the request of that process; see ``PROGRAM``.
        """
        try:
            stream, later = map(int, order[len(PROGRAM) :].split())
            self._num_programs += 1
            if not (0 <= stream < MAX_STREAMS and -1 <= later < MAX_LATER and self._num_programs <= MAX_PROGRAMS):
                raise ValueError("not asked for like this")
            self._end_program()
            allowed_seconds = processor_seconds(self._duration_seconds)
            later_seconds = None if later < 0 else later
            self._program = ffmpeg_backend.start(path, stream, later_seconds, processor_seconds=allowed_seconds)
        except (ValueError, VideoError) as error:
            reply, files = str(error).encode(), []
        else:
            reply, files = b".", [self._program.frames, self._program.log]
        self._hand(reply, [file.fileno() for file in files])
        for file in files:
            file.close()

    def _end_program(self) -> None:
        if self._program:
            self._program.close()
            self._program = None

    def _end(self) -> None:
        self._end_program()
        self._line.close()
        # the process may only have closed its socket; if it has ended, this has no effect
        os.kill(self._process, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])
        if code:
            end_as(code)

    def _used_seconds(self) -> float:
        """Return the processor time of the process, from the clock that Linux keeps for each process id."""
        return time.clock_gettime((~self._process << 3) | 2)


def end_as(code: int) -> NoReturn:
    """End this process with another process's exit code or signal, so that the parent can report the reason."""
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code or 1)


# The end that decodes


def decode_by_descriptor(responder: Responder, gpu: str, line: socket.socket) -> None:
    """Answer requests one after another; each comes with a descriptor of its file.

    Args:
        responder: Sends answers to the parent.
        gpu: The GPU whose video engine decodes without a sandbox, such as "cuda:0"; empty for none.
        line: Socket that receives requests.
    """
    if not gpu or not nvdec_backend.use(gpu, request_handler.MEMORY_BYTES):
        sandbox.confine()
    responder.on_duration = partial(report_duration, line)
    while True:
        order, descriptors, _, _ = socket.recv_fds(line, MAX_ORDER_BYTES, 1)
        if not order:
            raise EOFError
        request = Request.from_json(order)
        input_file.take(Path(request.path), descriptors[0])
        try:
            respond(request, responder)
        except OtherDecodersNeeded as error:
            failure = error.failure and [error.failure.kind, str(error.failure)]
            os.write(line.fileno(), TRY_OTHERS + json.dumps(failure).encode())
        else:
            os.write(line.fileno(), DONE)


def report_duration(line: socket.socket, seconds: float) -> None:
    """Tell the process that counts processor time how long the video is."""
    os.write(line.fileno(), DURATION + str(float(seconds)).encode())


def can_use_torchcodec(request: Request) -> bool:
    """Return whether torchcodec is installed and exact for a request; if so, load it."""
    kernels = {spec.resize for spec in request.specs} | ({shots.SIZE.resize} if request.shots else set())
    return (
        "torchcodec" not in request.excluded_decoders
        and torchcodec_backend.has_torchcodec()
        and torchcodec_backend.can_scale(kernels)
        and torchcodec_backend.load(request_handler.MEMORY_BYTES)
    )


def decode_by_path(responder: Responder, request: Request, failure: VideoError | None, line: socket.socket) -> None:
    """Answer one request with the decoders that open the file by its path."""
    if not can_use_torchcodec(request):
        request = replace(request, excluded_decoders=[*request.excluded_decoders, "torchcodec"])
    try:
        sandbox.confine(Path(request.path))
    except OSError as error:
        responder.send(Failed("missing", f"it existed a moment ago ({error.strerror})"))
    else:
        responder.on_duration = partial(report_duration, line)
        ffmpeg_backend.use_starter(partial(request_program, line))
        respond(request, responder, failure)


def request_program(
    line: socket.socket, _path: Path, stream: int, later_seconds: int | None
) -> ffmpeg_backend.FfmpegProcess:
    """Ask the process at the other end of ``line`` to start the ffmpeg program; return the program.

    Raises:
        VideoError: It was not started.
    """
    os.write(line.fileno(), PROGRAM + f"{stream} {-1 if later_seconds is None else later_seconds}".encode())
    why, descriptors, _, _ = socket.recv_fds(line, MAX_FAILURE_BYTES, 2)
    if len(descriptors) != 2:
        raise VideoError("unreadable", why.decode(errors="replace"))
    return ffmpeg_backend.FfmpegProcess(os.fdopen(descriptors[0], "rb"), os.fdopen(descriptors[1], "rb"))

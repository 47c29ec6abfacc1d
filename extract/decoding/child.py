"""The child process that decodes. It limits what a file can make its decoder do.

Decoding takes up to three processes. This one loads the libraries, receives requests, opens files without reading them,
and counts processor time. It forks a second one, which decodes: it receives each file as a descriptor and cannot open
files itself (``sandbox.py``). If its decoders fail, the decoders that open a file by its path are tried, for each video
in a new process that can read only this file. The ffmpeg program is started by this process and can read only this file
as well. Only a process that decodes on a GPU is not confined (``nvdec_backend.py``). This works on Linux only.
Elsewhere a single process does everything (``serve_here``), and ``sandbox.missing_protections`` reports it.

Requests and answers are JSON over a socket, and frames are passed in shared memory (``process_link.py``). No message
from here can make the parent run code.
"""

import importlib
import json
import os
import pkgutil
import signal
import sys
import threading
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import av
from PIL import Image

from ...storage.common.system import IS_LINUX, limit
from . import ffmpeg_backend, input_file, nvdec_backend, request_handler, sandbox
from .confined_process import (
    TRY_OTHERS,
    ConfinedProcess,
    can_use_torchcodec,
    decode_by_descriptor,
    decode_by_path,
    end_as,
)
from .errors import VideoError
from .messages import Failed, Request
from .process_link import FrameMemory, child_link
from .request_handler import OtherDecodersNeeded, Responder, respond


def load_all(shots: bool) -> None:
    """Import modules that libraries would import only at their first use: files cannot be opened then.

    Args:
        shots: Also import shot detection.
    """
    for module in pkgutil.walk_packages(av.__path__, "av."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    importlib.import_module("numpy.fft")
    importlib.import_module("numpy.ma")
    Image.init()
    if shots:
        importlib.import_module(".shot_finder", __package__)


def serve(connection: Connection, memory: FrameMemory, gpu: str) -> None:
    """Open the file of each request and let another process read it.

    Args:
        connection: Receives requests and sends answers.
        memory: Shared memory that passes frames to the parent.
        gpu: As for ``decode_by_descriptor``.

    Standard input is a pipe to which the parent never writes; it is closed when the parent ends.
    """
    responder, decoder = Responder(connection, memory), None
    while True:
        if decoder:
            decoder.wait_for(connection)
        request = Request.from_json(connection.recv_bytes())
        path = Path(request.path)
        try:
            descriptor = input_file.open_regular(path, request.folders)
        except OSError as error:
            failure = input_file.opening_failure(error, path)
            responder.send(Failed(failure.kind, str(failure)))
            continue
        decoder = decoder or ConfinedProcess(partial(decode_by_descriptor, responder, gpu))
        decoder.send(request, descriptor)
        os.close(descriptor)
        reply = decoder.receive()
        if not reply:
            end_as(1)
        if reply.startswith(TRY_OTHERS):
            failure = json.loads(reply[len(TRY_OTHERS) :])
            remaining = replace(request, path_decoders_only=True, sound=False)  # already answered
            if ffmpeg_backend.can_use_ffmpeg():
                ffmpeg_backend.ffmpeg_version()  # cached, since the other process cannot run the program
            path_decoder = ConfinedProcess(
                partial(decode_by_path, responder, remaining, failure and VideoError(*map(str, failure)))
            )
            path_decoder.start_counting(remaining)
            while order := path_decoder.receive():
                path_decoder.start_program(path, order)


def serve_here(connection: Connection, memory: FrameMemory, gpu: str) -> None:
    """Open and read the file of each request in this process, where processes cannot be confined or forked.

    Args:
        connection: Receives requests and sends answers.
        memory: Shared memory that passes frames to the parent.
        gpu: As for ``decode_by_descriptor``.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if gpu:
        nvdec_backend.use(gpu, request_handler.MEMORY_BYTES)
    responder = Responder(connection, memory)
    while True:
        request = Request.from_json(connection.recv_bytes())
        path = Path(request.path)
        try:
            input_file.take(path, input_file.open_regular(path, request.folders))
        except OSError as error:
            failure = input_file.opening_failure(error, path)
            responder.send(Failed(failure.kind, str(failure)))
            continue
        try:
            respond(request, responder)
        except OtherDecodersNeeded as error:
            excluded = request.excluded_decoders
            if not can_use_torchcodec(request):
                excluded = [*excluded, "torchcodec"]
            # The request for sound is already answered.
            remaining = replace(request, path_decoders_only=True, sound=False, excluded_decoders=excluded)
            respond(remaining, responder, error.failure)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main(*, shots: bool = False) -> None:
    """Serve requests; ``process_link.start`` passes the command-line arguments.

    Args:
        shots: Whether requests may ask for shots.
    """
    # Signals of a terminal or batch system also reach the parent; the parent ends this process.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)
    limit("RLIMIT_AS", request_handler.MEMORY_BYTES)
    sandbox.limit_files()
    sandbox.leave_network()
    load_all(shots)
    connection, memory, gpu = child_link()
    with connection:
        try:
            (serve if IS_LINUX else serve_here)(connection, memory, gpu)
        except (EOFError, ConnectionError):
            return

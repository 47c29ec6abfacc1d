"""The child process that recognises speech, separate because malicious sound or weights may attack the libraries.

It loads the libraries and opens the model's files. Then it forks a process that cannot open files itself
(``decoding.sandbox``), which reads the weights and receives the sound. A process that computes on a GPU is not
confined, since NVIDIA's driver opens devices. This works on Linux only; elsewhere a single process does everything.
"""

import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...storage.common.errors import reason_of
from ...storage.common.files import open_regular
from ...storage.common.system import IS_LINUX, limit
from ..decoding import sandbox
from ..decoding.confined_process import end_as
from ..decoding.log_mel import RATE
from ..decoding.process_link import child_link
from .messages import Loaded, RecognisedPart, RecognisedWindow, encode_answer
from .windows import Span, SpeechWindow, plan_windows, settled_spans

WINDOW_SECONDS = 30
"""Length of Whisper's input."""
BATCH_WINDOWS = {"cpu": 4, "cuda": 16}
"""Number of windows in a batch. Between batches, a message tells the parent that work continues."""
BEAM_SIZE = 5
"""Whisper's own choice."""
MIN_SILENCE_MS = 500
"""A shorter silence does not end a span of speech."""
LANGUAGE_WINDOWS = 4
"""Number of windows of each part that are used to detect the language."""
COMPUTE_TYPES = {"cpu": "int8", "cuda": "float16"}
MEMORY_BYTES, MEMORY_PER_WEIGHT = 6 << 30, 4
"""Address space on a CPU: a fixed size, and a number of bytes for each byte of the weights."""


def load_libraries() -> None:
    """Import the modules that libraries would import at their first use, when they can no longer open files."""
    from faster_whisper import vad

    for module in ("numpy.fft", "numpy.ma"):
        importlib.import_module(module)
    vad.get_vad_model()


class SpeechRecogniser:
    """A Whisper model and a voice detector."""

    def __init__(self, files: Mapping[str, BinaryIO], device: str, num_threads: int) -> None:
        """Load the model.

        Args:
            files: {name that CTranslate2 expects: open file}
            device: "cpu" or "cuda:N".
            num_threads: Threads on a CPU.

        Raises:
            Exception: A library's error, if the files are not a Whisper model.
        """
        from faster_whisper import BatchedInferencePipeline, WhisperModel

        contents: dict[str, Any] = {
            name: file.read() if name.endswith("r.json") or name.endswith("_config.json") else file
            for name, file in files.items()
        }
        kind, _, index = device.partition(":")
        self.model = WhisperModel(
            "model",
            device=kind,
            device_index=int(index or 0),
            compute_type=COMPUTE_TYPES[kind],
            cpu_threads=num_threads,
            files=contents,
        )
        self._pipeline: BatchedInferencePipeline = BatchedInferencePipeline(self.model)
        self._batch_size = BATCH_WINDOWS[kind]

    @property
    def is_multilingual(self) -> bool:
        """True if the model recognises languages other than English."""
        return bool(self.model.model.is_multilingual)

    def recognise(self, samples: np.ndarray, *, is_last: bool, heartbeat: Any) -> RecognisedPart:
        """Recognise the speech in a part of the sound.

        Args:
            samples: int16 [N], mono, ``RATE`` a second.
            is_last: Whether no sound follows.
            heartbeat: Called after each window.
        """
        from faster_whisper.vad import VadOptions, get_speech_timestamps

        audio = samples.astype(np.float32) / 32768
        options = VadOptions(min_silence_duration_ms=MIN_SILENCE_MS, max_speech_duration_s=WINDOW_SECONDS)
        found = [Span(int(row["start"]), int(row["end"])) for row in get_speech_timestamps(audio, options)]
        spans = [span for span in found if span.end > span.start]
        spans, num_done = settled_spans(spans, len(audio), RATE, is_last=is_last)
        windows = plan_windows(spans, WINDOW_SECONDS * RATE)
        if not windows:
            return RecognisedPart(num_done, "", 0.0, [])
        speech = np.concatenate([audio[span.start : span.end] for window in windows for span in window.spans])
        language, probability = "en", 1.0
        if self.is_multilingual:
            language, probability, _ = self.model.detect_language(speech, language_detection_segments=LANGUAGE_WINDOWS)
        starts = np.cumsum([0, *(window.num_samples for window in windows)])
        clips = [
            {"start": start / RATE, "end": (start + window.num_samples) / RATE}
            for start, window in zip(starts.tolist(), windows, strict=False)
        ]
        segments, _ = self._pipeline.transcribe(
            speech,
            language=language,
            beam_size=BEAM_SIZE,
            temperature=0.0,
            word_timestamps=True,
            clip_timestamps=clips,
            batch_size=self._batch_size,
        )
        recognised = []
        for segment in segments:
            heartbeat()
            number = int(np.searchsorted(starts, segment.seek * RATE / 100 + RATE / 100, side="right")) - 1
            number = min(max(number, 0), len(windows) - 1)
            recognised.append(_in_part(segment, windows[number], int(starts[number])))
        return RecognisedPart(num_done, language, min(float(probability), 1.0), recognised)


def _in_part(segment: Any, window: SpeechWindow, start: int) -> RecognisedWindow:
    """Return the result of a window, with word times mapped from the joined speech to the part."""
    words = []
    for word in segment.words or ():
        begin, end = window.original(word.start * RATE - start, word.end * RATE - start)
        words.append((word.word, begin / RATE, end / RATE, min(max(float(word.probability), 0.0), 1.0)))
    seconds = window.num_samples / RATE
    return RecognisedWindow(seconds, float(segment.avg_logprob), float(segment.compression_ratio), words)


def serve(connection: Connection, files: Mapping[str, BinaryIO], device: str, num_threads: int) -> None:
    """Load the model and answer requests one after another.

    A request consists of two messages: whether this is the last part of the sound, and the samples.
    """

    def heartbeat() -> None:
        connection.send_bytes(encode_answer())

    try:
        recogniser = SpeechRecogniser(files, device, num_threads)
    except MemoryError:
        raise
    except Exception as error:  # the libraries' errors are of all kinds
        connection.send_bytes(encode_answer(problem=reason_of(error)))
        return
    connection.send_bytes(encode_answer(Loaded(recogniser.is_multilingual)))
    while True:
        is_last = bool(json.loads(connection.recv_bytes()))
        samples = np.frombuffer(connection.recv_bytes(), np.int16)
        connection.send_bytes(encode_answer(recogniser.recognise(samples, is_last=is_last, heartbeat=heartbeat)))


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def _serve_confined(connection: Connection, files: Mapping[str, BinaryIO], device: str, num_threads: int) -> None:
    """Serve in a forked process, which is confined if it computes on a CPU; then end with its exit code or signal."""
    parent = os.getpid()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            sandbox.end_with_parent(parent)
            kept = {1, 2, connection.fileno(), *(file.fileno() for file in files.values())}
            if device == "cpu":
                sandbox.close_all_but(kept)
                sandbox.confine()
            serve(connection, files, device, num_threads)
            code = 0
        except (EOFError, BrokenPipeError, ConnectionError):
            code = 0  # the parent has ended, or wants no more
        except BaseException:  # nothing may return into the parent's code
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    connection.close()
    end = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if end:
        end_as(end)


def main() -> None:
    """Serve requests; the first message names the files to open and the device."""
    for stop in (signal.SIGINT, signal.SIGTERM):  # the parent ends this process
        signal.signal(stop, signal.SIG_IGN)
    sandbox.limit_files()
    sandbox.leave_network()
    load_libraries()
    connection, _, device = child_link()
    try:
        start = json.loads(connection.recv_bytes())
        files = {name: open(open_regular(Path(path)), "rb") for name, path in start["files"].items()}  # noqa: SIM115
        if device == "cpu":
            size = sum(os.fstat(file.fileno()).st_size for file in files.values())
            limit("RLIMIT_AS", MEMORY_BYTES + MEMORY_PER_WEIGHT * size)
        if IS_LINUX:
            _serve_confined(connection, files, device, start["num_threads"])
        else:
            threading.Thread(target=_end_with_parent, daemon=True).start()
            serve(connection, files, device, start["num_threads"])
    except OSError as error:
        connection.send_bytes(encode_answer(problem=reason_of(error)))
    except (EOFError, ConnectionError):
        return

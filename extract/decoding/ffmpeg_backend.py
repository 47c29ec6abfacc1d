"""Frames by the ffmpeg program, if it is installed. It may be another version than PyAV's, with other codecs."""

import os
import re
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

import av
import numpy as np
from av.error import FFmpegError

from ...storage.common.programs import find_program
from ...storage.common.system import IS_LINUX, limit
from . import sandbox
from .container import OWN_CLOCK_CONTAINERS, SAFE_OPENING, first_frame, open_video, time_base_of, video_stream
from .errors import VideoError, short_reason
from .frames import DecodePass, Images, frames_in_order

if TYPE_CHECKING:
    import ffmpeg
else:
    try:
        import ffmpeg
    except ImportError:  # vlalign is not installed, only on the import path
        ffmpeg = None

DAMAGE_WORDS = ("[error]", "[fatal]", "corrupt decoded frame")
MAX_LOG_BYTES = 1 << 20
PT_INTERP, LIBRARY = 3, re.compile(r"^\t(?:.* => )?(/.+) \(0x", re.MULTILINE)
LOADERS_CACHE = "/etc/ld.so.cache"


def can_use_ffmpeg() -> bool:
    """Return whether the program can be used: it and the package that builds its command line are installed."""
    return ffmpeg is not None and ffmpeg_program() is not None


def ffmpeg_program() -> str | None:
    """Return the path of the ffmpeg program; None if there is none."""
    return find_program("ffmpeg")


@dataclass
class FfmpegProcess:
    """The program, running on a video."""

    frames: IO[bytes]
    """Its output: raw video in NUT."""
    log: BinaryIO
    """A file in memory that receives the program's printed output."""
    process: subprocess.Popen[bytes] | None = None
    """None if another process has started it, and ends it."""

    def close(self) -> None:
        """End the program if this process has started it."""
        self.frames.close()
        self.log.close()
        if self.process:
            self.process.kill()
            self.process.wait()


Start = Callable[[Path, int, int | None], FfmpegProcess]
"""Starts the program: the video, the stream's number, and the seconds that are added to the file's own times (None: the
program chooses the times)."""


def start(
    path: Path, stream: int, later_seconds: int | None, *, processor_seconds: float | None = None
) -> FfmpegProcess:
    """Start the program, confined: it reads ``path``, can start no other program, and ends with this process.

    Raises:
        VideoError: The program cannot be started.
    """
    times = {} if later_seconds is None else {"copyts": None, "itsoffset": later_seconds}
    command = (
        ffmpeg.input(f"file:{path}", **SAFE_OPENING, **times)[str(stream)]
        .output("pipe:1", format="nut", vcodec="rawvideo", fps_mode="passthrough", enc_time_base=-1)
        .global_args("-v", "level+warning", "-nostdin", "-threads", "1")
        .compile()
    )
    log = _memory_file()
    try:
        program = Path(ffmpeg_program() or "").resolve(strict=True)
        files = program_files(program) if IS_LINUX else ([], [])
        # ``restore_signals=False`` makes writes beyond the file size limit fail instead of ending the program.
        process = subprocess.Popen(
            command,
            executable=program,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            preexec_fn=partial(_confine, os.getpid(), path, files, processor_seconds) if IS_LINUX else None,
            restore_signals=not IS_LINUX,
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.close()
        raise VideoError("unreadable", f"the ffmpeg program cannot be started ({short_reason(error)})") from None
    assert process.stdout is not None  # a pipe
    return FfmpegProcess(process.stdout, log, process)


def _confine(parent: int, path: Path, files: tuple[list[str], list[str]], processor_seconds: float | None) -> None:
    if processor_seconds is not None:
        limit("RLIMIT_CPU", int(processor_seconds) + 1)
    sandbox.confine_program(parent, path, *files)


_start: Start = start


def use_starter(other: Start) -> None:
    """Replace the function that starts the program, in a process that may not start programs."""
    global _start
    _start = other


@cache
def program_files(program: Path) -> tuple[list[str], list[str]]:
    """Return (files that the kernel runs to start a program, files that its loader reads).

    Raises:
        OSError: It is not a program for this machine, such as a script.
    """
    with program.open("rb") as file:
        header = file.read(64)
        if header[:5] != b"\x7fELF\x02":
            raise OSError(f"{program} is not a 64-bit ELF file")
        (headers_at,), (size, number) = struct.unpack_from("<Q", header, 32), struct.unpack_from("<HH", header, 54)
        file.seek(headers_at)
        parts = list(struct.iter_unpack("<IIQQQQQQ", file.read(number * size)))
        loaders = [(at, length) for kind, _, at, _, _, length, _, _ in parts if kind == PT_INTERP]
        if not loaders:
            return [str(program)], []
        file.seek(loaders[0][0])
        loader = os.fsdecode(file.read(loaders[0][1]).rstrip(b"\0"))
    listed = subprocess.run([loader, "--list", program], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    libraries = LIBRARY.findall(os.fsdecode(listed.stdout))
    return [str(program), loader], [*libraries, *(cache for cache in [LOADERS_CACHE] if os.path.exists(cache))]


def _memory_file() -> BinaryIO:
    return os.fdopen(os.memfd_create("log"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()


@cache
def ffmpeg_version() -> str:
    """Return the program's version, such as "5.1.6"."""
    command = [str(ffmpeg_program()), "-version"]
    words = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).stdout.split()
    return words[2].decode(errors="replace") if len(words) > 2 else "unknown"


def decode_with_ffmpeg(decoding: DecodePass, wanted: np.ndarray) -> Iterator[tuple[int, Images]]:
    """Yield (index, images) for each wanted frame, like ``decode_with_pyav``.

    The program sends its decoded frames with their times, in a NUT stream of raw video.

    Raises:
        VideoError: The program returns nothing that can be read.
    """
    info = decoding.info
    with open_video(info.path) as original:
        stream = video_stream(original)
        index, shown = stream.index, first_frame(info.path) or stream.codec_context
        colours = int(shown.colorspace), int(shown.color_range)  # NUT does not carry them
    # Keep the file's own times: versions of the program define the start differently, for example with a sound's
    # pre-skip. Times before 0 do not fit into NUT. The added seconds are a multiple of the time base's numerator,
    # and so a whole number of ticks.
    own_times = not info.containers & OWN_CLOCK_CONTAINERS
    early_seconds = max(-int(info.pts[0]) - info.offset, 0) * info.time_base if own_times else 0
    later_seconds = -(-early_seconds // info.time_base.numerator) * info.time_base.numerator
    program = _start(info.path, index, later_seconds if own_times else None)
    try:
        with av.open(program.frames, "r", format="nut") as container:
            time_base = time_base_of(video_stream(container))
            shifted = info.offset * info.time_base + later_seconds if own_times else 0
            offset = round(shifted / time_base)
            yield from frames_in_order(decoding, wanted, container, time_base, offset, skip=False, colours=colours)
        program.log.seek(0)
        lines = program.log.read(MAX_LOG_BYTES).decode(errors="replace").splitlines()
        decoding.num_damaged += sum(any(words in line for words in DAMAGE_WORDS) for line in lines)
    except (FFmpegError, ValueError) as error:
        raise VideoError("unreadable", f"the ffmpeg program returns nothing for it ({short_reason(error)})") from None
    finally:
        program.close()

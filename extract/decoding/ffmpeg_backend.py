"""Pictures by the ffmpeg program, if it is installed. It may be another version than PyAV's, with other codecs."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

import av
import numpy as np
from av.error import FFmpegError

from ...storage.common.programs import find_program
from ...storage.common.system import IS_LINUX
from . import sandbox
from .container import OWN_CLOCK_CONTAINERS, SAFE_OPENING, first_frame, open_video, time_base_of, video_stream
from .errors import VideoError, short_reason
from .frames import Decoding, Pictures, frames_in_order

if TYPE_CHECKING:
    import ffmpeg
else:
    try:
        import ffmpeg
    except ImportError:  # vlalign is not installed, only on the import path
        ffmpeg = None

COMPLAINTS = ("[error]", "[fatal]", "corrupt decoded frame")
MAX_COMPLAINTS_BYTES = 1 << 20


def can_use_ffmpeg() -> bool:
    """Return whether the program can be used: it and the package that builds its command line are there."""
    return ffmpeg is not None and ffmpeg_program() is not None


def ffmpeg_program() -> str | None:
    """Return the path of the ffmpeg program; None if there is none."""
    return find_program("ffmpeg")


def _start(command: list[str], *, stderr: BinaryIO | int) -> subprocess.Popen[bytes]:
    """Start the program so that it can start no other program and ends with this process.

    ``restore_signals=False`` makes writes beyond the file size limit fail instead of ending the program.
    """
    confine = partial(sandbox.confine_program, os.getpid()) if IS_LINUX else None
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, preexec_fn=confine, restore_signals=not IS_LINUX
    )


def _memory_file() -> BinaryIO:
    return os.fdopen(os.memfd_create("complaints"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()


def ffmpeg_version() -> str:
    """Return the program's version, such as "5.1.6"."""
    with _start([str(ffmpeg_program()), "-version"], stderr=subprocess.PIPE) as program:
        words = program.communicate()[0].decode(errors="replace").split()
    return words[2] if len(words) > 2 else "unknown"


def ffmpeg_pictures(decoding: Decoding, wanted: np.ndarray) -> Iterator[tuple[int, Pictures]]:
    """Yield (index, pictures) for each wanted frame, like ``pyav_pictures``.

    The program sends its decoded frames with their times, in a NUT stream of raw video.

    Raises:
        VideoError: The program returns nothing that can be read.
    """
    info = decoding.info
    with open_video(info.path) as original:
        stream = video_stream(original)
        index, shown = stream.index, first_frame(info.path) or stream.codec_context
        colours = int(shown.colorspace), int(shown.color_range)  # NUT does not carry them
    # The file's own times: versions of the program differ in what they take for its start, such as a sound's pre-skip.
    # Times before 0 do not fit into NUT. A whole number of the time base's numerator is a whole number of ticks.
    own_times = not info.containers & OWN_CLOCK_CONTAINERS
    early_seconds = max(-int(info.pts[0]) - info.offset, 0) * info.time_base if own_times else 0
    later_seconds = -(-early_seconds // info.time_base.numerator) * info.time_base.numerator
    times = {"copyts": None, "itsoffset": later_seconds} if own_times else {}
    command = (
        ffmpeg.input(f"file:{info.path}", **SAFE_OPENING, **times)[str(index)]
        .output("pipe:1", format="nut", vcodec="rawvideo", fps_mode="passthrough", enc_time_base=-1)
        .global_args("-v", "level+warning", "-nostdin", "-threads", "1")
        .compile(str(ffmpeg_program()))
    )
    complaints = _memory_file()
    program = _start(command, stderr=complaints)
    assert program.stdout is not None  # a pipe
    try:
        with av.open(program.stdout, "r", format="nut") as container:
            time_base = time_base_of(video_stream(container))
            shifted = info.offset * info.time_base + later_seconds if own_times else 0
            offset = round(shifted / time_base)
            yield from frames_in_order(decoding, wanted, container, time_base, offset, skip=False, colours=colours)
        complaints.seek(0)
        lines = complaints.read(MAX_COMPLAINTS_BYTES).decode(errors="replace").splitlines()
        decoding.num_damaged += sum(any(words in line for words in COMPLAINTS) for line in lines)
    except (FFmpegError, ValueError) as error:
        raise VideoError("unreadable", f"the ffmpeg program returns nothing for it ({short_reason(error)})") from None
    finally:
        program.stdout.close()
        program.kill()
        program.wait()
        complaints.close()

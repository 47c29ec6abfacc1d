"""The answers of a decoder process to a request."""

import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from ...storage.common.system import limit
from . import input_file as handed
from .decode import Finished, Part, Picture, cut, decode_video
from .errors import VideoError
from .frame_memory import FrameMemory
from .images import is_image, probe_image
from .messages import (
    Beat,
    ClipFollows,
    Message,
    PictureFollows,
    PicturesProbed,
    Request,
    RowReady,
    SoundFollows,
    SoundProbed,
    Unheard,
    encode,
)
from .probe import LONGEST_VIDEO_SECONDS, VideoInfo, probe_video
from .sound import Heard, declared_seconds, planned_sound, sound_rows
from .webm_clip import webm_clip
from .windows import Row

BY_DESCRIPTOR, BY_PATH = ("NVDEC", "PyAV", "Pillow"), ("decord", "ffmpeg", "torchcodec")
"""Decoders that read a handed descriptor, and those that open the file by its path, which run in another process."""
OF_ALL = (Finished, Heard, Unheard, PicturesProbed, SoundProbed, ClipFollows)
"""Messages that are only true if the whole file could be read."""
CPU_SECONDS = 120
CPU_SECONDS_PER_SECOND = 5
"""Processor time that a video may take: ``CPU_SECONDS``, and this much for each of its seconds, for its sound and for
its pictures."""
BEAT_SECONDS = 1.0


class LeftToOthers(Exception):
    """No decoder of this process gets a picture out of the video; those that open it by its path may.

    ``failure`` says why; None if no decoder of this process was tried.
    """

    def __init__(self, failure: VideoError | None) -> None:
        super().__init__(str(failure))
        self.failure = failure


class Answers:
    """Sends answers to the parent."""

    def __init__(
        self, connection: Connection, memory: FrameMemory, allow: Callable[[float], None] | None = None
    ) -> None:
        self._connection = connection
        self.memory = memory
        """The memory in which frames are handed to the parent."""
        self.allow = allow or limit_cpu
        """Called with the seconds that a video is long, once they are known, since they allow more processor time."""
        self._last = 0.0

    def send(self, message: Message, content: bytes | None = None) -> None:
        """Send a message, and the ``content`` that it announces.

        Raises:
            VideoError: It is one of ``OF_ALL``, but a part of the file could not be read.
        """
        if isinstance(message, OF_ALL) and (failure := handed.read_failure()):
            raise failure
        self._last = time.monotonic()
        self._connection.send_bytes(encode(message))
        if content is not None:
            self._connection.send_bytes(content)

    def beat(self) -> None:
        """Tell the parent that the work goes on, at most once a second."""
        if time.monotonic() - self._last > BEAT_SECONDS:
            self.send(Beat())


def processor_seconds(length_seconds: float) -> float:
    """Return the processor time that the sound or the pictures of a video of some length may take."""
    return CPU_SECONDS + CPU_SECONDS_PER_SECOND * min(length_seconds, LONGEST_VIDEO_SECONDS)


def limit_cpu(length_seconds: float) -> None:
    """End this process (SIGXCPU) once it has used more processor time than a video of this length may."""
    limit("RLIMIT_CPU", int(time.process_time() + processor_seconds(length_seconds)) + 1)


def answer(request: Request, answers: Answers) -> None:
    """Answer a request, sound first.

    If the sound kills a decoder, that decoder has not begun with the pictures and is not blamed for them.

    Raises:
        VideoError: The video failed.
        LeftToOthers: Other decoders should try.
    """
    if request.clip:
        answers.allow(0)
        content = webm_clip(Path(request.path), *request.clip, answers.beat)
        answers.send(ClipFollows(), content)
        return
    if request.sound:
        try:
            answer_sound(request, answers)
        except VideoError as error:
            if not request.wanted:
                raise
            answers.send(Unheard(error.kind, str(error)))
    if request.wanted:
        answer_pictures(request, answers)


def answer_sound(request: Request, answers: Answers) -> None:
    """Send the rows of sound, or how many there will be.

    Raises:
        VideoError: The sound failed.
    """
    answers.allow(0)
    path = Path(request.path)
    if is_image(path):
        raise VideoError("no_sound", "it is an image")
    if request.only_probe:
        num_rows, duration_seconds = planned_sound(path, answers.beat)
        answers.send(SoundProbed(num_rows, duration_seconds))
        return
    answers.allow(declared_seconds(path))
    for part in sound_rows(path, seconds=request.seconds, beat=answers.beat):
        if isinstance(part, Heard):
            answers.send(part)
        else:
            answers.send(SoundFollows(), part.tobytes())


def answer_pictures(request: Request, answers: Answers) -> None:
    """Send the rows and thumbnails, or what the packets say about the pictures.

    Raises:
        VideoError: The pictures failed.
        LeftToOthers: Other decoders should try.
    """
    answers.allow(0)
    path = Path(request.path)
    info = probe_image(path) if is_image(path) else probe_video(path, answers.beat)
    if request.seconds is not None:
        info = cut(info, request.seconds)
    answers.allow(info.duration_seconds)
    if request.only_probe:
        num_frames = [len(wanted.sample(info)) for wanted in request.wanted]
        answers.send(
            PicturesProbed(info.codec, info.width, info.height, info.duration_seconds, info.missing, num_frames)
        )
        return
    answers.memory.divide(len(request.wanted))
    try:
        for part in _decoded_parts(request, info, answers):
            if isinstance(part, Row):
                answers.send(RowReady(part.wanted, list(part.frames.shape), answers.memory.hand_over(part.frames)))
            elif isinstance(part, Picture):
                answers.send(PictureFollows(part.seconds), part.jpeg)
            else:
                answers.send(part)
    finally:
        answers.memory.wait_until_read()


def _decoded_parts(request: Request, info: VideoInfo, answers: Answers) -> Iterator[Part]:
    """Decode with the decoders of this process. Raise ``LeftToOthers`` if they fail and others may not."""
    without = (*request.without, *(BY_DESCRIPTOR if request.elsewhere else BY_PATH))
    try:
        place = answers.memory.place
        yield from decode_video(info, request.wanted, without=without, beat=answers.beat, place=place)
    except VideoError as error:
        if not request.elsewhere and not is_image(info.path) and not handed.read_failure():
            raise LeftToOthers(error if "PyAV" not in without else None) from None
        raise

"""What a decoding process answers, by the file that it was handed."""

import resource
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from . import sandbox
from .decode import Part, Picture, Row, cut, decode_video
from .images import is_image, probe_image
from .messages import (
    Beat,
    Message,
    PictureFollows,
    PicturesProbed,
    Request,
    RowFollows,
    SoundFollows,
    SoundProbed,
    Unheard,
    encode,
)
from .probe import LONGEST_VIDEO_SECONDS, VideoError, VideoInfo, probe_video
from .sampling import sample_frames
from .sound import Heard, declared_seconds, planned_sound, sound_rows

HERE, ELSEWHERE = ("PyAV", "Pillow"), ("decord", "ffmpeg")
"""Decoders that read what they are handed, and those that open a file by its path, for which there is another process."""
CPU_SECONDS = 120
CPU_SECONDS_OF_A_SECOND = 5
"""The processor time that a video may take: this many seconds, and this many for each of its own."""
BEAT_SECONDS = 1.0


class LeftToOthers(Exception):
    """No decoder in this process gets a picture out of a video. ``failure`` says why; None where none was asked."""

    def __init__(self, failure: VideoError | None) -> None:
        super().__init__(str(failure))
        self.failure = failure


class Answers:
    """Sends answers to the parent."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._last = 0.0

    def send(self, message: Message, content: bytes | memoryview | None = None) -> None:
        """``content``: what the message says that follows."""
        self._last = time.monotonic()
        self._connection.send_bytes(encode(message))
        if content is not None:
            self._connection.send_bytes(content)

    def beat(self) -> None:
        """Says now and then that the work goes on."""
        if time.monotonic() - self._last > BEAT_SECONDS:
            self.send(Beat())


def limit_cpu(seconds: float) -> None:
    """Ends this process (SIGXCPU) once it has used ``seconds`` more of a processor."""
    sandbox.limit(resource.RLIMIT_CPU, int(time.process_time() + seconds) + 1)


def answer(request: Request, answers: Answers) -> None:
    """The sound comes first: a decoder that it ends has said nothing of the pictures yet, and is not to blame for them."""
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
    limit_cpu(CPU_SECONDS)
    path = Path(request.path)
    if is_image(path):
        raise VideoError("no_sound", "it is an image")
    if request.only_probe:
        num_rows, duration_seconds = planned_sound(path, answers.beat)
        answers.send(SoundProbed(num_rows, duration_seconds))
        return
    limit_cpu(CPU_SECONDS + CPU_SECONDS_OF_A_SECOND * min(declared_seconds(path), LONGEST_VIDEO_SECONDS))
    for part in sound_rows(path, seconds=request.seconds, beat=answers.beat):
        if isinstance(part, Heard):
            answers.send(part)
        else:
            answers.send(SoundFollows(len(part)), part.tobytes())


def answer_pictures(request: Request, answers: Answers) -> None:
    limit_cpu(CPU_SECONDS)
    path = Path(request.path)
    info = probe_image(path) if is_image(path) else probe_video(path, answers.beat)
    if request.seconds is not None:
        info = cut(info, request.seconds)
    limit_cpu(CPU_SECONDS + CPU_SECONDS_OF_A_SECOND * info.duration_seconds)
    if request.only_probe:
        samples = [sample_frames(info.pts, info.end, info.time_base, w.fps) for w in request.wanted]
        num_frames = [len(indices) for indices in samples]
        answers.send(
            PicturesProbed(info.codec, info.width, info.height, info.duration_seconds, info.missing, num_frames)
        )
        return
    for part in pictures(request, info, answers):
        if isinstance(part, Row):
            frames = np.ascontiguousarray(part.frames)
            answers.send(RowFollows(part.wanted, list(frames.shape)), memoryview(frames).cast("B"))
        elif isinstance(part, Picture):
            answers.send(PictureFollows(part.seconds), part.jpeg)
        else:
            answers.send(part)


def pictures(request: Request, info: VideoInfo, answers: Answers) -> Iterator[Part]:
    """By the decoders of this process. Raises ``LeftToOthers`` where they fail, and other ones may not."""
    others = HERE if request.elsewhere else ELSEWHERE
    without = (*request.without, *others)
    try:
        yield from decode_video(info, request.wanted, without=without, beat=answers.beat)
    except VideoError as error:
        if not request.elsewhere and not is_image(info.path):
            raise LeftToOthers(error if "PyAV" not in without else None) from None
        raise

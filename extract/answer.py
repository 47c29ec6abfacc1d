"""What a decoding process answers, by the file that it was handed."""

import json
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from . import sandbox
from .decode import Finished, Part, Picture, Row, Started, Wanted, cut, decode_video
from .images import is_image, probe_image
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
    """The parent's ear."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._last = 0.0

    def send(self, what: str, **values: object) -> None:
        self._last = time.monotonic()
        self._connection.send_bytes(json.dumps({"what": what, **values}).encode())

    def send_with(self, content: bytes | memoryview, what: str, **values: object) -> None:
        self.send(what, **values)
        self._connection.send_bytes(content)

    def beat(self) -> None:
        """Says now and then that the work goes on."""
        if time.monotonic() - self._last > BEAT_SECONDS:
            self.send("beat")


def limit_cpu(seconds: float) -> None:
    """Ends this process (SIGXCPU) once it has used ``seconds`` more of a processor."""
    sandbox.limit(resource.RLIMIT_CPU, int(time.process_time() + seconds) + 1)


def answer(request: dict, answers: Answers) -> None:
    """The sound comes first: a decoder that it ends has said nothing of the pictures yet, and is not to blame for them."""
    if request["sound"]:
        try:
            answer_sound(request, answers)
        except VideoError as error:
            if not request["wanted"]:
                raise
            answers.send("unheard", kind=error.kind, words=str(error))
    if request["wanted"]:
        answer_pictures(request, answers)


def answer_sound(request: dict, answers: Answers) -> None:
    limit_cpu(CPU_SECONDS)
    path = Path(request["path"])
    if is_image(path):
        raise VideoError("no_sound", "it is an image")
    if request["only_probe"]:
        num_rows, duration_seconds = planned_sound(path, answers.beat)
        answers.send("heard", num_rows=num_rows, duration_seconds=duration_seconds)
        return
    limit_cpu(CPU_SECONDS + CPU_SECONDS_OF_A_SECOND * min(declared_seconds(path), LONGEST_VIDEO_SECONDS))
    for part in sound_rows(path, seconds=request["seconds"], beat=answers.beat):
        if isinstance(part, Heard):
            answers.send("heard", **asdict(part))
        else:
            answers.send_with(part.tobytes(), "sound", num_rows=len(part))


def answer_pictures(request: dict, answers: Answers) -> None:
    limit_cpu(CPU_SECONDS)
    path = Path(request["path"])
    info = probe_image(path) if is_image(path) else probe_video(path, answers.beat)
    if request["seconds"] is not None:
        info = cut(info, request["seconds"])
    limit_cpu(CPU_SECONDS + CPU_SECONDS_OF_A_SECOND * info.duration_seconds)
    wanted = [Wanted(**w) for w in request["wanted"]]
    if request["only_probe"]:
        samples = [sample_frames(info.pts, info.end, info.time_base, w.fps) for w in wanted]
        answers.send(
            "probed",
            codec=info.codec,
            width=info.width,
            height=info.height,
            duration_seconds=info.duration_seconds,
            missing=info.missing,
            num_frames=[len(indices) for indices in samples],
        )
        return
    for part in pictures(request, info, wanted, answers):
        if isinstance(part, Row):
            frames = np.ascontiguousarray(part.frames)
            answers.send_with(memoryview(frames).cast("B"), "row", wanted=part.wanted, shape=frames.shape)
        elif isinstance(part, Picture):
            answers.send_with(part.jpeg, "picture", seconds=part.seconds)
        elif isinstance(part, Started):
            answers.send("started", decoder=part.decoder)
        elif isinstance(part, Finished):
            answers.send("finished", **asdict(part))


def pictures(request: dict, info: VideoInfo, wanted: list[Wanted], answers: Answers) -> Iterator[Part]:
    """By the decoders of this process. Raises ``LeftToOthers`` where they fail, and other ones may not."""
    others = HERE if request["elsewhere"] else ELSEWHERE
    without = (*request["without"], *others)
    try:
        yield from decode_video(info, wanted, without=without, beat=answers.beat)
    except VideoError as error:
        if not request["elsewhere"] and not is_image(info.path):
            raise LeftToOthers(error if "PyAV" not in without else None) from None
        raise

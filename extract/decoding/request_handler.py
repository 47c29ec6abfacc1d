"""The answers of a decoder process to a request."""

import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from ...storage.common.system import limit
from . import input_file
from .clip_file import ClipWritten, write_clip
from .decode import DecodedThumbnail, DecodeEvent, DecodingFinished, cut, decode_video
from .errors import VideoError
from .images import is_image, probe_image
from .messages import (
    ClipFollows,
    ClipPart,
    Failed,
    FrameFollows,
    Heartbeat,
    Message,
    PixelsFollow,
    Request,
    SamplesFollow,
    ShotsFollow,
    SoundFailed,
    SoundFollows,
    SoundProbed,
    ThumbnailFollows,
    VideoProbed,
    WindowReady,
    encode,
)
from .probe import VideoInfo, probe_video
from .process_link import FrameMemory
from .sampling import MAX_VIDEO_SECONDS, Window
from .shots import ShotsFound
from .single_frame import jpeg_at, pixels_at
from .sound import SamplesFinished, SoundFinished, declared_seconds, planned_sound, sound_rows, sound_samples
from .span import SpanProbed, probe_span
from .webm_clip import webm_clip

BY_DESCRIPTOR, BY_PATH = ("NVDEC", "PyAV", "Pillow"), ("decord", "ffmpeg", "torchcodec")
"""Decoders that read a descriptor, and decoders that open the file by its path, which run in another process."""
NEEDS_COMPLETE_READ = (
    DecodingFinished,
    SoundFinished,
    SamplesFinished,
    SoundFailed,
    VideoProbed,
    SoundProbed,
    ClipFollows,
    FrameFollows,
    ShotsFollow,
    PixelsFollow,
    SpanProbed,
    ClipWritten,
)
"""Messages that are only true if the whole file could be read."""
MEMORY_BYTES = 4 << 30
"""Address space of a process that decodes."""
CPU_SECONDS = 120
CPU_SECONDS_PER_SECOND = 5
"""Maximum processor time of a video: ``CPU_SECONDS``, plus this for each second of its length; once for its sound and
once for its frames."""
HEARTBEAT_SECONDS = 1.0


class OtherDecodersNeeded(Exception):
    """No decoder of this process can read the video; decoders that open it by its path may.

    ``failure`` is the reason; None if no decoder of this process was tried.
    """

    def __init__(self, failure: VideoError | None) -> None:
        super().__init__(str(failure))
        self.failure = failure


class Responder:
    """Sends answers to the parent."""

    def __init__(
        self, connection: Connection, memory: FrameMemory, on_duration: Callable[[float], None] | None = None
    ) -> None:
        self._connection = connection
        self.memory = memory
        """The memory in which frames are handed to the parent."""
        self.on_duration = on_duration or limit_cpu
        """Called with a video's length in seconds once it is known: a longer video may take more processor time."""
        self._last = 0.0

    def send(self, message: Message, content: bytes | None = None) -> None:
        """Send a message, and the ``content`` that it announces.

        Raises:
            VideoError: It is one of ``NEEDS_COMPLETE_READ``, but a part of the file could not be read.
        """
        if isinstance(message, NEEDS_COMPLETE_READ) and (failure := input_file.read_failure()):
            raise failure
        self._last = time.monotonic()
        self._connection.send_bytes(encode(message))
        if content is not None:
            self._connection.send_bytes(content)

    def heartbeat(self) -> None:
        """Tell the parent that the work is progressing, at most once a second."""
        if time.monotonic() - self._last > HEARTBEAT_SECONDS:
            self.send(Heartbeat())


def processor_seconds(length_seconds: float) -> float:
    """Return the maximum processor time for the sound, or for the frames, of a video of this length."""
    return CPU_SECONDS + CPU_SECONDS_PER_SECOND * min(length_seconds, MAX_VIDEO_SECONDS)


def limit_cpu(length_seconds: float) -> None:
    """End this process (SIGXCPU) once it has used more processor time than a video of this length may."""
    limit("RLIMIT_CPU", int(time.process_time() + processor_seconds(length_seconds)) + 1)


def respond(request: Request, responder: Responder, failure: VideoError | None = None) -> None:
    """Answer a request; failures are answers as well.

    Args:
        request: What to decode.
        responder: Sends answers to the parent.
        failure: Failure of the decoders tried before; it is reported if this request fails as well.

    Raises:
        OtherDecodersNeeded: Other decoders should try.
    """
    try:
        handle_request(request, responder)
    except VideoError as error:
        failure = input_file.read_failure() or failure or error
        responder.send(Failed(failure.kind, str(failure)))
    except MemoryError:
        responder.send(Failed("out_of_memory", f"it needs more than {MEMORY_BYTES >> 30} GiB to be decoded"))


def handle_request(request: Request, responder: Responder) -> None:
    """Answer a request, sound first.

    If decoding the sound crashes the process, no decoder has begun with the frames, and none is blamed.

    Raises:
        VideoError: The video failed.
        OtherDecodersNeeded: Other decoders should try.
    """
    if request.clip:
        responder.on_duration(0)
        content = webm_clip(Path(request.path), *request.clip, responder.heartbeat)
        responder.send(ClipFollows(), content)
        return
    if request.span is not None:
        handle_span(request, request.span, responder)
        return
    if request.frame_at is not None:
        responder.on_duration(0)
        if request.as_pixels:
            seconds, image = pixels_at(Path(request.path), request.frame_at, responder.heartbeat)
            responder.send(PixelsFollow(seconds, *image.shape[:2]), image.tobytes())
            return
        seconds, jpeg = jpeg_at(Path(request.path), request.frame_at, responder.heartbeat)
        responder.send(FrameFollows(seconds), jpeg)
        return
    if request.samples:
        handle_samples(request, responder)
        return
    if request.sound:
        try:
            handle_sound(request, responder)
        except VideoError as error:
            if not request.needs_frames:
                raise
            responder.send(SoundFailed(error.kind, str(error)))
    if request.needs_frames:
        handle_video(request, responder)


def handle_span(request: Request, span: tuple[float, float], responder: Responder) -> None:
    """Send the facts about a part of the video, or a clip of it.

    Raises:
        VideoError: The video failed.
    """
    responder.on_duration(0)
    path = Path(request.path)
    if not request.clip_kind:
        responder.send(probe_span(path, *span, responder.heartbeat))
        return

    def take(offset: int, content: bytes) -> None:
        responder.send(ClipPart(offset), content)

    clip = write_clip(path, *span, request.clip_kind, take, responder.heartbeat, responder.on_duration)
    responder.send(clip)


def handle_sound(request: Request, responder: Responder) -> None:
    """Send the sound's rows; if the request only probes, send only their number and the duration.

    Raises:
        VideoError: The sound failed.
    """
    responder.on_duration(0)
    path = Path(request.path)
    if is_image(path):
        raise VideoError("no_sound", "it is an image")
    if request.only_probe:
        num_rows, duration_seconds = planned_sound(path, responder.heartbeat)
        responder.send(SoundProbed(num_rows, duration_seconds))
        return
    responder.on_duration(declared_seconds(path))
    for part in sound_rows(path, seconds=request.seconds, heartbeat=responder.heartbeat):
        if isinstance(part, SoundFinished):
            responder.send(part)
        else:
            responder.send(SoundFollows(), part.tobytes())


def handle_samples(request: Request, responder: Responder) -> None:
    """Send the sound as samples.

    Raises:
        VideoError: The sound failed.
    """
    path = Path(request.path)
    responder.on_duration(0)
    if is_image(path):
        raise VideoError("no_sound", "it is an image")
    responder.on_duration(declared_seconds(path))
    for part in sound_samples(path, responder.heartbeat):
        if isinstance(part, SamplesFinished):
            responder.send(part)
        else:
            responder.send(SamplesFollow(), part.tobytes())


def handle_video(request: Request, responder: Responder) -> None:
    """Send the windows, thumbnails and shots, or the properties of the frames, read from the packets.

    Raises:
        VideoError: The frames failed.
        OtherDecodersNeeded: Other decoders should try.
    """
    responder.on_duration(0)
    path = Path(request.path)
    info = probe_image(path) if is_image(path) else probe_video(path, responder.heartbeat)
    if request.seconds is not None:
        info = cut(info, request.seconds)
    responder.on_duration(info.duration_seconds)
    if request.only_probe:
        num_frames = [len(spec.sample(info.pts, info.end, info.time_base)) for spec in request.specs]
        responder.send(
            VideoProbed(info.codec, info.width, info.height, info.duration_seconds, info.missing, num_frames)
        )
        return
    responder.memory.divide(max(len(request.specs), 1))
    try:
        for part in _decoded_parts(request, info, responder):
            if isinstance(part, Window):
                responder.send(
                    WindowReady(part.spec_index, list(part.frames.shape), responder.memory.hand_over(part.frames))
                )
            elif isinstance(part, DecodedThumbnail):
                responder.send(ThumbnailFollows(part.seconds), part.jpeg)
            elif isinstance(part, ShotsFound):
                responder.send(ShotsFollow(part.detector), part.rows.tobytes())
            else:
                responder.send(part)
    finally:
        responder.memory.wait_until_read()


def _decoded_parts(request: Request, info: VideoInfo, responder: Responder) -> Iterator[DecodeEvent]:
    """Decode with the decoders of this process. Raise ``OtherDecodersNeeded`` if they fail and others may not."""
    excluded = (*request.excluded_decoders, *(BY_DESCRIPTOR if request.path_decoders_only else BY_PATH))
    try:
        allocate = responder.memory.allocate
        yield from decode_video(
            info,
            request.specs,
            excluded_decoders=excluded,
            thumbnails_every=request.thumbnails_every,
            shots=request.shots,
            heartbeat=responder.heartbeat,
            allocate=allocate,
        )
    except VideoError as error:
        if not request.path_decoders_only and not is_image(info.path) and not input_file.read_failure():
            raise OtherDecodersNeeded(error if "PyAV" not in excluded else None) from None
        raise

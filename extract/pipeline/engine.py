"""Many videos -> features: child processes decode the next videos while networks compute.

A video's feature vectors are bit-identical, whatever the other videos, their order and the number of cores are. The
kernels of MKL, oneDNN and cuDNN round differently in batches of different sizes and on different numbers of threads
(1e-4 of S3D's values with random weights). A batch therefore has windows of one video only, in their order, and one
thread computes it on a CPU.
"""

import contextlib
import selectors
import time
from collections.abc import Iterable, Iterator, Sequence

from ...storage.common.files import file_identity
from ...storage.common.system import available_cores
from ...storage.records import NVDEC
from ..decoding.decode import DecodingFinished, DecodingStarted
from ..decoding.errors import RETRY_KINDS, VideoError
from ..decoding.messages import (
    InvalidMessage,
    Message,
    Request,
    ShotsFollow,
    SoundFailed,
    SoundFollows,
    ThumbnailFollows,
    WindowReady,
)
from ..decoding.process import DecodeProcess
from ..decoding.sound import SoundFinished
from ..extractor import Extractor
from .inference import InferencePool
from .video_jobs import END, ClosableIterator, Extracted, VideoInProgress, VideoJob, frame_spec_of

POLL_SECONDS = 0.02
"""Interval between requests to a job source that has no job at the moment."""

Result = tuple[VideoJob, Extracted | VideoError]


def num_decode_processes(extractors: Sequence[Extractor], num_cores: int) -> int:
    """Return the number of decode processes.

    Sound, frames and shots need no network, so all cores decode. With networks on a CPU, decoding is a small part of
    the work, and a quarter of the cores decode. With a GPU, all cores but one decode.
    """
    if all(e.network is None for e in extractors):
        return num_cores
    if all(e.device.type == "cpu" for e in extractors):
        return max(num_cores // 4, 1)
    return max(num_cores - 1, 1)


def nvdec_device(extractors: Sequence[Extractor]) -> str:
    """Return the GPU whose video engine (NVDEC) decodes, such as "cuda:0"; empty if no profile requests it.

    On a CPU it is empty, and frames are decoded exactly.

    Raises:
        ValueError: Some profiles request it and others do not.
    """
    of_frames = [e for e in extractors if e.profile.modality == "frames"]
    if len({e.profile.decoding for e in of_frames}) > 1:
        raise ValueError("profiles with decoding 'exact' and 'nvdec' together; extract them one after the other")
    return next((str(e.device) for e in of_frames if e.profile.decoding == NVDEC and e.device.type == "cuda"), "")


def extract_videos(
    jobs: Iterable[VideoJob | None], extractors: Sequence[Extractor], *, num_cores: int | None = None
) -> ClosableIterator[Result]:
    """Yield each job with its result, in order of completion.

    A video is decoded once for all of its extractors and never held in memory as a whole. If a video crashes its
    decode process, makes it hang or exhausts its memory, only that process ends; the next backend is tried, and other
    videos continue.

    Args:
        jobs: The jobs. A None among them means "none at the moment": jobs already begun continue meanwhile.
        extractors: All extractors that the jobs use.
        num_cores: Cores for decoding (default: all).
    """
    with contextlib.closing(extract_with_pauses(jobs, extractors, num_cores=num_cores)) as results:
        yield from (result for result in results if result is not None)


def extract_with_pauses(
    jobs: Iterable[VideoJob | None], extractors: Sequence[Extractor], *, num_cores: int | None = None
) -> ClosableIterator[Result | None]:
    """Like ``extract_videos``, but also yield None whenever no more results are ready just now."""
    engine = _Engine(jobs, extractors, num_cores or available_cores())
    try:
        yield from engine.run()
    finally:
        engine.close()


class _Engine:
    """Decode processes, and the computation that they feed."""

    def __init__(self, jobs: Iterable[VideoJob | None], extractors: Sequence[Extractor], num_cores: int) -> None:
        self._jobs: Iterator[VideoJob | None] | None = iter(jobs)
        self._compute = InferencePool(extractors)
        of_frames = [e.profile for e in extractors if e.profile.modality == "frames"]
        self._specs = [frame_spec_of(profile) for profile in of_frames if not profile.is_shots]
        self._shots = len(self._specs) < len(of_frames)
        self._num_startable = num_decode_processes(extractors, num_cores)
        self._gpu = nvdec_device(extractors)
        self._idle: list[DecodeProcess] = []
        self._decoding: dict[DecodeProcess, VideoInProgress] = {}
        self._sources = selectors.DefaultSelector()
        """The sources of messages for ``_listen``: processes at work, and finished batches."""
        self._sources.register(self._compute.done, selectors.EVENT_READ)

    def run(self) -> Iterator[Result | None]:
        while self._jobs or self._decoding or self._compute.has_work:
            more_jobs = self._start_next()
            if self._compute.is_full:
                self._compute.wait()
                for process in self._decoding:
                    process.last_heard = time.monotonic()  # its messages were not read in the meantime
            else:
                yield from self._listen(1.0 if more_jobs or not self._jobs else POLL_SECONDS)
            for video in self._compute.take_done():
                if video.complete:
                    yield video.job, video.result()
            yield None

    def close(self) -> None:
        for process in (*self._decoding, *self._idle):
            process.close()
        self._sources.close()
        self._compute.close()

    def _start_next(self) -> bool:
        """Start processes on the next videos; return whether the source may have another job now."""
        while self._jobs and (self._idle or self._num_startable):
            job = next(self._jobs, END)
            if job is None:
                return False
            if job is END:
                self._jobs = None
            else:
                self._start(VideoInProgress(job, file_identity(job.path)))
        return self._jobs is not None

    def _start(self, video: VideoInProgress) -> None:
        process = self._take_process()
        needs_sound = video.needs_sound
        if needs_sound:
            video.sound.clear()
        job = video.job
        process.start(
            Request(
                str(job.path),
                video.specs,
                sound=needs_sound,
                shots=bool(video.shots_features),
                excluded_decoders=video.excluded_decoders,
                seconds=job.seconds,
                thumbnails_every=job.thumbnails_every,
            )
        )
        self._decoding[process] = video
        self._sources.register(process.connection, selectors.EVENT_READ, process)

    def _take_process(self) -> DecodeProcess:
        while self._idle:
            process = self._idle.pop()
            if process.usable:
                return process
            process.close()
            self._num_startable += 1
        self._num_startable -= 1
        return DecodeProcess(self._specs, gpu=self._gpu, shots=self._shots)

    def _listen(self, seconds: float) -> Iterator[Result]:
        """Handle messages of processes; wait up to ``seconds`` for a message or a finished batch."""
        ready = [key.data for key, _ in self._sources.select(seconds) if key.data]
        for process in dict.fromkeys([*ready, *(process for process in self._decoding if process.is_silent)]):
            video = self._decoding[process]
            try:
                self._receive(process, video)
            except VideoError as error:
                yield from self._failed(process, error)
            if video.complete:
                yield video.job, video.result()

    def _receive(self, process: DecodeProcess, video: VideoInProgress) -> None:
        message = process.receive()
        try:
            self._handle(message, process, video)
        except InvalidMessage as error:
            raise process.refused(error) from None

    def _handle(self, message: Message, process: DecodeProcess, video: VideoInProgress) -> None:
        """Handle one message. It is untrusted, since a hostile file may control the process: check every value.

        Raises:
            InvalidMessage: The message is not valid at this point.
        """
        if isinstance(message, DecodingStarted):
            video.begin(message.decoder)
        elif isinstance(message, WindowReady):
            message.check(video.specs[: len(video.rows)])  # no windows are expected before ``DecodingStarted``
            if len(video.rows[message.spec_index]) >= video.specs[message.spec_index].max_windows:
                raise InvalidMessage("more rows than the longest video has")
            process.take_frames(message, self._compute.next_window(video, message.spec_index, message.shape))
            self._compute.add(video, message.spec_index)
        elif isinstance(message, ThumbnailFollows):
            video.add_thumbnail(message.seconds, process.receive_bytes())
        elif isinstance(message, ShotsFollow):
            video.take_shots(process.receive_bytes(), message.detector)
        elif isinstance(message, SoundFollows):
            video.add_sound_block(process.receive_bytes())
        elif isinstance(message, SoundFailed):
            video.sound_failure = VideoError(message.kind, message.words)
        elif isinstance(message, SoundFinished):
            video.finish_sound(message)
            if not video.needs_frames:
                self._release(process)
        elif isinstance(message, DecodingFinished):
            video.finish_frames(message)
            self._compute.start_rest(video)
            self._release(process)

    def _failed(self, process: DecodeProcess, error: VideoError) -> Iterator[Result]:
        """Try the next backend if the failure ended the process; else yield the sound features, or the failure."""
        video = self._decoding[process]
        self._release(process)
        if video.needs_sound and video.needs_frames:  # sound is decoded first: the sound has failed
            video.sound_failure = error
            self._start(video)
            return
        video.failure = video.failure or error
        if error.kind in RETRY_KINDS and video.decoder:
            video.excluded_decoders.append(video.decoder)
            video.decoder = ""
            self._start(video)
        else:
            yield video.job, video.result() if video.sound_result else video.failure

    def _release(self, process: DecodeProcess) -> None:
        del self._decoding[process]
        self._sources.unregister(process.connection)
        self._idle.append(process)

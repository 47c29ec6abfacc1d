"""Many videos -> features: child processes decode the next videos while networks compute.

A video's rows are the same bytes whatever else is extracted, in whatever order, and on however many cores. The kernels
of MKL, oneDNN and cuDNN round differently in batches of different sizes and on different numbers of threads (1e-4 of
S3D's values with random weights). So a batch holds rows of one video only, in their order, and on a CPU one thread
computes it.
"""

import contextlib
import selectors
import time
from collections.abc import Iterable, Iterator, Sequence

from ...storage.common.files import file_identity
from ...storage.common.system import available_cores
from ...storage.records import NVDEC
from ..decoding.decode import DecodingFinished, DecodingStarted
from ..decoding.errors import VideoError
from ..decoding.messages import (
    InvalidMessage,
    Message,
    Request,
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
"""Time between requests to a source of jobs that has none at the moment."""
DECODER_DIED = ("timeout", "out_of_memory", "crashed")
"""After these failures the next decoder is tried. After other failures the child has already tried them all."""

Result = tuple[VideoJob, Extracted | VideoError]


def num_decoders(extractors: Sequence[Extractor], num_cores: int) -> int:
    """Return the number of decoder processes.

    Sound is all decoding. With networks on a CPU, decoding is a small part of the work. A GPU takes what the other
    cores can decode.
    """
    if all(e.profile.modality == "sound" for e in extractors):
        return num_cores
    if all(e.device.type == "cpu" for e in extractors):
        return max(num_cores // 4, 1)
    return max(num_cores - 1, 1)


def video_engine(extractors: Sequence[Extractor]) -> str:
    """Return the GPU whose video engine decodes, such as "cuda:0"; empty if the profiles ask for none.

    On a CPU there is none, and pictures are exact.

    Raises:
        ValueError: One profile asks for it and another does not.
    """
    of_pictures = [e for e in extractors if e.profile.modality == "pictures"]
    if len({e.profile.decoding for e in of_pictures}) > 1:
        raise ValueError("profiles with decoding 'exact' and 'nvdec' together; extract them one after the other")
    return next((str(e.device) for e in of_pictures if e.profile.decoding == NVDEC and e.device.type == "cuda"), "")


def extract_videos(
    jobs: Iterable[VideoJob | None], extractors: Sequence[Extractor], *, num_cores: int | None = None
) -> ClosableIterator[Result]:
    """Yield each job with its result, in the order in which they finish.

    A video is decoded once for all of its extractors and never held in memory as a whole. If a video crashes its
    decoder, makes it hang or exhausts its memory, only that process ends; the next decoder is tried, and other videos
    continue.

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
    """Decoder processes, and the computation that they feed."""

    def __init__(self, jobs: Iterable[VideoJob | None], extractors: Sequence[Extractor], num_cores: int) -> None:
        self._jobs: Iterator[VideoJob | None] | None = iter(jobs)
        self._compute = InferencePool(extractors)
        self._specs = [frame_spec_of(e.profile) for e in extractors if e.profile.modality == "pictures"]
        self._num_startable = num_decoders(extractors, num_cores)
        self._gpu = video_engine(extractors)
        self._idle: list[DecodeProcess] = []
        self._decoding: dict[DecodeProcess, VideoInProgress] = {}
        self._sources = selectors.DefaultSelector()
        """The sources of messages for ``_listen``: decoders at work, and finished batches."""
        self._sources.register(self._compute.done, selectors.EVENT_READ)

    def run(self) -> Iterator[Result | None]:
        while self._jobs or self._decoding or self._compute.has_work:
            more_jobs = self._start_next()
            if self._compute.is_full:
                self._compute.wait()
                for decoder in self._decoding:
                    decoder.last_heard = time.monotonic()  # nobody listened meanwhile
            else:
                yield from self._listen(1.0 if more_jobs or not self._jobs else POLL_SECONDS)
            for video in self._compute.take_done():
                if video.complete:
                    yield video.job, video.result()
            yield None

    def close(self) -> None:
        for decoder in (*self._decoding, *self._idle):
            decoder.close()
        self._sources.close()
        self._compute.close()

    def _start_next(self) -> bool:
        """Start decoders on the next videos; return whether the source may have more at once."""
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
        decoder = self._take_decoder()
        needs_sound = video.needs_sound
        if needs_sound:
            video.sound.clear()
        job = video.job
        decoder.start(
            Request(
                str(job.path),
                video.specs,
                sound=needs_sound,
                excluded_decoders=video.excluded_decoders,
                seconds=job.seconds,
            )
        )
        self._decoding[decoder] = video
        self._sources.register(decoder.connection, selectors.EVENT_READ, decoder)

    def _take_decoder(self) -> DecodeProcess:
        while self._idle:
            decoder = self._idle.pop()
            if decoder.usable:
                return decoder
            decoder.close()
            self._num_startable += 1
        self._num_startable -= 1
        return DecodeProcess(self._specs, gpu=self._gpu)

    def _listen(self, seconds: float) -> Iterator[Result]:
        """Take what decoders send; wait up to ``seconds`` for them or for a finished batch."""
        ready = [key.data for key, _ in self._sources.select(seconds) if key.data]
        for decoder in dict.fromkeys([*ready, *(decoder for decoder in self._decoding if decoder.is_silent)]):
            video = self._decoding[decoder]
            try:
                self._receive(decoder, video)
            except VideoError as error:
                yield from self._failed(decoder, error)
            if video.complete:
                yield video.job, video.result()

    def _receive(self, decoder: DecodeProcess, video: VideoInProgress) -> None:
        message = decoder.receive()
        try:
            self._handle(message, decoder, video)
        except InvalidMessage as error:
            raise decoder.refused(error) from None

    def _handle(self, message: Message, decoder: DecodeProcess, video: VideoInProgress) -> None:
        """Take one message, which may come from a decoder that a hostile file has taken over: check every figure.

        Raises:
            InvalidMessage: No decoder sends this at this point.
        """
        if isinstance(message, DecodingStarted):
            video.begin(message.decoder)
        elif isinstance(message, WindowReady):
            message.check(video.specs[: len(video.rows)])  # nothing is wanted before ``DecodingStarted``
            if len(video.rows[message.spec_index]) >= video.specs[message.spec_index].max_windows:
                raise InvalidMessage("more rows than the longest video has")
            decoder.take_frames(message, self._compute.next_window(video, message.spec_index, message.shape))
            self._compute.add(video, message.spec_index)
        elif isinstance(message, ThumbnailFollows):
            video.add_thumbnail(message.seconds, decoder.receive_bytes())
        elif isinstance(message, SoundFollows):
            video.add_sound_block(decoder.receive_bytes())
        elif isinstance(message, SoundFailed):
            video.sound_failure = VideoError(message.kind, message.words)
        elif isinstance(message, SoundFinished):
            video.finish_sound(message)
            if not video.picture_extractors:
                self._release(decoder)
        elif isinstance(message, DecodingFinished):
            video.finish_pictures(message)
            self._compute.start_rest(video)
            self._release(decoder)

    def _failed(self, decoder: DecodeProcess, error: VideoError) -> Iterator[Result]:
        """Try the next decoder if this one did not survive; else yield the failure, or what sound there is."""
        video = self._decoding[decoder]
        self._release(decoder)
        if video.needs_sound and video.picture_extractors:  # sound comes first: it was the sound that failed
            video.sound_failure = error
            self._start(video)
            return
        video.failure = video.failure or error
        if error.kind in DECODER_DIED and video.decoder:
            video.excluded_decoders.append(video.decoder)
            video.decoder = ""
            self._start(video)
        else:
            yield video.job, video.result() if video.sound_result else video.failure

    def _release(self, decoder: DecodeProcess) -> None:
        del self._decoding[decoder]
        self._sources.unregister(decoder.connection)
        self._idle.append(decoder)

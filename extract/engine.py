"""Many videos -> features: child processes decode the next videos while networks compute.

A video's rows are the same bytes whatever else is extracted, in whatever order, and on however many cores. The kernels of MKL, oneDNN
and cuDNN round differently in batches of different sizes and on different numbers of threads (1e-4 of S3D's values with random weights),
so a batch holds rows of one video only, in their order, and on a CPU one thread computes it.
"""

import contextlib
import ctypes
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.connection import wait as wait_for
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..storage.common.errors import UserError
from ..storage.common.processes import available_cores
from ..storage.common.signals import stopping
from ..storage.files import file_identity
from ..storage.profiles import LOGMEL
from ..storage.records import Profile, VideoFeatures
from ..storage.thumbnails import MOST_JPEG_BYTES, MOST_PICTURES, Thumbnail
from .decoding.decode import BACKENDS, Finished, Started, Wanted
from .decoding.messages import Nonsense, PictureFollows, RowFollows, SoundFollows, Unheard
from .decoding.probe import LONGEST_VIDEO_SECONDS, VideoError
from .decoding.process import SILENCE_SECONDS, DecodeProcess
from .decoding.sampling import num_windows, window_times
from .decoding.sound import HOP, RATE, ROW, Heard, row_times
from .extractor import Extractor

POLL_SECONDS = 0.02
"""How often a source of jobs that has none at the moment is asked again."""
END = object()
"""What a source of jobs is taken to say when it has ended; None says that it has none at the moment."""
MOST_SOUND_ROWS = LONGEST_VIDEO_SECONDS * RATE // HOP + RATE
"""Sound that begins before time zero, or lasts a little longer than a video may, has a few more."""
MOST_SHAPES = 8
"""Of frames, whose memory is kept for the next ones: profiles that do not crop have others for each video."""
ENDS_THE_DECODER = ("timeout", "out_of_memory", "crashed")
"""After these failures another decoder is tried. After the others the child has tried them all itself."""


@dataclass(frozen=True)
class Job:
    video_id: str
    path: Path
    extractors: Sequence[Extractor]
    seconds: float | None = None
    """Only the first part of the video, where given."""
    url: str = ""
    """Where the file is to be had from first; ``path`` is then where it was put (``fetch.py``)."""


@dataclass(frozen=True)
class Extracted:
    features: dict[str, VideoFeatures]
    thumbnails: list[Thumbnail]
    failures: dict[str, VideoError] = field(default_factory=dict)
    """Why there are none of the other features: the file has no sound, or no pictures."""


def wanted_of(profile: Profile) -> Wanted:
    return Wanted(
        profile.fps,
        profile.window,
        profile.short_side_px,
        profile.crop_px,
        profile.tail,
        profile.resize,
        profile.stride,
    )


@dataclass
class _Video:
    """A video on its way."""

    job: Job
    source: str
    heard: Heard | None = None
    """What was said of its sound at the end of it. Of ``sound`` nothing more comes then, whatever becomes of the pictures."""
    unheard: VideoError | None = None
    """Why it has no sound."""
    sound: list[np.ndarray] = field(default_factory=list)
    """Blocks of rows, as they came."""
    started: int = 0
    """How often a decoder began with it; rows of an earlier beginning are void."""
    decoder: str = ""
    without: list[str] = field(default_factory=list)
    rows: list[list[np.ndarray | None]] = field(default_factory=list)
    filling: dict[int, "_Batch"] = field(default_factory=dict)
    """The batch of each place in ``pictured`` that is not full yet."""
    num_pending: int = 0
    thumbnails: list[Thumbnail] = field(default_factory=list)
    finished: Finished | None = None
    failure: VideoError | None = None
    """Of the pictures. The first one; later decoders fare no better and have less to say."""

    @cached_property
    def wanted(self) -> list[Wanted]:
        """What its pictures are wanted for, as ``pictured`` has it."""
        return [wanted_of(extractor.profile) for extractor in self.pictured]

    @cached_property
    def pictured(self) -> list[Extractor]:
        """Those that want pictures; they have their places in this list."""
        return [e for e in self.job.extractors if e.profile.name != LOGMEL]

    @property
    def listening(self) -> bool:
        """Whether its sound is wanted and nobody knows yet what became of it."""
        return len(self.pictured) < len(self.job.extractors) and self.heard is None and self.unheard is None

    @property
    def complete(self) -> bool:
        if not self.pictured:
            return self.heard is not None
        return self.finished is not None and self.num_pending == 0

    def ask(self, decoder: DecodeProcess) -> None:
        if self.listening:
            self.sound.clear()
        decoder.start(self.job.path, self.wanted, sound=self.listening, without=self.without, seconds=self.job.seconds)

    def begin(self, decoder: str) -> None:
        self.started += 1
        self.decoder, self.num_pending, self.finished = decoder, 0, None
        self.filling.clear()
        self.rows = [[] for _ in self.pictured]
        self.thumbnails = []

    def hear(self, heard: Heard) -> None:
        """The end of its sound. Raises ``Nonsense`` where that is of other rows than those that came."""
        if (
            not self.sound
            or sum(map(len, self.sound)) != heard.num_rows
            or not 0 <= heard.duration_seconds <= LONGEST_VIDEO_SECONDS + 1
        ):
            raise Nonsense(f"{heard.num_rows:,} rows of sound")
        self.heard = heard

    def finish(self, finished: Finished) -> None:
        """The end of its pictures. Raises ``Nonsense`` where that is of other rows than those that came."""
        asked = zip(finished.num_frames, self.wanted, strict=False)
        counts = [num_windows(frames, wanted.window, wanted.stride or wanted.window) for frames, wanted in asked]
        if len(finished.num_frames) != len(self.wanted) or counts != [len(rows) for rows in self.rows]:
            raise Nonsense("the end of another video")
        if not 0 <= finished.duration_seconds <= LONGEST_VIDEO_SECONDS + 1:
            raise Nonsense(f"a video of {finished.duration_seconds} s")
        self.finished = finished

    def result(self) -> Extracted:
        features = {LOGMEL: self._heard_features()} if self.heard else {}
        failures = {LOGMEL: self.unheard} if self.unheard else {}
        if self.finished:
            features |= self._seen_features()
        else:
            failures |= {e.profile.name: self.failure for e in self.pictured}
        return Extracted(features, self.thumbnails if self.finished else [], failures)

    def _heard_features(self) -> VideoFeatures:
        rows, heard = np.concatenate(self.sound), self.heard
        self.sound.clear()
        starts, ends = row_times(heard.first_row, len(rows))
        return VideoFeatures(
            video_id=self.job.video_id,
            features=rows["features"],
            start_seconds=starts,
            end_seconds=ends,
            valid_frames=rows["valid"],
            duration_seconds=heard.duration_seconds,
            source=self.source,
            decoder=heard.decoder,
            partial=heard.partial,
        )

    def _seen_features(self) -> dict[str, VideoFeatures]:
        features = {}
        for place, extractor in enumerate(self.pictured):
            profile, done = extractor.profile, self.finished
            starts, ends, valid = window_times(
                done.num_frames[place], 0, profile.window, profile.fps, done.duration_seconds, stride=profile.stride
            )
            features[profile.name] = VideoFeatures(
                video_id=self.job.video_id,
                features=np.stack(self.rows[place]),
                start_seconds=starts,
                end_seconds=ends,
                valid_frames=valid,
                duration_seconds=done.duration_seconds,
                source=self.source,
                decoder=done.decoder,
                partial=done.partial,
            )
        return features


@dataclass
class _Batch:
    """Successive windows of a video, all of one size, for one extractor."""

    video: _Video
    place: int
    """Of the extractor in ``video.pictured``."""
    frames: Tensor
    started: int
    """Which beginning of the video they are of."""
    first_row: int
    num_rows: int = 0

    @property
    def extractor(self) -> Extractor:
        return self.video.pictured[self.place]


def _keep_freed_memory() -> None:
    """Has glibc give freed blocks out again instead of handing them back to the system, which brings each back page by page, with zeros
    on it: up to a fifth of the time of a network on a CPU, and the more of it the more cores there are."""
    mmap_threshold, trim_threshold, size = -3, -1, 1 << 30  # malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return  # another C library
    mallopt(mmap_threshold, size)
    mallopt(trim_threshold, size)


class _Compute:
    """Runs batches through their networks: on a CPU as many at once as there are cores, one core each, which wastes none of them
    on waiting for the others; on a GPU one after the other."""

    def __init__(self, extractors: Sequence[Extractor]) -> None:
        on_cpu = all(e.device.type == "cpu" for e in extractors)
        if on_cpu:
            _keep_freed_memory()
        self._threads_before = torch.get_num_threads()
        num_batches = self._threads_before if on_cpu else 1
        self._pool = ThreadPoolExecutor(num_batches, "compute", initializer=torch.set_num_threads, initargs=(1,))
        self._most = 2 * num_batches
        self._running: dict[Future, _Batch] = {}
        self._spare: dict[tuple[tuple[int, ...], bool], list[Tensor]] = {}
        """Frames of batches that are done, by their shape and whether they are pinned."""
        self._woken, self._wake = os.pipe()

    def place_for(self, video: _Video, place: int, shape: Sequence[int]) -> np.ndarray:
        """Where the frames of a video's next window, for the extractor at ``place``, may be written."""
        batch = video.filling.get(place)
        if batch is not None and batch.frames.shape[1:] != torch.Size(
            shape
        ):  # the pictures' size changes within the video
            self._start(batch)
            batch = None
        if batch is None:
            extractor = video.pictured[place]
            frames = self._buffer((extractor.batch_size, *shape), pinned=extractor.device.type == "cuda")
            batch = video.filling[place] = _Batch(video, place, frames, video.started, len(video.rows[place]))
        return batch.frames[batch.num_rows].numpy()

    def _buffer(self, shape: tuple[int, ...], *, pinned: bool) -> Tensor:
        """For a batch's frames: one of a batch that is done. Rows, which stay, would else be laid between frames, which go, and the
        memory that frames leave would be too small for the next ones."""
        if spare := self._spare.get((shape, pinned)):
            return spare.pop()
        return torch.empty(shape, dtype=torch.uint8, pin_memory=pinned)

    def add(self, video: _Video, place: int) -> None:
        """Takes the window that was written where ``place_for`` said."""
        batch = video.filling[place]
        batch.num_rows += 1
        video.rows[place].append(None)
        video.num_pending += 1
        if batch.num_rows == len(batch.frames):
            self._start(batch)

    def start_rest(self, video: _Video) -> None:
        """Computes what is left of a video that has no more windows."""
        for batch in list(video.filling.values()):
            self._start(batch)

    def _start(self, batch: _Batch) -> None:
        del batch.video.filling[batch.place]
        future = self._pool.submit(batch.extractor.features, batch.frames[: batch.num_rows])
        self._running[future] = batch
        future.add_done_callback(lambda _: os.write(self._wake, b"."))

    @property
    def has_work(self) -> bool:
        return bool(self._running)

    @property
    def crowded(self) -> bool:
        """Enough waits to be computed; nothing more should be decoded for now."""
        return len(self._running) >= self._most

    @property
    def woken(self) -> int:
        """A file that can be read once some batch is done."""
        return self._woken

    def wait(self) -> None:
        wait(self._running, return_when=FIRST_COMPLETED)

    def take_done(self) -> list[_Video]:
        """Gives the rows that are done to their videos; returns those videos."""
        touched = {}
        for future in [f for f in self._running if f.done()]:
            os.read(self._woken, 1)
            batch = self._running.pop(future)
            try:
                features = (
                    future.result().numpy().copy()
                )  # by this thread: the other one's memory then holds nothing that stays
            except torch.OutOfMemoryError as error:
                words = str(error).splitlines()[0]
                raise UserError(
                    f"{batch.extractor.profile.name}: {batch.extractor.device} ran out of memory ({words})"
                ) from None
            if len(self._spare) > MOST_SHAPES:
                self._spare.clear()
            self._spare.setdefault((tuple(batch.frames.shape), batch.frames.is_pinned()), []).append(batch.frames)
            video = batch.video
            if video.started == batch.started:
                video.rows[batch.place][batch.first_row : batch.first_row + batch.num_rows] = features
                video.num_pending -= batch.num_rows
                touched[id(video)] = video
        return list(touched.values())

    def close(self) -> None:
        if stopping():  # nobody wants what is computed now
            self._pool.shutdown(wait=False, cancel_futures=True)
            return
        self._pool.shutdown(cancel_futures=True)
        torch.set_num_threads(self._threads_before)
        os.close(self._woken)
        os.close(self._wake)


def num_decoders(extractors: Sequence[Extractor], num_cores: int) -> int:
    """Processes that decode: on a CPU, decoding is a small part of the work, or, of sound, all of it; a GPU takes what the other cores
    can give."""
    if all(e.profile.name == LOGMEL for e in extractors):
        return num_cores
    if all(e.device.type == "cpu" for e in extractors):
        return max(num_cores // 4, 1)
    return max(num_cores - 1, 1)


def extract_videos(
    jobs: Iterable[Job | None], extractors: Sequence[Extractor], *, num_cores: int | None = None
) -> Iterator[tuple[Job, Extracted | VideoError]]:
    """Each job with its result, in the order in which they are done. ``extractors``: all that the jobs ask for.

    A None among ``jobs`` says that there is none at the moment, and that those on their way should go on meanwhile. ``num_cores``:
    of which decoding may make use (default: all).

    A video is decoded once for all of its extractors and never held whole. What it does to its decoder (a crash, a hang, memory
    without end) ends that one's process; the next decoder is then tried, and the other videos go on.
    """
    with contextlib.closing(videos_and_pauses(jobs, extractors, num_cores=num_cores)) as results:
        yield from (result for result in results if result is not None)


def videos_and_pauses(
    jobs: Iterable[Job | None], extractors: Sequence[Extractor], *, num_cores: int | None = None
) -> Iterator[tuple[Job, Extracted | VideoError] | None]:
    """As ``extract_videos``; a None among the results says that nothing more is done just now."""
    engine = _Engine(jobs, extractors, num_cores or available_cores())
    try:
        yield from engine.run()
    finally:
        engine.close()


class _Engine:
    def __init__(self, jobs: Iterable[Job | None], extractors: Sequence[Extractor], num_cores: int) -> None:
        self._jobs: Iterator[Job | None] | None = iter(jobs)
        self._compute = _Compute(extractors)
        self._num_startable = num_decoders(extractors, num_cores)
        self._idle: list[DecodeProcess] = []
        self._decoding: dict[DecodeProcess, _Video] = {}
        self._heard: dict[DecodeProcess, float] = {}

    def run(self) -> Iterator[tuple[Job, Extracted | VideoError] | None]:
        while self._jobs or self._decoding or self._compute.has_work:
            more = self._start_next()
            if self._compute.crowded:
                self._compute.wait()
                self._heard = dict.fromkeys(self._heard, time.monotonic())  # nobody listened meanwhile
            else:
                yield from self._listen(1.0 if more or not self._jobs else POLL_SECONDS)
            for video in self._compute.take_done():
                if video.complete:
                    yield video.job, video.result()
            yield None

    def close(self) -> None:
        for decoder in (*self._decoding, *self._idle):
            decoder.close()
        self._compute.close()

    def _start_next(self) -> bool:
        """Has decoders begin with the next videos. Returns whether more may come at once."""
        while self._jobs and (self._idle or self._num_startable):
            job = next(self._jobs, END)
            if job is None:
                return False
            if job is END:
                self._jobs = None
            else:
                self._start(_Video(job, file_identity(job.path)))
        return self._jobs is not None

    def _start(self, video: _Video) -> None:
        while self._idle:
            decoder = self._idle.pop()
            if decoder.usable:
                break
            decoder.close()
            self._num_startable += 1
        else:
            decoder = DecodeProcess()
            self._num_startable -= 1
        video.ask(decoder)
        self._decoding[decoder], self._heard[decoder] = video, time.monotonic()

    def _listen(self, seconds: float) -> Iterator[tuple[Job, Extracted | VideoError]]:
        """Takes what the decoders have to say, or waits so long for them or for a batch."""
        connections = {decoder.connection: decoder for decoder in self._decoding}
        ready = wait_for([*connections, self._compute.woken], timeout=seconds)
        for decoder in [connections[r] for r in ready if r in connections]:
            self._heard[decoder] = time.monotonic()
            video = self._decoding[decoder]
            try:
                self._take(decoder, video)
            except VideoError as error:
                yield from self._failed(decoder, error)
            if video.complete:
                yield video.job, video.result()
        for decoder in [d for d in self._decoding if time.monotonic() - self._heard[d] > SILENCE_SECONDS]:
            decoder.close()
            yield from self._failed(
                decoder, VideoError("timeout", f"its decoder said nothing for {SILENCE_SECONDS:.0f} s")
            )

    def _take(self, decoder: DecodeProcess, video: _Video) -> None:
        message = decoder.receive()
        try:
            if isinstance(message, Started):
                if (
                    message.decoder not in BACKENDS or message.decoder in video.without
                ):  # else it could be begun without end
                    raise Nonsense(f"beginning with {message.decoder[:20]!r}")
                video.begin(message.decoder)
            elif isinstance(message, RowFollows):
                message.check(video.wanted[: len(video.rows)])  # none before it began
                decoder.receive_into(self._compute.place_for(video, message.wanted, message.shape))
                self._compute.add(video, message.wanted)
            elif isinstance(message, PictureFollows):
                thumbnail = Thumbnail(video.job.video_id, message.seconds, decoder.receive_bytes(), video.source)
                if len(video.thumbnails) >= MOST_PICTURES or len(thumbnail.jpeg) > MOST_JPEG_BYTES:
                    raise Nonsense("more pictures, or larger ones, than are made")
                video.thumbnails.append(thumbnail)
            elif isinstance(message, SoundFollows):
                if not 0 < message.num_rows <= MOST_SOUND_ROWS - sum(map(len, video.sound)):
                    raise Nonsense(f"{message.num_rows:,} more rows of sound")
                video.sound.append(np.empty(message.num_rows, dtype=ROW))
                decoder.receive_into(video.sound[-1].view(np.uint8))
            elif isinstance(message, Unheard):
                video.unheard = VideoError(message.kind, message.words)
            elif isinstance(message, Heard):
                video.hear(message)
                if not video.pictured:
                    self._release(decoder)
            elif isinstance(message, Finished):
                video.finish(message)
                self._compute.start_rest(video)
                self._release(decoder)
        except Nonsense as error:
            raise decoder.refused(error) from None

    def _failed(self, decoder: DecodeProcess, error: VideoError) -> Iterator[tuple[Job, Extracted | VideoError]]:
        """Has the next decoder try, where this one did not survive the video; else the video has failed, or all of it but its sound."""
        video = self._decoding[decoder]
        self._release(decoder)
        if video.listening and video.pictured:  # the sound comes first, and ended it
            video.unheard = error
            self._start(video)
            return
        video.failure = video.failure or error
        if error.kind in ENDS_THE_DECODER and video.decoder:
            video.without.append(video.decoder)
            video.decoder = ""
            self._start(video)
        else:
            yield video.job, video.result() if video.heard else video.failure

    def _release(self, decoder: DecodeProcess) -> None:
        del self._decoding[decoder], self._heard[decoder]
        self._idle.append(decoder)

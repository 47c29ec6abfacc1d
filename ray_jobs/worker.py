"""One worker of an extraction: extractors on their device, and a thread in which videos pass through them without a
pause.

It does not use Ray. It receives videos and reports their outcomes through ``exchange``, and lives on if nobody calls
it.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..extract.extractor import Extractor
from ..extract.pipeline.jobs import Job
from ..extract.pipeline.store_extractor import make_extractor
from ..extract.pipeline.write import Kept, Outcome, extract_into_stores, job_of
from ..storage.common.device import use_tf32
from ..storage.common.terminal import show_messages
from ..storage.dataset.folder import DatasetFolder
from ..storage.records import Profile, VideoRecord, Weights
from ..storage.remote.store import link_store

ANSWER_SECONDS = 5.0
"""Longest time that a driver waits for an answer. More frequent answers of a thousand workers would keep it busy.
Videos that are on disk are reported at once, because those that the driver does not know of are extracted again if
the worker ends."""
DRIVER_SECONDS = 60.0
"""A worker that no driver calls for this long finishes its videos and ends. Until then another driver can take it
over."""

VideoTask = tuple[VideoRecord, list[str]]
"""A video and the names of the features that it needs."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """The settings that the extractors of all workers of a call have in common."""

    weights: Mapping[str, str]
    """For each features name, the requested weights."""
    device: str = "cpu"
    precision: str = "fp32"
    decoding: str = "exact"
    tf32: str = "convolutions"
    allowed_hosts: Sequence[str] = ()
    """Hosts in private networks that videos may be fetched from."""
    store_urls: Mapping[str, str] | None = None
    """For features whose store is remote, its address."""


@dataclass
class Answer:
    """A worker's report."""

    events: list[Outcome | Kept]
    num_waiting: int
    """Videos that it was given and has not begun."""
    idle: bool
    """True if all videos that it was given are on disk or failed."""
    compute_seconds: float
    """Total time in which networks computed; on a CPU, the mean over its cores."""
    seconds: float
    """Age of the worker."""
    quiet_seconds: float
    """Time since the last outcome, while there are videos to extract."""


@dataclass
class Greeting:
    """A worker's report to a driver that does not know it yet."""

    held: list[str]
    """Videos that it was given and that are not on disk."""
    kept: list[str]
    """Videos that it has written to disk. A driver that read the stores before may not know of them."""
    since_driver_seconds: float
    """Time since the last call of a driver."""


@dataclass(frozen=True)
class _Timed(Extractor):
    """An extractor that measures how long it computes."""

    stopwatch: "_Stopwatch"

    def features(self, frames: Tensor | np.ndarray) -> Tensor:
        started = time.monotonic()
        try:
            return super().features(frames)
        finally:
            self.stopwatch.add(time.monotonic() - started)


class _Stopwatch:
    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        with self._lock:
            self.seconds += seconds


class ExtractionWorker:
    """Extracts the videos that drivers give it."""

    def __init__(self, dataset: DatasetFolder, num_cores: int, shard_seconds: float) -> None:
        """Make a worker without extractors.

        Args:
            dataset: Data set whose videos are extracted.
            num_cores: Cores for decoders and, on a CPU, networks.
            shard_seconds: Longest time that finished features wait to be written.
        """
        show_messages()  # Ray forwards them to the driver
        self._dataset, self._num_cores, self._shard_seconds = dataset, num_cores, shard_seconds
        self._extractors: dict[str, Extractor] = {}
        self._allowed_hosts: Sequence[str] = ()
        self._stopwatch = _Stopwatch()
        self._changed = threading.Condition()
        self._given: deque[VideoTask] = deque()
        self._ask_at: int | None = None
        self._events: list[Outcome | Kept] = []
        self._held: dict[str, None] = {}
        self._kept: list[str] = []
        self._running = self._loading = False
        self._error: BaseException | None = None
        self._hurry = False
        self._made_at = self._last_call = self._last_progress = time.monotonic()

    def load(self, settings: WorkerSettings) -> dict[str, tuple[Profile, Weights]]:
        """Load the extractors, unless they are loaded already. Return the profile and weights of each.

        Raises:
            UserError: Weights cannot be loaded, or differ from those of an existing store.
        """
        if not self._extractors:
            use_tf32(settings.tf32)
            self._loading, self._allowed_hosts = True, settings.allowed_hosts
            for name, url in (settings.store_urls or {}).items():
                link_store(self._dataset.features(name), url).send()
            if settings.device == "cpu":
                torch.set_num_threads(self._num_cores)
            for name, weights in settings.weights.items():
                extractor = make_extractor(
                    self._dataset,
                    name,
                    weights,
                    device=settings.device,
                    precision=settings.precision,
                    decoding=settings.decoding,
                )
                self._extractors[name] = _Timed(**vars(extractor), stopwatch=self._stopwatch)
            self._last_call, self._loading = time.monotonic(), False
        return {name: (e.profile, e.weights) for name, e in self._extractors.items()}

    def greet(self) -> Greeting:
        """Report to a driver that may take this worker over."""
        with self._changed:
            return Greeting(list(self._held), list(self._kept), time.monotonic() - self._last_call)

    def wait_until_left_alone(self) -> None:
        """Return once no driver has called for a minute and all videos are on disk."""
        while self._running or self._loading or time.monotonic() - self._last_call < DRIVER_SECONDS:
            time.sleep(1.0)

    def exchange(self, videos: Sequence[VideoTask], ask_at: int | None, hurry: bool = False) -> Answer:
        """Accept videos, and report what became of earlier ones.

        Args:
            videos: Videos to extract.
            ask_at: Answer as soon as no more than this many videos are waiting to begin. None: no more videos follow
                for now; finish and write everything.
            hurry: The machine will be gone soon. Write what is finished at once, and begin nothing more.

        Raises:
            Exception: Whatever ended the thread that extracts.
        """
        with self._changed:
            self._last_call = time.monotonic()
            self._hurry = self._hurry or hurry
            self._ask_at = None if self._hurry else ask_at
            if self._hurry:
                self._given.clear()  # other workers have the time
            elif videos:
                self._given.extend(videos)
                self._held |= dict.fromkeys(video.video_id for video, _ in videos)
                if not self._running:
                    self._running, self._last_progress = True, time.monotonic()
                    threading.Thread(target=self._run, daemon=True).start()
            self._changed.wait_for(self._should_answer, ANSWER_SECONDS)
            self._last_call = time.monotonic()
            events, self._events = self._events, []
            if self._error is not None and not events:
                raise self._error
            return Answer(
                events=events,
                num_waiting=len(self._given),
                idle=not self._running and not self._given,
                compute_seconds=self._stopwatch.seconds / (self._num_cores if self._on_cpu else 1),
                seconds=time.monotonic() - self._made_at,
                quiet_seconds=time.monotonic() - self._last_progress if self._running else 0.0,
            )

    @property
    def _on_cpu(self) -> bool:
        return all(e.device.type == "cpu" for e in self._extractors.values())

    def _should_answer(self) -> bool:
        kept = any(isinstance(event, Kept) for event in self._events)
        return bool(
            self._error or kept or not self._running or (self._ask_at is not None and len(self._given) <= self._ask_at)
        )

    def _jobs(self) -> Iterator[Job | None]:
        """Yield a job for each video, and None while more may come."""
        while True:
            with self._changed:
                task = self._given.popleft() if self._given else None
                if task is not None:
                    self._changed.notify_all()
                elif self._ask_at is None or time.monotonic() - self._last_call > DRIVER_SECONDS:
                    return
            if task is None:
                yield None
            else:
                video, features = task
                yield job_of(self._dataset, video, [self._extractors[name] for name in features])

    def _run(self) -> None:
        """Extract videos until none is waiting, and again if more came in the meantime."""
        while True:
            try:
                for event in extract_into_stores(
                    self._dataset,
                    self._jobs(),
                    list(self._extractors.values()),
                    num_cores=self._num_cores,
                    shard_seconds=lambda: 0.0 if self._hurry else self._shard_seconds,
                    allowed_hosts=self._allowed_hosts,
                ):
                    self._record(event)
            except BaseException as error:  # whatever it is, the driver must hear of it
                with self._changed:
                    self._error = error
            with self._changed:
                if not self._given or self._error:
                    self._running = False
                    self._changed.notify_all()
                    return

    def _record(self, event: Outcome | Kept) -> None:
        with self._changed:
            self._last_progress = time.monotonic()
            self._events.append(event)
            if isinstance(event, Kept):
                self._kept += event.video_ids
                finished = event.video_ids
            else:
                finished = [event.video_id] if event.failure else []
            for video_id in finished:
                self._held.pop(video_id, None)
            self._changed.notify_all()

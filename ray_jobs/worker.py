"""One worker of an extraction: extractors on their device, and a thread that feeds them videos without a pause.

It does not use Ray. It receives videos and reports their outcomes through ``exchange``, and keeps working if no driver
calls it.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..extract.extractor import Extractor
from ..extract.pipeline.canary import first_readable
from ..extract.pipeline.pending_work import VideoTask
from ..extract.pipeline.shard_writing import ShardsWritten, VideoOutcome, extract_into_stores
from ..extract.pipeline.store_extractor import make_extractors
from ..extract.settings import WorkerSettings
from ..storage.common.device import use_tf32
from ..storage.common.errors import UserError
from ..storage.common.terminal import show_messages
from ..storage.records import Profile, Weights
from ..storage.remote.store import link_store

REPORT_SECONDS = 5.0
"""Longest time that a driver waits for a report. More frequent reports of a thousand workers would overload it. Written
videos are reported at once: if the worker ends, the driver must look for unreported ones in the stores.
"""
DRIVER_SECONDS = 600.0
"""A worker that no driver calls for this long finishes its videos and ends. Until then another driver can take it
over. Drivers call at least every few seconds."""
LEAVE_SECONDS = 10.0
"""The same limit for a worker that has stopped: the driver that called it last may need this long to call again."""


MARKER_SECONDS = 10.0
"""Longest time until a machine sees a file that the driver has made."""


class State(Enum):
    """The state of a worker.

    NEW -> LOADING -> IDLE <-> WORKING      videos come; all of them are on disk or failed
    NEW or IDLE -> STOPPED                  the worker was asked to leave
    WORKING -> STOPPING -> STOPPED          it was asked to leave; what was finished is on disk
    WORKING or STOPPING -> STOPPED          the thread ended with an error, which the driver gets
    """

    NEW = auto()
    LOADING = auto()
    IDLE = auto()
    WORKING = auto()
    STOPPING = auto()
    STOPPED = auto()

    @property
    def has_thread(self) -> bool:
        """True while a thread extracts."""
        return self in (State.WORKING, State.STOPPING)

    @property
    def accepts_videos(self) -> bool:
        """False once the worker was asked to leave, or failed."""
        return self not in (State.STOPPING, State.STOPPED)


@dataclass
class WorkerReport:
    """A worker's report."""

    events: list[VideoOutcome | ShardsWritten]
    num_waiting: int
    """Videos that it was given and has not begun."""
    idle: bool
    """True if all videos that it was given are on disk or failed, or it has left."""
    compute_seconds: float
    """Total time in which networks computed; on a CPU, the mean over its cores."""
    seconds: float
    """Age of the worker."""
    quiet_seconds: float
    """Time since the last outcome, while there are videos to extract."""
    left: bool = False
    """True if it was asked to leave and has written its finished videos. Other workers get the rest."""


@dataclass
class TakeoverReport:
    """A worker's report to a driver that does not know it yet."""

    unwritten: list[str]
    """Videos that it was given and that are not on disk."""
    written: list[str]
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


@dataclass
class _Videos:
    """The videos that a worker was given, and their outcomes."""

    waiting: deque[VideoTask] = field(default_factory=deque)
    """Videos that are not begun."""
    refill_at: int | None = None
    """See ``ExtractionWorker.exchange``."""
    unwritten: dict[str, None] = field(default_factory=dict)
    """Ids of videos that are not on disk and have not failed, in order."""
    written: list[str] = field(default_factory=list)
    """Ids of videos on disk."""
    events: list[VideoOutcome | ShardsWritten] = field(default_factory=list)
    """Events that the driver does not know yet."""

    dropped: set[str] = field(default_factory=set)
    """Ids of videos that are not wanted any more."""

    def drop(self, video_ids: Sequence[str]) -> None:
        self.dropped.update(video_ids)
        for video_id in video_ids:
            self.unwritten.pop(video_id, None)
        if video_ids:
            self.waiting = deque(task for task in self.waiting if task.video.video_id not in self.dropped)

    def add(self, tasks: Sequence[VideoTask]) -> None:
        self.dropped.difference_update(task.video.video_id for task in tasks)
        self.waiting.extend(tasks)
        self.unwritten |= dict.fromkeys(task.video.video_id for task in tasks)

    def record(self, event: VideoOutcome | ShardsWritten) -> None:
        self.events.append(event)
        if isinstance(event, ShardsWritten):
            self.written += event.video_ids
            finished = event.video_ids
        else:
            finished = [event.video_id] if event.failure else []
        for video_id in finished:
            self.unwritten.pop(video_id, None)

    @property
    def has_news(self) -> bool:
        """True if the driver does not know of written videos yet, or the worker needs more videos from it."""
        is_written = any(isinstance(event, ShardsWritten) for event in self.events)
        return is_written or (self.refill_at is not None and len(self.waiting) <= self.refill_at)


@dataclass
class _Clock:
    """Times of events, by ``time.monotonic``."""

    made: float = field(default_factory=time.monotonic)
    last_call: float = field(default_factory=time.monotonic)
    """The time at which a driver last called, or waited for the networks to be loaded."""
    last_progress: float = field(default_factory=time.monotonic)


def _await_file(marker: Path) -> None:
    """Wait until this machine sees a file that was just made; a network disk may show it later.

    Raises:
        UserError: The file does not appear in time.
    """
    deadline = time.monotonic() + MARKER_SECONDS
    while not marker.exists():
        if time.monotonic() > deadline:
            raise UserError(
                f"{marker.parent.parent}: not the driver's folder, which has {marker.name}; mount the "
                "shared folder on this machine"
            )
        time.sleep(0.5)


class ExtractionWorker:
    """Extracts the videos that drivers give it."""

    def __init__(self, settings: WorkerSettings, shard_seconds: float) -> None:
        """Make a worker without extractors.

        Args:
            settings: Data set, features, device and cores.
            shard_seconds: Longest time that finished features wait to be written.
        """
        show_messages()  # Ray forwards them to the driver
        self._settings, self._shard_seconds = settings, shard_seconds
        self._extractors: dict[str, Extractor] = {}
        self._stopwatch = _Stopwatch()
        self._loading = threading.Lock()
        """Held while the extractors are loaded: a driver that calls meanwhile waits for them."""
        self._changed = threading.Condition()
        """Guards the attributes below."""
        self._state, self._videos, self._clock = State.NEW, _Videos(), _Clock()
        self._error: BaseException | None = None
        """The error that ended the thread."""

    def load(
        self,
        store_urls: Mapping[str, str] | None = None,
        marker: Path | None = None,
        shard_seconds: float | None = None,
    ) -> dict[str, tuple[Profile, Weights]]:
        """Load the extractors, unless they are loaded already. Return the profile and weights of each.

        Args:
            store_urls: {features: address} of remote stores.
            marker: A file that the driver has made in the data set's folder: this machine must see it, too.
            shard_seconds: Longest time that finished features wait to be written; None for no change.

        Raises:
            UserError: Weights cannot be loaded, or differ from those of an existing store; or the data set's folder is
                another one than the driver's.
        """
        self._shard_seconds = shard_seconds or self._shard_seconds
        if marker is not None:
            _await_file(marker)
        with self._loading:
            if self._state is State.NEW:
                self._state = State.LOADING
                try:
                    self._load(store_urls or {})
                finally:
                    self._clock.last_call = time.monotonic()
                    self._state = State.IDLE if self._extractors else State.NEW
        return {name: (e.profile, e.weights) for name, e in self._extractors.items()}

    def _load(self, store_urls: Mapping[str, str]) -> None:
        use_tf32(self._settings.tf32)
        for name, url in store_urls.items():
            link_store(self._settings.dataset.features(name), url).send()
        if self._settings.device == "cpu" and self._settings.num_cores:
            torch.set_num_threads(self._settings.num_cores)
        made = make_extractors(self._settings)
        self._extractors = {name: _Timed(**vars(made[name]), stopwatch=self._stopwatch) for name in made}

    def first_readable(self, tasks: Sequence[VideoTask], are_good: bool) -> tuple[str, str]:
        """Check whether this machine can read videos; see ``canary.first_readable``."""
        return first_readable(self._settings, tasks, are_good=are_good)

    def report_for_takeover(self) -> TakeoverReport:
        """Report to a driver that may take this worker over."""
        with self._changed:
            videos, since_driver = self._videos, time.monotonic() - self._clock.last_call
            return TakeoverReport(list(videos.unwritten), list(videos.written), since_driver)

    def may_end(self) -> bool:
        """Return True once all videos are on disk or handed back, and no driver has called for a while."""
        seconds = LEAVE_SECONDS if self._state is State.STOPPED else DRIVER_SECONDS
        is_busy = self._state.has_thread or self._state is State.LOADING
        return not is_busy and time.monotonic() - self._clock.last_call >= seconds

    def leave(self) -> None:
        """Write finished videos and hand back the others, including videos in progress: the machine will be gone soon.

        Returns at once, or once the extractors are loaded. ``exchange`` reports what was written.
        """
        with self._loading, self._changed:
            self._state = State.STOPPING if self._state.has_thread else State.STOPPED
            self._videos.refill_at = None
            self._videos.waiting.clear()
            self._changed.notify_all()

    def exchange(self, tasks: Sequence[VideoTask], refill_at: int | None, dropped: Sequence[str] = ()) -> WorkerReport:
        """Accept videos, unless the worker was asked to leave, and report the outcomes of earlier ones.

        Args:
            tasks: Videos to extract.
            refill_at: Report as soon as no more than this many videos are waiting to begin. None: no more videos follow
                for now; finish and write everything.
            dropped: Ids of videos that another worker has computed. They need not be extracted or written.

        Raises:
            Exception: Whatever ended the thread that extracts.
        """
        with self._changed:
            videos, self._clock.last_call = self._videos, time.monotonic()
            videos.drop(dropped)
            if self._state.accepts_videos:
                videos.refill_at = refill_at
                self._accept(tasks)
            self._changed.wait_for(lambda: not self._state.has_thread or videos.has_news, REPORT_SECONDS)
            self._clock.last_call = time.monotonic()
            events, videos.events = videos.events, []
            if self._error is not None and not events:
                raise self._error
            return self._report(events)

    def _accept(self, tasks: Sequence[VideoTask]) -> None:
        self._videos.add(tasks)
        if tasks and self._state is State.IDLE:
            self._state, self._clock.last_progress = State.WORKING, time.monotonic()
            threading.Thread(target=self._run, daemon=True).start()

    def _report(self, events: list[VideoOutcome | ShardsWritten]) -> WorkerReport:
        now, num_waiting, is_working = time.monotonic(), len(self._videos.waiting), self._state.has_thread
        on_cpu = all(extractor.device.type == "cpu" for extractor in self._extractors.values())
        return WorkerReport(
            events=events,
            num_waiting=num_waiting,
            idle=not is_working and not num_waiting,
            compute_seconds=self._stopwatch.seconds / ((on_cpu and self._settings.num_cores) or 1),
            seconds=now - self._clock.made,
            quiet_seconds=now - self._clock.last_progress if is_working else 0.0,
            left=self._state is State.STOPPED and self._error is None,
        )

    def _tasks(self) -> Iterator[VideoTask | None]:
        """Yield each video, and None while more may come."""
        videos = self._videos
        while True:
            with self._changed:
                task = videos.waiting.popleft() if videos.waiting else None
                if task is not None:
                    self._changed.notify_all()
                elif videos.refill_at is None or time.monotonic() - self._clock.last_call > DRIVER_SECONDS:
                    return
            yield task

    def _run(self) -> None:
        """Extract videos until none is waiting, and again if more came in the meantime."""
        while True:
            error = None
            try:
                for event in extract_into_stores(
                    self._settings,
                    self._extractors,
                    self._tasks(),
                    shard_seconds=self._shard_seconds,
                    is_stopped=lambda: not self._state.accepts_videos,
                    is_wanted=lambda video_id: video_id not in self._videos.dropped,
                ):
                    self._record(event)
            except BaseException as raised:  # whatever it is, the driver must hear of it
                error = raised
            with self._changed:
                if error is not None:
                    self._state, self._error = State.STOPPED, error
                elif not self._videos.waiting:
                    self._state = State.IDLE if self._state is State.WORKING else State.STOPPED
                else:
                    continue
                self._changed.notify_all()
                return

    def _record(self, event: VideoOutcome | ShardsWritten) -> None:
        with self._changed:
            self._clock.last_progress = time.monotonic()
            self._videos.record(event)
            self._changed.notify_all()

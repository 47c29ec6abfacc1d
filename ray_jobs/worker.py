"""One worker of an extraction: extractors on their device, and a thread in which videos go through them without a
pause.

It knows no Ray: it gets videos and says what became of them when it is asked, by ``exchange``, and lives on where
nobody asks.
"""

import threading
import time
from argparse import Namespace
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..extract.cli import first_shard, make_extractor
from ..extract.engine import Job
from ..extract.extractor import Extractor
from ..extract.run import Kept, Outcome, extract_into_stores, job_of
from ..storage.common.terminal import show_messages
from ..storage.layout import DatasetFolder
from ..storage.records import Profile, VideoRecord, Weights
from ..storage.remote.store import link_store

ANSWER_SECONDS = 5.0
"""How long a driver waits for an answer at most. A thousand workers that answered more often would keep it busy. What
is on disk it hears at once, for what it has not heard of is done again when the worker ends."""
DRIVER_SECONDS = 60.0
"""A worker whose driver says nothing for so long finishes what it has and ends; until then another driver may take it
over."""


@dataclass
class Answer:
    events: list[Outcome | Kept]
    num_waiting: int
    """Videos that were given and have not begun."""
    idle: bool
    """Whether all that was given is finished and on disk, or failed."""
    compute_seconds: float
    """For how long, in all, networks computed; on a CPU the mean of its cores."""
    seconds: float
    """How long the worker has been there."""
    quiet_seconds: float
    """For how long nothing came of the videos in hand."""


@dataclass
class Greeting:
    """What a worker says to a driver that it does not know."""

    held: list[str]
    """Videos that it was given and that are not on disk."""
    kept: list[str]
    """Videos that it has brought to disk; whoever read the stores before need not do them again."""
    since_driver_seconds: float


@dataclass(frozen=True)
class _Timed(Extractor):
    """Adds up for how long it computes."""

    stopwatch: "_Stopwatch"

    def features(self, frames: Tensor) -> Tensor:
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
    def __init__(self, dataset: DatasetFolder, num_cores: int, shard_seconds: float) -> None:
        show_messages()  # Ray carries them to the driver
        self._dataset, self._num_cores, self._shard_seconds = dataset, num_cores, shard_seconds
        self._extractors: dict[str, Extractor] = {}
        self._allowed_hosts: list[str] = []
        self._stopwatch = _Stopwatch()
        self._changed = threading.Condition()
        self._given: deque[tuple[VideoRecord, list[str]]] = deque()
        self._ask_at: int | None = None
        self._events: list[Outcome | Kept] = []
        self._held: dict[str, None] = {}
        self._kept: list[str] = []
        self._running = self._loading = False
        self._error: BaseException | None = None
        self._hurry = False
        self._made_at = self._heard = self._moved = time.monotonic()

    def load(
        self, args: Namespace, weights: dict[str, str], urls: dict[str, str]
    ) -> dict[str, tuple[Profile, Weights]]:
        """Loads the extractors for ``args``, if they are not there. ``urls``: of stores that lie elsewhere. Raises
        ``UserError`` for weights that are not to be had, or not those of the stores."""
        if not self._extractors:
            self._loading, self._allowed_hosts = True, args.allow_host
            for name, url in urls.items():
                link_store(self._dataset.features(name), url).send()
            if args.device == "cpu":
                torch.set_num_threads(self._num_cores)
            for name, wanted in weights.items():
                extractor = make_extractor(name, wanted, args, first_shard(self._dataset, name))
                self._extractors[name] = _Timed(**vars(extractor), stopwatch=self._stopwatch)
            self._heard, self._loading = time.monotonic(), False
        return {name: (e.profile, e.weights) for name, e in self._extractors.items()}

    def greet(self) -> Greeting:
        with self._changed:
            return Greeting(list(self._held), list(self._kept), time.monotonic() - self._heard)

    def wait_until_left_alone(self) -> None:
        """Returns when its driver has said nothing for a minute, and all is on disk."""
        while self._running or self._loading or time.monotonic() - self._heard < DRIVER_SECONDS:
            time.sleep(1.0)

    def exchange(self, videos: list[tuple[VideoRecord, list[str]]], ask_at: int | None, hurry: bool = False) -> Answer:
        """Takes videos with the features that each needs, and says what became of those before.

        ``ask_at``: answers as soon as only so many wait to be begun. None: no others follow for now; what is in work
        is finished and brought to disk. ``hurry``: the machine will be gone soon; what is finished is brought to disk
        at once, and nothing more is begun. Raises what ended the thread that extracts, if something did.
        """
        with self._changed:
            self._heard = time.monotonic()
            self._hurry = self._hurry or hurry
            self._ask_at = None if self._hurry else ask_at
            if self._hurry:
                self._given.clear()  # somebody else's, who has the time
            elif videos:
                self._given.extend(videos)
                self._held |= dict.fromkeys(video.video_id for video, _ in videos)
                if not self._running:
                    self._running, self._moved = True, time.monotonic()
                    threading.Thread(target=self._run, daemon=True).start()
            self._changed.wait_for(self._has_something_to_say, ANSWER_SECONDS)
            self._heard = time.monotonic()
            events, self._events = self._events, []
            if self._error is not None and not events:
                raise self._error
            return Answer(
                events=events,
                num_waiting=len(self._given),
                idle=not self._running and not self._given,
                compute_seconds=self._stopwatch.seconds / (self._num_cores if self._on_cpu else 1),
                seconds=time.monotonic() - self._made_at,
                quiet_seconds=time.monotonic() - self._moved if self._running else 0.0,
            )

    @property
    def _on_cpu(self) -> bool:
        return all(e.device.type == "cpu" for e in self._extractors.values())

    def _has_something_to_say(self) -> bool:
        kept = any(isinstance(event, Kept) for event in self._events)
        return bool(
            self._error or kept or not self._running or (self._ask_at is not None and len(self._given) <= self._ask_at)
        )

    def _jobs(self) -> Iterator[Job | None]:
        while True:
            with self._changed:
                if self._given:
                    video, features = self._given.popleft()
                    self._changed.notify_all()
                elif self._ask_at is None or time.monotonic() - self._heard > DRIVER_SECONDS:
                    return
                else:
                    video = None
            if video is None:
                yield None
            else:
                yield job_of(self._dataset, video, [self._extractors[name] for name in features])

    def _run(self) -> None:
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
                    self._tell(event)
            except BaseException as error:  # whatever it is, the driver has to know
                with self._changed:
                    self._error = error
            with self._changed:
                if not self._given or self._error:
                    self._running = False
                    self._changed.notify_all()
                    return

    def _tell(self, event: Outcome | Kept) -> None:
        with self._changed:
            self._moved = time.monotonic()
            self._events.append(event)
            if isinstance(event, Kept):
                self._kept += event.video_ids
            for video_id in event.video_ids if isinstance(event, Kept) else [event.video_id] if event.failure else []:
                self._held.pop(video_id, None)
            self._changed.notify_all()

"""The driver of an extraction on a cluster: it assigns videos to workers and replaces workers that end.

Workers decode, compute and write shards themselves; only paths and outcomes pass through Ray, never frames. The
stores say what is done: whatever ends a worker, a machine, the driver or the cluster, the same call continues.
Workers outlive their driver for a minute, in which another driver can take them over.
"""

import asyncio
import contextlib
import hashlib
import os
import platform
import re
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count

import ray
from ray.exceptions import RayError

from ..extract.pipeline.pending_work import Extraction, PendingWork
from ..extract.pipeline.shard_writing import ShardsWritten, VideoOutcome, report_outcome
from ..extract.settings import WorkerSettings
from ..storage.common.errors import SettingError, UserError
from ..storage.common.files import file_identity
from ..storage.common.progress import Listener
from ..storage.dataset.folder import DatasetFolder
from ..storage.records import Failure, Profile, VideoRecord, Weights
from ..storage.remote.addresses import without_secrets
from ..storage.remote.store import remote_store
from ..storage.shards import read_shard
from ..storage.stores.feature_store import FeatureStore, current_shards
from .actors import WorkerHandle, existing_workers, kill_worker, start_worker
from .cluster import NAMESPACE, MachineNames, Share, cause_of, draining_nodes, reason_of
from .scheduler import MAX_ENDS, VideoScheduler
from .status import Status
from .worker import TakeoverReport, WorkerReport

POLL_SECONDS = 5.0
"""Time between checks whether the cluster has grown, and whether machines will be gone soon."""
PAUSE_SECONDS = 2.0
"""Time before a worker that ended is replaced."""
MAX_ENDS_IN_A_ROW = 3
"""If this many workers in a row end with nothing done, the run stops with the message of the last one. For other
causes than ``UserError`` and ``OSError``, such as a lost machine, the limit is this many per worker slot."""
STALLED_SECONDS = 2 * 3600.0
"""A worker without an outcome for this long hangs. Decoding has its own, shorter limits."""
REPORT_WITHIN_SECONDS = 300.0
"""A worker that does not answer for this long is killed. Workers normally answer within seconds."""
DRIVER_AT_WORK_SECONDS = 5.0
"""A worker that was called more recently than this has a driver."""
MAX_DRIVER_CHECKS = 4
"""After this many checks that driver counts as alive: a busy worker may still be executing calls of a killed driver,
which look like those of a live one."""
MAX_READABLE = 60
"""Characters of the data set and the features in the name of a worker."""
IDLE_SECONDS = 0.5
"""Time between offers of work to an idle worker."""


class ExtractionDriver:
    """One call: what is to be done, and the workers that do it."""

    def __init__(
        self,
        extraction: Extraction,
        worker: WorkerSettings,
        share: Share,
        *,
        shard_seconds: float,
        on_progress: Listener | None = None,
    ) -> None:
        """Prepare to extract videos.

        Args:
            extraction: What to extract, and how.
            worker: Settings of each worker.
            share: What each worker uses of a machine.
            shard_seconds: Longest time that finished features wait to be written.
            on_progress: Called with the progress every few seconds.
        """
        settings, tasks = extraction.settings, extraction.tasks
        if settings.folder.stores is not None:
            problem = "stores of your own are filled on one machine, by vlalign-extract; omit it"
            raise SettingError("stores", settings.stores, problem)
        self.extraction, self.worker, self.share = extraction, worker, share
        self.shard_seconds = shard_seconds
        self.task_index = {task.video.video_id: index for index, task in enumerate(tasks)}
        self.sizes = [_size(settings.folder, task.video) for task in tasks]
        self.scheduler = VideoScheduler(self.sizes)
        self._stores = StoreWatcher(extraction.pending, extraction.weights)
        log = settings.folder.path / "jobs" / f"extract-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
        self.status = Status(
            self.scheduler, self.sizes, log, call=_call_of(extraction, worker, share), on_progress=on_progress
        )
        self._workers: dict[str, WorkerHandle] = {}
        self._worker_numbers = count()
        self._expected_weights = {
            name: (store.profile, store.weights) for name, store in extraction.pending.stores.items()
        }
        """Profile and weights of each features name: those of its store or, without one, of the first worker."""
        remote = {name: remote_store(settings.folder.features(name)) for name in extraction.weights}
        self._store_urls = {name: store.url for name, store in remote.items() if store}
        self._ends_in_a_row = 0
        self._draining: set[str] = set()
        self._machines = MachineNames()
        self._prefix = _worker_prefix(extraction, worker)

    async def run(self) -> None:
        """Extract until nothing is left.

        Raises:
            UserError: Several workers in a row ended with nothing done, or another call is extracting this data set.
        """
        slots: set[asyncio.Task[None]] = set()
        try:
            taken_over = [worker for name in existing_workers(self._prefix) if (worker := await self._take_over(name))]
            await self._sync_with_stores()  # workers may have written and ended since the stores were read
            # Only now, because no video may be assigned before all earlier workers are known.
            slots = {asyncio.create_task(self._run_slot(worker)) for worker in taken_over}
            while self.scheduler.num_left:
                self._draining = draining_nodes()
                for node in self._draining:
                    self.status.note_machine(self._machines.name(node), "draining", "will be gone soon")
                while len(slots) < min(self.share.num_workers(), self.scheduler.num_left):
                    slots.add(asyncio.create_task(self._run_slot()))
                done, slots = await asyncio.wait(slots, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                self.extraction.pending.write_failures()
                self.status.show([worker.number for worker in self._workers.values() if worker.loaded])
        finally:
            for task in slots:
                task.cancel()
            await asyncio.gather(*slots, return_exceptions=True)
            for worker in self._workers.values():
                # If videos are left, a loaded worker finishes what it has and waits for another driver.
                if not (worker.loaded and self.scheduler.num_left):
                    kill_worker(worker)
            self.extraction.pending.write_failures()

    async def _take_over(self, name: str) -> WorkerHandle | None:
        """Take over a worker of an earlier call.

        Raises:
            UserError: That call is still running.
        """
        try:
            worker = WorkerHandle(name, next(self._worker_numbers), ray.get_actor(name, NAMESPACE))
        except ValueError:  # it has ended since it was listed
            return None
        try:
            for _ in range(MAX_DRIVER_CHECKS):
                call = worker.actor.report_for_takeover.remote()
                report: TakeoverReport = await asyncio.wait_for(call, 2 * DRIVER_AT_WORK_SECONDS)
                if report.since_driver_seconds > DRIVER_AT_WORK_SECONDS:
                    break
                await asyncio.sleep(DRIVER_AT_WORK_SECONDS)
            else:
                path = self.extraction.settings.folder.path
                raise UserError(f"{path}: another call is extracting it now; wait until it ends, or stop it first")
        except (RayError, asyncio.TimeoutError):
            kill_worker(worker)
            return None
        self.scheduler.take_over(worker.number, self._known(report.unwritten), self._known(report.written))
        self._workers[name] = worker
        return worker

    def _known(self, video_ids: Sequence[str]) -> list[int]:
        """Return the indices of the videos that belong to this call."""
        return [self.task_index[video_id] for video_id in video_ids if video_id in self.task_index]

    async def _run_slot(self, worker: WorkerHandle | None = None) -> None:
        """Keep one slot filled with a worker while anything is left to do."""
        while self.scheduler.num_left:
            worker = worker or self._start()
            self._workers[worker.name] = worker
            try:
                await self._serve(worker)
            except (RayError, UserError, OSError, asyncio.TimeoutError) as error:
                self._release(worker)
                await self._sync_with_stores()  # it may not have reported what it wrote last
                self._return_videos(worker, error)
                worker = None
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                self._release(worker)
                return

    async def _sync_with_stores(self) -> None:
        """Count videos as done that are on disk, though no worker reported them."""
        written = await asyncio.to_thread(self._stores.poll)
        known = (
            (self.task_index[video_id], features)
            for video_id, features in written.items()
            if video_id in self.task_index
        )
        self.scheduler.mark_written(
            number for number, features in known if features >= set(self.extraction.tasks[number].features)
        )

    def _release(self, worker: WorkerHandle) -> None:
        del self._workers[worker.name]
        kill_worker(worker)

    def _start(self) -> WorkerHandle:
        name = f"{self._prefix}{os.urandom(4).hex()}"
        return start_worker(name, next(self._worker_numbers), self.worker, self.share, self.shard_seconds)

    async def _serve(self, worker: WorkerHandle) -> None:
        """Give a worker videos and record their outcomes, until nothing is left or its machine will be gone soon."""
        loaded = await worker.actor.load.remote(self._store_urls)  # waits for room on the cluster, however long
        worker.node = await worker.actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        worker.machine = self._machines.name(worker.node)
        worker.loaded = True
        self._check_weights(worker, loaded)
        report = WorkerReport([], 0, True, 0.0, 0.0, 0.0)
        while self.scheduler.num_left:
            draining = worker.node in self._draining
            if draining and report.idle:
                self.scheduler.worker_ended(worker.number, blame_videos=False)
                return
            assigned, refill_at = ([], None) if draining else self.scheduler.next(worker.number, report.num_waiting)
            if report.idle and not assigned:
                await asyncio.sleep(IDLE_SECONDS)
            call = worker.actor.exchange.remote(
                [self.extraction.tasks[number] for number in assigned], refill_at, draining
            )
            report = await asyncio.wait_for(call, REPORT_WITHIN_SECONDS)
            self._handle_report(worker, report)

    def _handle_report(self, worker: WorkerHandle, report: WorkerReport) -> None:
        self.status.note_times(worker.number, report, worker.machine)
        for event in report.events:
            if isinstance(event, ShardsWritten):
                for number in self._known(event.video_ids):
                    self.scheduler.mark_completed(worker.number, number)
            elif (number := self.task_index.get(event.video_id)) is not None:
                self._ends_in_a_row = 0
                self._record_outcome(event, worker)
                (self.scheduler.mark_completed if event.failure else self.scheduler.mark_computed)(
                    worker.number, number
                )
        if report.quiet_seconds > STALLED_SECONDS:
            raise TimeoutError(f"no outcome for {report.quiet_seconds / 60:.0f} minutes")

    def _record_outcome(self, outcome: VideoOutcome, worker: WorkerHandle) -> None:
        self.status.outcome(self.task_index[outcome.video_id], outcome, worker.machine)
        report_outcome(outcome, self.extraction, f"machine {worker.machine}, worker {worker.name}")

    def _check_weights(self, worker: WorkerHandle, loaded: dict[str, tuple[Profile, Weights]]) -> None:
        """Raise a ``UserError`` if a worker's profile or weights differ from those of the store: it can hold only
        one."""
        for name, (profile, weights) in loaded.items():
            expected = self._expected_weights.setdefault(name, (profile, weights))
            if (profile, weights) != expected:
                raise UserError(
                    f"machine {worker.machine}: has the weights {weights.name} ({weights.sha256[:12]}) for {name}, "
                    f"the others {expected[1].name} ({expected[1].sha256[:12]}); put the same file on all machines"
                )

    def _return_videos(self, worker: WorkerHandle, error: Exception) -> None:
        """Requeue the videos of an ended worker; fail those that ``MAX_ENDS`` workers ended with."""
        reason = reason_of(error)
        self.status.num_ended += 1
        self._ends_in_a_row += 1
        where = f" on {worker.machine}" if worker.machine else ""
        self.status.say(f"note: a worker{where} ended ({reason}); its videos go to other workers")
        by_the_disk = isinstance(getattr(error, "cause", None), UserError | OSError)  # or by a remote store
        blame_videos = not (by_the_disk or getattr(error, "preempted", False))
        for number in self.scheduler.worker_ended(worker.number, blame_videos=blame_videos):
            self._give_up(number, reason, worker)
        num_slots = 1 if isinstance(cause_of(error), UserError | OSError) else self.share.num_workers()
        if self._ends_in_a_row >= MAX_ENDS_IN_A_ROW * num_slots:
            raise UserError(f"{self._ends_in_a_row} workers in a row ended with nothing done; the last: {reason}")

    def _give_up(self, number: int, reason: str, worker: WorkerHandle) -> None:
        video, features = self.extraction.tasks[number]
        if video.url:
            path, source = without_secrets(video.url), ""
        else:
            file = self.extraction.settings.folder.video_path(video)
            path, source = str(file), file_identity(file)
        message = f"{MAX_ENDS} workers ended while they were extracting it; the last: {reason}"
        failure = Failure(video_id=video.video_id, path=path, kind="worker_ended", message=message, source=source)
        self._record_outcome(VideoOutcome(video.video_id, path, features, failure), worker)


class StoreWatcher:
    """Watches the stores of a data set while workers write to them: one that ended may not have reported all."""

    def __init__(self, pending: PendingWork, features: Iterable[str]) -> None:
        """Remember the shards that exist now.

        Args:
            pending: The data set and its stores.
            features: Names of the stores to watch.
        """
        self._folders = {name: pending.dataset.features(name) for name in features}
        stores = {name: pending.stores.get(name) for name in self._folders}
        self._known = {
            name: {shard.path for shard in store.shards} if isinstance(store, FeatureStore) else set()
            for name, store in stores.items()
        }
        self._features: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def poll(self) -> dict[str, set[str]]:
        """Return all features of each video that got some since the last call.

        Features that were in the stores at the beginning do not count.
        """
        new: set[str] = set()
        with self._lock:
            for name, folder in self._folders.items():
                for path in set(current_shards(folder)) - self._known[name]:
                    with contextlib.suppress(FileNotFoundError):  # compacted in the meantime
                        for video_id in read_shard(path).videos["video_id"].tolist():
                            new.add(video_id.decode())
                            self._features.setdefault(video_id.decode(), set()).add(name)
                    self._known[name].add(path)
            return {video_id: self._features[video_id] for video_id in new}


def _size(dataset: DatasetFolder, video: VideoRecord) -> int:
    """Return the size of a video file in bytes; 0 if that would need a request to a server."""
    try:
        return 0 if video.url else dataset.video_path(video).stat().st_size
    except OSError:
        return 0


def _worker_prefix(extraction: Extraction, worker: WorkerSettings) -> str:
    """Return how the names of a call's workers begin. Workers of calls with other settings are not taken over."""
    settings = extraction.settings
    chosen = [(name, settings.weights_of(name)) for name in settings.store_names]
    common_settings = replace(worker, weights={}, num_cores=None)  # these two may differ when a call is repeated
    digest = hashlib.sha256(repr([str(settings.folder.path), chosen, common_settings]).encode()).hexdigest()
    readable = re.sub(r"[^\w.+-]+", "-", f"{settings.folder.name}-{'+'.join(settings.store_names)}")[:MAX_READABLE]
    return f"extract-{readable}-{digest[:16]}-"


def _call_of(extraction: Extraction, worker: WorkerSettings, share: Share) -> dict[str, str]:
    """Return what people are told of a call: its options, and where its driver runs."""
    about = {
        "features": ",".join(extraction.settings.store_names),
        "device": worker.device,
        "workers": share.max_workers and str(share.max_workers),
        "cpus-per-worker": f"{share.num_cpus:g}",
        "gpus-per-worker": share.num_gpus and f"{share.num_gpus:g}",
        "driver": f"{platform.node()}, process {os.getpid()}",
    }
    return {name: str(value) for name, value in about.items() if value}

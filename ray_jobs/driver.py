"""The driver of an extraction on a cluster: it assigns videos to workers and replaces workers that end.

Workers decode, compute and write shards themselves; only paths and outcomes pass through Ray, never frames. The
stores record what is done: whatever ends a worker, a machine, the driver or the cluster, the same call continues. If a
driver is killed, its workers run for ten more minutes, in which another driver can take them over. A driver that ends
in any other way ends its workers.
"""

import asyncio
import contextlib
import hashlib
import os
import platform
import re
import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import ray
from ray.exceptions import RayError

from ..extract.pipeline.dispatch import Check, Dispatch
from ..extract.pipeline.pending_work import Extraction
from ..extract.pipeline.scheduler import MAX_ENDS
from ..extract.pipeline.shard_writing import ShardsWritten, VideoOutcome, report_outcome
from ..extract.settings import WorkerSettings
from ..storage.common.errors import SettingError, Unfinished, UserError
from ..storage.common.files import file_identity
from ..storage.common.progress import Listener
from ..storage.records import Failure, Profile, Weights
from ..storage.remote.addresses import without_secrets
from ..storage.remote.store import remote_store
from .actors import WorkerHandle, ask_to_leave, existing_workers, kill_worker, start_worker
from .cluster import NAMESPACE, MachineNames, Share, cause_of, draining_nodes, is_up, nodes, reason_of
from .status import Status
from .store_watcher import StoreWatcher
from .worker import TakeoverReport, WorkerReport

POLL_SECONDS = 5.0
"""Time between checks whether the cluster has grown."""
PAUSE_SECONDS = 2.0
"""Time before a worker that ended is replaced."""
MAX_ENDS_IN_A_ROW = 3
"""If this many workers in a row end with a ``UserError`` or ``OSError`` before any video is done, the run stops with
the last message. For other causes, such as a lost machine, it stops after ``MAX_ENDS`` for each worker that fits on the
cluster. If the workers ended on one machine while other machines work, only that machine is excluded; for other causes,
after twice as many.
"""
SHARDS_IN_A_LIFE = 6
"""Number of shards that a worker should write in its lifetime, on a machine where workers end unasked."""
STALLED_SECONDS = 2 * 3600.0
"""A worker without an outcome for this long is taken as hanging. Decoding has its own, shorter limits."""
REPORT_WITHIN_SECONDS = 300.0
"""A worker that does not answer for this long is killed. Workers normally answer within seconds."""
DRIVER_AT_WORK_SECONDS = 5.0
"""A worker that was called more recently than this has a driver."""
MAX_DRIVER_CHECKS = 4
"""If every one of this many checks finds a recent call, the driver is taken as alive. One check is not enough: a busy
worker may still be executing calls of a killed driver.
"""
MAX_READABLE = 30
"""Maximum number of characters of the data set's name, and of the features, in a worker's name."""
WORKER_ENDED = "worker_ended"
"""The kind of failure of a video if several workers ended while extracting it."""
IDLE_SECONDS = 0.5
"""Time between offers of work to an idle worker."""
WRITE_SECONDS = 5.0
"""Time that a stopped run waits for its workers to write. They continue writing without it."""


class ExtractionDriver:
    """One call: its work, and its workers."""

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
            problem = "only vlalign-extract, on one machine, fills stores of your own; omit it"
            raise SettingError("stores", settings.stores, problem)
        self.extraction, self.worker, self.share = extraction, worker, share
        self.shard_seconds = shard_seconds
        self.dispatch = Dispatch(extraction, self._record_outcome, say=lambda message: self.status.say(message))
        self.task_index, self.scheduler = self.dispatch.index, self.dispatch.scheduler
        sizes = [task.size for task in tasks]
        self._stores = StoreWatcher(extraction.pending, extraction.weights)
        log = settings.folder.path / "jobs" / f"extract-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
        self.status = Status(
            self.scheduler, sizes, log, call=_call_of(extraction, worker, share), on_progress=on_progress
        )
        self._workers: dict[str, WorkerHandle] = {}
        self._worker_numbers = count()
        self._expected_weights = {
            name: (store.profile, store.weights) for name, store in extraction.pending.stores.items()
        }
        """{features: (profile, weights)}, from the store if it exists, or else from the first worker."""
        remote = {name: remote_store(settings.folder.features(name)) for name in extraction.weights}
        self._store_urls = {name: store.url for name, store in remote.items() if store}
        self._ends_in_a_row = 0
        self._ends_on: defaultdict[str, list[float]] = defaultdict(list)
        """{id of a machine: times at which workers in a row ended there before any video was done}"""
        self._last_outcome: dict[str, float] = {}
        """{machine: when a video was last done there}"""
        self._lives: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=4))
        """{id of a machine: lifetimes in seconds of the last workers that ended there unasked}"""
        self._draining: set[str] = set()
        self._excluded: set[str] = set()
        """Ids of machines that get no more videos."""
        self._machines = MachineNames()
        self._checks: set[asyncio.Task[None]] = set()
        self._unreported: deque[tuple[VideoOutcome, str]] = deque()
        """Final outcomes that are not in files yet, and their machines."""
        self._reporting = threading.Lock()
        self._prefix_of_dataset = f"extract-{_readable(settings.folder.name)}-{_digest(str(settings.folder.path))}-"
        features = _readable("+".join(settings.store_names))
        self._prefix = f"{self._prefix_of_dataset}{features}-{_settings_digest(extraction, worker)}-"

    async def run(self) -> None:
        """Extract until nothing is left.

        Raises:
            UserError: Several workers in a row ended with nothing done, or another call is extracting this data set.
            Unfinished: Too many videos failed, or a place with videos could not be read or a store could not be written
                for a long time.
        """
        slots: set[asyncio.Task[None]] = set()
        self._show_status()  # makes the log, by which machines recognize the folder
        try:
            taken_over = [worker for name in existing_workers(self._prefix) if (worker := await self._take_over(name))]
            await self._end_workers_with_other_settings()
            await self._sync_with_stores()  # workers may have written and ended since the stores were read
            # Only now, because no video may be assigned before all earlier workers are known.
            slots = {asyncio.create_task(self._run_slot(worker)) for worker in taken_over}
            while self.scheduler.num_left:
                self._note_draining(draining_nodes())
                if self._excluded and not nodes(self._excluded):
                    raise Unfinished(
                        f"no machine is left: {'; '.join(f'{m}: {why}' for m, why in self.dispatch.excluded.items())}; "
                        "fix one and run the same command again"
                    )
                while len(slots) < min(self.share.num_workers(self._excluded), self.scheduler.num_left):
                    slots.add(asyncio.create_task(self._run_slot()))
                done, slots = await asyncio.wait(slots, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                await self._check_places()
                await asyncio.to_thread(self._report_outcomes)
                self._show_status()
            self.dispatch.raise_if_left()
        except UserError as error:
            self.status.problems = [str(error)]
            raise
        finally:
            for task in (*slots, *self._checks):
                task.cancel()
            await asyncio.gather(*slots, return_exceptions=True)
            loaded = {name for name, worker in self._workers.items() if worker.loaded and self.scheduler.num_left}
            await ask_to_leave(self._workers[name] for name in loaded)
            if loaded:
                await self._await_last_shards()
            for name in self._workers.keys() - loaded:
                kill_worker(self._workers[name])
            self._report_outcomes()

    async def _await_last_shards(self) -> None:
        """Wait briefly until leaving workers have written their videos: the last report is then complete."""
        end = time.monotonic() + WRITE_SECONDS
        with contextlib.suppress(UserError, OSError):
            while self.scheduler.num_computed and time.monotonic() < end:
                await asyncio.sleep(IDLE_SECONDS)
                await self._sync_with_stores()

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
            report = await _report_without_driver(worker)
        except (RayError, asyncio.TimeoutError):
            kill_worker(worker)
            return None
        if report is None:
            path = self.extraction.settings.folder.path
            raise UserError(f"{path}: another call is extracting it now; wait until it ends, or stop it first")
        self.scheduler.take_over(worker.number, self._known(report.unwritten), self._known(report.written))
        self._workers[name] = worker
        return worker

    async def _end_workers_with_other_settings(self) -> None:
        """Wait until workers of earlier calls for other features have written their finished videos and have ended."""

        async def end(name: str) -> None:
            with contextlib.suppress(RayError, ValueError, asyncio.TimeoutError):  # it has ended, or waits for room
                worker = WorkerHandle(name, next(self._worker_numbers), ray.get_actor(name, NAMESPACE))
                if await _report_without_driver(worker):
                    await ask_to_leave([worker])
                    while True:  # until this raises an error
                        await asyncio.wait_for(worker.actor.report_for_takeover.remote(), REPORT_WITHIN_SECONDS)
                        await asyncio.sleep(1.0)

        names = set(existing_workers(self._prefix_of_dataset)) - set(existing_workers(self._prefix))
        await asyncio.gather(*map(end, names))

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
            except Unfinished:
                raise
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
        """Mark videos on disk as done even if no worker reported them."""
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
        number = next(self._worker_numbers)
        return start_worker(name, number, self.worker, self.share, self.shard_seconds, self._excluded)

    async def _serve(self, worker: WorkerHandle) -> None:
        """Give a worker videos and record their outcomes, until nothing is left or it leaves."""
        # This waits for room on the cluster, however long.
        worker.node = await worker.actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        worker.machine = self._machines.name(worker.node)
        seconds = self._shard_seconds_on(worker.node)
        writes_here = self._store_urls.keys() != self.extraction.weights.keys()
        marker = self.status.log if writes_here else None  # without a shared folder, all stores are remote
        loaded = await worker.actor.load.remote(self._store_urls, marker, seconds)
        worker.loaded = True
        self._check_weights(worker, loaded)
        report = WorkerReport([], 0, True, 0.0, 0.0, 0.0)
        while self.scheduler.num_left:
            num_waiting, idle = report.num_waiting, report.idle
            tasks, refill_at = self.dispatch.next(worker.number, worker.machine, num_waiting, idle=idle)
            if idle and not tasks:
                await asyncio.sleep(IDLE_SECONDS)
            superfluous = self.scheduler.take_superfluous(worker.number)
            dropped = [self.extraction.tasks[number].video.video_id for number in superfluous]
            call = worker.actor.exchange.remote(tasks, refill_at, dropped)
            report = await asyncio.wait_for(call, REPORT_WITHIN_SECONDS)
            self._handle_report(worker, report)
            if report.left:
                self.scheduler.worker_ended(worker.number, blame_videos=False)
                self.dispatch.return_failures(worker.machine)
                return

    def _shard_seconds_on(self, node: str) -> float:
        """Return the longest time between a worker's shards: shorter where workers live only for minutes."""
        lives = self._lives[node]
        return (
            max(min(self.shard_seconds, sum(lives) / len(lives) / SHARDS_IN_A_LIFE), 1.0)
            if lives
            else self.shard_seconds
        )

    def _handle_report(self, worker: WorkerHandle, report: WorkerReport) -> None:
        worker.seconds = report.seconds
        self.status.note_times(worker.number, report, worker.machine)
        for event in report.events:
            if isinstance(event, ShardsWritten):
                self.dispatch.written(worker.number, event.video_ids)
            else:
                self._ends_in_a_row = 0
                self._ends_on.pop(worker.node, None)
                self._last_outcome[worker.machine] = time.monotonic()
                self.dispatch.outcome(worker.number, worker.machine, event)
        if report.quiet_seconds > STALLED_SECONDS:
            raise TimeoutError(f"no outcome for {report.quiet_seconds / 60:.0f} minutes")

    def _note_draining(self, draining: set[str]) -> None:
        for node in draining | self._draining:
            state = ("draining", "going away soon") if node in draining else ("", "")
            self.status.note_machine(self._machines.name(node), *state)
        self._draining = draining

    def _show_status(self) -> None:
        self.status.problems = self.dispatch.problems()
        self.status.show([worker.number for worker in self._workers.values() if worker.loaded])

    async def _check_places(self) -> None:
        """Let machines check the places of failed videos, and end the workers of machines that cannot read them."""
        by_machine = {
            worker.machine: worker
            for worker in self._workers.values()
            if worker.loaded and worker.node not in self._excluded
        }
        for task in [task for task in self._checks if task.done()]:
            self._checks.remove(task)
            task.result()
        for check in self.dispatch.due_checks(list(by_machine)):
            task = asyncio.create_task(self._make_check(by_machine[check.machine], check))
            self._checks.add(task)
        self.dispatch.give_up_places(list(by_machine))
        useless = [worker for worker in self._workers.values() if worker.machine in self.dispatch.excluded]
        self._excluded |= {worker.node for worker in useless}
        for machine, reason in self.dispatch.excluded.items():
            self.status.note_machine(machine, "not used", reason)
        await ask_to_leave(useless)

    async def _make_check(self, worker: WorkerHandle, check: Check) -> None:
        try:
            call = worker.actor.first_readable.remote(check.tasks, check.is_known_good)
            readable, problem = await asyncio.wait_for(call, REPORT_WITHIN_SECONDS)
        except (RayError, asyncio.TimeoutError) as error:
            self.dispatch.cancel_check(check)
            if isinstance(error, asyncio.TimeoutError):
                self.dispatch.checked(check, "", "no answer")
        else:
            self.dispatch.checked(check, readable, problem)

    def _record_outcome(self, outcome: VideoOutcome, machine: str) -> None:
        self.status.outcome(self.task_index[outcome.video_id], outcome, machine)
        self._unreported.append((outcome, machine))

    def _report_outcomes(self) -> None:
        """Report the outcomes of videos, and record failures. A thread does this, since it waits for disks."""
        with self._reporting:  # the thread may still be at it when the run ends
            while self._unreported:
                outcome, machine = self._unreported.popleft()
                if outcome.failure and outcome.failure.kind == WORKER_ENDED:
                    outcome = replace(outcome, failure=_with_identity(outcome.failure))
                report_outcome(outcome, self.extraction, f"machine {machine}" if machine else "")
            self.extraction.pending.write_failures()

    def _check_weights(self, worker: WorkerHandle, loaded: dict[str, tuple[Profile, Weights]]) -> None:
        """Raise ``UserError`` if a worker's profile or weights differ from the store's: a store holds only one kind."""
        for name, (profile, weights) in loaded.items():
            expected = self._expected_weights.setdefault(name, (profile, weights))
            if (profile, weights) != expected:
                raise UserError(
                    f"machine {worker.machine}: has the weights {weights.name} ({weights.sha256[:12]}) for {name}, "
                    f"the others {expected[1].name} ({expected[1].sha256[:12]}); put the same file on all machines"
                )

    def _return_videos(self, worker: WorkerHandle, error: Exception) -> None:
        """Requeue the videos of an ended worker; fail the videos that ended ``MAX_ENDS`` workers."""
        reason = reason_of(error)
        self.status.num_ended += 1
        self._ends_in_a_row += 1
        where = f" on {worker.machine}" if worker.machine else ""
        self.status.say(f"note: a worker{where} ended ({reason}); its videos go to other workers")
        by_the_disk = isinstance(getattr(error, "cause", None), UserError | OSError)  # or by a remote store
        is_lost = getattr(error, "preempted", False) or not (worker.node and is_up(worker.node))
        for number in self.scheduler.worker_ended(worker.number, blame_videos=not (by_the_disk or is_lost)):
            self._give_up(number, reason, worker.machine)
        others = {other.machine for other in self._workers.values() if other.loaded} - {""}
        if worker.machine not in others:
            self.dispatch.return_failures(worker.machine)
        is_told = isinstance(cause_of(error), UserError | OSError)
        self._lives[worker.node].append(worker.seconds)
        ends = self._ends_on[worker.node]
        ends += [] if is_lost else [time.monotonic()]
        others.discard(worker.machine)
        if not is_told:  # it may be a fault of ours, which ends all workers everywhere
            others = {machine for machine in others if ends and self._last_outcome.get(machine, 0.0) > ends[0]}
        num_ends = len(ends)
        if num_ends >= MAX_ENDS_IN_A_ROW * (1 if is_told else 2) and others:
            self.dispatch.exclude(worker.machine, f"{num_ends} workers in a row ended there ({reason})")
            self._excluded.add(worker.node)
            self._ends_in_a_row = 0
        if self._ends_in_a_row >= (MAX_ENDS_IN_A_ROW if is_told else MAX_ENDS * self.share.num_workers()):
            of_place = isinstance(cause_of(error), OSError)  # a full disk or a remote store, which may work later
            problem = f"{self._ends_in_a_row} workers in a row ended with nothing done; the last: {reason}"
            raise Unfinished(problem) if of_place else UserError(problem)

    def _give_up(self, number: int, reason: str, machine: str) -> None:
        task = self.extraction.tasks[number]
        video_id, url = task.video.video_id, task.video.url
        path = without_secrets(url) if url else self.extraction.settings.folder.video_file(task.video)
        message = f"{MAX_ENDS} workers ended while they were extracting it; the last: {reason}"
        failure = Failure(video_id=video_id, path=path, kind=WORKER_ENDED, message=message, source="")
        self.dispatch.finish(VideoOutcome(video_id, path, task.features, failure), machine)


def _with_identity(failure: Failure) -> Failure:
    """Add a file's identity to its failure, so that a later call can tell whether the file is the same."""
    return failure if "://" in failure.path else replace(failure, source=file_identity(Path(failure.path)))


async def _report_without_driver(worker: WorkerHandle) -> TakeoverReport | None:
    """Return a worker's report, or None if a driver is calling it."""
    for _ in range(MAX_DRIVER_CHECKS):
        call = worker.actor.report_for_takeover.remote()
        report: TakeoverReport = await asyncio.wait_for(call, 2 * DRIVER_AT_WORK_SECONDS)
        if report.since_driver_seconds > DRIVER_AT_WORK_SECONDS:
            return report
        await asyncio.sleep(DRIVER_AT_WORK_SECONDS)
    return None


def _settings_digest(extraction: Extraction, worker: WorkerSettings) -> str:
    """Return the common part of the names of workers with the same settings. Only these workers are reused."""
    settings = extraction.settings
    chosen = [(name, settings.weights_of(name)) for name in settings.store_names]
    return _digest([chosen, replace(worker, weights={}, num_cores=None)])  # these two may differ in a repeated call


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _readable(name: str) -> str:
    """Return a readable part of a worker's name, for Ray's dashboard."""
    return re.sub(r"[^\w.+-]+", "-", name)[:MAX_READABLE]


def _call_of(extraction: Extraction, worker: WorkerSettings, share: Share) -> dict[str, str]:
    """Return the description of a call for people: its options, and the machine of its driver."""
    about = {
        "features": ",".join(extraction.settings.store_names),
        "device": worker.device,
        "workers": share.max_workers and str(share.max_workers),
        "cpus-per-worker": f"{share.num_cpus:g}",
        "gpus-per-worker": share.num_gpus and f"{share.num_gpus:g}",
        "driver": f"{platform.node()}, process {os.getpid()}",
    }
    return {name: str(value) for name, value in about.items() if value}

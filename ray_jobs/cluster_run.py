"""The driver of an extraction on a cluster: it assigns videos to workers and replaces workers that end.

Workers decode, compute and write shards themselves; only paths and outcomes pass through Ray, never frames. The
stores say what is done: whatever ends a worker, a machine, the driver or the cluster, the same call continues.
Workers outlive their driver for a minute, in which another driver can take them over.
"""

import asyncio
import hashlib
import os
import time
from collections.abc import Sequence
from itertools import count

import ray
from ray.exceptions import RayError

from ..extract.pipeline.work_list import WorkList
from ..extract.pipeline.write import Kept, Outcome, note_outcome
from ..storage.common.errors import UserError
from ..storage.common.files import file_identity
from ..storage.common.problems import Problems
from ..storage.common.progress import Listener
from ..storage.records import Failure, Profile, VideoRecord, Weights
from ..storage.remote.addresses import without_secrets
from .actors import Worker, existing_workers, kill_worker, start_worker
from .cluster import NAMESPACE, Share, cause_of, draining_nodes, reason_of
from .dispatch import MOST_ENDS, Dispatch
from .status import Status
from .worker import Answer, Greeting, VideoTask, WorkerSettings
from .written_videos import Written

LOOK_SECONDS = 5.0
"""Time between checks whether the cluster has grown, and whether machines will be gone soon."""
PAUSE_SECONDS = 2.0
"""Time before a worker that ended is replaced."""
MOST_ENDS_IN_A_ROW = 3
"""If this many workers in a row end with nothing done, the run stops with the message of the last one. If they end
without an error of their own, like those of a lost machine, this many per place are needed."""
STALLED_SECONDS = 2 * 3600.0
"""A worker without an outcome for this long hangs. Decoding has its own, shorter limits."""
ANSWER_WITHIN_SECONDS = 300.0
"""A worker that does not answer for this long is killed. Workers normally answer within seconds."""
DRIVER_AT_WORK_SECONDS = 5.0
"""A worker that was called more recently than this has a driver."""
LOOKS_FOR_DRIVER = 4
"""How often it is looked for: a busy worker still answers calls of a driver that was killed."""
IDLE_SECONDS = 0.5
"""Time between offers of work to an idle worker."""


class ClusterRun:
    """One call: what is to be done, and the workers that do it."""

    def __init__(
        self,
        work: WorkList,
        todo: Sequence[VideoTask],
        settings: WorkerSettings,
        problems: Problems,
        share: Share,
        shard_seconds: float,
        identity: str,
        on_progress: Listener | None = None,
    ) -> None:
        """Prepare to extract videos.

        Args:
            work: The data set and its stores.
            todo: Videos to extract.
            settings: Settings of the extractors.
            problems: Receives failures.
            share: What each worker uses of a machine.
            shard_seconds: Longest time that finished features wait to be written.
            identity: The settings as the user gave them. Workers of an earlier call with other settings are not taken
                over.
            on_progress: Called with the progress every few seconds.
        """
        self.work, self.todo, self.settings, self.problems, self.share = work, todo, settings, problems, share
        self.shard_seconds = shard_seconds
        self.number_of = {video.video_id: number for number, (video, _) in enumerate(todo)}
        self.sizes = [_size(work, video) for video, _ in todo]
        self.dispatch = Dispatch(self.sizes)
        self._written = Written(work, settings.weights)
        log = work.dataset.path / "jobs" / f"extract-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
        self.status = Status(len(todo), sum(self.sizes), log, on_progress)
        self._workers: dict[str, Worker] = {}
        self._numbers = count()
        self._made = {name: (store.profile, store.weights) for name, store in work.stores.items()}
        """Profile and weights of each features name: those of its store or, without one, of the first worker."""
        self._ends_in_a_row = 0
        self._draining: set[str] = set()
        digest = hashlib.sha256(repr([str(work.dataset.path), work.features, identity]).encode()).hexdigest()
        self._prefix = f"extract-{digest[:16]}-"

    async def run(self) -> None:
        """Extract until nothing is left.

        Raises:
            UserError: Several workers in a row ended with nothing done, or another call is extracting this data set.
        """
        slots: set[asyncio.Task[None]] = set()
        try:
            taken_over = [worker for name in existing_workers(self._prefix) if (worker := await self._take_over(name))]
            await self._look_at_stores()  # workers may have written and ended since the stores were read
            # Only now, because no video may be assigned before all earlier workers are known.
            slots = {asyncio.create_task(self._slot(worker)) for worker in taken_over}
            while self.dispatch.num_left:
                self._draining = draining_nodes()
                while len(slots) < min(self.share.num_workers(), self.dispatch.num_left):
                    slots.add(asyncio.create_task(self._slot()))
                done, slots = await asyncio.wait(slots, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                self.work.write_failures()
                self.status.show(self.dispatch.num_left, sum(worker.loaded for worker in self._workers.values()))
        finally:
            for task in slots:
                task.cancel()
            await asyncio.gather(*slots, return_exceptions=True)
            for worker in self._workers.values():
                # If videos are left, a loaded worker finishes what it has and waits for another driver.
                if not (worker.loaded and self.dispatch.num_left):
                    kill_worker(worker)
            self.work.write_failures()

    async def _take_over(self, name: str) -> Worker | None:
        """Take over a worker of an earlier call.

        Raises:
            UserError: That call is still running.
        """
        try:
            worker = Worker(name, next(self._numbers), ray.get_actor(name, NAMESPACE))
        except ValueError:  # it has ended since it was listed
            return None
        try:
            for _ in range(LOOKS_FOR_DRIVER):
                greeting: Greeting = await asyncio.wait_for(worker.actor.greet.remote(), 2 * DRIVER_AT_WORK_SECONDS)
                if greeting.since_driver_seconds > DRIVER_AT_WORK_SECONDS:
                    break
                await asyncio.sleep(DRIVER_AT_WORK_SECONDS)
            else:
                path = self.work.dataset.path
                raise UserError(f"{path}: another call is extracting it now; wait until it ends, or stop it first")
        except (RayError, asyncio.TimeoutError):
            kill_worker(worker)
            return None
        self.dispatch.take_over(worker.number, self._known(greeting.held), self._known(greeting.kept))
        self._workers[name] = worker
        return worker

    def _known(self, video_ids: Sequence[str]) -> list[int]:
        """Return the numbers of the videos that belong to this call."""
        return [self.number_of[video_id] for video_id in video_ids if video_id in self.number_of]

    async def _slot(self, worker: Worker | None = None) -> None:
        """Keep one place filled with a worker while anything is left to do."""
        while self.dispatch.num_left:
            worker = worker or self._start()
            self._workers[worker.name] = worker
            try:
                await self._serve(worker)
            except (RayError, UserError, OSError, asyncio.TimeoutError) as error:
                self._release(worker)
                await self._look_at_stores()  # it may not have reported what it wrote last
                self._ended(worker, error)
                worker = None
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                self._release(worker)
                return

    async def _look_at_stores(self) -> None:
        """Count videos as done that are on disk, though no worker reported them."""
        written = await asyncio.to_thread(self._written.look)
        known = (
            (self.number_of[video_id], features) for video_id, features in written.items() if video_id in self.number_of
        )
        self.dispatch.on_disk(number for number, features in known if features >= set(self.todo[number][1]))

    def _release(self, worker: Worker) -> None:
        del self._workers[worker.name]
        kill_worker(worker)

    def _start(self) -> Worker:
        name = f"{self._prefix}{os.urandom(4).hex()}"
        return start_worker(name, next(self._numbers), self.work.dataset, self.share, self.shard_seconds)

    async def _serve(self, worker: Worker) -> None:
        """Give a worker videos and record their outcomes, until nothing is left or its machine will be gone soon."""
        made = await worker.actor.load.remote(self.settings)  # waits for room on the cluster, however long
        worker.node = await worker.actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        worker.loaded = True
        self._check_made(worker, made)
        answer = Answer([], 0, True, 0.0, 0.0, 0.0)
        while self.dispatch.num_left:
            draining = worker.node in self._draining
            if draining and answer.idle:
                self.dispatch.ended(worker.number, by_a_video=False)
                return
            given, ask_at = ([], None) if draining else self.dispatch.next(worker.number, answer.num_waiting)
            if answer.idle and not given:
                await asyncio.sleep(IDLE_SECONDS)
            call = worker.actor.exchange.remote([self.todo[number] for number in given], ask_at, draining)
            answer = await asyncio.wait_for(call, ANSWER_WITHIN_SECONDS)
            self._heard(worker, answer)

    def _heard(self, worker: Worker, answer: Answer) -> None:
        self.status.answered(worker.number, answer)
        for event in answer.events:
            if isinstance(event, Kept):
                for number in self._known(event.video_ids):
                    self.dispatch.done(worker.number, number)
            elif (number := self.number_of.get(event.video_id)) is not None:
                self._ends_in_a_row = 0
                self._note(event)
                (self.dispatch.done if event.failure else self.dispatch.finished)(worker.number, number)
        if answer.quiet_seconds > STALLED_SECONDS:
            raise TimeoutError(f"no outcome for {answer.quiet_seconds / 60:.0f} minutes")

    def _note(self, outcome: Outcome) -> None:
        self.status.outcome(outcome, self.sizes[self.number_of[outcome.video_id]])
        note_outcome(outcome, self.work, self.problems)

    def _check_made(self, worker: Worker, made: dict[str, tuple[Profile, Weights]]) -> None:
        """Raise a ``UserError`` if a worker's profile or weights differ from those of the store: it can hold only
        one."""
        for name, (profile, weights) in made.items():
            expected = self._made.setdefault(name, (profile, weights))
            if (profile, weights) != expected:
                raise UserError(
                    f"machine {worker.node[:8]}: has the weights {weights.name} ({weights.sha256[:12]}) for {name}, "
                    f"the others {expected[1].name} ({expected[1].sha256[:12]}); put the same file on all machines"
                )

    def _ended(self, worker: Worker, error: Exception) -> None:
        """Return its videos to the others. Those that were in the hands of too many workers that ended have failed."""
        reason = reason_of(error)
        self.status.num_ended += 1
        self._ends_in_a_row += 1
        self.status.say(f"note: a worker ended ({reason}); its videos go to other workers")
        by_the_disk = isinstance(getattr(error, "cause", None), UserError | OSError)  # or by a remote store
        by_a_video = not (by_the_disk or getattr(error, "preempted", False))
        for number in self.dispatch.ended(worker.number, by_a_video=by_a_video):
            self._give_up(number, reason)
        num_places = 1 if isinstance(cause_of(error), UserError | OSError) else self.share.num_workers()
        if self._ends_in_a_row >= MOST_ENDS_IN_A_ROW * num_places:
            raise UserError(f"{self._ends_in_a_row} workers in a row ended with nothing done; the last: {reason}")

    def _give_up(self, number: int, reason: str) -> None:
        video, features = self.todo[number]
        if video.url:
            path, source = without_secrets(video.url), ""
        else:
            file = self.work.dataset.video_path(video)
            path, source = str(file), file_identity(file)
        message = f"{MOST_ENDS} workers ended while they were extracting it; the last: {reason}"
        failure = Failure(video_id=video.video_id, path=path, kind="worker_ended", message=message, source=source)
        self._note(Outcome(video.video_id, path, features, failure))


def _size(work: WorkList, video: VideoRecord) -> int:
    """Return the size of a video file in bytes; 0 if that would need a request to a server."""
    try:
        return 0 if video.url else work.dataset.video_path(video).stat().st_size
    except OSError:
        return 0

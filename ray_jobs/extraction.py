"""Extraction on a Ray cluster: ``python ray_jobs/extract_howto100m.py --dataset demo --features s3d``, with all that
vlalign-extract takes.

The driver knows what is left and gives it out; each worker decodes, computes and writes shards of its own, so that
through Ray go paths and what became of them, never a frame. What is done is read from the stores: whatever ends a
worker, a machine, the driver or the cluster, the same call goes on. Workers outlive their driver for a minute, in
which another driver takes them over.
"""

import argparse
import asyncio
import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import ray
import torch
from ray.actor import ActorHandle
from ray.exceptions import RayError

from ..extract.cli import Here, extract, extract_parser, measure_speed_of
from ..extract.decoding.probe import VideoError
from ..extract.plan import Probed, probe_videos
from ..extract.run import SHARD_SECONDS, Kept, Outcome, note_outcome
from ..extract.work import WorkList
from ..storage.common.command import run_command
from ..storage.common.errors import UserError
from ..storage.common.problems import Problems
from ..storage.common.signals import keeping
from ..storage.common.terminal import say
from ..storage.files import file_identity
from ..storage.profiles import PROFILES
from ..storage.records import Failure, Profile, VideoRecord, Weights
from ..storage.remote.store import remote_store
from .cluster import (
    NAMESPACE,
    Share,
    add_address,
    cause_of,
    connect,
    draining_nodes,
    reason_of,
    share_of_worker,
    spread,
)
from .dispatch import MOST_ENDS, Dispatch
from .status import Status
from .worker import Answer, ExtractionWorker, Greeting
from .written import Written

LOOK_SECONDS = 5.0
"""How often the cluster is looked at: whether it grew, and whether machines are to go."""
PAUSE_SECONDS = 2.0
"""Before a worker takes the place of one that ended."""
MOST_ENDS_IN_A_ROW = 3
"""So many workers that end with nothing done between are no accident, and the run stops with the last one's words: so
many in all where they say what is wrong, so many in each place where they just end, as those of a lost machine do."""
STALLED_SECONDS = 2 * 3600.0
"""A worker from which nothing came for so long hangs: decoding has its own, shorter bounds."""
ANSWER_WITHIN_SECONDS = 300.0
"""Workers answer within seconds; one that does not for so long is cut off."""
DRIVER_AT_WORK_SECONDS = 5.0
"""A worker that was asked less long ago has a driver."""
PROBE_TOGETHER = 64
IDLE_SECONDS = 0.5
"""How often a worker with nothing to do is offered something."""


@dataclass(eq=False)
class _Worker:
    number: int
    name: str
    actor: ActorHandle
    node: str = ""
    loaded: bool = False
    """Whether it is there; until then it waits for room in the cluster."""


class _Actor(ExtractionWorker):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        threading.Thread(target=self._end_when_left_alone, daemon=True).start()

    def _end_when_left_alone(self) -> None:
        self.wait_until_left_alone()
        os._exit(0)


class ClusterRun:
    """One call: what there is to do, and the workers that do it."""

    def __init__(
        self,
        args: argparse.Namespace,
        work: WorkList,
        todo: Sequence[tuple[VideoRecord, list[str]]],
        weights: dict[str, str],
        problems: Problems,
        share: Share,
    ) -> None:
        self.args, self.work, self.todo, self.weights, self.problems, self.share = (
            args,
            work,
            todo,
            weights,
            problems,
            share,
        )
        self.number_of = {video.video_id: number for number, (video, _) in enumerate(todo)}
        self.sizes = [_size(work, video) for video, _ in todo]
        self.dispatch = Dispatch(self.sizes)
        self._written = Written(work, weights)
        log = work.dataset.path / "jobs" / f"extract-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
        self.status = Status(len(todo), sum(self.sizes), log)
        self._workers: dict[str, _Worker] = {}
        self._numbers = count()
        self._made = {name: (store.profile, store.weights) for name, store in work.stores.items()}
        """By what features are made: what is there already or else the first worker decides."""
        there = {name: remote_store(work.dataset.features(name)) for name in weights}
        self._urls = {name: each.url for name, each in there.items() if each}
        self._ends_in_a_row = 0
        self._leaving: set[str] = set()
        # Workers of a call with other settings are not taken over.
        said = [str(work.dataset.path), work.features, args.weights, args.device, args.precision, args.allow_host]
        self._prefix = f"extract-{hashlib.sha256(repr(said).encode()).hexdigest()[:16]}-"

    async def run(self) -> None:
        """Until nothing is left. Raises ``UserError`` or ``OSError`` where workers end with that, one after the
        other."""
        slots: set[asyncio.Task] = set()
        try:
            there = [
                each["name"]
                for each in ray.util.list_named_actors(all_namespaces=True)
                if each["namespace"] == NAMESPACE
            ]
            mine = [name for name in there if name.startswith(self._prefix)]
            taken_over = [worker for name in mine if (worker := await self._take_over(name))]
            await self._look_at_stores()  # what workers wrote that ended since the stores were read
            slots = {
                asyncio.create_task(self._slot(worker)) for worker in taken_over
            }  # all are known before anything is given to one
            while self.dispatch.num_left:
                self._leaving = draining_nodes()
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
                if not (
                    worker.loaded and self.dispatch.num_left
                ):  # else it finishes what it has, and waits a while for another driver
                    _kill(worker)
            self.work.write_failures()

    async def _take_over(self, name: str) -> _Worker | None:
        """A worker of an earlier call. Raises ``UserError`` where that call still goes on."""
        try:
            worker = _Worker(next(self._numbers), name, ray.get_actor(name, NAMESPACE))
        except ValueError:  # it has ended since it was listed
            return None
        try:
            for _ in range(2):
                greeting: Greeting = await asyncio.wait_for(worker.actor.greet.remote(), 2 * DRIVER_AT_WORK_SECONDS)
                if greeting.since_driver_seconds > DRIVER_AT_WORK_SECONDS:
                    break
                await asyncio.sleep(DRIVER_AT_WORK_SECONDS)
            else:
                raise UserError(
                    f"{self.work.dataset.path}: another call extracts just this now; wait until it ends, or stop it first"
                )
        except (RayError, asyncio.TimeoutError):
            _kill(worker)
            return None
        numbers = [[self.number_of[v] for v in ids if v in self.number_of] for ids in (greeting.held, greeting.kept)]
        self.dispatch.take_over(worker.number, *numbers)
        self._workers[name] = worker
        return worker

    async def _slot(self, worker: _Worker | None = None) -> None:
        """Keeps one place filled with a worker for as long as there is something to do."""
        while self.dispatch.num_left:
            worker = worker or self._start()
            self._workers[worker.name] = worker
            try:
                await self._serve(worker)
            except (RayError, UserError, OSError, asyncio.TimeoutError) as error:
                self._let_go(worker)
                await self._look_at_stores()  # what it wrote last, it may not have told
                self._ended(worker, error)
                worker = None
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                self._let_go(worker)
                return

    async def _look_at_stores(self) -> None:
        """What is on disk is done, though nobody said so."""
        found = await asyncio.to_thread(self._written.look)
        there = (
            (self.number_of[video_id], features) for video_id, features in found.items() if video_id in self.number_of
        )
        self.dispatch.on_disk(number for number, features in there if features >= set(self.todo[number][1]))

    def _let_go(self, worker: _Worker) -> None:
        del self._workers[worker.name]
        _kill(worker)

    def _start(self) -> _Worker:
        name = f"{self._prefix}{os.urandom(4).hex()}"
        options = {
            "num_cpus": self.share.num_cpus,
            "num_gpus": self.share.num_gpus,
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        made = ray.remote(_Actor).options(
            name=name, namespace=NAMESPACE, lifetime="detached", max_concurrency=4, **options
        )
        actor = made.remote(self.work.dataset, self.share.num_cores, self.args.shard_seconds)
        return _Worker(next(self._numbers), name, actor)

    async def _serve(self, worker: _Worker) -> None:
        """Gives a worker videos and hears what became of them, until nothing is left or its machine is to go."""
        made = await worker.actor.load.remote(
            self.args, self.weights, self._urls
        )  # waits for room in the cluster, however long
        worker.node = await worker.actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        worker.loaded = True
        self._check_made(worker, made)
        answer = Answer([], 0, True, 0.0, 0.0, 0.0)
        while self.dispatch.num_left:
            leaving = worker.node in self._leaving
            if leaving and answer.idle:
                self.dispatch.ended(worker.number, by_a_video=False)
                return
            given, ask_at = ([], None) if leaving else self.dispatch.next(worker.number, answer.num_waiting)
            if answer.idle and not given:
                await asyncio.sleep(IDLE_SECONDS)
            call = worker.actor.exchange.remote([self.todo[number] for number in given], ask_at, leaving)
            answer = await asyncio.wait_for(call, ANSWER_WITHIN_SECONDS)
            self._heard(worker, answer)

    def _heard(self, worker: _Worker, answer: Answer) -> None:
        self.status.answered(worker.number, answer)
        for event in answer.events:
            if isinstance(event, Kept):
                for number in (self.number_of[v] for v in event.video_ids if v in self.number_of):
                    self.dispatch.done(worker.number, number)
            elif (number := self.number_of.get(event.video_id)) is not None:
                self._ends_in_a_row = 0
                self._note(event)
                (self.dispatch.done if event.failure else self.dispatch.finished)(worker.number, number)
        if answer.quiet_seconds > STALLED_SECONDS:
            raise TimeoutError(f"nothing came from it for {answer.quiet_seconds / 60:.0f} minutes")

    def _note(self, outcome: Outcome) -> None:
        self.status.outcome(outcome, self.sizes[self.number_of[outcome.video_id]])
        note_outcome(outcome, self.work, self.problems)

    def _check_made(self, worker: _Worker, made: dict[str, tuple[Profile, Weights]]) -> None:
        """A store holds one profile with one set of weights."""
        for name, (profile, weights) in made.items():
            expected = self._made.setdefault(name, (profile, weights))
            if (profile, weights) != expected:
                raise UserError(
                    f"machine {worker.node[:8]}: has the weights {weights.name} ({weights.sha256[:12]}) for {name}, the others "
                    f"{expected[1].name} ({expected[1].sha256[:12]}); put the same file everywhere"
                )

    def _ended(self, worker: _Worker, error: Exception) -> None:
        """Its videos go to others; those that have seen too many workers end are failures."""
        words = reason_of(error)
        self.status.num_ended += 1
        self._ends_in_a_row += 1
        self.status.say(f"note: a worker ended ({words}); its videos go to others")
        for number in self.dispatch.ended(worker.number, by_a_video=not getattr(error, "preempted", False)):
            video, features = self.todo[number]
            path, source = video.url, ""
            if not path:
                path, source = (
                    str(self.work.dataset.video_path(video)),
                    file_identity(self.work.dataset.video_path(video)),
                )
            message = f"{MOST_ENDS} workers ended with it in hand; the last: {words}"
            failure = Failure(video_id=video.video_id, path=path, kind="worker_ended", message=message, source=source)
            self._note(Outcome(video.video_id, path, features, failure))
        places = 1 if isinstance(cause_of(error), UserError | OSError) else self.share.num_workers()
        if self._ends_in_a_row >= MOST_ENDS_IN_A_ROW * places:
            raise UserError(f"{self._ends_in_a_row} workers in a row ended with nothing done; the last: {words}")


def _kill(worker: _Worker) -> None:
    with contextlib.suppress(RayError, ValueError):
        ray.kill(worker.actor)


def _size(work: WorkList, video: VideoRecord) -> int:
    """In bytes; 0 where nobody knows without asking for it."""
    try:
        return 0 if video.url else work.dataset.video_path(video).stat().st_size
    except OSError:
        return 0


class OnCluster(Here):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        self.share = share_of_worker(
            device=args.device,
            workers=args.workers,
            cpus_per_worker=args.cpus_per_worker,
            gpus_per_worker=args.gpus_per_worker,
        )

    def run(
        self, work: WorkList, todo: Sequence[tuple[VideoRecord, list[str]]], weights: dict[str, str], problems: Problems
    ) -> None:
        run = ClusterRun(self.args, work, todo, weights, problems, self.share)
        each = f"each worker has {self.share.num_cpus:g} cores and {self.share.num_gpus:g} GPUs"
        say(f"{work.dataset.path}: {len(todo):,} videos to do; {each}")
        try:
            with keeping(
                lambda: f"{num_done:,} videos are on disk" if (num_done := len(todo) - run.dispatch.num_left) else ""
            ):
                asyncio.run(run.run())
        finally:
            for line in run.status.summary(run.dispatch.num_left):
                say(line)

    def probe(
        self, videos: Sequence[tuple[str, Path]], features: Sequence[str]
    ) -> Iterator[tuple[str, Probed | VideoError]]:
        profiles = [PROFILES[name] for name in features]
        parts = (videos[first : first + PROBE_TOGETHER] for first in range(0, len(videos), PROBE_TOGETHER))
        return chain.from_iterable(spread(lambda part: list(probe_videos(part, profiles, 1)), parts, "probing"))

    def measure(self, work: WorkList, probed: Sequence[Probed], weights: dict[str, str]) -> tuple[float, str]:
        """One worker's speed, times as many as there are."""

        def measured() -> float:
            if self.args.device == "cpu":
                torch.set_num_threads(self.share.num_cores)
            return measure_speed_of(self.args, work.dataset, probed, weights)

        num_workers = self.share.num_workers()
        try:
            speed = ray.get(
                ray.remote(measured).options(num_cpus=self.share.num_cpus, num_gpus=self.share.num_gpus).remote()
            )
        except RayError as error:
            raise UserError(f"measuring ended on the cluster ({reason_of(error)})") from None
        return num_workers * speed, f"{num_workers:,} workers of this cluster ({speed:.2f} times on one)"


def main(argv: list[str] | None = None) -> int:
    parser = extract_parser(
        "extract_howto100m",
        "Extracts the features of a data set's videos on a Ray cluster. --root is a folder that all machines see.",
        "ray submit ray_jobs/extract_howto100m.yaml ray_jobs/extract_howto100m.py --dataset howto100m --features s3d,resnet152",
    )
    add_address(parser)
    group = parser.add_argument_group("workers")
    group.add_argument("--workers", type=int, help="how many at most (default: as many as there is room for)")
    group.add_argument("--cpus-per-worker", type=float, help="cores of each (default: its part of the machine's)")
    group.add_argument(
        "--gpus-per-worker", type=float, help="GPUs of each, such as 0.5 (default: 1; 0 with --device cpu)"
    )
    group.add_argument(
        "--shard-seconds",
        type=float,
        default=SHARD_SECONDS,
        help=f"a worker that is killed loses at most so much (default: {SHARD_SECONDS:g})",
    )

    def on_cluster(args: argparse.Namespace) -> int:
        args.root = args.root.absolute()
        connect(args.address)
        return extract(args, OnCluster)

    return run_command(on_cluster, parser, argv)

"""Extraction workers as Ray actors: start, find and kill them."""

import asyncio
import contextlib
import os
import platform
import signal
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from ..extract.settings import WorkerSettings
from .cluster import NAMESPACE, Share, draining_nodes
from .worker import ExtractionWorker

NODE_LABEL = "ray.io/node-id"
"""Ray's label with the id of a machine."""
POLL_SECONDS = 2.0
"""Time between a worker's checks whether its machine is drained, and whether it may end."""

ASK_SECONDS = 5.0
"""Longest time to wait until workers have received the request to leave; a worker that is loading receives it later."""


class ExtractionActor(ExtractionWorker):
    """A worker that leaves on SIGTERM or when its machine is drained, and ends its process if no driver calls it."""

    def __init__(self, settings: WorkerSettings, shard_seconds: float) -> None:
        """Start the thread that later ends the process. The arguments are those of ``ExtractionWorker``."""
        super().__init__(settings, shard_seconds)
        self._label = f"extract {settings.dataset.name} on {platform.node()}"
        # Ray makes actors in the main thread, which lets Python handle signals every few milliseconds.
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=self.leave, daemon=True).start())
        node = ray.get_runtime_context().get_node_id()
        threading.Thread(target=self._end_when_left_alone, args=(node,), daemon=True).start()

    def __repr__(self) -> str:
        """Return the worker's label in Ray's messages and dashboard."""
        return self._label

    def _end_when_left_alone(self, node: str) -> None:
        while not self.may_end():
            if node in draining_nodes():
                self.leave()
            time.sleep(POLL_SECONDS)
        os._exit(0)


@dataclass(eq=False)
class WorkerHandle:
    """A worker as its driver knows it."""

    name: str
    number: int
    actor: ActorHandle
    node: str = ""
    """Id of its machine in the cluster."""
    machine: str = ""
    """Name of its machine, for people."""
    seconds: float = 0.0
    """Its age when it last reported."""
    loaded: bool = False
    """False while it waits for room on the cluster."""


def start_worker(
    name: str,
    number: int,
    settings: WorkerSettings,
    share: Share,
    shard_seconds: float,
    excluded: Collection[str] = (),
) -> WorkerHandle:
    """Ask the cluster for a worker that outlives this process.

    Args:
        name: Name by which another driver can find it.
        number: Number by which this driver knows it.
        settings: Data set, features, device and cores.
        share: What it uses of a machine.
        shard_seconds: Longest time that finished features wait to be written.
        excluded: Ids of machines on which it shall not run.
    """
    actor_class = ray.remote(ExtractionActor).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        max_concurrency=6,
        num_cpus=share.num_cpus,
        num_gpus=share.num_gpus,
        max_restarts=0,
        max_task_retries=0,
        label_selector={NODE_LABEL: f"!in({','.join(sorted(excluded))})"} if excluded else {},
    )
    handle = actor_class.remote(settings, shard_seconds)
    actor: ActorHandle = handle  # pyright: ignore[reportAssignmentType] # Ray declares the actor's own type
    return WorkerHandle(name, number, actor)


def existing_workers(prefix: str) -> list[str]:
    """Return the names of workers that begin with ``prefix``."""
    names = _names_in_namespace(ray.util.list_named_actors(all_namespaces=True))
    return [name for name in names if name.startswith(prefix)]


def _names_in_namespace(actors: Sequence[Any]) -> list[str]:
    """Return the names of our actors. Each of ``actors`` is a dict, though Ray declares it as a string."""
    return [actor["name"] for actor in actors if actor["namespace"] == NAMESPACE]


async def ask_to_leave(workers: Iterable[WorkerHandle]) -> None:
    """Ask workers to write finished videos, hand back the rest, and end. Return without waiting for them."""
    calls = [worker.actor.leave.remote() for worker in workers]
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), ASK_SECONDS)


def kill_worker(worker: WorkerHandle) -> None:
    """Kill a worker, if it still exists."""
    with contextlib.suppress(RayError, ValueError):
        ray.kill(worker.actor)

"""Extraction workers as Ray actors: start, find and kill them."""

import contextlib
import os
import platform
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from ..extract.settings import WorkerSettings
from .cluster import NAMESPACE, Share
from .worker import ExtractionWorker


class ExtractionActor(ExtractionWorker):
    """A worker that ends its process when it is left alone."""

    def __init__(self, settings: WorkerSettings, shard_seconds: float) -> None:
        """Start the thread that waits for the end. The arguments are those of ``ExtractionWorker``."""
        super().__init__(settings, shard_seconds)
        self._label = f"extract {settings.dataset.name} on {platform.node()}"
        threading.Thread(target=self._end_when_left_alone, daemon=True).start()

    def __repr__(self) -> str:
        """Return what Ray writes before each message of this worker, and shows in its dashboard."""
        return self._label

    def _end_when_left_alone(self) -> None:
        self.wait_until_left_alone()
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
    loaded: bool = False
    """False while it waits for room on the cluster."""


def start_worker(name: str, number: int, settings: WorkerSettings, share: Share, shard_seconds: float) -> WorkerHandle:
    """Ask the cluster for a worker that outlives this process.

    Args:
        name: Name by which another driver can find it.
        number: Number by which this driver knows it.
        settings: Data set, features, device and cores.
        share: What it uses of a machine.
        shard_seconds: Longest time that finished features wait to be written.
    """
    actor_class = ray.remote(ExtractionActor).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        max_concurrency=4,
        num_cpus=share.num_cpus,
        num_gpus=share.num_gpus,
        max_restarts=0,
        max_task_retries=0,
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


def kill_worker(worker: WorkerHandle) -> None:
    """Kill a worker, if it still exists."""
    with contextlib.suppress(RayError, ValueError):
        ray.kill(worker.actor)

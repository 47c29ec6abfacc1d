"""The Ray cluster: connecting to it, what a worker uses of it, and which of its machines will be gone soon."""

import argparse
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import ray
from ray._private.state import state  # Ray has no public way to list the nodes that are being drained
from ray.exceptions import RayError

from ..storage.common.errors import SettingError, UserError
from ..storage.common.signals import take_signals_again

T = TypeVar("T")
R = TypeVar("R")
NAMESPACE = "vlalign"
GPU_WORKER_CPUS = 8.0
"""Cores of a GPU worker if no number is given and no machine with a GPU is up yet."""
ITEMS_AHEAD = 2
"""Items per core that wait in the cluster, so that no more is read than is worked on."""
MOST_RETRIES = 5
"""How often an item is tried again after its process or machine was lost."""


def add_address(parser: argparse.ArgumentParser) -> None:
    """Add ``--address``, and let @FILE pass more options: a submitted job goes through a shell that loses quotes."""
    parser.fromfile_prefix_chars = "@"
    parser.add_argument(
        "--address", help="address of the Ray cluster (default: $RAY_ADDRESS, or the one on this machine, or a new one)"
    )


def connect(address: str | None = None) -> None:
    """Connect this process to a Ray cluster.

    Args:
        address: Address of the cluster. By default the one in RAY_ADDRESS, else one that runs on this machine, else a
            new one in this process, whose dashboard listens on the loopback interface only.

    Raises:
        UserError: No cluster answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if os.environ.get("NO_COLOR"):
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    try:
        ray.init(address=address, namespace=NAMESPACE, logging_level=logging.WARNING, log_to_driver=True)
    except (ConnectionError, ValueError) as error:
        where = address or os.environ.get("RAY_ADDRESS") or "on this machine"
        reason = " ".join(str(error).split())
        raise UserError(f"no Ray cluster {where} answers ({reason}); start one with ray start --head") from None
    take_signals_again()  # a Ray in this process replaces the handler of SIGTERM


@dataclass(frozen=True)
class Share:
    """The share of a machine that each worker uses."""

    num_cpus: float
    num_gpus: float
    most_workers: int | None
    """None: as many as fit on the cluster."""

    @property
    def num_cores(self) -> int:
        """Number of whole cores, at least 1."""
        return max(int(self.num_cpus), 1)

    def num_workers(self) -> int:
        """Return how many workers there should be on the cluster as it is now."""
        return self.most_workers or max(sum(self.fit(node) for node in nodes()), 1)

    def fit(self, resources: Mapping[str, float]) -> int:
        """Return how many workers fit on a machine with these resources."""
        on_cpus = int(resources.get("CPU", 0) / self.num_cpus + 1e-6)
        return min(on_cpus, int(resources.get("GPU", 0) / self.num_gpus + 1e-6)) if self.num_gpus else on_cpus


def nodes() -> list[dict[str, float]]:
    """Return the resources of each machine that is up."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def device_of_workers(name: str) -> str:
    """Return the device of a cluster's workers: for "auto", "cuda" if any machine that is up has a GPU, else "cpu".

    Raises:
        SettingError: Several devices are named, but a worker has one.
    """
    if "," in name:
        raise SettingError("device", name, "each worker of a cluster has one device; expected auto, cpu or cuda")
    if name != "auto":
        return name
    return "cuda" if any(node.get("GPU", 0) > 0 for node in nodes()) else "cpu"


def share_of_worker(
    *,
    device: str,
    workers: int | None = None,
    cpus_per_worker: float | None = None,
    gpus_per_worker: float | None = None,
) -> Share:
    """Return what each worker uses of a machine.

    Args:
        device: "cpu", or the device of the networks.
        workers: Largest number of workers; by default as many as fit.
        cpus_per_worker: Cores of each worker. By default all of a machine, or with a GPU the same share of the cores
            as of the machine's GPUs.
        gpus_per_worker: GPUs of each worker; by default 1, or 0 if the device is "cpu".

    Raises:
        UserError: A number is not above 0, or the device needs a GPU and the workers get none.
    """
    num_gpus = gpus_per_worker if gpus_per_worker is not None else (0.0 if device == "cpu" else 1.0)
    if device != "cpu" and not num_gpus:
        raise SettingError(
            "gpus_per_worker", 0, f"device {device} needs a GPU or a part of one; expected more than 0, or device cpu"
        )
    num_cpus = cpus_per_worker
    if num_cpus is None and num_gpus:
        num_cpus = min(
            (n.get("CPU", 0) * num_gpus / n["GPU"] for n in nodes() if n.get("GPU", 0) >= num_gpus),
            default=GPU_WORKER_CPUS,
        )
    elif num_cpus is None:
        num_cpus = min((n["CPU"] for n in nodes() if n.get("CPU", 0) >= 1), default=1.0)
    for name, value in (("cpus_per_worker", num_cpus), ("workers", workers or 1)):
        if value <= 0:
            raise SettingError(name, value, "expected more than 0")
    return Share(num_cpus if num_cpus < 1 else float(int(num_cpus)), num_gpus, workers)


def spread(call: Callable[[T], R], items: Iterable[T], *, doing: str, in_order: bool = False) -> Iterator[R]:
    """Call a function with each item, on one core of the cluster each, and yield the results.

    Args:
        call: Function to run; it must be picklable.
        items: Read lazily, ``ITEMS_AHEAD`` per core.
        doing: What the function does, for messages, such as "tagging captions".
        in_order: Yield the results in the order of the items, instead of as they are done.

    Raises:
        UserError: A call raised it, or the cluster could not do the work.
        OSError: A call raised it.
    """

    @ray.remote(num_cpus=1, max_retries=MOST_RETRIES)
    def remote(item: T) -> R:  # Ray takes functions only, and not everything that can be called
        return call(item)

    waiting: list[ray.ObjectRef] = []

    def next_results() -> list[R]:
        done, waiting[:] = (waiting[:1], waiting[1:]) if in_order else ray.wait(waiting)
        return ray.get(done)

    try:
        for item in items:
            waiting.append(remote.remote(item))
            if len(waiting) >= ITEMS_AHEAD * max(sum(node.get("CPU", 0) for node in nodes()), 1):
                yield from next_results()
        while waiting:
            yield from next_results()
    except RayError as error:
        cause = cause_of(error)
        if isinstance(cause, UserError | OSError):
            raise cause from None
        raise UserError(
            f"{doing} failed on the cluster ({reason_of(error)}); finished work is kept, run the same command again "
            "to continue"
        ) from None


def cause_of(error: Exception) -> Exception:
    """Return what was raised in a worker, if that is known, else the error itself."""
    return getattr(error, "cause", None) or error


def reason_of(error: Exception) -> str:
    """Return the message of the cause of an error, on one line of at most 300 characters."""
    return " ".join(str(cause_of(error)).split())[:300] or type(cause_of(error)).__name__


def draining_nodes() -> set[str]:
    """Return the ids of machines that will be gone soon: idle, reclaimed by a spot market, or shutting down."""
    return set(state.get_draining_nodes())

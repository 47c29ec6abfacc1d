"""The Ray cluster: how to reach it, what a worker takes of it, and which of its machines are about to go."""

import argparse
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import ray
from ray._private.state import state  # Ray has no public name for the machines that are to be drained
from ray.exceptions import RayError

from ..storage.common.errors import UserError
from ..storage.common.signals import take_signals_again

T = TypeVar("T")
R = TypeVar("R")
NAMESPACE = "vlalign"
GPU_WORKER_CPUS = 8.0
"""Where nobody says how many, and no machine with a GPU is there yet to be asked."""


def add_address(parser: argparse.ArgumentParser) -> None:
    """What every job takes. @FILE has more options: a shell that nobody quotes for stands before a submitted job."""
    parser.fromfile_prefix_chars = "@"
    parser.add_argument(
        "--address", help="of the Ray cluster (default: $RAY_ADDRESS, or the one on this machine, or a new one here)"
    )


def connect(args: argparse.Namespace) -> None:
    """To the cluster at ``args.address`` or in RAY_ADDRESS, else to the one that runs on this machine, else to a new one of this
    process, whose dashboard listens on loopback only. Makes ``args.root`` absolute: workers have folders of their own that they work in.
    """
    args.root, address = args.root.absolute(), args.address
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray.init(address=address, namespace=NAMESPACE, logging_level=logging.WARNING, log_to_driver=True)
    except (ConnectionError, ValueError) as error:
        where = address or os.environ.get("RAY_ADDRESS") or "on this machine"
        raise UserError(
            f"no Ray cluster {where} answers ({' '.join(str(error).split())}); start one with ray start --head"
        ) from None
    take_signals_again()  # a Ray of this process's own takes SIGTERM


@dataclass(frozen=True)
class Share:
    """What a worker takes of a machine."""

    num_cpus: float
    num_gpus: float
    most_workers: int | None
    """None: as many as there is room for."""

    @property
    def num_cores(self) -> int:
        return max(int(self.num_cpus), 1)

    def num_workers(self) -> int:
        """How many there should be, as the cluster is now."""
        return self.most_workers or max(sum(self.fit(node) for node in nodes()), 1)

    def fit(self, resources: dict[str, float]) -> int:
        on_cpus = int(resources.get("CPU", 0) / self.num_cpus + 1e-6)
        return min(on_cpus, int(resources.get("GPU", 0) / self.num_gpus + 1e-6)) if self.num_gpus else on_cpus


def nodes() -> list[dict[str, float]]:
    """The resources of the machines that are there."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def share_of_a_worker(args: argparse.Namespace) -> Share:
    """As ``args`` say, or else a GPU and its part of the machine's cores, or, without a GPU, a whole machine."""
    num_gpus = args.gpus_per_worker if args.gpus_per_worker is not None else (0.0 if args.device == "cpu" else 1.0)
    if args.device != "cpu" and not num_gpus:
        raise UserError(
            f"--gpus-per-worker 0: --device {args.device} needs some of a GPU; pass a part of 1, or --device cpu"
        )
    num_cpus = args.cpus_per_worker
    if num_cpus is None and num_gpus:
        num_cpus = min(
            (n.get("CPU", 0) * num_gpus / n["GPU"] for n in nodes() if n.get("GPU", 0) >= num_gpus),
            default=GPU_WORKER_CPUS,
        )
    elif num_cpus is None:
        num_cpus = min((n["CPU"] for n in nodes() if n.get("CPU", 0) >= 1), default=1.0)
    for name, value in (("--cpus-per-worker", num_cpus), ("--workers", args.workers or 1)):
        if value <= 0:
            raise UserError(f"{name} {value}: expected more than 0")
    return Share(num_cpus if num_cpus < 1 else float(int(num_cpus)), num_gpus, args.workers)


ITEMS_AHEAD = 2
"""For each core: what waits in the cluster, so that no more is read than is worked on."""
MOST_RETRIES = 5
"""What was in a process or on a machine that ended is done again."""


def spread(call: Callable[[T], R], items: Iterable[T], doing: str) -> Iterator[R]:
    """``call`` of each of ``items``, a core each, as they are done. Raises what a call raised if that is the user's to mend, and
    ``UserError`` for what the cluster could not do. ``doing``: what this is."""
    remote = ray.remote(call).options(num_cpus=1, max_retries=MOST_RETRIES)
    waiting: list[ray.ObjectRef] = []
    try:
        for item in items:
            waiting.append(remote.remote(item))
            if len(waiting) >= ITEMS_AHEAD * max(sum(node.get("CPU", 0) for node in nodes()), 1):
                done, waiting = ray.wait(waiting)
                yield from ray.get(done)
        while waiting:
            done, waiting = ray.wait(waiting)
            yield from ray.get(done)
    except RayError as error:
        if isinstance(cause_of(error), UserError | OSError):
            raise cause_of(error) from None
        raise UserError(
            f"{doing} ended on the cluster ({words_of(error)}); what was done is kept, and the same call goes on"
        ) from None


def cause_of(error: Exception) -> Exception:
    """What was raised in a worker, if that is known."""
    return getattr(error, "cause", None) or error


def words_of(error: Exception) -> str:
    return " ".join(str(cause_of(error)).split())[:300] or type(cause_of(error)).__name__


def draining_nodes() -> set[str]:
    """Ids of the machines that are to go: given back by the autoscaler, taken by a spot market, or shut down."""
    return set(state.get_draining_nodes())

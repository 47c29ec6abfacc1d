"""The Ray cluster: connection, share of a machine for each worker, and machines that will be gone soon."""

import argparse
import atexit
import logging
import os
import secrets
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray._common.utils import get_ray_address_file
from ray._private import ray_constants
from ray._private.state import state  # Ray has no public way to list the nodes that are being drained
from ray._raylet import AuthenticationTokenLoader, Config  # pyright: ignore[reportAttributeAccessIssue]
from ray.exceptions import ActorDiedError, RayError
from ray.job_config import JobConfig

from ..storage.common.errors import SettingError, UserError
from ..storage.common.signals import take_signals_again
from ..storage.common.terminal import say
from ..storage.common.writing import open_to_read

T = TypeVar("T")
R = TypeVar("R")
NAMESPACE = "vlalign"
GPU_WORKER_CPUS = 8.0
"""Cores of a GPU worker if no number is given and no machine with a GPU is up yet."""
ITEMS_PER_CORE = 2
"""Number of items per core that wait in the cluster, which limits reading ahead."""
MAX_RETRIES = 5
"""Number of times that an item is tried again after its process or machine was lost."""


def add_address(parser: argparse.ArgumentParser) -> None:
    """Add ``--address``, and let @FILE pass more options: a submitted job goes through a shell that loses quotes."""
    parser.fromfile_prefix_chars = "@"
    parser.add_argument(
        "--address", help="address of the Ray cluster (default: $RAY_ADDRESS, or the one on this machine, or a new one)"
    )


class _OwnImports(JobConfig):
    """A job whose workers import from their own installation only.

    Ray would put the driver's current folder and its script's folder first in the import path.
    """

    @property
    def _py_driver_sys_path(self) -> list[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return []

    @_py_driver_sys_path.setter
    def _py_driver_sys_path(self, folders: object) -> None:
        del folders


def connect(address: str | None = None) -> None:
    """Connect this process to a Ray cluster.

    Args:
        address: Address of the cluster. By default the one in RAY_ADDRESS, else one that this user started on this
            machine, else a new one in this process: it listens on the loopback interface only, has no dashboard, and
            answers nobody without its token.

    Raises:
        UserError: No cluster answers, or none can be started.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if os.environ.get("NO_COLOR"):
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    address = running_cluster(address) or "local"
    own: dict[str, Any] = _settings_of_local_ray() if address == "local" else {}
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            logging_level=logging.WARNING,
            log_to_driver=True,
            job_config=_OwnImports(),
            **own,
        )
    except Exception as error:  # Ray raises all kinds
        reason = " ".join(str(error).split())[:300]
        if own:
            raise UserError(
                f"Ray did not start on this machine ({reason}); if its folder {own['_temp_dir']} is the "
                "reason, set RAY_TMPDIR to another folder with a short path"
            ) from None
        raise UserError(f"Ray cluster {address}: no answer ({reason}); start one with ray start --head") from None
    take_signals_again()  # a Ray in this process replaces the handler of SIGTERM


def running_cluster(address: str | None) -> str | None:
    """Return the address of a running cluster, or None; its token is sent from now on.

    Args:
        address: As for ``connect``.

    Raises:
        UserError: The address is "auto", and no cluster of this user runs on this machine.
    """
    address = address or os.environ.get("RAY_ADDRESS") or None
    found = _address_here() if address in (None, "auto") else None
    if address == "auto" and not found:
        raise UserError("you have no Ray cluster on this machine; start one with ray start --head")
    if found and "RAY_AUTH_MODE" not in os.environ and AuthenticationTokenLoader.instance().has_token(True):
        _send_token()
    return found or address


def _address_here() -> str | None:
    """Return the address that this user's ``ray start`` recorded on this machine, if any.

    Every user may write to Ray's folder: an address that another one left there would lead to their cluster, whose
    code this process would run.
    """
    path = Path(get_ray_address_file(None))
    try:
        with open_to_read(path) as file:
            about = os.fstat(file.fileno())
            address = file.read().strip()
    except FileNotFoundError:
        return None
    except (OSError, ValueError, UserError) as error:
        say(f"note: {path}, which has the address of a running Ray, cannot be read ({error})")
        return None
    links = [folder.lstat().st_uid for folder in path.parents if folder.is_symlink()]
    if os.name == "posix" and (not {about.st_uid, *links} <= {0, os.geteuid()} or about.st_mode & 0o002):
        say(f"note: {path} is another user's, so its Ray cluster is not used; to use it, pass --address")
        return None
    return address or None


def _send_token() -> None:
    """Make this process and its children use Ray's token."""
    os.environ["RAY_AUTH_MODE"] = "token"
    Config.initialize("")  # Ray read the environment when it was imported


def _settings_of_local_ray() -> dict[str, Any]:
    """Prepare a Ray that only this user can reach or read. Return its settings for ``ray.init``."""
    folder = tempfile.TemporaryDirectory(
        prefix="vlalign-", dir=os.environ.get("RAY_TMPDIR") or None, ignore_cleanup_errors=True
    )
    atexit.register(_end_local_ray, folder)  # later than Ray's own, so called before it
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    _send_token()
    # What Ray does on macOS and Windows: no part of it listens on other interfaces.
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False
    inner = Path(folder.name) / "ray"  # Ray lets everybody write to its own folder; the outer one is closed
    return {"_temp_dir": str(inner), "include_dashboard": False}


def _end_local_ray(folder: "tempfile.TemporaryDirectory[str]") -> None:
    ray.shutdown()
    folder.cleanup()


@dataclass(frozen=True)
class Share:
    """The share of a machine that each worker uses."""

    num_cpus: float
    num_gpus: float
    max_workers: int | None
    """None: as many as fit on the cluster."""

    @property
    def num_cores(self) -> int:
        """Number of whole cores, at least 1."""
        return max(int(self.num_cpus), 1)

    def num_workers(self, excluded: Collection[str] = ()) -> int:
        """Return how many workers there should be on the cluster as it is now, without machines with excluded ids."""
        return self.max_workers or max(sum(self.fit(node) for node in nodes(excluded)), 1)

    def fit(self, resources: Mapping[str, float]) -> int:
        """Return how many workers fit on a machine with these resources."""
        on_cpus = int(resources.get("CPU", 0) / self.num_cpus + 1e-6)
        return min(on_cpus, int(resources.get("GPU", 0) / self.num_gpus + 1e-6)) if self.num_gpus else on_cpus


def nodes(excluded: Collection[str] = ()) -> list[dict[str, float]]:
    """Return the resources of each machine that is up, without machines with excluded ids."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in excluded]


def is_up(node: str) -> bool:
    """Return whether the machine with an id is up."""
    return any(each["NodeID"] == node and each["Alive"] for each in ray.nodes())


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
    """Return each worker's share of a machine.

    Args:
        device: "cpu", or the device of the networks.
        workers: Largest number of workers; by default as many as fit.
        cpus_per_worker: Cores of each worker. By default all cores of a machine; with GPUs, the same share of a
            machine's cores as of its GPUs.
        gpus_per_worker: GPUs of each worker; by default 1, or 0 if the device is "cpu".

    Raises:
        UserError: A number is not above 0, or the device needs a GPU and the workers get none.
    """
    num_gpus = gpus_per_worker if gpus_per_worker is not None else (0.0 if device == "cpu" else 1.0)
    if device != "cpu" and not num_gpus:
        raise SettingError(
            "gpus_per_worker", 0, f"device {device} needs a GPU or a share of one; expected more than 0, or device cpu"
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


def spread(call: Callable[[T], R], items: Iterable[T], *, doing: str, preserve_order: bool = False) -> Iterator[R]:
    """Call a function with each item, each call on one core of the cluster, and yield the results.

    Args:
        call: Function to run; it must be picklable.
        items: Read lazily, ``ITEMS_PER_CORE`` per core.
        doing: What the function does, for messages and the dashboard, such as "tagging captions".
        preserve_order: Yield the results in the order of the items, instead of as they are done.

    Raises:
        UserError: A call raised it, or the cluster could not do the work.
        OSError: A call raised it.
    """

    @ray.remote(num_cpus=1, max_retries=MAX_RETRIES)
    def remote(item: T) -> R:  # Ray takes functions only, and not everything that can be called
        return call(item)

    waiting: list[ray.ObjectRef] = []

    def next_results() -> list[R]:
        done, waiting[:] = (waiting[:1], waiting[1:]) if preserve_order else ray.wait(waiting)
        return ray.get(done)

    named = remote.options(name=doing)  # as the dashboard shows it
    try:
        for item in items:
            waiting.append(named.remote(item))
            if len(waiting) >= ITEMS_PER_CORE * max(sum(node.get("CPU", 0) for node in nodes()), 1):
                yield from next_results()
        while waiting:
            yield from next_results()
    except RayError as error:
        cause = cause_of(error)
        if isinstance(cause, UserError | OSError):
            raise cause from None
        raise UserError(
            f"{doing} failed on the cluster ({reason_of(error)}); finished work is saved; run the same command again "
            "to continue"
        ) from None


def cause_of(error: Exception) -> Exception:
    """Return the original error of a worker if it is known, or else the error itself."""
    return getattr(error, "cause", None) or error


ENDS = {
    "low on memory": "its process was killed because its machine ran low on memory",
    "its node": "its machine was lost",
    "worker process has died": "its process was killed or crashed",
}
"""{sign in Ray's message: how a worker ended}"""


def reason_of(error: Exception) -> str:
    """Return the message of the cause of an error, on one line of at most 300 characters."""
    if isinstance(error, ActorDiedError) and not error.actor_init_failed:
        return next((words for sign, words in ENDS.items() if sign in str(error)), "its process ended")
    return " ".join(str(cause_of(error)).split())[:300] or type(cause_of(error)).__name__


def draining_nodes() -> set[str]:
    """Return the ids of machines that will be gone soon: idle, reclaimed by a spot market, or shutting down."""
    return set(state.get_draining_nodes())


class MachineNames:
    """The names of machines, as a person knows them."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def name(self, node: str) -> str:
        """Return the name of a machine: its host name, with a part of its id if another running machine has the same
        name.

        A machine keeps its name, even if it is restarted under the same host name.

        Args:
            node: Id of the machine in the cluster.
        """
        if node not in self._names:
            known = {each["NodeID"]: each for each in ray.nodes()}
            about = known.get(node, {})
            host = about.get("NodeManagerHostname") or about.get("NodeManagerAddress") or node[:8]
            others = {self._names[other] for other, each in known.items() if each["Alive"] and other in self._names}
            self._names[node] = f"{host}-{node[:4]}" if host in others else host
        return self._names[node]

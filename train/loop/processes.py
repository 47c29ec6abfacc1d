"""Training in this process, or in one process for each of several devices; the processes share every batch.

    train_run ─┬─ train_here: Trainer(...).run()                in this process
               └─ train_on_devices ─ a child for each device ─ train_here

The command starts the children as torchrun would, and hosts the store through which they find each other.
"""

import contextlib
import os
import pickle
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]: it is public

from ...storage.common.child_process import STOP_SECONDS, Child, ChildCrashed, Ended, run_child, wait_for_any
from ...storage.common.device import AUTO, describe_devices, parse_devices
from ...storage.common.errors import SettingError, UserError, reason_of
from ...storage.common.files import remove_unfinished
from ...storage.common.problems import Problems
from ...storage.common.progress import Progress, report_progress, report_progress_to
from ...storage.common.signals import report_saved_work, uninterrupted
from ...storage.common.system import available_cores
from ...storage.common.terminal import say
from ..data.stores import Stores, load_stores_in_child, sent_stores
from ..distributed import is_alone, join_workers
from ..recipes.own_parts import load_in_child, sent_plugins
from ..runs.files import EVENTS_FILE, LABELS_FILE, LAST_MODEL_FILE, MODEL_FILE, RUN_FILE, STATE_FILE
from ..runs.folder import lock_for_training
from ..runs.run_json import features_note, open_run_stores
from .trainer import StepListener, Trainer, TrainingJob

WRITTEN = (STATE_FILE, MODEL_FILE, LAST_MODEL_FILE, EVENTS_FILE, LABELS_FILE, RUN_FILE)
"""Files of a run that a training writes whole or not at all."""


def train_run(job: TrainingJob, stores: Stores, problems: Problems, on_step: StepListener | None = None) -> None:
    """Train a model, or resume a training that was stopped in the same folder.

    Args:
        job: What to train, on which devices.
        stores: The stores of the run's features.
        problems: Gets a message for each skipped caption or video.
        on_step: As for ``Trainer.run``. It is called in this process, even if other processes train.

    Raises:
        UserError: There is nothing to train on, the folder has a run with other settings, another process trains there,
            or the loss is not finite.
    """
    if not is_alone():
        train_here(job, stores, problems, on_step)
        return
    devices = devices_sharing(job.device, job.config.optimization.batch_size)
    say(f"{job.folder}: training on {describe_devices(devices)}")
    if len(devices) > 1:
        try:
            train_on_devices(replace(job, device=",".join(devices)), len(devices), problems, on_step)
            return
        except SettingError as error:  # fewer clips than a batch has
            if job.device != AUTO or error.setting != "batch_size":
                raise
            say(f"note: --batch-size {error.value} {error.problem}; one process trains alone")
    train_here(replace(job, device=devices[0]), stores, problems, on_step)


def train_here(job: TrainingJob, stores: Stores, problems: Problems, on_step: StepListener | None = None) -> None:
    """Run ``train_run`` in this process alone, or together with processes of torchrun or ``train_on_devices``."""
    folder = job.folder
    with (
        join_workers(job.device) as (workers, device),
        lock_for_training(folder) if workers.is_first else contextlib.nullcontext(),
    ):
        if workers.is_first:
            clean(folder)
        trainer = Trainer(job, stores, workers, device, problems)
        if workers.is_first:
            say(f"{folder}: {trainer.examples.summary}")
            if trainer.examples.labels:
                say(f"{folder}: {len(trainer.examples.labels):,} answers or labels to choose from")
            if trainer.step:
                say(f"{folder}: resumes after step {trainer.step:,}")
            if note := features_note(trainer.state.inputs["features"]):
                say(f"note: {note}")
        trainer.run(on_step)


def clean(folder: Path) -> None:
    """Remove files that a killed training left half written.

    Raises:
        UserError: A training has finished in this folder meanwhile.
    """
    if (folder / RUN_FILE).exists():
        raise UserError(f"{folder}: another process has just finished training there; pass another --run-name NAME")
    if num_removed := sum(remove_unfinished(folder / name) for name in WRITTEN):
        say(f"{folder}: removed {num_removed} unfinished files of a killed training")


LOST_SECONDS = 10.0
"""Time that the first process has to end after another one died, since it may be waiting for that one."""


@dataclass(frozen=True)
class _Problem:
    text: str


@dataclass(frozen=True)
class _Step:
    event: dict[str, float]


class _ForwardedProblems(Problems):
    """Sends each problem to the command, which logs it."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(quiet=True)
        self._connection = connection

    def add(self, message: str) -> None:
        super().add(message)
        self._connection.send(_Problem(message))


def devices_sharing(names: str, batch_size: int) -> list[str]:
    """Return the names of the devices that train; ``names`` as for ``parse_devices``.

    For "auto", as many GPUs are returned as can share a batch evenly.

    Raises:
        SettingError: The devices are of several kinds.
    """
    devices = parse_devices(names)
    if len({name.partition(":")[0] for name in devices}) > 1:
        raise SettingError("device", names, "mixes kinds of devices; expected all cuda, or all cpu")
    if names != AUTO:
        return devices
    return devices[: max(n for n in range(1, len(devices) + 1) if batch_size % n == 0)]


def train_on_devices(
    job: TrainingJob, num_processes: int, problems: Problems, on_step: StepListener | None = None
) -> None:
    """Train a model in several processes of this machine.

    Args:
        job: What to train.
        num_processes: One for each device in ``job.device``.
        problems: Gets a message for each skipped caption or video.
        on_step: As for ``train_run``.

    Raises:
        UserError: As for ``train_run``; or a process was killed.
    """
    stores = sent_stores(job.dataset)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    devices = job.device.split(",")
    children = [
        Child(f"the process on {devices[rank]}", __name__, meeting_environment(rank, num_processes, store.port))
        for rank in range(num_processes)
    ]
    job = replace(job, reports_steps=on_step is not None)
    try:
        for child in children:  # each imports custom modules before it reads objects of their classes
            child.send((sent_plugins(job.config), stores, pickle.dumps(job)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # a custom store
        for child in children:
            child.process.kill()
        problem = f"cannot be sent to several processes ({reason_of(error)}); pass MODULE:NAME, or one device"
        raise SettingError("stores", "a store of your own", problem) from None
    saved = ""
    with report_saved_work(lambda: saved):
        try:
            _follow(children, problems, on_step)
        finally:
            with uninterrupted():
                saved = _end(children)


def meeting_environment(rank: int, size: int, port: int) -> dict[str, str]:
    """Return the environment variables by which processes find each other, as torchrun sets them."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    own["TORCHELASTIC_USE_AGENT_STORE"] = True  # the store is the command's: no process makes one
    own |= {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": max(available_cores() // size, 1)}
    if sys.platform == "linux":
        own.setdefault("GLOO_SOCKET_IFNAME", os.environ.get("GLOO_SOCKET_IFNAME", "lo"))
    return {name: str(value) for name, value in own.items()}


def _follow(children: Sequence[Child], problems: Problems, on_step: StepListener | None) -> None:
    running = list(children)
    while running:
        for child in wait_for_any(running):
            try:
                message = child.receive()
            except ChildCrashed:
                for other in children:
                    if (other.process.poll() or 0) < 0:  # it was killed; ``child`` only lost its connection
                        raise other.exit_error() from None
                raise
            if isinstance(message, Ended):
                running.remove(child)
            elif isinstance(message, Progress):
                report_progress(message)
            elif isinstance(message, _Problem):
                problems.add(message.text)
            elif isinstance(message, _Step) and on_step is not None:
                on_step(message.event)


def _end(children: Sequence[Child]) -> str:
    """End all processes; return the first one's message about its saved work."""
    first, *others = children
    is_lost = any(child.process.poll() is not None for child in others)
    first.process.terminate()
    saved = first.stop(time.monotonic() + (LOST_SECONDS if is_lost else STOP_SECONDS))
    for child in others:
        child.process.kill()
        child.stop(time.monotonic())
    return saved


def main() -> None:
    """Run one of the processes."""
    run_child(_work, writes=os.environ["RANK"] == "0")


def _work(connection: Connection, sent: tuple[list[tuple[str, str, str]], list[tuple[str, str]], bytes]) -> None:
    plugins, stores, content = sent
    load_in_child(plugins)
    load_stores_in_child(stores)
    job: TrainingJob = pickle.loads(content)
    is_first = os.environ["RANK"] == "0"
    problems = _ForwardedProblems(connection) if is_first else Problems(quiet=True)

    def show(progress: Progress) -> None:
        with contextlib.suppress(OSError):  # the command is gone, and this process ends soon
            connection.send(progress)

    def tell(event: dict[str, float]) -> None:
        with contextlib.suppress(OSError):
            connection.send(_Step(event))

    shown: Any = report_progress_to(show) if is_first else contextlib.nullcontext()
    with shown:
        stores = open_run_stores(job.dataset, job.config)
        train_here(job, stores, problems, tell if job.reports_steps else None)

"""Extraction on several devices of this machine: a process for each, with its share of the cores.

A process asks for a video whenever one of its decoders is free, and writes shards itself; only paths and outcomes pass
between the processes. If one ends before its time, or the command is stopped, the others write what they have
finished and end, too.
"""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection

import torch

from ...storage.common.child_process import STOP_SECONDS, Child, Ended, run_child, wait_for_any
from ...storage.common.device import find_device, use_tf32
from ...storage.common.signals import uninterrupted
from ...storage.common.system import available_cores
from ...storage.dataset.folder import DatasetFolder
from ..settings import ExtractionSettings
from .jobs import Job
from .store_extractor import make_extractors
from .work_list import Todo
from .write import Kept, Outcome, extract_into_stores, job_of


class _Said(Enum):
    """Messages of a process besides its outcomes."""

    LOADED = "loaded"
    NEXT = "next"
    """Asks for the next video. The answer is None if there is none."""


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """The first message to a process: its share of the work."""

    dataset: DatasetFolder
    weights: Mapping[str, str]
    """{features: weights}"""
    device: str
    precision: str
    decoding: str
    tf32: str
    num_cores: int
    """Cores for decoders and, on a CPU, networks."""
    allowed_hosts: Sequence[str]


def extract_on_devices(
    settings: ExtractionSettings, todo: Todo, weights: Mapping[str, str], devices: Sequence[str]
) -> Generator[Outcome | Kept, None, None]:
    """Yield what ``extract_into_stores`` yields, from a process for each device.

    Args:
        settings: What to extract, and how.
        todo: The videos and the features that they need.
        weights: {features: weights} of all features that are needed.
        devices: Names of the devices; one may come several times.

    Raises:
        UserError: Weights cannot be used, or a process has ended before its time.
        OSError: A shard cannot be written.
    """
    setups = [
        WorkerSetup(
            dataset=settings.dataset,
            weights=weights,
            device=device,
            precision=settings.precision,
            decoding=settings.decoding,
            tf32=settings.tf32,
            num_cores=max(available_cores() // len(devices), 1),
            allowed_hosts=list(settings.allowed_hosts),
        )
        for device in devices
    ]
    left = iter(todo)
    children: list[Child] = []
    try:
        children += (Child(f"the process on {device}", __name__) for device in devices)
        children[0].send(setups[0])  # the others wait until it has downloaded weights and checked the stores
        running = list(children)
        while running:
            for child in wait_for_any(running):
                message = child.receive()
                if message is _Said.NEXT:
                    child.send(next(left, None))
                elif isinstance(message, Ended):
                    running.remove(child)
                elif message is _Said.LOADED and child is children[0]:
                    for other, setup in zip(children[1:], setups[1:], strict=True):
                        other.send(setup)
                elif isinstance(message, Outcome | Kept):
                    yield message
    finally:
        with uninterrupted():
            deadline = time.monotonic() + STOP_SECONDS
            for child in children:
                child.process.terminate()  # one that is done has ended, or is about to
            for child in children:
                child.stop(deadline)


def main() -> None:
    """Run the process of a device."""
    run_child(_work)


def _work(connection: Connection, setup: WorkerSetup) -> None:
    """Extract the videos that the command gives."""
    use_tf32(setup.tf32)
    if find_device(setup.device, make_current=True).type == "cpu":
        torch.set_num_threads(setup.num_cores)
    extractors = make_extractors(
        setup.dataset, setup.weights, device=setup.device, precision=setup.precision, decoding=setup.decoding
    )
    connection.send(_Said.LOADED)

    def jobs() -> Iterator[Job]:
        while True:
            connection.send(_Said.NEXT)
            task = connection.recv()
            if task is None:
                return
            video, features = task
            yield job_of(setup.dataset, video, [extractors[name] for name in features])

    events = extract_into_stores(
        setup.dataset,
        jobs(),
        list(extractors.values()),
        num_cores=setup.num_cores,
        allowed_hosts=setup.allowed_hosts,
    )
    for event in events:
        connection.send(event)

"""Extraction on several devices of this machine: a process for each, with its share of the cores.

A process requests a video whenever one of its decoders is free, and writes shards itself. Only paths and outcomes pass
between the processes. If a process ends early or the command is stopped, the others write their finished videos and
end.
"""

import time
from collections.abc import Generator, Iterator, Sequence
from enum import Enum
from multiprocessing.connection import Connection

import torch

from ...storage.common.child_process import STOP_SECONDS, Child, Ended, run_child, wait_for_any
from ...storage.common.device import find_device, use_tf32
from ...storage.common.signals import uninterrupted
from ...storage.common.system import available_cores
from ..settings import WorkerSettings
from .local_tasks import LocalTasks
from .pending_work import Extraction, VideoTask
from .shard_writing import ShardsWritten, VideoOutcome, extract_into_stores
from .store_extractor import make_extractors
from .video_jobs import END

PAUSE_SECONDS = 1.0
"""Time after which a process asks again, if there was no video for it."""


class _Signal(Enum):
    """Messages of a process besides its outcomes."""

    LOADED = "loaded"
    NEXT = "next"
    """Requests the next video. The answer is None if there is none at the moment, and ``END`` after the last one."""


def extract_on_devices(
    extraction: Extraction, devices: Sequence[str], tasks: LocalTasks
) -> Generator[VideoOutcome | ShardsWritten, None, None]:
    """Run ``extract_into_stores`` in a process for each device, and yield its events.

    Args:
        extraction: The videos, features and settings.
        devices: Names of the devices; a name may occur several times.
        tasks: The videos.

    Raises:
        UserError: Weights cannot be used, or a process has ended early.
        OSError: A shard cannot be written.
    """
    num_cores = max(available_cores() // len(devices), 1)
    workers = [extraction.settings.for_worker(extraction.weights, device, num_cores) for device in devices]
    children: list[Child] = []
    try:
        children += (Child(f"the process on {device}", __name__) for device in devices)
        children[0].send(workers[0])  # the others wait until it has downloaded weights and checked the stores
        running = list(children)
        while running:
            for child in wait_for_any(running):
                message = child.receive()
                if message is _Signal.NEXT:
                    child.send(tasks.next())
                elif isinstance(message, Ended):
                    running.remove(child)
                elif message is _Signal.LOADED and child is children[0]:
                    for other, worker in zip(children[1:], workers[1:], strict=True):
                        other.send(worker)
                elif isinstance(message, VideoOutcome | ShardsWritten):
                    yield message
    finally:
        with uninterrupted():
            deadline = time.monotonic() + STOP_SECONDS
            for child in children:
                child.process.terminate()  # a process that is done has ended or is about to end
            for child in children:
                child.stop(deadline)


def main() -> None:
    """Run the process of a device."""
    run_child(_work)


def _work(connection: Connection, worker: WorkerSettings) -> None:
    """Extract the videos that the parent process sends."""
    use_tf32(worker.tf32)
    if find_device(worker.device, make_current=True).type == "cpu" and worker.num_cores:
        torch.set_num_threads(worker.num_cores)
    extractors = make_extractors(worker)
    connection.send(_Signal.LOADED)

    def tasks() -> Iterator[VideoTask | None]:
        asked = float("-inf")
        while True:
            if time.monotonic() - asked < PAUSE_SECONDS:
                yield None
                continue
            connection.send(_Signal.NEXT)
            task = connection.recv()
            if task is END:
                return
            if task is None:
                asked = time.monotonic()
            yield task

    for event in extract_into_stores(worker, extractors, tasks()):
        connection.send(event)

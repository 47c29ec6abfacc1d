"""CPU cores and child processes."""

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait

from .signals import leave_signals_to_the_parent, uninterrupted
from .terminal import messages_are_shown, show_messages


def available_cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def worker_processes(num_processes: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of ``num_processes`` processes; kill them at once if the block ends early.

    They also end as soon as this process is gone, even if it was killed. Use it for work that writes its results whole
    or not at all.
    """
    pool = ProcessPoolExecutor(
        num_processes, mp_context=get_context("spawn"), initializer=_begin_process, initargs=(messages_are_shown(),)
    )
    try:
        yield pool
    except BaseException:
        with uninterrupted():
            for process in list((pool._processes or {}).values()):  # Python 3.14 has kill_workers() for this
                process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_process(shows_messages: bool) -> None:
    leave_signals_to_the_parent()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    if shows_messages:
        show_messages()


def _exit_with_parent() -> None:
    """End this process once its parent is gone: the pool leaves its processes behind if its own process is killed."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)

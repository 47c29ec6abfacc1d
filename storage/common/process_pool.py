"""A pool of processes on this machine, for functions of one item."""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing import parent_process, util
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, Protocol, TypeVar

from .errors import UserError
from .programs import python_command, start_programs_without_current_folder, without_current_folder
from .signals import leave_signals_to_the_parent, uninterrupted
from .system import IS_WINDOWS
from .terminal import Level, show_messages, shown_level

T = TypeVar("T")
R = TypeVar("R")

PREFETCHED_ITEMS = 2
"""Number of items read ahead of the results for each process."""


class OrderedMap(Protocol):
    """Calls a function with each of some items, in other processes or on other machines."""

    def __call__(self, call: Callable[[T], R], items: Iterable[T], *, doing: str) -> Iterator[R]:
        """Yield the results in order.

        Args:
            call: Function to run; it must be picklable.
            items: Read lazily, a few ahead of the results.
            doing: The work, for messages, such as "tagging captions".
        """
        ...


@contextlib.contextmanager
def worker_processes(num_processes: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of ``num_processes`` processes; kill them if the block ends early.

    They also end when this process ends, even if it was killed. Use the pool for work that writes its results
    atomically.
    """
    if not IS_WINDOWS:
        from multiprocessing import resource_tracker

        with _python_commands():
            resource_tracker.ensure_running()  # also a process; otherwise the pool's locks start it
    pool = ProcessPoolExecutor(
        num_processes, mp_context=_Context(), initializer=_begin_process, initargs=(shown_level(),)
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


def map_in_processes(call: Callable[[T], R], items: Iterable[T], *, num_processes: int, doing: str) -> Iterator[R]:
    """Call a function with each item in processes of this machine, and yield the results in order.

    With one process or one item, the work is done in this process.

    Args:
        call: Function to run; it must be picklable.
        items: Read lazily, ``PREFETCHED_ITEMS`` for each process.
        num_processes: Number of processes.
        doing: The work, for messages, such as "tagging captions".

    Raises:
        UserError: A process was killed.
    """
    items = iter(items)
    first = list(islice(items, 2))
    items = chain(first, items)
    if num_processes == 1 or len(first) == 1:
        yield from map(call, items)
        return
    waiting: deque[Future[R]] = deque()
    try:
        with worker_processes(num_processes) as pool:
            for item in items:
                waiting.append(pool.submit(call, item))
                if len(waiting) > PREFETCHED_ITEMS * num_processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    except BrokenProcessPool:
        raise UserError(
            f"{doing}: a process was killed, perhaps because memory ran out; run the same command again to continue, "
            "if necessary with --workers 1"
        ) from None


class _Process(SpawnProcess):
    """A process that imports nothing from the current folder."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        with _python_commands():
            return SpawnProcess._Popen(process_obj)  # type: ignore[attr-defined]


class _Context(SpawnContext):
    Process = _Process  # type: ignore[assignment]


_STARTING = threading.Lock()


@contextlib.contextmanager
def _python_commands() -> Iterator[None]:
    """Start multiprocessing's processes with ``python_command``.

    multiprocessing has no option for the command or its environment variables.
    """

    def start(path: bytes, args: list[Any], passfds: Any) -> int:
        # [Python, its options, "-c", program, ...]
        at = args.index("-c")
        return start_process(path, [*args[:at], *python_command(args[at + 1])[1:], *args[at + 2 :]], passfds)

    with _STARTING:
        start_process, before = util.spawnv_passfds, dict(os.environ)
        after = without_current_folder(before)
        changed = {name: value for name, value in before.items() if after.get(name) != value}
        util.spawnv_passfds = start  # type: ignore[assignment]
        try:
            start_programs_without_current_folder()
            yield
        finally:
            os.environ.update(changed)
            util.spawnv_passfds = start_process


def _begin_process(level: Level | None) -> None:
    leave_signals_to_the_parent()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    if level is not None:
        show_messages(level)


def _exit_with_parent() -> None:
    """End this process once its parent is gone: the pool leaves its processes behind if its own process is killed."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)

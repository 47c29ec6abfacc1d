"""Run calls in parallel that wait for a disk or a network: many take as long as one."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")

NUM_THREADS = 64
CALLS_PER_PART = 64
"""Number of calls that a thread makes in a row, which limits the overhead for a million quick calls."""


def map_in_threads(call: Callable[[T], U], items: Iterable[T], *, calls_per_part: int = CALLS_PER_PART) -> Iterator[U]:
    """Yield ``call(item)`` for each item, in order; ``NUM_THREADS`` calls wait at the same time.

    At most a few thousand items are taken and results kept ahead. Items are taken in the caller's thread.

    Args:
        call: Function that mostly waits, since Python runs one thread at a time.
        items: Its arguments.
        calls_per_part: Calls that a thread makes in a row; 1 for slow calls.

    Raises:
        Exception: The error of a call.

    Example:
        >>> list(map_in_threads(len, ["a", "bc"]))
        [1, 2]
    """
    items = iter(items)
    running: deque[Future[list[U]]] = deque()
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        while part := list(islice(items, calls_per_part)):
            running.append(pool.submit(_call_all, call, part))
            if len(running) > 2 * NUM_THREADS:
                yield from running.popleft().result()
        while running:
            yield from running.popleft().result()


def _call_all(call: Callable[[T], U], items: list[T]) -> list[U]:
    return [call(item) for item in items]

"""Limits of concurrent work: an address with many requests waits for its own, and other addresses do not."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from fastapi import Request

MAX_WAITING = 64
"""Requests of an address that wait; more are refused at once."""
WAIT_SECONDS = 20.0


class Busy(Exception):
    """Too much is asked for at once. The message is for the person who asked."""

    def __init__(self, requests: str) -> None:
        """Take what the requests are called, such as "searches"."""
        super().__init__(f"too many {requests} at once; try again")


class AddressQueue:
    """A dependency of routes that lets each address do one thing at a time. Requests that wait occupy no thread."""

    def __init__(self, requests: str) -> None:
        """Take what the requests are called, such as "searches"."""
        self._requests = requests
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._num_waiting: Counter[str] = Counter()

    async def __call__(self, request: Request) -> AsyncIterator[None]:
        """Wait until the earlier requests of the same address are answered.

        Raises:
            Busy: Too many of them wait, or one waited for too long.
        """
        address = request.client.host if request.client else ""
        lock = self._locks.setdefault(address, asyncio.Lock())
        if self._num_waiting[address] >= MAX_WAITING:
            raise Busy(self._requests)
        self._num_waiting[address] += 1
        try:
            await asyncio.wait_for(lock.acquire(), WAIT_SECONDS)
        except asyncio.TimeoutError:
            raise Busy(self._requests) from None
        finally:
            self._num_waiting -= Counter([address])  # keeps no zeros
        try:
            yield
        finally:
            lock.release()


@contextmanager
def one_at_a_time(lock: threading.Lock, requests: str) -> Iterator[None]:
    """Hold a lock in the block.

    Args:
        lock: What one thread may hold.
        requests: What they are called, such as "searches".

    Raises:
        Busy: Another thread holds it for too long.
    """
    if not lock.acquire(timeout=WAIT_SECONDS):
        raise Busy(requests)
    try:
        yield
    finally:
        lock.release()

"""Limits of concurrent work: many requests from one address delay only that address."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from weakref import WeakValueDictionary

from fastapi import HTTPException, Request

MAX_WAITING = 64
"""Maximum number of waiting requests of an address; more are refused at once."""
WAIT_SECONDS = 20.0
LOOK_SECONDS = 0.1
"""A waiting thread checks this often whether its client is still connected."""
GONE_STATUS = 499
"""Status of a response to a client that has disconnected."""


class Busy(Exception):
    """There are too many requests. The message is for the client."""

    def __init__(self, requests: str) -> None:
        """Create the error for requests of a kind, such as "searches"."""
        super().__init__(f"too many {requests} at once; try again")


_GONE: ContextVar[threading.Event | None] = ContextVar("_GONE", default=None)
"""Set once the client of this request has closed its connection."""


def client_gone() -> threading.Event | None:
    """Return an event that is set when the client of this request disconnects; None outside of a watched, queued
    request.
    """
    return _GONE.get()


class AddressQueue:
    """A route dependency that limits each address's simultaneous requests. Waiting requests occupy no thread.

    A request leaves the queue if its client disconnects. If it is already being answered, ``client_gone`` is set.
    """

    def __init__(self, requests: str, at_once: int = 1) -> None:
        """Create a queue for requests of a kind, such as "searches", with a limit of simultaneous requests for
        each address.
        """
        self._requests, self._at_once = requests, at_once
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._num_waiting: Counter[str] = Counter()

    async def __call__(self, request: Request) -> AsyncIterator[None]:
        """Wait until the earlier requests of the same address are answered.

        Raises:
            Busy: Too many requests wait, or this one waited for too long.
        """
        address = request.client.host if request.client else ""
        places = self._places.setdefault(address, asyncio.Semaphore(self._at_once))
        if self._num_waiting[address] >= MAX_WAITING:
            raise Busy(self._requests)
        gone = threading.Event()
        _GONE.set(gone)  # for this request only, and for the thread that answers it
        watching = asyncio.ensure_future(_watch(request, gone))
        try:
            self._num_waiting[address] += 1
            try:
                await self._acquire(places, watching, gone)
            finally:
                self._num_waiting -= Counter([address])  # keeps no zeros
            try:
                yield
            finally:
                places.release()
        finally:
            watching.cancel()

    async def _acquire(
        self, places: asyncio.Semaphore, watching: "asyncio.Future[None]", gone: threading.Event
    ) -> None:
        """Acquire a place, unless that takes too long or the client is gone."""
        acquiring, is_held = asyncio.ensure_future(places.acquire()), False
        try:
            await asyncio.wait([acquiring, watching], timeout=WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            is_held = acquiring.done() and not gone.is_set()
        finally:
            if not is_held and not acquiring.cancel():
                places.release()
        if gone.is_set():
            raise HTTPException(GONE_STATUS)
        if not is_held:
            raise Busy(self._requests)


async def _watch(request: Request, gone: threading.Event) -> None:
    """Wait until the client of a GET request disconnects. Others are not watched: their content must stay unread."""
    if request.method == "GET":
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone.set()
    else:
        await asyncio.Event().wait()


@contextmanager
def one_at_a_time(lock: "threading.Lock | threading.BoundedSemaphore", requests: str) -> Iterator[None]:
    """Hold a lock in the block.

    Args:
        lock: A lock, or a semaphore that a few threads may hold.
        requests: Name of the kind of requests, such as "searches".

    Raises:
        Busy: Another thread holds it for too long.
        HTTPException: The client of the request is gone.
    """
    gone, deadline = client_gone(), time.monotonic() + WAIT_SECONDS
    while not lock.acquire(timeout=LOOK_SECONDS):
        if gone is not None and gone.is_set():
            raise HTTPException(GONE_STATUS)
        if time.monotonic() > deadline:
            raise Busy(requests)
    try:
        yield
    finally:
        lock.release()

"""Turns: an address that asks for much at once waits for itself, and keeps no other one waiting."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from weakref import WeakValueDictionary

from fastapi import Request

MOST_WAITING = 64
"""Requests of an address that wait for their turn; more are refused at once."""
WAIT_SECONDS = 20.0


class Busy(Exception):
    """Too much is asked for at once. The message is for the person who asked."""


class Turns:
    """Lets each address do one thing at a time. Those that wait occupy no thread."""

    def __init__(self, what: str) -> None:
        """Take what the requests are called, such as "searches"."""
        self._what = what
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._num_waiting: Counter[str] = Counter()

    async def __call__(self, request: Request) -> AsyncIterator[None]:
        """Wait for a request's turn, which lasts until it is answered.

        Raises:
            Busy: Others of the same address wait for too long already.
        """
        address = request.client.host if request.client else ""
        turn = self._turns.setdefault(address, asyncio.Lock())
        if self._num_waiting[address] >= MOST_WAITING:
            raise Busy(f"too many {self._what} at once; try again")
        self._num_waiting[address] += 1
        try:
            await asyncio.wait_for(turn.acquire(), WAIT_SECONDS)
        except asyncio.TimeoutError:
            raise Busy(f"too many {self._what} at once; try again") from None
        finally:
            self._num_waiting -= Counter([address])  # keeps no zeros
        try:
            yield
        finally:
            turn.release()

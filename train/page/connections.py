"""Connections of the page's server: none keeps its place without asking for something."""

import asyncio
from collections import Counter

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 200
REQUEST_SECONDS = 10.0
"""How long a request may take to arrive."""


class Connection(H11Protocol):
    """A connection that is closed if a request does not arrive whole in time, or if a new one needs its place.

    The place is taken from the address that has most of them: from its oldest idle connection, or else, for an address
    that has fewer, from its oldest one. uvicorn itself waits for a request for ever, and answers nobody else once there
    are too many connections.
    """

    _timer: asyncio.TimerHandle | None = None
    made_at: float = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Begin, and make room."""
        super().connection_made(transport)
        self.made_at = self.loop.time()
        self._watch()
        others = [c for c in self.connections if isinstance(c, Connection) and not c.transport.is_closing()]
        if len(others) > MOST_CONNECTIONS:
            numbers = Counter(other.address for other in others)
            limit = numbers[self.address]
            free = [c for c in others if c is not self and (not c.is_answering or numbers[c.address] > limit)]
            if free:
                min(free, key=lambda c: (-numbers[c.address], c.is_answering, c.made_at)).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._forget_timer()
        super().connection_lost(exc)

    @property
    def address(self) -> str:
        """The other side's address, without its port."""
        return self.client[0] if self.client else ""

    @property
    def is_answering(self) -> bool:
        """True while a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self) -> None:
        if self.is_answering:
            self._forget_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(REQUEST_SECONDS, self.transport.close)

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

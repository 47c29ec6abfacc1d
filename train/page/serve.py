"""The server of the page: its address, its token, and the limits of its connections. ``vlalign-serve`` wraps it."""

import asyncio
import ipaddress
import secrets
import signal
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...storage.common.errors import SettingError
from ...storage.common.signals import Stopped, stopping
from ..search.search import Search
from .app import follow, make_app, take_search
from .folder_sync import FolderSync
from .guard import Access

LOOPBACK = "127.0.0.1"
MAX_CONNECTIONS = 200
REQUEST_SECONDS = 10.0
"""Time limit for a request to arrive."""
IDLE_SECONDS = 15
"""Time limit of a connection that waits for its next request."""


def serve(
    searches: Sequence[Search],
    *,
    host: str = LOOPBACK,
    port: int = 8377,
    no_token: bool = False,
    sync: FolderSync | None = None,
    mcp: bool = False,
    on_ready: Callable[[str], None],
) -> None:
    """Serve the page until a signal comes.

    Args:
        searches: One for each data set of the page.
        host: Address to listen on.
        port: Port; 0 for any free one.
        no_token: Answer every user of this machine. Otherwise, a request needs the token that is part of the page's
            address, and new at each start.
        sync: Brings the data set up to date with folders of videos meanwhile; its search may be missing at first.
        mcp: Answer MCP clients, too.
        on_ready: Called with the page's address.

    Raises:
        SettingError: The address cannot be used, or others could reach it without a token.
    """
    if not 0 <= port < 1 << 16:
        raise SettingError("port", port, "expected 0 to 65535")
    is_local = _is_loopback(host)
    if no_token and not is_local:
        raise SettingError("host", host, "other machines can reach it, so a token is needed; omit --no-token")
    with _listen(host, port) as listening:
        port = listening.getsockname()[1]
        token = None if no_token else secrets.token_urlsafe(24)
        shown = f"[{host}]" if ":" in host else host
        names = [LOOPBACK, "localhost", "[::1]", shown] if is_local else []
        access = Access(names, token, port)
        app = make_app(searches, access)
        if sync is not None:
            follow(app, sync)
        if mcp:
            from .mcp_server import add_mcp  # of the extra mcp

            add_mcp(app, access)
        config = uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            server_header=False,
            http=Connection,
            limit_concurrency=MAX_CONNECTIONS + 1,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=2,
            ws="none",
            proxy_headers=False,
        )
        try:
            if sync is not None:
                sync.start(partial(take_search, app))
            on_ready(f"http://{shown}:{port}/" + (f"?token={token}" if token else ""))  # fails if nobody reads it
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            if sync is not None:
                sync.stop()
        if stopping():  # by a signal that the sync held back
            raise (sync and sync.held_back) or Stopped(signal.SIGTERM)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingError("port", port, f"cannot listen on {host} ({reason}); pass another --port") from None


class Connection(H11Protocol):
    """A connection that is closed if a request does not arrive completely in time, or to make room for a new one.

    To make room, the address with most connections loses one: its oldest idle one or, if all are busy and the new
    connection's address has fewer, its oldest one. uvicorn itself waits for a request forever, and answers no other
    client once there are too many connections.
    """

    _timer: asyncio.TimerHandle | None = None
    made_at: float = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Start the request timer, and close another connection if there are too many."""
        super().connection_made(transport)
        self.made_at = self.loop.time()
        self._start_timer()
        others = [c for c in self.connections if isinstance(c, Connection) and not c.transport.is_closing()]
        if len(others) > MAX_CONNECTIONS:
            numbers = Counter(other.address for other in others)
            limit = numbers[self.address]
            free = [c for c in others if c is not self and (not c.is_answering or numbers[c.address] > limit)]
            if free:
                min(free, key=lambda c: (-numbers[c.address], c.is_answering, c.made_at)).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        super().data_received(data)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._cancel_timer()
        super().connection_lost(exc)

    @property
    def address(self) -> str:
        """The other side's address, without its port."""
        return self.client[0] if self.client else ""

    @property
    def is_answering(self) -> bool:
        """True while a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _start_timer(self) -> None:
        if self.is_answering:
            self._cancel_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(REQUEST_SECONDS, self.transport.close)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

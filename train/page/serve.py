"""Serving the page. ``vlalign-serve`` wraps ``serve``."""

import ipaddress
import secrets
import socket
from collections.abc import Callable, Sequence

import uvicorn

from ...storage.common.errors import SettingError
from ..search.search import Search
from .app import make_app
from .connections import MOST_CONNECTIONS, Connection
from .guard import Access

LOOPBACK = "127.0.0.1"
IDLE_SECONDS = 15


def serve(
    searches: Sequence[Search],
    *,
    host: str = LOOPBACK,
    port: int = 8377,
    no_token: bool = False,
    on_ready: Callable[[str], None],
) -> None:
    """Serve the page until a signal comes.

    Args:
        searches: What is asked, one search for each data set.
        host: Address to listen on.
        port: Port; 0 for any free one.
        no_token: Answer every user of this machine. Otherwise, a request needs the token that is part of the page's
            address, and new at each start.
        on_ready: Called with the page's address.

    Raises:
        SettingError: The address cannot be used, or others could reach it without a token.
    """
    if not 0 <= port < 1 << 16:
        raise SettingError("port", port, "expected 0 to 65535")
    is_local = _is_loopback(host)
    if no_token and not is_local:
        raise SettingError("host", host, "other machines reach it, so the token stays; leave --no-token out")
    listening = _listen(host, port)
    with listening:
        port = listening.getsockname()[1]
        token = None if no_token else secrets.token_urlsafe(24)
        shown = f"[{host}]" if ":" in host else host
        names = [LOOPBACK, "localhost", "[::1]", shown] if is_local else []
        app = make_app(searches, Access(names, token, port))
        on_ready(f"http://{shown}:{port}/" + (f"?token={token}" if token else ""))
        config = uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            server_header=False,
            http=Connection,
            limit_concurrency=MOST_CONNECTIONS + 1,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=2,
            ws="none",
            proxy_headers=False,
        )
        uvicorn.Server(config).run(sockets=[listening])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingError(
            "port", port, f"{host} cannot be listened on there ({reason}); pass another --port"
        ) from None

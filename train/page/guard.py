"""The checks of every request, before anything is looked up, and the headers of every answer."""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_ADDRESS_BYTES = 8192
"""Longest path and query together. A query of 2,000 characters needs fewer unless all of them are emoji."""
COOKIE = "vlalign_token"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


@dataclass(frozen=True)
class Access:
    """Rules of who may ask."""

    hosts: Sequence[str]
    """Names by which a browser may call this server, without the port; all if empty. A page of somebody else that makes
    its own name point here (DNS rebinding) sends another one."""
    token: str | None = None
    """Secret that a request must know; None for a server that only this machine can reach."""


class Guard:
    """Refuses requests of other hosts, without the token, with a body, or with a long address."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        gives_token = False

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if gives_token:
                    headers.append("Set-Cookie", f"{COOKIE}={self.access.token}; HttpOnly; SameSite=Strict; Path=/")
            await send(message)

        refused = self._refusal(scope)
        if refused is not None:
            await refused(scope, receive, send_with_headers)
            return
        gives_token = self.access.token is not None and b"token=" in scope["query_string"]
        await self.app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("only GET and HEAD are answered", 405, {"Allow": "GET, HEAD"})
        if len(scope.get("raw_path", b"")) + len(scope["query_string"]) > MOST_ADDRESS_BYTES:
            return PlainTextResponse("the address is too long", 414)
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return PlainTextResponse("a request with content is not answered", 413)
        if self.access.hosts and _host_name(headers.get("host", "")) not in self.access.hosts:
            return PlainTextResponse("another host was asked for", 421)
        if self.access.token is not None and not self._knows_token(scope, headers):
            return PlainTextResponse("the token is missing or wrong; open the address that vlalign-serve printed", 401)
        return None

    def _knows_token(self, scope: Scope, headers: Headers) -> bool:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        given = [headers.get("authorization", "").removeprefix("Bearer "), cookie.value if cookie else ""]
        given += parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=50).get("token", [])[:1]
        wanted = (self.access.token or "").encode()
        return any(hmac.compare_digest(each.encode(errors="replace"), wanted) for each in given)


def _host_name(host: str) -> str:
    """Return a Host header without its port.

    >>> _host_name("127.0.0.1:8377"), _host_name("[::1]:8377")
    ('127.0.0.1', '[::1]')
    """
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()

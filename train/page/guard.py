"""The checks of every request, before anything is looked up, and the headers of every response."""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_URL_BYTES = 8192
"""Longest path and query together. A query of 2,000 characters needs fewer unless all of them are emoji."""
SHORTEN = "shorten the text, or pass fewer examples"
WRONG_TOKEN = "the token is missing or wrong; open the address that vlalign-serve printed"
WRONG_TOKEN_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>vlalign search</title>
<p>The token is missing or wrong. Open the address that <code>vlalign-serve</code> printed in its terminal; each start
prints a new one.</p></html>
"""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
RESPONSE_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


@dataclass(frozen=True)
class Upload:
    """The content that an address accepts."""

    what: str
    """Such as "an image"."""
    max_bytes: int
    content_types: tuple[str, ...]
    """Accepted starts of the content type. Before a page of another site sends one of these types, browsers ask this
    server for permission, which it does not give."""
    example_type: str

    @property
    def too_large(self) -> str:
        """Message for larger content."""
        return f"the content is too large; expected {self.what} of at most {self.max_bytes // 1_000_000} MB"


PICTURES, MCP = "/api/pictures", "/mcp"
UPLOADS = {
    PICTURES: Upload("an image", 10_000_000, ("image/", "application/octet-stream"), "image/jpeg"),
    MCP: Upload("a message", 1_000_000, ("application/json",), "application/json"),
}
"""{path that takes content: the content that it accepts}"""


@dataclass(frozen=True)
class Access:
    """The clients that may send requests."""

    hosts: Sequence[str]
    """Host names by which a browser may address this server, without the port; all if empty. This prevents DNS
    rebinding: a stranger's page under a name that points to this server sends that name.
    """
    token: str | None = None
    """Secret that a request must contain; None if requests need no secret."""
    port: int = 0
    """The server's port. Browsers send cookies to all ports of a host, so the cookie's name contains the port."""

    @property
    def cookie(self) -> str:
        """Name of the cookie that holds the token."""
        return f"vlalign_token_{self.port}"


class Guard:
    """Refuses requests with a wrong host name, no token, content that is no upload, or a long URL."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(RESPONSE_HEADERS)
            await send(message)

        answer = self._refuse(scope) or self._exchange_token(scope) or self.app
        await answer(scope, receive, send_with_headers)

    def _refuse(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        upload = UPLOADS.get(scope["path"])
        if upload is None and scope["method"] not in ("GET", "HEAD"):
            return _refused(405, "this address only reads; expected GET or HEAD", {"Allow": "GET, HEAD"})
        if upload is not None and scope["method"] != "POST":
            return _refused(405, "this address takes content; expected POST", {"Allow": "POST"})
        if len(scope.get("raw_path", b"")) + len(scope["query_string"]) > MAX_URL_BYTES:
            return _refused(414, f"the request is too long; expected at most {MAX_URL_BYTES:,} bytes: {SHORTEN}")
        if upload is None and (headers.get("content-length", "0") != "0" or "transfer-encoding" in headers):
            return _refused(413, "this address takes no content; expected a request without a body")
        if self.access.hosts and _host_name(headers.get("host", "")) not in self.access.hosts:
            names = " or ".join(dict.fromkeys(self.access.hosts))
            return _refused(421, f"wrong host name; expected {names}, as in the address that vlalign-serve printed")
        if self.access.token is not None and not self._knows_token(scope, headers):
            headers_401 = {"WWW-Authenticate": "Bearer"}
            if scope["path"] == "/":
                return HTMLResponse(WRONG_TOKEN_PAGE, 401, headers_401)
            return _refused(401, WRONG_TOKEN, headers_401)
        return None if upload is None else _refuse_upload(headers, upload)

    def _exchange_token(self, scope: Scope) -> Response | None:
        """Exchange the token in the page's URL for a cookie, by a redirect to the URL without it; None without a token.

        So the browser's address bar does not show the token. Other paths accept the token in the URL without a
        redirect, for programs that keep no cookies.
        """
        parameters = _parameters(scope)
        rest = [(name, value) for name, value in parameters if name != "token"]
        if self.access.token is None or scope["path"] != "/" or rest == parameters:
            return None
        answer = RedirectResponse(f"/?{urlencode(rest)}" if rest else "/", 303)
        answer.set_cookie(self.access.cookie, self.access.token, httponly=True, samesite="strict")
        return answer

    def _knows_token(self, scope: Scope, headers: Headers) -> bool:
        # Not by ``http.cookies``, whose time grows with the square of a cookie's length.
        cookies = [each.strip().partition("=") for each in headers.get("cookie", "").split(";")]
        cookie = next((value for name, _, value in cookies if name == self.access.cookie), "")
        given = [headers.get("authorization", "").removeprefix("Bearer "), cookie]
        given += [value for name, value in _parameters(scope) if name == "token"][:1]
        wanted = (self.access.token or "").encode()
        return any(hmac.compare_digest(each.encode(errors="replace"), wanted) for each in given)


def _refuse_upload(headers: Headers, upload: Upload) -> Response | None:
    """Refuse content from a page of another site, of a wrong type, or of too many bytes."""
    origin = headers.get("origin")
    of_this_page = origin is None or origin.partition("://")[2].lower() == headers.get("host", "").lower()
    if not of_this_page or headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return _refused(403, "the request comes from another site; expected a request of this page")
    if not headers.get("content-type", "").lower().startswith(upload.content_types):
        return _refused(415, f"expected {upload.what}, with a Content-Type such as {upload.example_type}")
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > upload.max_bytes:
        return _refused(413, upload.too_large)
    return None


def _refused(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a refusal in the form of the API, with a message for the page."""
    return JSONResponse({"detail": detail}, status, headers)


def _parameters(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _host_name(host: str) -> str:
    """Return a Host header without its port.

    >>> _host_name("127.0.0.1:8377"), _host_name("[::1]:8377")
    ('127.0.0.1', '[::1]')
    """
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()

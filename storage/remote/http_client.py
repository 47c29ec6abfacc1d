"""The HTTP client that fsspec uses here.

It is aiohttp's client with three limits: it connects only to allowed machines, does not decompress, and reads no more
than it requested.
"""

import re
import socket
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from fsspec.callbacks import Callback

from ..common.errors import UserError
from .addresses import refuse_private, refuse_private_address

CONNECT_SECONDS, SILENT_SECONDS = 30.0, 60.0
MAX_RESPONSE_BYTES = 1 << 30
"""Limit of a response that is held in memory: a listing, or a whole shard from a server without partial requests."""


@dataclass(frozen=True)
class GuardedClient:
    """Creates the client. It compares by value, because fsspec shares one file system between equal settings."""

    allowed_hosts: tuple[str, ...]

    async def __call__(self, **settings: Any) -> aiohttp.ClientSession:
        """Return a client session with fsspec's ``settings`` and the limits."""

        async def guard(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
            """Check a request; called again for each redirect.

            ``_Resolver`` never sees a host that is given as an IP address.
            """
            refuse_private_address(request.url.host or "", self.allowed_hosts)
            response = await handler(request)
            if packed := response.headers.get("Content-Encoding", "").replace("identity", ""):
                response.close()
                raise aiohttp.ClientPayloadError(
                    f"the server sends it compressed ({packed[:20]!r}), though asked not to"
                )
            return response

        fixed = {
            "connector": aiohttp.TCPConnector(resolver=_Resolver(self.allowed_hosts)),
            "timeout": aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS),
            "auto_decompress": False,
            "response_class": BoundedResponse,
            "headers": {**settings.pop("headers", {}), "Accept-Encoding": "identity"},
            "middlewares": (*settings.pop("middlewares", ()), guard),
        }
        return aiohttp.ClientSession(**settings | fixed)


class BoundedResponse(aiohttp.ClientResponse):
    """A response that is cut off when it becomes longer than requested.

    The limit applies to reading into memory with ``read``. Files copied to disk are read in pieces instead.
    """

    async def read(self) -> bytes:
        """Return the body. Raises ``ClientPayloadError`` if the server sends too much."""
        if self._body is None:
            requested = self.request_info.headers.get("Range", "") if self.status == 206 else ""
            part = re.fullmatch(r"bytes=(\d+)-(\d+)", requested)
            limit = int(part[2]) - int(part[1]) + 1 if part else MAX_RESPONSE_BYTES
            content = bytearray()
            async for block in self.content.iter_any():
                content += block
                if len(content) > limit:
                    self.close()
                    raise aiohttp.ClientPayloadError(f"the server sends more than the requested {limit:,} bytes")
            self._body = bytes(content)
        return self._body


class _Resolver(AbstractResolver):
    """Resolves and checks names in one step, so that a name cannot move to another machine between check and use."""

    def __init__(self, allowed_hosts: Collection[str]) -> None:
        self._allowed, self._resolver = allowed_hosts, aiohttp.DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        results = await self._resolver.resolve(host, port, family)
        refuse_private(host, [result["host"] for result in results], self._allowed)
        return results

    async def close(self) -> None:
        await self._resolver.close()


class SizeLimit(Callback):
    """Ends a copy of a shard that becomes longer than the shard's first block declares."""

    def __init__(self, url: str, num_bytes: int) -> None:
        super().__init__()
        self._url, self._limit = url, num_bytes

    def relative_update(self, inc: int = 1) -> None:
        """Count ``inc`` more bytes. Raises ``UserError`` above the limit."""
        super().relative_update(inc)
        if self.value > self._limit:
            raise UserError(f"{self._url}: the server sends more than its {self._limit:,} bytes; remove the file there")

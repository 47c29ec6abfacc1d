"""What fsspec speaks HTTP with: aiohttp's client, which connects to allowed machines only, unpacks nothing and takes no more than it asked
for."""

import re
import socket
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from fsspec.callbacks import Callback

from ..common.errors import UserError
from .addresses import refuse_numbers, refuse_private

CONNECT_SECONDS, SILENT_SECONDS = 30.0, 60.0
MOST_ANSWER_BYTES = 1 << 30
"""Of an answer that is held in memory: a listing, or a whole shard from a server that gives no parts."""


@dataclass(frozen=True)
class GuardedClient:
    """Makes the client. A value, since fsspec keeps one file system for all that are made with the same."""

    allowed_hosts: tuple[str, ...]

    async def __call__(self, **settings: Any) -> aiohttp.ClientSession:
        async def guard(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
            """Called again for each redirect. The resolver is not asked for a host that is given by its number."""
            refuse_numbers(request.url.host or "", self.allowed_hosts)
            response = await handler(request)
            if packed := response.headers.get("Content-Encoding", "").replace("identity", ""):
                response.close()
                raise aiohttp.ClientPayloadError(
                    f"the server sends it packed ({packed[:20]!r}), though it was asked not to"
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
    """Of what is read whole, no more is taken than was asked for. A file that is copied to disk is read in pieces, not by this."""

    async def read(self) -> bytes:
        if self._body is None:
            asked = (
                re.fullmatch(r"bytes=(\d+)-(\d+)", self.request_info.headers.get("Range", ""))
                if self.status == 206
                else None
            )
            most = int(asked[2]) - int(asked[1]) + 1 if asked else MOST_ANSWER_BYTES
            content = bytearray()
            async for block in self.content.iter_any():
                content += block
                if len(content) > most:
                    self.close()
                    raise aiohttp.ClientPayloadError(
                        f"the server sends more than the {most:,} bytes that it was asked for"
                    )
            self._body = bytes(content)
        return self._body


class _Resolver(AbstractResolver):
    """What it returns is what is connected to, so that a name cannot stand for another machine between a check and its use."""

    def __init__(self, allowed_hosts: Collection[str]) -> None:
        self._allowed, self._resolver = allowed_hosts, aiohttp.DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        refuse_private(host, [each["host"] for each in found], self._allowed)
        return found

    async def close(self) -> None:
        await self._resolver.close()


class NoMoreThan(Callback):
    """Ends a copy that becomes longer than the shard's first block said."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self._most = num_bytes

    def relative_update(self, inc: int = 1) -> None:
        super().relative_update(inc)
        if self.value > self._most:
            raise UserError(f"it is sent with more than its {self._most:,} bytes; remove it there")

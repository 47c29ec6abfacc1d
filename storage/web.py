"""What fsspec speaks HTTP with: aiohttp's client, which connects to allowed machines only and unpacks nothing."""

import socket
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from .addresses import refuse_numbers, refuse_private

CONNECT_SECONDS, SILENT_SECONDS = 30.0, 60.0


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
                raise aiohttp.ClientPayloadError(f"the server sends it packed ({packed[:20]!r}), though it was asked not to")
            return response

        fixed = {
            "connector": aiohttp.TCPConnector(resolver=_Resolver(self.allowed_hosts)),
            "timeout": aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS),
            "auto_decompress": False,
            "headers": {**settings.pop("headers", {}), "Accept-Encoding": "identity"},
            "middlewares": (*settings.pop("middlewares", ()), guard),
        }
        return aiohttp.ClientSession(**settings | fixed)


class _Resolver(AbstractResolver):
    """What it returns is what is connected to, so that a name cannot stand for another machine between a check and its use."""

    def __init__(self, allowed_hosts: Collection[str]) -> None:
        self._allowed, self._resolver = allowed_hosts, aiohttp.DefaultResolver()

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        refuse_private(host, [each["host"] for each in found], self._allowed)
        return found

    async def close(self) -> None:
        await self._resolver.close()

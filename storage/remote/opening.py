"""Opening an address through fsspec."""

import socket
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from .addresses import HTTP, NAMES_A_HOST, refuse_private, scheme_of


def file_system(url: str, allowed_hosts: Collection[str] = ()) -> tuple[Any, str]:
    """Return fsspec's file system for an address, and the path in it.

    Over HTTP, it connects only to machines on the public internet, also after redirects, and unpacks nothing.

    Args:
        url: The address.
        allowed_hosts: Hosts that may be on this machine or in a private network.

    Raises:
        AddressRefused: The host is not on the public internet.
        ImportError: Another package is needed.
        ValueError: The scheme is unknown.
    """
    from fsspec.core import url_to_fs

    scheme = scheme_of(url)
    if scheme in HTTP:
        from .web import GuardedClient

        return url_to_fs(url, get_client=GuardedClient(tuple(sorted(allowed_hosts))))
    host = urlsplit(url).hostname
    if scheme in NAMES_A_HOST and host and host not in allowed_hosts:
        try:
            numbers = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
        except OSError:  # unknown host: connecting reports it
            numbers = set()
        refuse_private(host, numbers, allowed_hosts)
    return url_to_fs(url)

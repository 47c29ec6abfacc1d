"""Opening an address through fsspec."""

import socket
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from ..common.packages import EXTRAS, install_command
from .addresses import HOST_SCHEMES, HTTP, refuse_private, scheme_of

S3_CLIENT = {
    "connect_timeout": 10,
    "read_timeout": 20,
    "retries": {"total_max_attempts": 3, "mode": "standard"},
    "max_pool_connections": 64,
}
"""Timeouts in seconds; number of attempts, with pauses as Amazon recommends; number of parallel requests (botocore's
default is 10).
"""


def package_to_install(url: str) -> str:
    """Return advice on how to install the package that ``file_system`` needs for an address."""
    return f"install it with: {install_command(*EXTRAS['s3'])}" if scheme_of(url) == "s3" else "install it"


def file_system(url: str, allowed_hosts: Collection[str] = ()) -> tuple[Any, str]:
    """Return fsspec's file system for an address, and the path in it.

    Over HTTP, it connects only to machines on the public internet, also after redirects, and unpacks nothing.

    Args:
        url: The address.
        allowed_hosts: Hosts allowed on this machine or in a private network.

    Raises:
        AddressRefused: The host is not on the public internet.
        ImportError: Another package is needed.
        ValueError: The scheme is unknown.
    """
    from fsspec.core import url_to_fs

    scheme = scheme_of(url)
    if scheme in HTTP:
        from .http_client import GuardedClient

        return url_to_fs(url, get_client=GuardedClient(tuple(sorted(allowed_hosts))))
    host = urlsplit(url).hostname
    if scheme in HOST_SCHEMES and host and host not in allowed_hosts:
        try:
            ip_addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
        except OSError:  # unknown host: connecting reports it
            ip_addresses = set()
        refuse_private(host, ip_addresses, allowed_hosts)
    if scheme == "s3":
        from fsspec.config import conf

        files, path = url_to_fs(url, config_kwargs=S3_CLIENT | conf.get("s3", {}).get("config_kwargs", {}))
        files.retries = 1  # s3fs would repeat all three attempts five times
        return files, path
    return url_to_fs(url)

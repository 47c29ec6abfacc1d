"""Which addresses are dialled. One that stands in a list or in a folder from elsewhere must not make this machine do anything but fetch."""

import ipaddress
import socket
from collections.abc import Collection, Iterable
from typing import Any
from urllib.parse import urlsplit

from ..common.errors import UserError

HTTP = ("http", "https")
NAMES_A_HOST = (*HTTP, "ftp", "sftp", "hdfs")
"""Schemes whose addresses name a machine. Those of the others name a bucket; its server is set by the user of this machine."""
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class AddressRefused(Exception):
    """An address of this machine or of a private network, which the user did not allow by name."""


def scheme_of(url: str) -> str:
    return url.partition("://")[0] if "://" in url else ""


def host_named(text: str) -> str:
    """The host that the user names, as addresses have it. Raises ``UserError`` for what is none."""
    host = "" if "/" in text else urlsplit(f"//{text}" if text.count(":") < 2 else f"//[{text.strip('[]')}]").hostname
    if not host:
        raise UserError(
            f"--allow-host {text}: expected the name of a host, or its number, such as nas.local or 10.0.0.5"
        )
    return host


def refuse_private(host: str, numbers: Iterable[str], allowed: Collection[str]) -> None:
    """Raises ``AddressRefused`` where one of the numbers that ``host`` stands for is not one of the public internet."""
    for number in numbers if host.lower() not in allowed else ():
        if not _is_public(number):
            told = host if host == number else f"{host} ({number})"
            raise AddressRefused(
                f"{told} is on this machine or in a private network; if that is meant, pass --allow-host {host} --retry-failed"
            )


def _is_public(number: str) -> bool:
    ip = ipaddress.ip_address(number.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo or (None,))[-1]
        if ip in NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner and not _is_public(str(inner)):
            return False
    return ip.is_global and not ip.is_multicast


def refuse_numbers(host: str, allowed: Collection[str]) -> None:
    """As ``refuse_private``, for a host that is given by its number; passes any name."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return
    refuse_private(host, [host], allowed)


def file_system(url: str, allowed_hosts: Collection[str] = ()) -> tuple[Any, str]:
    """fsspec's file system for an address, and the path in it. Over HTTP, no connection is made, after redirects either, to a machine
    that is not on the public internet, but for ``allowed_hosts``; nothing is unpacked. Raises ``AddressRefused``; ``ImportError`` where
    another package is needed, ``ValueError`` for an unknown scheme.
    """
    import fsspec

    scheme = scheme_of(url)
    if scheme in HTTP:
        from .web import GuardedClient

        return fsspec.core.url_to_fs(url, get_client=GuardedClient(tuple(sorted(allowed_hosts))))
    host = urlsplit(url).hostname
    if scheme in NAMES_A_HOST and host and host not in allowed_hosts:
        try:
            numbers = {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
        except OSError:  # unknown; whoever dials it says so
            numbers = set()
        refuse_private(host, numbers, allowed_hosts)
    return fsspec.core.url_to_fs(url)

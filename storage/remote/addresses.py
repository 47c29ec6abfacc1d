"""Checks of network addresses before they are opened.

An address in a stranger's list or folder must not make this machine do more than fetch a file.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from ..common.errors import SettingError, VlalignError

HTTP = ("http", "https")
HOST_SCHEMES = (*HTTP, "ftp", "sftp", "hdfs")
"""Schemes whose addresses name a machine.

Other schemes name a bucket, on a server that the user of this machine configured.
"""
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class AddressRefused(VlalignError):
    """An address of this machine or of a private network, which the user did not allow by name."""


def scheme_of(url: str) -> str:
    """Return the scheme of an address, such as ``https``; empty for a path."""
    return url.partition("://")[0] if "://" in url else ""


def without_secrets(url: str) -> str:
    """Return an address as messages and lists show it: without user, password and query, which may hold a signature.

    >>> without_secrets("https://anna:secret@host:8080/a.mp4?Signature=0123")
    'https://host:8080/a.mp4?...'
    >>> without_secrets("abfs://films@account.dfs.core.windows.net/a?b.mp4")
    'abfs://films@account.dfs.core.windows.net/a?b.mp4'
    """
    scheme, _, rest = url.partition("://")
    if scheme in HTTP:
        place, query, _ = rest.partition("?")
        rest = place + ("?..." if query else "")
    authority, slash, path = rest.partition("/")
    user, _, host = authority.rpartition("@")
    if scheme in HOST_SCHEMES or ":" in user:
        rest = host + slash + path
    return f"{scheme}://{rest}"


def has_secrets(url: str) -> bool:
    """Return whether an address holds anything that ``without_secrets`` leaves out.

    >>> has_secrets("s3://KEY:SECRET@films/a"), has_secrets("abfs://films@account.dfs.core.windows.net/a")
    (True, False)
    """
    return "://" in url and without_secrets(url) != url


def hide_secrets(text: str) -> str:
    """Return a library's message with ``without_secrets`` applied to each address in it that names a host."""
    return re.sub(rf"\b(?:{'|'.join(HOST_SCHEMES)})://[^\s'\"<>]+", lambda found: without_secrets(found[0]), text)


def host_named(text: str) -> str:
    """Return a host named by the user, normalized as in a URL. Raises ``SettingError`` if it is not a host."""
    authority = text if text.count(":") < 2 else f"[{text.strip('[]')}]"
    host = "" if "/" in text else urlsplit(f"//{authority}").hostname
    if not host:
        problem = "expected the name or IP address of a host, such as nas.local or 10.0.0.5"
        raise SettingError("allow_host", text, problem)
    return host


def refuse_private(host: str, ip_addresses: Iterable[str], allowed: Collection[str]) -> None:
    """Raise ``AddressRefused`` if a host is on this machine or in a private network.

    Args:
        host: The host in the address.
        ip_addresses: IP addresses of the host.
        allowed: Hosts that the user named and that may be anywhere.
    """
    for number in ip_addresses if host.lower() not in allowed else ():
        if not _is_public(number):
            named = host if host == number else f"{host} ({number})"
            raise AddressRefused(
                f"{named} is on this machine or in a private network; if you trust it, pass --allow-host {host} "
                "--retry-failed"
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


def refuse_private_address(host: str, allowed: Collection[str]) -> None:
    """Call ``refuse_private`` for a host that is given as an IP address. Names pass."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return
    refuse_private(host, [host], allowed)

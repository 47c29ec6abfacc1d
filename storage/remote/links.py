"""Links from local folders to remote stores.

``elsewhere.json`` in a folder has the address. A record outside of the folder confirms it for this user: a folder may
come from a stranger, and its content proves nothing. Each folder has its own record (``user_state.py``), which any
number of processes may write.
"""

import contextlib
import json
import os
import shlex
import stat
from pathlib import Path

from ..common.errors import UserError
from ..common.files import write_json
from ..common.terminal import note_once
from ..common.user_state import state_file, writable_state_file
from .addresses import has_secrets, scheme_of, without_secrets

LINK_FILE = "elsewhere.json"
SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "https", "http", "file")
MAX_BYTES = 1 << 14

_of_this_process: dict[str, str] = {}


def checked_address(url: str, where: str) -> str:
    """Return ``url`` without a trailing slash, if a folder may be linked to it.

    Args:
        url: The address.
        where: Its origin, for the message.

    Raises:
        UserError: It is not an address of ``SCHEMES`` or an absolute path, it is chained or not printable, or it holds
            a password or a signature.
    """
    is_known = scheme_of(url) in SCHEMES or ("://" not in url and os.path.isabs(url))
    if not is_known or "::" in url or not url.isprintable():
        schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise UserError(f"{where}: not a supported address: {url[:200]!a}; expected one that begins with {schemes}")
    if has_secrets(url):
        raise UserError(
            f"{where}: the address {without_secrets(url)} has a user, a password or a query, which would be stored and "
            "printed; remove them; pass credentials by environment variables of the scheme's library "
            "(AWS_ACCESS_KEY_ID, ...)"
        )
    return url.rstrip("/")


def linked_address(folder: Path) -> str | None:
    """Return the address in ``elsewhere.json``, confirmed or not; None without this file.

    Raises:
        UserError: The file has no valid address.
    """
    path = folder / LINK_FILE
    try:
        if not stat.S_ISREG(path.lstat().st_mode) or path.stat().st_size > MAX_BYTES:
            raise ValueError("not a short regular file")
        url = json.loads(path.read_text(encoding="utf-8"))["url"]
        if not isinstance(url, str):
            raise TypeError("its url is not a text")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f'{path}: expected {{"url": "s3://..."}}; remove it, or pass the address again') from None
    return checked_address(url, str(path))


def trusted_address(folder: Path) -> str | None:
    """Return the address that ``folder`` is linked to and that this user confirmed; None for a local store.

    Raises:
        UserError: There is a link that this user has not confirmed.
    """
    url = linked_address(folder)
    if url is not None and url != _recorded(folder):
        command = f"vlalign-store link {shlex.quote(str(folder))} {shlex.quote(url)}"
        raise UserError(
            f"{folder}: its {LINK_FILE} names {url}, which was not confirmed on this machine, so nothing is requested "
            f"from there; if you trust that address, run: {command}"
        )
    return url


def trust(folder: Path, url: str) -> None:
    """Record this user's confirmation that ``folder`` is linked to ``url``."""
    key = os.path.realpath(folder)
    _of_this_process[key] = url
    if _recorded(folder, only_written=True) == url:
        return
    try:
        write_json(writable_state_file("links", key), {"folder": key, "url": url})
    except OSError as error:  # no home folder, or a read-only one
        note_once(
            f"note: {folder}: the confirmation of {url} cannot be stored ({error}), so the next command asks again; "
            "set XDG_STATE_HOME to a writable folder"
        )


def trusted_links(parent: Path) -> dict[str, str]:
    """Return {folder: confirmed address} of linked folders in ``parent``, for processes with another home folder."""
    links = {}
    for folder in parent.glob("*"):
        with contextlib.suppress(UserError):  # opening the folder reports why it is refused
            if url := trusted_address(folder):
                links[str(folder)] = url
    return links


def _recorded(folder: Path, *, only_written: bool = False) -> str | None:
    key = os.path.realpath(folder)
    if not only_written and key in _of_this_process:
        return _of_this_process[key]
    try:
        record = json.loads(state_file("links", key).read_text(encoding="utf-8"))
        return record["url"] if record["folder"] == key else None
    except (OSError, ValueError, TypeError, KeyError):
        return None

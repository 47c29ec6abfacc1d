"""Folders that stand for a store elsewhere: ``elsewhere.json`` in the folder says where, and a record outside of it that this user said so.

Stores are passed around, so what lies in a folder is nobody's word. There is a record (``state.py``) for each folder, so that any number
of processes may write some.
"""

import contextlib
import json
import os
import shlex
import stat
from pathlib import Path

from ..common.errors import UserError
from ..common.terminal import note_once
from ..files import write_json
from ..state import state_file
from .addresses import scheme_of

LINK_FILE = "elsewhere.json"
SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "https", "http", "file")
MOST_BYTES = 1 << 14

_of_this_process: dict[str, str] = {}


def checked_address(url: str, where: str) -> str:
    """``url``, if it is one that a folder may stand for. Raises ``UserError`` with ``where`` it was given."""
    known = scheme_of(url) in SCHEMES or ("://" not in url and os.path.isabs(url))
    if not known or "::" in url or not url.isprintable():
        raise UserError(
            f"{where}: the address {url[:200]!a}: expected one that begins with {', '.join(f'{s}://' for s in SCHEMES)}"
        )
    return url.rstrip("/")


def linked_address(folder: Path) -> str | None:
    """What ``elsewhere.json`` says, whoever wrote it; None where there is none. Raises ``UserError`` where it says no address."""
    path = folder / LINK_FILE
    try:
        if not stat.S_ISREG(path.lstat().st_mode) or path.stat().st_size > MOST_BYTES:
            raise ValueError("no short regular file")
        url = json.loads(path.read_text(encoding="utf-8"))["url"]
        if not isinstance(url, str):
            raise TypeError("its url is no text")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f'{path}: expected {{"url": "s3://..."}}; remove it, or pass the address again') from None
    return checked_address(url, str(path))


def trusted_address(folder: Path) -> str | None:
    """What ``folder`` stands for, by this user's word. Raises ``UserError`` where only the folder itself says so."""
    url = linked_address(folder)
    if url is not None and url != _recorded(folder):
        told = f"vlalign-store link {shlex.quote(str(folder))} {shlex.quote(url)}"
        raise UserError(
            f"{folder}: its {LINK_FILE} has it stand for {url}, which was not confirmed on this machine, so that nothing there is asked "
            f"for; if you trust that address, run: {told}"
        )
    return url


def trust(folder: Path, url: str) -> None:
    """Records that this user has ``folder`` stand for ``url``."""
    key = str(folder.resolve())
    _of_this_process[key] = url
    if _recorded(folder, only_written=True) == url:
        return
    try:
        write_json(state_file("links", key), {"folder": key, "url": url})
    except (OSError, RuntimeError) as error:  # no home folder, or one that may not be written
        note_once(
            f"note: {folder}: that it stands for {url} cannot be kept ({error}); the next command asks again; set XDG_STATE_HOME"
        )


def trusted_links(parent: Path) -> dict[str, str]:
    """{folder: address} of the folders in ``parent`` that stand for a store elsewhere, for processes with another home."""
    found = {}
    for folder in parent.glob("*"):
        with contextlib.suppress(UserError):  # whoever opens such a folder hears why it is not
            if url := trusted_address(folder):
                found[str(folder)] = url
    return found


def _recorded(folder: Path, *, only_written: bool = False) -> str | None:
    key = str(folder.resolve())
    if not only_written and key in _of_this_process:
        return _of_this_process[key]
    try:
        record = json.loads(state_file("links", key).read_text(encoding="utf-8"))
        return record["url"] if record["folder"] == key else None
    except (OSError, RuntimeError, ValueError, TypeError, KeyError):
        return None

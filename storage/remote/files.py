"""The files of one folder on another machine, through fsspec. Failed requests are repeated."""

import errno
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from ..common.errors import UserError
from ..common.retry import RetriesFailed, retry
from .addresses import AddressRefused
from .opening import file_system

T = TypeVar("T")

TRIES, PAUSE_SECONDS = 3, 2.0


class RemoteFiles:
    """The files of one folder on another machine.

    All methods repeat a failed request. They raise ``OSError`` if it fails ``TRIES`` times, and ``UserError`` if the
    address leads to a machine that the user did not name.
    """

    def __init__(self, url: str) -> None:
        """Prepare to use the folder at ``url``. Raises ``UserError`` if nothing here can read such an address."""
        self.url = url
        try:
            self._files, self._path = file_system(url, [urlsplit(url).hostname or ""])
        except (ImportError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{url}: cannot be reached from here ({reason}); install what it names") from None

    def names(self) -> list[str]:
        """Return the names of all files in the folder; none if the folder is missing."""

        def list_names() -> list[str]:
            self._files.invalidate_cache()
            try:
                paths = self._files.ls(self._path, detail=False)
            except FileNotFoundError:
                return []
            return [str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths]

        return _retried(list_names, self.url)

    def read(self, name: str, first: int, last: int) -> bytes:
        """Return bytes [first, last) of a file; fewer at its end."""
        content = _retried(
            lambda: self._files.cat_file(self._in_folder(name), start=first, end=last), f"{self.url}/{name}"
        )
        return content[first:last] if len(content) > last - first else content  # a server without partial requests

    def fetch(self, name: str, path: Path, num_bytes: int) -> None:
        """Copy a file to ``path``. Raises ``UserError`` if more than ``num_bytes`` are sent."""
        from .web import SizeLimit

        _retried(
            lambda: self._files.get_file(self._in_folder(name), str(path), callback=SizeLimit(num_bytes)),
            f"{self.url}/{name}",
        )

    def exists(self, name: str) -> bool:
        """Return True if there is a file of that name now."""

        def look() -> bool:
            self._files.invalidate_cache()
            return self._files.exists(self._in_folder(name))

        return _retried(look, f"{self.url}/{name}")

    def send(self, path: Path) -> None:
        """Copy a local file into the folder, under a temporary name first. Does nothing if it no longer exists."""

        def put() -> None:
            if not path.exists():
                return
            partial = self._in_folder(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
            self._files.makedirs(self._path, exist_ok=True)
            self._files.put_file(str(path), partial)
            self._files.mv(partial, self._in_folder(path.name))

        _retried(put, f"{self.url}/{path.name}")

    def _in_folder(self, name: str) -> str:
        return f"{self._path}/{name}"


def _retried(call: Callable[[], T], what: str) -> T:
    """Return the result of one request, which is repeated if the network or the server fails."""

    def is_final(error: Exception) -> bool:
        is_full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        return is_full or isinstance(error, AddressRefused)

    try:
        return retry(call, num_tries=TRIES, pause_seconds=PAUSE_SECONDS, is_final=is_final)
    except RetriesFailed as failed:
        error = failed.error
        if isinstance(error, AddressRefused):
            raise UserError(f"{what}: leads to another machine: {error}") from None
        if is_final(error):
            raise error from None
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise OSError(f"{what}: no valid answer ({reason}); tried {failed.num_tries} times") from None

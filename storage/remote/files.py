"""The files of one folder on another machine, through fsspec. Failed requests are repeated."""

import asyncio
import contextlib
import errno
import hashlib
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ..common.errors import UserError
from ..common.retry import RetriesFailed, retry
from ..common.signals import stopping
from .addresses import HTTP, AddressRefused, scheme_of
from .file_systems import file_system, package_to_install

T = TypeVar("T")

OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci"}
"""Schemes of servers without folders, where an object appears only when all of it has arrived."""
TRIES, PAUSE_SECONDS = 3, 2.0
ANSWER_SECONDS, SLOWEST_BYTES_PER_SECOND = 60.0, 250_000
"""Time limit of a request: ``ANSWER_SECONDS``, plus the time for its bytes at the slowest rate. No other limit ends a
request if the server stops reading halfway, or sends only a byte now and then.
"""


CHECKED_BYTES = 8 << 20
"""Number of bytes read at once when a file is compared with a remote one."""


class Refused(OSError):
    """The server's answer is final: a file or a permission is missing."""


class RemoteFiles:
    """The files of one folder on another machine.

    All methods repeat a failed request. They raise ``OSError`` after ``TRIES`` failures, ``Refused`` if a file or a
    permission is missing, and ``UserError`` if the address leads to a machine that the user did not name.
    """

    def __init__(self, url: str) -> None:
        """Prepare to use the folder at ``url``. Raises ``UserError`` if such addresses are not supported here."""
        self.url = url
        try:
            self._files, self._path = file_system(url, [urlsplit(url).hostname or ""])
        except (ImportError, ValueError) as error:
            reason = " ".join(str(error).split())
            todo = package_to_install(url) if isinstance(error, ImportError) else "expected one such as s3://..."
            raise UserError(f"{url}: cannot be reached from here ({reason}); {todo}") from None

    def check(self) -> None:
        """List the folder, write a small file, read it back and remove it.

        Raises:
            UserError: The bucket or a permission is missing, or the address is a web server, which accepts no files.
            OSError: The server gives no valid answer.
        """
        if scheme_of(self.url) in HTTP:
            raise UserError(f"{self.url}: files on a web server can only be read; expected an address such as s3://...")
        name, step = f".check-{uuid.uuid4().hex[:8]}", "listed"
        path = self._in_folder(name)
        try:
            self.names()
            step = "written"
            self._make_folder()
            _retried(lambda: self._files.pipe_file(path, b"check", **self._time_limit()), self.url)
            step = "read"
            self.read(name, 0, 1)
        except Refused as error:
            raise UserError(f"{error}; files cannot be {step} there; check the address and your permissions") from None
        finally:
            if step == "read":
                with contextlib.suppress(OSError):  # no other step needs the permission to remove files
                    _retried(lambda: self._files.rm_file(path, **self._time_limit()), self.url)

    def names(self) -> list[str]:
        """Return the names of all files in the folder; empty if it is missing.

        Raises ``Refused`` if the server reports a missing bucket.
        """

        def list_names() -> list[str]:
            self._files.invalidate_cache()
            try:
                paths = self._files.ls(self._path, detail=False, **self._time_limit())
            except FileNotFoundError as error:
                if error.__cause__:  # the server's answer about the bucket
                    raise
                return []
            return [str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths]

        return _retried(list_names, self.url)

    def read(self, name: str, first: int, last: int) -> bytes:
        """Return bytes [first, last) of a file; fewer at its end."""
        limit = self._time_limit(last - first)
        content = _retried(
            lambda: self._files.cat_file(self._in_folder(name), start=first, end=last, **limit), f"{self.url}/{name}"
        )
        return content[first:last] if len(content) > last - first else content  # a server without partial requests

    def fetch(self, name: str, path: Path, num_bytes: int) -> None:
        """Copy a file of ``num_bytes`` to ``path``. Raises ``UserError`` if the server sends more."""
        from .http_client import SizeLimit

        def get() -> None:
            limit = {"callback": SizeLimit(f"{self.url}/{name}", num_bytes)} | self._time_limit(num_bytes)
            self._files.get_file(self._in_folder(name), str(path), **limit)
            if (num_sent := path.stat().st_size) != num_bytes:
                raise OSError(f"{num_sent:,} bytes were sent, expected {num_bytes:,}")

        _retried(get, f"{self.url}/{name}")

    def exists(self, name: str) -> bool:
        """Return True if there is a file of that name now."""

        def look() -> bool:
            self._files.invalidate_cache()
            return self._files.exists(self._in_folder(name), **self._time_limit())

        return _retried(look, f"{self.url}/{name}")

    def holds(self, path: Path) -> bool:
        """Return True if the remote file of the same name has the same bytes as a local file.

        S3's MD5 of the object is compared first. If it is missing or different, the remote file is read.
        """
        num_bytes, name = path.stat().st_size, path.name

        def look() -> dict[str, Any]:
            self._files.invalidate_cache()
            return self._files.info(self._in_folder(name), **self._time_limit())

        known = _retried(look, f"{self.url}/{name}")
        if known["size"] != num_bytes:
            return False
        with path.open("rb") as file:
            if "ETag" in known:
                digest = hashlib.md5(usedforsecurity=False)
                for block in iter(lambda: file.read(CHECKED_BYTES), b""):
                    digest.update(block)
                if digest.hexdigest() == str(known["ETag"]).strip('"'):
                    return True
                file.seek(0)
            firsts = range(0, num_bytes, CHECKED_BYTES)
            return all(file.read(CHECKED_BYTES) == self.read(name, n, n + CHECKED_BYTES) for n in firsts)

    def send(self, path: Path) -> None:
        """Copy a local file into the folder atomically. Do nothing if it no longer exists."""

        def put() -> None:
            if not path.exists():
                return
            if self._holds_objects:  # an object appears when all of it has arrived
                limit = self._time_limit(path.stat().st_size)
                self._files.put_file(str(path), self._in_folder(path.name), **limit)
                return
            partial = self._in_folder(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
            self._make_folder()
            self._files.put_file(str(path), partial)
            self._files.mv(partial, self._in_folder(path.name))

        _retried(put, f"{self.url}/{path.name}")

    @property
    def _holds_objects(self) -> bool:
        return scheme_of(self.url) in OBJECT_STORES

    def _make_folder(self) -> None:
        if not self._holds_objects:  # on an object store, this would create a missing bucket
            self._files.makedirs(self._path, exist_ok=True)

    def _time_limit(self, num_bytes: int = 0) -> dict[str, Any]:
        seconds = ANSWER_SECONDS + num_bytes / SLOWEST_BYTES_PER_SECOND
        return {"timeout": seconds} if self._files.async_impl else {}

    def _in_folder(self, name: str) -> str:
        return f"{self._path}/{name}"


def _retried(call: Callable[[], T], what: str) -> T:
    """Send a request, repeat it if the network or the server fails, and return its result."""

    def is_final(error: Exception) -> bool:
        is_full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        return is_full or stopping() or isinstance(error, AddressRefused | FileNotFoundError | PermissionError)

    try:
        return retry(call, num_tries=TRIES, pause_seconds=PAUSE_SECONDS, is_final=is_final)
    except RetriesFailed as failed:
        error = failed.error
        if isinstance(error, AddressRefused):
            raise UserError(f"{what}: leads to a refused host: {error}") from None
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise error from None
        reason = " ".join(str(error).split())[:300]
        if isinstance(error, FileNotFoundError | PermissionError):
            kind = "not found" if isinstance(error, FileNotFoundError) else "refused"
            raise Refused(f"{what}: {kind} ({reason})") from None
        if isinstance(error, asyncio.TimeoutError) or "timeout" in reason.casefold():  # ours, or the client's own limit
            reason = "it takes too long"
        reason = reason or type(error).__name__
        raise OSError(f"{what}: no valid answer ({reason}); tried {failed.num_tries} times") from None

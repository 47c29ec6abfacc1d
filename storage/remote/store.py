"""Stores whose shards are on another machine (``s3://``, ``gs://``, ``https://``, any address of fsspec).

A local folder represents the remote store; ``elsewhere.json`` in it has the address. Each remote shard also has a local
file in this folder. The file is complete after its feature vectors were first read. Until then it is a stub: a sparse
file of the same size with only the first block and the index. The content of a store is therefore known without
fetching feature vectors. When the disk is almost full, complete files become stubs again, least recently used first.
New shards stay in the folder ``outgoing`` until they have arrived at the remote store.

The user links a folder to an address (``links.py``). Reading fetches shards and makes no other changes, local or
remote. Commands that write send new shards, and remove local files whose remote shards are gone.
"""

import contextlib
import errno
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from ..common.errors import UserError, unreadable
from ..common.files import write_json
from ..common.progress import progress
from ..common.terminal import note_once, say
from ..common.writing import atomic_write, make_folder, move, remove_file
from ..shards.format import BLOCK_BYTES, Shard
from ..shards.names import SHARD_NAME, sort_shard_names
from ..shards.read import ShardRows, damaged_videos, read_layout, read_shard
from .files import RemoteFiles
from .links import LINK_FILE, checked_address, linked_address, trust, trusted_address

PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.h5")
"""Names that a remote shard may have, because it names a local file."""
OUTGOING = "outgoing"
STUBS_AT_ONCE = 32
"""Stubs that are fetched at the same time: each request is small and waits for the network."""
SHARDS_AT_ONCE = 8
FREE_SHARE = 0.1
"""Share of the disk to keep free: below it, complete files become stubs."""


def link_store(folder: Path, url: str) -> "RemoteStore":
    """Link ``folder`` to the store at ``url``.

    Shards that are already in the folder move to ``outgoing``; ``RemoteStore.send`` copies them to the remote store.

    Raises:
        UserError: The folder is linked to another store, or such addresses are not supported here.
    """
    url, stated = checked_address(url, str(folder)), linked_address(folder)
    if stated not in (None, url):
        raise UserError(
            f"{folder}: linked to {stated}, not to {url}; pass another --root, or remove {folder / LINK_FILE}"
        )
    remote = RemoteStore(folder, url)
    if stated is None:
        shards = [folder / name for name in _shard_names(folder)]
        if foreign := [path for path in shards if not _is_own(path)]:
            raise UserError(
                f"{foreign[0]}: not a shard of vlalign (a symlink, or another name); remove it, then link "
                "the folder again"
            )
        make_folder(remote.outgoing)
        for path in shards:
            move(path, remote.outgoing / path.name)
        write_json(folder / LINK_FILE, {"url": url})
    trust(folder, url)
    return remote


def remote_store(folder: Path) -> "RemoteStore | None":
    """Return the remote store that ``folder`` is linked to; None for a local store.

    Raises:
        UserError: There is a link that this user has not confirmed.
    """
    url = trusted_address(folder)
    return None if url is None else RemoteStore(folder, url)


def refuse_remote(folder: Path) -> None:
    """Raise ``UserError`` if ``folder`` is linked to a remote store, since local changes would not reach the store."""
    if remote := remote_store(folder):
        raise UserError(
            f"{folder}: its shards are at {remote.url}; run this on a local copy (vlalign-store merge makes one)"
        )


def is_stub(path: Path) -> bool:
    """Return True for a stub. Stubs are dated 1970, unlike written files, and copying keeps the date."""
    return path.stat().st_mtime == 0


def _shard_names(folder: Path) -> list[str]:
    """Return the names of all shards in ``folder``, in order."""
    try:
        return sort_shard_names(
            name for name in os.listdir(folder) if name.endswith(".h5") and not name.startswith(".")
        )
    except FileNotFoundError:
        return []


def _is_own(path: Path) -> bool:
    """Return True if this package may have written the file."""
    return bool(SHARD_NAME.fullmatch(path.name)) and path.is_file() and not path.is_symlink()


class RemoteStore:
    """A store on another machine, and the local folder that is linked to it."""

    def __init__(self, folder: Path, url: str) -> None:
        """Prepare to use the store at ``url``. Raises ``UserError`` if such addresses are not supported here."""
        self.folder, self.url, self.outgoing = folder, url, folder / OUTGOING
        if self.outgoing.is_symlink():
            raise UserError(f"{self.outgoing}: a symlink; nothing is sent from there; remove it")
        self._files = RemoteFiles(url)
        self._turns: dict[str, Lock] = {}  # by shard, held by the thread that fetches it

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_turns": {}}

    def names(self) -> list[str]:
        """Return the names of the shards in the remote store."""
        names = [name for name in self._files.names() if name.endswith(".h5") and not name.startswith(".")]
        if odd := [name for name in names if not PLAIN_NAME.fullmatch(name)]:
            note_once(
                f"note: {self.url}: {len(odd):,} files there, such as {odd[0][:100]!a}, do not have the name of a "
                "shard; they are ignored"
            )
        return [name for name in names if PLAIN_NAME.fullmatch(name)]

    def check(self) -> None:
        """Raise ``UserError`` or ``OSError`` unless shards can be listed, written and read at the address now."""
        self._files.check()

    def update(self) -> list[Path]:
        """Fetch stubs of new shards; return the local files of the current remote shards, in order."""
        remote_names, local_names = set(self.names()), set(_shard_names(self.folder))
        if local_names and not remote_names:
            raise UserError(
                f"{self.url}: has no shards now, but {self.folder} has {len(local_names):,} from it; if they were "
                "deleted on purpose, remove that folder"
            )
        if gone := local_names - remote_names:
            command = f"vlalign-store link {shlex.quote(str(self.folder))} {shlex.quote(self.url)}"
            note_once(
                f"note: {self.folder}: {len(gone):,} shards in it are no longer at {self.url}; {command} removes them"
            )
        if new := sorted(remote_names - local_names):
            with ThreadPoolExecutor(STUBS_AT_ONCE) as pool:
                stubs = pool.map(self._fetch_stub, new)
                for _ in progress(stubs, total=len(new), what=f"listing {self.url}", unit="shards"):
                    pass
        return [self.folder / name for name in sort_shard_names(remote_names)]

    def send(self) -> list[str]:
        """Send new shards, and remove local files whose remote shards are gone.

        Only commands that write call this.

        Returns:
            The names of the sent shards.
        """
        sent = []
        for path in (self.outgoing / name for name in _shard_names(self.outgoing)):
            try:
                if not _is_own(path):
                    raise UserError(f"{path}: not a shard of vlalign")
                read_shard(path)
            except FileNotFoundError:  # another process was faster
                continue
            except UserError as error:
                say(f"note: {error}; it is not sent to {self.url}")
                continue
            self.put(path)
            sent.append(path.name)
        local_names, remote_names = set(_shard_names(self.folder)), set(self.names())
        for name in local_names - remote_names if remote_names else ():  # compacted there
            if _is_own(self.folder / name):
                remove_file(self.folder / name, missing_ok=True)
        return sent

    def read_back(self, sent: Sequence[str]) -> str:
        """Fetch the indexes of sent shards and all vectors of the smallest one; compare them with their checksums.

        If none were sent, check the smallest of all shards. Return a description of the comparison.

        Raises:
            UserError: A shard cannot be read, or is damaged.
        """
        try:
            smallest = min(sent or self.names(), key=lambda name: (self.folder / name).stat().st_size)
            for name in sent or [smallest]:
                self._fetch_stub(name)
                read_shard(self.folder / name)
            rows = self.rows(read_shard(self.folder / smallest))
            if damaged := damaged_videos(rows):
                message = f"the rows of {len(damaged):,} videos are damaged; remove it there, and extract them again"
                raise UserError(f"{self.url}/{smallest}: {message}")
        except (UserError, OSError) as error:
            raise UserError(f"{self.folder}: linked to {self.url}, but cannot be read back: {error}") from None
        return f"the index of {len(sent) or 1:,} shards, and {rows.shard.num_rows:,} rows of {smallest}"

    def put(self, path: Path) -> None:
        """Send a shard in ``outgoing`` atomically, check that it arrived, and replace it with a stub.

        An existing remote shard of the same name is not changed. Raises ``OSError`` if the remote shard then differs;
        the local one stays in ``outgoing`` and ``send`` tries again.
        """
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            if path.exists() and not self._files.exists(path.name):
                self._files.send(path)
            if not self._files.holds(path):
                problem = f"differs from {path}, which is kept; remove it there, then run the same command again"
                raise OSError(f"{self.url}/{path.name}: {problem}")
            self._make_stub(path)
            remove_file(path)

    def _fetch_stub(self, name: str) -> None:
        block = self._files.read(name, 0, BLOCK_BYTES)
        try:
            layout = read_layout(block)
            if layout.block_bytes > len(block):
                block = self._files.read(name, 0, layout.block_bytes)
                layout = read_layout(block)
            if layout.index is None:
                raise ValueError("it ends within its first block")
        except (ValueError, LookupError, TypeError) as error:
            raise unreadable(f"{self.url}/{name}", "not a feature shard", error, "remove it there") from None
        self._write_stub(name, layout.num_bytes, block, layout.index[0], self._files.read(name, *layout.index))

    def _make_stub(self, path: Path) -> None:
        """Replace the local file of a shard by a stub, made from the complete file at ``path``."""
        with path.open("rb") as file:
            block = file.read(BLOCK_BYTES)
            block += file.read(max(read_layout(block).block_bytes - BLOCK_BYTES, 0))
            layout = read_layout(block)
            if layout.index is None:
                raise UserError(f"{path}: ends within its first block; remove it")
            first, last = layout.index
            file.seek(first)
            self._write_stub(path.name, layout.num_bytes, block, first, file.read(last - first))

    def _write_stub(self, name: str, num_bytes: int, block: bytes, index_offset: int, index: bytes) -> None:
        with atomic_write(self.folder / name) as partial, partial.open("xb") as file:
            file.truncate(num_bytes)
            file.write(block)
            file.seek(index_offset)
            file.write(index)
            file.flush()
            os.utime(partial, (0, 0))

    def rows(self, shard: Shard) -> ShardRows:
        """Return the rows of a shard; they remain readable even if the file becomes a stub again."""
        while True:
            self.fetch(shard.path)
            rows = ShardRows(shard)
            if not is_stub(shard.path):
                return rows

    def times(self, shard: Shard) -> tuple[np.ndarray, np.ndarray]:
        """Return (start, end) of each row of a shard. Only these two columns are fetched, and they are not cached.

        Raises:
            FileNotFoundError: The shard no longer exists.
            UserError: It has become shorter.
        """
        name, columns = shard.path.name, []
        for column in ("start_seconds", "end_seconds"):
            first, size = shard.offsets[column], shard.num_rows * shard.row_bytes(column)
            try:
                content = self._files.read(name, first, first + size)
            except OSError:
                if name not in self.names():  # compacted there
                    raise FileNotFoundError(errno.ENOENT, "compacted in the remote store", str(shard.path)) from None
                raise
            if len(content) != size:
                raise UserError(
                    f"{self.url}/{name}: read {len(content):,} of {size:,} bytes of row times; the shard has changed"
                )
            columns.append(np.frombuffer(content, shard.row_type(column)[0]))
        return columns[0], columns[1]

    def fetch_all(self, paths: Iterable[Path]) -> None:
        """Complete the local files of several shards at the same time."""
        with ThreadPoolExecutor(SHARDS_AT_ONCE) as pool:
            list(pool.map(self.fetch, paths))

    def fetch(self, path: Path) -> None:
        """Complete the local file of a shard. Raises ``FileNotFoundError`` if the shard is no longer there."""
        with self._turns.setdefault(path.name, Lock()):
            if not is_stub(path):
                with contextlib.suppress(OSError):
                    os.utime(path)  # remembers when it was last used
                return
            num_bytes = path.stat().st_size
            self._make_room(num_bytes)
            try:
                with atomic_write(path) as partial:
                    self._files.fetch(path.name, partial, num_bytes)
            except OSError:
                if path.name not in self.names():  # compacted there
                    raise FileNotFoundError(errno.ENOENT, "compacted in the remote store", str(path)) from None
                raise

    def _make_room(self, num_bytes: int) -> None:
        def is_room() -> bool:
            usage = shutil.disk_usage(self.folder)
            return usage.free - num_bytes >= FREE_SHARE * usage.total

        if is_room():
            return
        remote_names = set(self.names())
        complete = [path for path in self.folder.glob("*.h5") if path.name in remote_names and not is_stub(path)]
        if complete:
            note_once(
                f"note: {self.folder}: disk nearly full: shards read earlier are dropped, and fetched again if needed"
            )
        for path in sorted(complete, key=lambda path: path.stat().st_mtime):
            self._make_stub(path)
            if is_room():
                return
        if shutil.disk_usage(self.folder).free < num_bytes:
            raise OSError(
                errno.ENOSPC, f"{self.folder}: disk full: a shard has {num_bytes / 1e6:,.1f} MB; make room there"
            )

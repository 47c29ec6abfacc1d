"""Stores whose shards lie elsewhere (``s3://``, ``gs://``, ``https://``, what fsspec reads), with a folder here that stands for them.

``elsewhere.json`` in the folder says where. Each shard has its own name here, too: as the whole file once its rows were asked for, and
else as a stub, of the same size, of which first block and index were fetched and the rest is a hole. So indexes are read here like any
shard's, and what a store holds is known without its rows. Where the disk has little room left, whole files become stubs again, those
first that were not asked for longest. What is written here goes to the folder ``outgoing`` first, until it has arrived there.

The user says which folder stands for what (``links.py``). Reading takes shards from there and does nothing else, there or here; what
was written is brought there, and what is gone there removed here, by commands that write.
"""

import contextlib
import errno
import os
import re
import shlex
import shutil
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from ..common.errors import UserError
from ..common.progress import progress
from ..common.retry import RetriesFailed, retry
from ..common.terminal import note_once, say
from ..files import write_json, written_whole
from ..shard_names import SHARD_NAME, in_order
from ..shards.format import BLOCK_BYTES, Shard
from ..shards.read import ShardRows, places_in, read_shard
from .addresses import AddressRefused, file_system
from .links import LINK_FILE, checked_address, linked_address, trust, trusted_address

T = TypeVar("T")

PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.h5")
"""What a shard there may be called: it names a file in the folder here, and in no other."""
OUTGOING = "outgoing"
AT_ONCE = 32
"""Requests: each waits for the network, and asks for little."""
WHOLE_AT_ONCE = 8
FREE_SHARE = 0.1
"""Of the disk, which whole files leave free."""
TRIES, PAUSE_SECONDS = 3, 2.0


def link_store(folder: Path, url: str) -> "RemoteStore":
    """Has ``folder`` stand for the store at ``url``, by the user's word; ``send`` then brings the shards there that are in it. Raises
    ``UserError`` where it stands for another one, or nobody reads such an address."""
    url, stated = checked_address(url, str(folder)), linked_address(folder)
    if stated not in (None, url):
        raise UserError(
            f"{folder}: stands for {stated}, not for {url}; pass another --root, or remove {folder / LINK_FILE}"
        )
    there = RemoteStore(folder, url)
    if stated is None:
        mine = [folder / name for name in _names_in(folder)]
        if odd := [path for path in mine if not _is_own(path)]:
            raise UserError(
                f"{odd[0]}: no shard that was written here (a link, or another name); remove it, then link the folder again"
            )
        there.outgoing.mkdir(parents=True, exist_ok=True)
        for path in mine:
            path.rename(there.outgoing / path.name)
        write_json(folder / LINK_FILE, {"url": url})
    trust(folder, url)
    return there


def remote_store(folder: Path) -> "RemoteStore | None":
    """What ``folder`` stands for; None for a store that lies here. Raises ``UserError`` where only the folder says so, not the user."""
    url = trusted_address(folder)
    return None if url is None else RemoteStore(folder, url)


def _names_in(folder: Path) -> list[str]:
    """Of shards, or what seems to be one."""
    try:
        return in_order(name for name in os.listdir(folder) if name.endswith(".h5") and not name.startswith("."))
    except FileNotFoundError:
        return []


def _is_own(path: Path) -> bool:
    """Whether it is a file that this package may have written."""
    return bool(SHARD_NAME.fullmatch(path.name)) and path.is_file() and not path.is_symlink()


def refuse_remote(folder: Path) -> None:
    """Raises ``UserError`` for what is done to files here and would not be done there."""
    if there := remote_store(folder):
        raise UserError(
            f"{folder}: its shards lie at {there.url}; do this to a copy that lies here (vlalign-store merge makes one)"
        )


def is_stub(path: Path) -> bool:
    """Stubs are from 1970: a time that no written file has, and that copying keeps."""
    return path.stat().st_mtime == 0


class RemoteStore:
    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url, self.outgoing = folder, url, folder / OUTGOING
        if self.outgoing.is_symlink():
            raise UserError(
                f"{self.outgoing}: a link to another folder, from which nothing is brought anywhere; remove it"
            )
        try:
            self._files, self._path = file_system(url, [urlsplit(url).hostname or ""])
        except (ImportError, ValueError) as error:
            raise UserError(
                f"{url}: cannot be reached from here ({' '.join(str(error).split())}); install what it names"
            ) from None

    def names(self) -> list[str]:
        """Of the shards that are there."""

        def listed() -> list[str]:
            self._files.invalidate_cache()
            try:
                return [str(each).rstrip("/").rsplit("/", 1)[-1] for each in self._files.ls(self._path, detail=False)]
            except FileNotFoundError:
                return []

        found = [name for name in self._ask(listed, self.url) if name.endswith(".h5") and not name.startswith(".")]
        if odd := [name for name in found if not PLAIN_NAME.fullmatch(name)]:
            note_once(
                f"note: {self.url}: {len(odd):,} files there, {odd[0][:100]!a} for one, are named like no shard; they are left out"
            )
        return [name for name in found if PLAIN_NAME.fullmatch(name)]

    def update(self) -> list[Path]:
        """Has the folder know what is there now. Returns the shards that are, in order; others that the folder has do not count."""
        there, here = set(self.names()), set(_names_in(self.folder))
        if here and not there:
            raise UserError(
                f"{self.url}: no shard is there now, {self.folder} has {len(here):,} from it; if that is meant, remove that folder"
            )
        if gone := here - there:
            told = f"vlalign-store link {shlex.quote(str(self.folder))} {shlex.quote(self.url)}"
            note_once(
                f"note: {self.folder}: {len(gone):,} shards in it are no longer at {self.url}; {told} removes them"
            )
        new = sorted(there - here)
        if new:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                for _ in progress(
                    pool.map(self._fetch_stub, new), total=len(new), what=f"looking at {self.url}", unit="shards"
                ):
                    pass
        return [self.folder / name for name in in_order(there)]

    def send(self) -> int:
        """Brings there what was written here and has not arrived, and removes here what is no longer there; for commands that write.
        Returns how many shards were brought."""
        sent = 0
        for path in (self.outgoing / name for name in _names_in(self.outgoing)):
            try:
                if not _is_own(path):
                    raise UserError(f"{path}: no file that was written here")
                read_shard(path)
            except FileNotFoundError:  # another process was faster
                continue
            except UserError as error:
                say(f"note: {error}; it is not brought to {self.url}")
                continue
            self.put(path)
            sent += 1
        here, there = set(_names_in(self.folder)), set(self.names())
        for name in here - there if there else ():  # compacted there
            if _is_own(self.folder / name):
                (self.folder / name).unlink(missing_ok=True)
        return sent

    def _there(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _part(self, name: str, first: int, last: int) -> bytes:
        content = self._files.cat_file(self._there(name), start=first, end=last)
        return content[first:last] if len(content) > last - first else content  # a server that gives no parts

    def _fetch_stub(self, name: str) -> None:
        def fetch() -> None:
            block = self._part(name, 0, BLOCK_BYTES)
            try:
                block_bytes, *index, size = places_in(block)
                if block_bytes > len(block):
                    block = self._part(name, 0, block_bytes)
                    block_bytes, *index, size = places_in(block)
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"{self.url}/{name}: no feature shard ({error}); remove it there") from None
            self._write_stub(name, size, block, index[0], self._part(name, *index))

        self._ask(fetch, f"{self.url}/{name}")

    def _write_stub(self, name: str, size: int, block: bytes, index_at: int, index: bytes) -> None:
        with written_whole(self.folder / name) as partial, partial.open("xb") as file:
            file.truncate(size)
            file.write(block)
            file.seek(index_at)
            file.write(index)
            file.flush()
            os.utime(partial, (0, 0))

    def put(self, path: Path) -> None:
        """Brings a shard from ``outgoing`` there, whole or not at all, and leaves a stub here. Raises ``OSError`` where it does not
        arrive; ``send`` tries it again. One of that name that is there already stays as it is."""

        def put() -> None:
            if not path.exists():  # another process was faster
                return
            self._files.invalidate_cache()
            if self._files.exists(self._there(path.name)):
                self._fetch_stub(path.name)
                path.unlink(missing_ok=True)
                return
            partial = self._there(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
            self._files.makedirs(self._path, exist_ok=True)
            self._files.put_file(str(path), partial)
            self._files.mv(partial, self._there(path.name))
            self._make_stub(path)
            path.unlink(missing_ok=True)

        self._ask(put, f"{self.url}/{path.name}")

    def _make_stub(self, path: Path) -> None:
        with path.open("rb") as file:
            block = file.read(BLOCK_BYTES)
            block += file.read(max(places_in(block)[0] - BLOCK_BYTES, 0))
            _, first, last, size = places_in(block)
            file.seek(first)
            self._write_stub(path.name, size, block, first, file.read(last - first))

    def rows(self, shard: Shard) -> ShardRows:
        """Of a shard that is whole here, and stays open however soon its file becomes a stub again."""
        while True:
            self.whole(shard.path)
            rows = ShardRows(shard)
            if not is_stub(shard.path):
                return rows

    def need(self, paths: Iterable[Path]) -> None:
        """Has these shards whole here, several fetched at once."""
        with ThreadPoolExecutor(WHOLE_AT_ONCE) as pool:
            list(pool.map(self.whole, paths))

    def whole(self, path: Path) -> None:
        """Has a shard whole here. Raises ``FileNotFoundError`` for one that is no longer there."""
        if not is_stub(path):
            with contextlib.suppress(OSError):
                os.utime(path)  # says when it was asked for last
            return

        def fetch() -> None:
            from .web import NoMoreThan

            self._make_room(path.stat().st_size)
            with written_whole(path) as partial:
                self._files.get_file(self._there(path.name), str(partial), callback=NoMoreThan(path.stat().st_size))

        try:
            self._ask(fetch, f"{self.url}/{path.name}")
        except OSError:
            if path.name not in self.names():  # compacted there
                raise FileNotFoundError(errno.ENOENT, "compacted elsewhere", str(path)) from None
            raise

    def _make_room(self, size: int) -> None:
        def is_room() -> bool:
            usage = shutil.disk_usage(self.folder)
            return usage.free - size >= FREE_SHARE * usage.total

        if is_room():
            return
        there = set(self.names())
        whole = [path for path in self.folder.glob("*.h5") if path.name in there and not is_stub(path)]
        for path in sorted(whole, key=lambda path: path.stat().st_mtime):
            self._make_stub(path)
            if is_room():
                return
        if shutil.disk_usage(self.folder).free < size:
            raise OSError(errno.ENOSPC, f"{self.folder}: no room there for a shard of {size / 1e6:,.1f} MB; make room")

    def _ask(self, call: Callable[[], T], what: str) -> T:
        """Return what ``call`` returns, trying again if the network or the server fails."""

        def is_final(error: Exception) -> bool:
            full = isinstance(error, OSError) and error.errno == errno.ENOSPC
            return full or isinstance(error, AddressRefused)

        try:
            return retry(call, num_tries=TRIES, pause_seconds=PAUSE_SECONDS, is_final=is_final)
        except RetriesFailed as failed:
            error = failed.error
            if isinstance(error, AddressRefused):
                raise UserError(f"{what}: leads to another machine: {error}") from None
            if is_final(error):
                raise error from None
            words = " ".join(str(error).split())[:300] or type(error).__name__
            raise OSError(f"{what}: does not answer as it should ({words}); tried {failed.num_tries} times") from None

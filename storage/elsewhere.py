"""Stores whose shards lie elsewhere (``s3://``, ``gs://``, ``https://``, what fsspec reads), with a folder here that stands for them.

``elsewhere.json`` in the folder says where. Each shard has its own name here, too: as the whole file once its rows were asked for, and
else as a stub, of the same size, of which first block and index were fetched and the rest is a hole. So indexes are read here like any
shard's, and what a store holds is known without its rows. Where the disk has little room left, whole files become stubs again, those
first that were not asked for longest. What is written here goes to the folder ``outgoing`` first, until it has arrived there.
"""

import contextlib
import errno
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .console import UserError, progress
from .files import read_json, write_json, written_whole
from .shards import BLOCK_BYTES, Shard, ShardRows, places_in

LINK_FILE = "elsewhere.json"
OUTGOING = "outgoing"
AT_ONCE = 32
"""Requests: each waits for the network, and asks for little."""
WHOLE_AT_ONCE = 8
FREE_SHARE = 0.1
"""Of the disk, which whole files leave free."""
TRIES, PAUSE_SECONDS = 3, 2.0


def link(folder: Path, url: str) -> None:
    """Has ``folder`` stand for the store at ``url``, to which the shards go that are in it. Raises ``UserError`` where it stands for
    another one, or nobody reads such an address."""
    url = url.rstrip("/")
    if there := elsewhere(folder):
        if there.url != url:
            raise UserError(f"{folder}: stands for {there.url}, not for {url}; pass another --root, or remove {folder / LINK_FILE}")
        return
    there = Elsewhere(folder, url)
    there.outgoing.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.h5"):
        path.rename(there.outgoing / path.name)
    write_json(folder / LINK_FILE, {"url": url})


def elsewhere(folder: Path) -> "Elsewhere | None":
    """What ``folder`` stands for; None for a store that lies here."""
    if not (folder / LINK_FILE).exists():
        return None
    about = read_json(folder / LINK_FILE)
    if not isinstance(about, dict) or not isinstance(about.get("url"), str):
        raise UserError(f'{folder / LINK_FILE}: expected {{"url": "s3://..."}}; remove it, or pass the address again')
    return Elsewhere(folder, about["url"])


def refuse_elsewhere(folder: Path) -> None:
    """Raises ``UserError`` for what is done to files here and would not be done there."""
    if there := elsewhere(folder):
        raise UserError(f"{folder}: its shards lie at {there.url}; do this to a copy that lies here (vlalign-store merge makes one)")


def is_stub(path: Path) -> bool:
    """Stubs are from 1970: a time that no written file has, and that copying keeps."""
    return path.stat().st_mtime == 0


class Elsewhere:
    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url, self.outgoing = folder, url, folder / OUTGOING
        try:
            import fsspec

            self._files, self._path = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise UserError(f"{url}: cannot be reached from here ({' '.join(str(error).split())}); install what it names") from None

    def names(self) -> list[str]:
        """Of the shards that are there."""

        def listed() -> list[str]:
            self._files.invalidate_cache()
            try:
                return [str(each).rstrip("/").rsplit("/", 1)[-1] for each in self._files.ls(self._path, detail=False)]
            except FileNotFoundError:
                return []

        return [name for name in self._ask(listed, self.url) if name.endswith(".h5") and not name.startswith(".")]

    def update(self) -> None:
        """Has the folder hold what is there now, after all that was written here has gone there."""
        for path in sorted(self.outgoing.glob("*.h5")):
            self.put(path)
        there = set(self.names())
        here = {path.name for path in self.folder.glob("*.h5") if not path.name.startswith(".")}
        if here and not there:
            raise UserError(f"{self.url}: there were {len(here):,} shards, now there is none; if that is meant, remove {self.folder}")
        for name in here - there:  # compacted there
            (self.folder / name).unlink(missing_ok=True)
        new = sorted(there - here)
        if new:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                for _ in progress(pool.map(self._fetch_stub, new), total=len(new), what=f"looking at {self.url}", unit="shards"):
                    pass

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
        arrive; it is tried again when the store is opened the next time."""

        def put() -> None:
            if not path.exists():  # another process was faster
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
            self._make_room(path.stat().st_size)
            with written_whole(path) as partial:
                self._files.get_file(self._there(path.name), str(partial))

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

    def _ask(self, call: Callable[[], Any], what: str) -> Any:
        """Tried again where the network or the server fails."""
        for attempt in range(1, TRIES + 1):
            try:
                return call()
            except UserError:
                raise
            except Exception as error:  # each of fsspec's file systems has its own
                if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                    raise
                words = " ".join(str(error).split())[:300] or type(error).__name__
            if attempt < TRIES:
                time.sleep(PAUSE_SECONDS)
        raise OSError(f"{what}: does not answer as it should ({words}); tried {TRIES} times")

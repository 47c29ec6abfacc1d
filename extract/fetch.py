"""Videos that lie elsewhere (``s3://``, ``gs://``, ``https://``, what fsspec reads): fetched ahead, beside the work, and removed.

What is on the disk at a time is bounded, in files and in bytes. Addresses stand in lists from anywhere: of a file no more is taken than it
declared, and none comes from this machine or from a private network unless the user named the host.
"""

import fcntl
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from ..storage.common.errors import UserError
from ..storage.common.signals import stopping
from ..storage.remote.addresses import HTTP, AddressRefused, file_system, scheme_of
from .decoding.probe import VideoError
from .engine import END, Job

FILES_AHEAD = 8
MOST_BYTES = 20 << 30
"""Of files that are there at once, and so of one; less where the disk has less than twice as much left. Of a file whose length nobody
says, all of it is kept free."""
LEAST_BYTES_PER_SECOND, PATIENCE_SECONDS = 1000, 60.0
"""What comes more slowly than that for so long is given up."""
TRIES, PAUSE_SECONDS = 3, 2.0
BLOCK_BYTES = 1 << 20
PREFIX = "vlalign-fetched-"


class _TooLarge(Exception):
    """A file that there is no room for, or that is longer than it said."""


class Fetcher:
    """Use ``jobs`` in place of what it is given, tell ``done`` of each that came of it, and ``close`` at the end."""

    def __init__(self, *, allowed_hosts: Collection[str] = (), most_bytes: int = MOST_BYTES) -> None:
        """``allowed_hosts``: on this machine or in private networks, that addresses may name."""
        self._allowed_hosts, self._most_bytes = allowed_hosts, most_bytes
        self._room = threading.Condition()
        self._sizes: dict[Path, int] = {}
        self._failures: dict[str, VideoError] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._folder: Path | None = None
        self._closing = False

    def jobs(self, jobs: Iterable[Job | None]) -> Iterator[Job | None]:
        """Those with a ``url`` come once they are on the disk, in the order in which they are; the others at once."""
        source, pending, more = iter(jobs), [], True
        while more or pending:
            if ready := next((each for each in pending if each[1].done()), None):
                pending.remove(ready)
                ready[1].result()
                yield ready[0]
            elif more and len(pending) < FILES_AHEAD:
                job = next(source, END)
                if job is END:
                    more = False
                elif job is None or not job.url:
                    yield job
                else:
                    pending.append(self._start(job))
            else:
                yield None

    def _start(self, job: Job) -> tuple[Job, Future]:
        if self._pool is None:
            _remove_left_behind()
            self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))
            self._most_bytes = min(self._most_bytes, shutil.disk_usage(self._folder).free // 2)
            self._lock = (self._folder / "lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._pool = ThreadPoolExecutor(FILES_AHEAD, "fetch")
        local = self._folder / f"{uuid.uuid4().hex}{Path(job.url.split('?')[0]).suffix[:8]}"
        self._sizes[local] = 0
        return replace(job, path=local), self._pool.submit(self._fetch, job.video_id, job.url, local)

    def _fetch(self, video_id: str, url: str, local: Path) -> None:
        for attempt in range(1, TRIES + 1):
            try:
                self._copy(url, local)
                return
            except UserError:
                raise
            except Exception as error:  # each of fsspec's file systems has its own
                if local.exists() and shutil.disk_usage(local.parent).free < BLOCK_BYTES:
                    raise OSError(f"{local.parent}: no room there for {url}; make room, or set TMPDIR") from None
                failure, final = _failure(url, error, attempt)
                if final:
                    break
            if self._closing:
                break
            time.sleep(PAUSE_SECONDS * (attempt < TRIES))
        local.unlink(missing_ok=True)
        with self._room:
            self._sizes[local] = 0
            self._room.notify_all()
        self._failures[video_id] = failure

    def _copy(self, url: str, local: Path) -> None:
        try:
            files, path = file_system(url, self._allowed_hosts)
        except ImportError as error:
            raise UserError(
                f"{url}: cannot be read without another package ({' '.join(str(error).split())}); install it"
            ) from None
        declared = files.info(path).get("size")
        size = declared if isinstance(declared, int) and declared >= 0 else None
        self._take_room(local, size)
        # As a stream, of which a part is in memory at a time whatever the server does; with a size, fsspec asks for none again.
        options = {"block_size": 0, "size": 1} if scheme_of(url) in HTTP else {}
        with files.open(path, "rb", **options) as theirs, local.open("wb") as ours:
            received, started = 0, time.monotonic()
            while (block := theirs.read(BLOCK_BYTES)) and not self._closing:
                received += len(block)
                if received > (self._most_bytes if size is None else size):
                    told = (
                        f"the {size:,} that it declared"
                        if size is not None
                        else f"{self._most_bytes:,}, for which there is room"
                    )
                    raise _TooLarge(f"sends more bytes than {told}")
                if time.monotonic() - started > PATIENCE_SECONDS + received / LEAST_BYTES_PER_SECOND:
                    raise TimeoutError(f"sends less than {LEAST_BYTES_PER_SECOND:,} bytes a second")
                ours.write(block)
        if size not in (None, received) and not self._closing:
            raise OSError(f"{received:,} of {size:,} bytes came")
        with self._room:
            self._sizes[local] = received
            self._room.notify_all()

    def _take_room(self, local: Path, size: int | None) -> None:
        """Waits until there is room for a file. None: of unknown size, for which all of it is taken."""
        needed = self._most_bytes if size is None else size
        if needed > self._most_bytes:
            room = f"there is room for {self._most_bytes:,} in {local.parent.parent}"
            raise _TooLarge(f"has {needed:,} bytes, {room}; fetch it yourself, or set TMPDIR")
        with self._room:
            self._sizes[local] = 0
            self._room.wait_for(lambda: self._closing or sum(self._sizes.values()) + needed <= self._most_bytes)
            self._sizes[local] = needed

    def done(self, job: Job) -> VideoError | None:
        """Removes what was fetched for a job; returns why there was nothing, if there was not."""
        if job.url:
            job.path.unlink(missing_ok=True)
            with self._room:
                self._sizes.pop(job.path, None)
                self._room.notify_all()
        return self._failures.pop(job.video_id, None)

    def close(self) -> None:
        self._closing = True
        with self._room:
            self._room.notify_all()
        if self._pool is not None:
            self._pool.shutdown(wait=not stopping(), cancel_futures=True)
            shutil.rmtree(self._folder, ignore_errors=True)
            self._lock.close()


def _failure(url: str, error: Exception, attempt: int) -> tuple[VideoError, bool]:
    """What an error means for a video, and whether another attempt would end the same."""
    cause = error.__cause__ or error  # for a server that does not answer, fsspec says that there is no such file
    words = " ".join(str(cause).split())[:200] or type(cause).__name__
    if isinstance(cause, AddressRefused):
        return VideoError("refused", f"{url}: {words}"), True
    if isinstance(cause, _TooLarge):
        return VideoError("too_large", f"{url}: {words}"), True
    missing = isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) == 404
    return VideoError("missing" if missing else "unreachable", f"{url}: {words}; tried {attempt} times"), False


def _remove_left_behind() -> None:
    """Of processes that were killed: nobody holds the lock in their folder any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            with (folder / "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue

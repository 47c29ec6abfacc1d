"""Videos that lie elsewhere (``s3://``, ``gs://``, ``https://``, what fsspec reads): fetched ahead, beside the work, and removed.

What is on the disk at a time is bounded, in files and in bytes.
"""

import fcntl
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from ..storage.console import UserError, stopping
from .engine import END, Job
from .probe import VideoError

FILES_AHEAD = 8
MOST_BYTES = 20 << 30
"""Of files that are there at once; one alone may be larger."""
TRIES, PAUSE_SECONDS = 3, 2.0
BLOCK_BYTES = 1 << 20
PREFIX = "vlalign-fetched-"


class Fetcher:
    """Use ``jobs`` in place of what it is given, tell ``done`` of each that came of it, and ``close`` at the end."""

    def __init__(self, *, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
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
                cause = error.__cause__ or error  # for a server that does not answer, fsspec says that there is no such file
                words = " ".join(str(cause).split())[:200] or type(cause).__name__
                missing = isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) == 404
                failure = VideoError("missing" if missing else "unreachable", f"{url}: {words}; tried {attempt} times")
            if self._closing:
                break
            time.sleep(PAUSE_SECONDS * (attempt < TRIES))
        local.unlink(missing_ok=True)
        self._failures[video_id] = failure

    def _copy(self, url: str, local: Path) -> None:
        try:
            import fsspec

            file_system, path = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise UserError(f"{url}: cannot be read without another package ({' '.join(str(error).split())}); install it") from None
        with file_system.open(path, "rb") as theirs, local.open("wb") as ours:
            self._take_room(local, getattr(theirs, "size", None) or 0)
            while (block := theirs.read(BLOCK_BYTES)) and not self._closing:
                ours.write(block)

    def _take_room(self, local: Path, size: int) -> None:
        """Waits until there is room for a file, or until it is the only one."""
        with self._room:
            self._sizes[local] = 0
            self._room.wait_for(lambda: self._closing or not (used := sum(self._sizes.values())) or used + size <= self._most_bytes)
            self._sizes[local] = size

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


def _remove_left_behind() -> None:
    """Of processes that were killed: nobody holds the lock in their folder any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            with (folder / "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue

"""Prefetch remote videos (``s3://``, ``gs://``, ``https://``, any address of fsspec) and remove them after use.

The number and total size of files on disk is bounded. Addresses are untrusted: a download ends at the declared size,
and hosts on this machine or a private network need the user's permission.
"""

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from fsspec.callbacks import Callback

from ...storage.common.errors import UserError
from ...storage.common.retry import RetriesFailed, retry
from ...storage.common.signals import stopping
from ...storage.common.temporary_folder import TemporaryFolder
from ...storage.common.writing import NO_ROOM
from ...storage.remote.addresses import AddressRefused, hide_secrets, scheme_of, without_secrets
from ...storage.remote.file_systems import file_system, package_to_install
from ..decoding.errors import VideoError
from .video_jobs import END, VideoJob

NUM_PREFETCHED = 8
MAX_BYTES = 20 << 30
"""Maximum size of all files on disk, and therefore of one file; less if the disk has less than twice as much free
space. A file of undeclared length reserves all of it.
"""
MIN_BYTES_PER_SECOND, PATIENCE_SECONDS = 1000, 60.0
"""A download that is slower than this, after this time, is given up."""
TRIES, PAUSE_SECONDS = 3, 2.0
GONE = (404, 410)
"""Answers of a web server that has no such file."""
BLOCK_BYTES = 1 << 20
WEB_PAGES = (b"<!doctype html", b"<html")
"""First bytes of web pages, in lower case."""
POLL_SECONDS = 0.05
PREFIX = "vlalign-fetched-"


class _TooLarge(Exception):
    """A file is larger than a download may be, or than the server declared."""


class _NoRoom(Exception):
    """The disk has no room for a file."""


class _Downloads:
    """The folder of one process's downloads, and the threads that fill it."""

    def __init__(self) -> None:
        self._temporary = TemporaryFolder(PREFIX)
        self.folder = self._temporary.path
        self.pool = ThreadPoolExecutor(NUM_PREFETCHED, "fetch")

    def close(self) -> None:
        self.pool.shutdown(wait=not stopping(), cancel_futures=True)
        self._temporary.close()


class _EachPiece(Callback):
    """Calls a function with the number of bytes received so far and the seconds, after each received piece."""

    def __init__(self, check: Callable[[int, float], None]) -> None:
        super().__init__()
        self._check, self._started = check, time.monotonic()

    def relative_update(self, inc: int = 1) -> None:
        """Count ``inc`` more bytes."""
        super().relative_update(inc)
        self._check(self.value, time.monotonic() - self._started)


class Fetcher:
    """Downloads the videos of jobs that have a ``url``.

    Iterate over ``jobs(...)`` instead of the jobs, pass each finished job to ``done``, and call ``close`` at the end.
    """

    def __init__(self, *, allowed_hosts: Collection[str] = (), max_bytes: int = MAX_BYTES) -> None:
        """Set the limits.

        Args:
            allowed_hosts: Hosts on this machine or in private networks that addresses may name.
            max_bytes: Limit of all files on disk together.
        """
        self._allowed_hosts, self._max_bytes = allowed_hosts, max_bytes
        self._room = threading.Condition()
        self._sizes: dict[Path, int] = {}
        self._failures: dict[str, VideoError] = {}
        self._closing = self._is_disk_short = False

    @cached_property
    def _downloads(self) -> _Downloads:
        """Made when the first video is downloaded."""
        downloads = _Downloads()
        room = shutil.disk_usage(downloads.folder).free // 2
        self._is_disk_short = room < self._max_bytes
        self._max_bytes = min(self._max_bytes, room)
        return downloads

    def jobs(self, jobs: Iterable[VideoJob | None]) -> Iterator[VideoJob | None]:
        """Yield jobs with a ``url`` once they are on disk, in order of arrival, and other jobs immediately."""
        source, pending, more = iter(jobs), [], True
        while more or pending:
            if ready := next((download for download in pending if download[1].done()), None):
                pending.remove(ready)
                ready[1].result()
                yield ready[0]
            elif more and len(pending) < NUM_PREFETCHED:
                job = next(source, END)
                if job is END:
                    more = False
                elif job is None or not job.url:
                    yield job
                else:
                    pending.append(self._start(job))
            else:
                yield None

    def _start(self, job: VideoJob) -> tuple[VideoJob, Future[None]]:
        downloads = self._downloads
        local = downloads.folder / f"{uuid.uuid4().hex}{Path(job.url.split('?')[0]).suffix[:8]}"
        self._sizes[local] = 0
        return replace(job, path=local), downloads.pool.submit(self._fetch, job.video_id, job.url, local)

    def _fetch(self, video_id: str, url: str, local: Path) -> None:
        folder = local.parent

        def disk_is_full(error: Exception) -> bool:
            is_said = getattr(_cause_of(error), "errno", None) in NO_ROOM
            return is_said or (local.exists() and shutil.disk_usage(folder).free < BLOCK_BYTES)

        def is_final(error: Exception) -> bool:
            return not folder.is_dir() or disk_is_full(error) or self._closing or _kind_of(error) != "unreachable"

        try:
            retry(lambda: self._copy(url, local), num_tries=TRIES, pause_seconds=PAUSE_SECONDS, is_final=is_final)
            return
        except RetriesFailed as failed:
            if not folder.is_dir():
                raise OSError(
                    f"{folder}: removed while videos were downloaded to it; run the same command again, perhaps with "
                    "TMPDIR set to a folder that is not cleaned up"
                ) from None
            if disk_is_full(failed.error):
                raise OSError(
                    f"{folder}: disk full: no room for {without_secrets(url)}; free some space, or set TMPDIR"
                ) from None
            failure = _failure(url, failed)
        local.unlink(missing_ok=True)
        with self._room:
            self._sizes[local] = 0
            self._room.notify_all()
        self._failures[video_id] = failure

    def _copy(self, url: str, local: Path) -> None:
        try:
            files, path = file_system(url, self._allowed_hosts)
        except ImportError as error:
            reason, todo, shown = " ".join(str(error).split()), package_to_install(url), without_secrets(url)
            raise UserError(f"{shown}: cannot be read without another package ({reason}); {todo}") from None
        declared = files.info(path, **({"timeout": PATIENCE_SECONDS} if files.async_impl else {})).get("size")
        size = declared if isinstance(declared, int) and declared >= 0 else None
        self._reserve(local, size)
        # As a stream, so that each piece is checked: s3fs would otherwise wait for large parts, however slow they are.
        options = {"max_concurrency": 1} if scheme_of(url) == "s3" else {}
        files.get_file(path, str(local), callback=_EachPiece(partial(self._check_limits, size)), **options)
        received = local.stat().st_size
        if size not in (None, received):
            raise OSError(f"only {received:,} of {size:,} bytes were received")
        with local.open("rb") as file:
            if file.read(BLOCK_BYTES).lstrip().lower().startswith(WEB_PAGES):
                raise OSError("sends a web page instead of a video; perhaps a login is needed")
        with self._room:
            self._sizes[local] = received
            self._room.notify_all()

    def _check_limits(self, size: int | None, received: int, seconds: float) -> None:
        if self._closing:
            raise OSError("the download was stopped")
        if received > (self._max_bytes if size is None else size):
            room = f"{self._max_bytes:,}, for which there is room"
            limit = room if size is None else f"the {size:,} that it declared"
            raise (self._over_limit if size is None else _TooLarge)(f"sends more bytes than {limit}")
        if seconds > PATIENCE_SECONDS + received / MIN_BYTES_PER_SECOND:
            raise TimeoutError(f"sends less than {MIN_BYTES_PER_SECOND:,} bytes a second")

    @property
    def _over_limit(self) -> type[Exception]:
        """The error of a file that is larger than all downloads together may be."""
        return _NoRoom if self._is_disk_short else _TooLarge

    def _reserve(self, local: Path, size: int | None) -> None:
        """Wait until there is room for a file. A file of unknown size (None) reserves all room."""
        needed = self._max_bytes if size is None else size
        if needed > self._max_bytes:
            room = f"there is room for {self._max_bytes:,} in {local.parent.parent}"
            raise self._over_limit(f"has {needed:,} bytes, {room}; download it yourself, or set TMPDIR")
        with self._room:
            self._sizes[local] = 0
            self._room.wait_for(lambda: self._closing or sum(self._sizes.values()) + needed <= self._max_bytes)
            self._sizes[local] = needed

    def done(self, job: VideoJob) -> VideoError | None:
        """Remove the download of a finished job; return why it failed, if it did."""
        if job.url:
            job.path.unlink(missing_ok=True)
            with self._room:
                self._sizes.pop(job.path, None)
                self._room.notify_all()
        return self._failures.pop(job.video_id, None)

    def close(self) -> None:
        """Stop all downloads and remove their files."""
        self._closing = True
        with self._room:
            self._room.notify_all()
        if "_downloads" in vars(self):
            self._downloads.close()


def fetch_now(fetcher: Fetcher, job: VideoJob) -> VideoJob:
    """Wait for a job's video and return the job. If the download failed, ``Fetcher.done`` reports it."""
    for fetched in fetcher.jobs([job]):
        if fetched is not None:
            return fetched
        time.sleep(POLL_SECONDS)
    return job


def _cause_of(error: Exception) -> BaseException:
    return error.__cause__ or error  # fsspec reports a server that does not answer as a missing file, "from" the cause


def _kind_of(error: Exception) -> str:
    """Return the kind of failure for the error of a download."""
    cause = _cause_of(error)
    kinds = {AddressRefused: "refused", _TooLarge: "too_large", _NoRoom: "no_room", FileNotFoundError: "missing"}
    if kind := next((kind for error_type, kind in kinds.items() if isinstance(cause, error_type)), None):
        return kind
    return "missing" if getattr(cause, "status", None) in GONE else "unreachable"


def _failure(url: str, failed: RetriesFailed) -> VideoError:
    """Return the failure of a video for the error of its download."""
    from aiohttp.http_exceptions import PayloadEncodingError

    cause, kind, shown = _cause_of(failed.error), _kind_of(failed.error), without_secrets(url)
    status = getattr(cause, "status", None)  # of a web server; its whole message would repeat the address
    words = f"{status} {getattr(cause, 'message', '')}" if status else hide_secrets(str(cause))
    if isinstance(cause, TimeoutError) and not words:
        words = "no answer in time"
    if isinstance(cause, PayloadEncodingError):  # its own words begin with 400, which no server answered
        words = "the connection ended before the whole file came"
    words = " ".join(words.split())[:200] or type(cause).__name__
    tried = f"; tried {failed.num_tries} times" if kind == "unreachable" else ""
    return VideoError(kind, f"{shown}: {words}{tried}")

"""Files that are written whole or not at all."""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import stat
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .common.errors import UserError

IDENTITY_BYTES = 1 << 16
TURN_SECONDS, LOOK_SECONDS = 10.0, 0.02
"""Whose turn it is keeps it for less; after so long something else is wrong, such as a network file system without locks."""
VIDEO_SUFFIXES = (
    ".mp4",
    ".mkv",
    ".webm",
    ".avi",
    ".mov",
    ".m4v",
    ".mpg",
    ".mpeg",
    ".ts",
    ".flv",
    ".wmv",
    ".ogv",
    ".3gp",
    ".gif",
)
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
SOUND_SUFFIXES = (".wav", ".mp3", ".flac", ".m4a", ".ogg", ".oga", ".opus", ".mka")


@contextmanager
def errors_naming(path: Path) -> Iterator[None]:
    """Has an ``OSError`` say which file it is about, as those of writing and flushing do not."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        advice = "; make room there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise OSError(error.errno, f"{error.strerror}{advice}", str(path)) from error


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``; what was written there gets its name once it is safely on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.partial")
    try:
        with errors_naming(path):
            yield partial
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        os.replace(partial, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the name itself must survive a power cut, too
        finally:
            os.close(folder)
    finally:
        with contextlib.suppress(OSError):  # a read-only file system: what went wrong before says so
            partial.unlink(missing_ok=True)


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Of all processes that change ``path`` by reading it and writing it again, one does at a time. A file beside it is locked, for as
    long as its process lives. Where a file system has no locks, they do not wait for each other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("a") as lock:
        until = time.monotonic() + TURN_SECONDS
        while time.monotonic() < until:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(LOOK_SECONDS)
            except OSError:
                break
        yield


def remove_unfinished(path: Path) -> int:
    """What ``written_whole`` left beside ``path`` where its process was killed, for one that nobody else writes; returns how many files."""
    found = [*path.parent.glob(f".{glob.escape(path.name)}.*.partial")]
    for partial in found:
        partial.unlink()
    return len(found)


def write_text(path: Path, text: str) -> None:
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def check_regular(path: Path) -> None:
    """Raises ``UserError`` for a pipe, a socket or a device: whoever opens one may wait for ever, or read without end."""
    with contextlib.suppress(OSError):  # said by whoever opens it
        if not stat.S_ISREG(mode := path.stat().st_mode) and not stat.S_ISDIR(mode):
            raise UserError(f"{path}: no file, but a pipe, a socket or a device; remove it")


def read_json(path: Path) -> Any:
    check_regular(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: no JSON ({error}); remove it and run the command that makes it again") from None


def write_jsonl(path: Path, rows: Iterable[dict]) -> None:
    with written_whole(path) as partial, partial.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def numbered_jsonl(path: Path) -> Iterator[tuple[int, dict]]:
    """(line number, object) of every line. Blank lines are passed over; raises ``UserError`` for anything else that is no object."""
    check_regular(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if not text.strip():
                    continue
                row = json.loads(text)
            except (ValueError, RecursionError) as error:  # neither UTF-8 nor JSON
                raise UserError(
                    f"{path}, line {number}: no JSON in UTF-8 ({error}); expected one object a line"
                ) from None
            if not isinstance(row, dict):
                raise UserError(f"{path}, line {number}: expected a JSON object, got {type(row).__name__}")
            yield number, row


def read_jsonl(path: Path) -> list[dict]:
    """Every line's object; none where the file is absent."""
    return [row for _, row in numbered_jsonl(path)] if path.exists() else []


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def file_identity(path: Path) -> str:
    """Tells a changed file from the same one: its size, and a hash of its first and last 64 KiB. Empty where it cannot be read, or is no
    regular file: whoever opens a pipe waits for ever."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            return ""
        size = about.st_size
        with path.open("rb") as file:
            digest = hashlib.sha256(file.read(IDENTITY_BYTES))
            file.seek(max(size - IDENTITY_BYTES, 0))
            digest.update(file.read(IDENTITY_BYTES))
    except OSError:
        return ""
    return f"{size}-{digest.hexdigest()[:24]}"

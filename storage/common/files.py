"""Small files of text and JSON: written whole or not at all, and read up to a limit; hashes of files."""

import contextlib
import errno
import glob
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import UserError, refuse_unreadable
from .progress import progress
from .system import BINARY_CLOEXEC, NONBLOCK
from .writing import atomic_write, remove_file

IDENTITY_BYTES = 1 << 16
NUM_SAMPLES = 32
LARGE_BYTES = 1 << 30
"""Reading a file of this size takes seconds."""
MAX_JSON_BYTES, MAX_LINE_BYTES = 1 << 26, 1 << 24
"""Maximum size of a JSON file, and of a line of one. Commands write at most a thousandth of these sizes."""


def remove_unfinished(path: Path) -> int:
    """Remove temporary files that ``atomic_write(path)`` left in killed processes; return their number.

    Only for a path that no other process writes.
    """
    partials = [*path.parent.glob(f".{glob.escape(path.name)}.*.partial")]
    for partial in partials:
        remove_file(partial)
    return len(partials)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def check_regular(path: Path) -> None:
    """Raise ``UserError`` for a pipe, a socket or a device. Opening one may block, and reading one may never end."""
    with contextlib.suppress(OSError):  # opening the file reports it
        if not stat.S_ISREG(mode := path.stat().st_mode) and not stat.S_ISDIR(mode):
            raise UserError(f"{path}: a pipe, a socket or a device; expected a file; remove it")


def read_small(path: Path, max_bytes: int) -> bytes:
    """Return the content of an untrusted file.

    Raises:
        ValueError: It is larger than ``max_bytes``.
        UserError: It is a pipe, a socket or a device.
    """
    check_regular(path)
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it has more than {max_bytes >> 20} MiB")
    return content


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises ``UserError`` if it is not valid JSON, or has more than ``MAX_JSON_BYTES``."""
    todo = "remove it and run the command that makes it again"
    with refuse_unreadable(path, "not valid JSON", todo, (ValueError, RecursionError)):
        return json.loads(read_small(path, MAX_JSON_BYTES).decode())


def read_object(path: Path, max_bytes: int) -> dict[str, Any]:
    """Return the JSON object in an untrusted file.

    Raises:
        ValueError: The file has other content, or is larger than ``max_bytes``.
        UserError: It is a pipe, a socket or a device.
    """
    about = json.loads(read_small(path, max_bytes))
    if not isinstance(about, dict):
        raise ValueError(f"a {type(about).__name__}, expected an object")
    return about


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object on each line."""
    with atomic_write(path) as partial, partial.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def numbered_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the object of each line that is not blank.

    Raises ``UserError`` for a line without an object, or of more than ``MAX_LINE_BYTES``.
    """
    check_regular(path)
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            where = f"{path}, line {number}"
            with refuse_unreadable(
                where, "not valid JSON in UTF-8", "expected one object on each line", (ValueError, RecursionError)
            ):
                if len(line) > MAX_LINE_BYTES:
                    raise ValueError(f"it has more than {MAX_LINE_BYTES >> 20} MiB")
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if not text.strip():
                    continue
                row = json.loads(text)
            if not isinstance(row, dict):
                raise UserError(f"{where}: expected a JSON object, got {type(row).__name__}")
            yield number, row


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the objects of all lines; none if the file is missing."""
    return [row for _, row in numbered_jsonl(path)] if path.exists() else []


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits. For a large file, progress is shown.

    Raises ``UserError`` for a pipe, a socket or a device.
    """
    check_regular(path)
    digest, num_bytes = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        blocks = iter(lambda: file.read(1 << 20), b"")
        if num_bytes >= LARGE_BYTES:
            blocks = progress(blocks, total=num_bytes, what=f"hashing {path.name}", unit="bytes", size=len)
        for block in blocks:
            digest.update(block)
    return digest.hexdigest()


Open = Callable[[Path], int]
"""Opens a file to read it, and returns its descriptor; raises ``OSError``."""


def open_regular(path: Path) -> int:
    """Open a regular file, or a link to one, for reading; return its descriptor. A pipe that replaces it is refused.

    Raises:
        OSError: There is no such file.
    """
    if stat.S_ISREG(os.stat(path).st_mode):
        descriptor = os.open(path, os.O_RDONLY | NONBLOCK | BINARY_CLOEXEC)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path))


def has_same_samples(path: Path, other: Path, open_file: Open = open_regular) -> bool:
    """Return whether two files have the same size and the same bytes at ``NUM_SAMPLES`` places from start to end.

    ``file_identity`` reads two places, which is enough to detect a changed file. It does not always show that two files
    are copies: recordings of a fixed size may begin and end with the same bytes.

    Args:
        path: A file.
        other: Another one.
        open_file: Opens them. The default follows links.
    """
    try:
        with open(open_file(path), "rb") as one, open(open_file(other), "rb") as two:
            size = os.fstat(one.fileno()).st_size
            if size != os.fstat(two.fileno()).st_size:
                return False
            step = max((size - IDENTITY_BYTES) // (NUM_SAMPLES - 1), IDENTITY_BYTES)
            for start in range(0, size, step):
                one.seek(start)
                two.seek(start)
                if one.read(IDENTITY_BYTES) != two.read(IDENTITY_BYTES):
                    return False
    except OSError:
        return False
    return True


def not_mounted(folder: Path) -> str:
    """Return why the disk of a folder may not be mounted, if a file is missing there; empty if it has other files."""
    try:
        with os.scandir(folder) as entries:
            return "" if any(entries) else f"{folder} is empty; is it mounted?"
    except OSError as error:
        return f"{folder} cannot be listed ({error.strerror}); is it mounted?"


def file_identity(path: Path, open_file: Open = open_regular) -> str:
    """Return a text that changes when a file changes: its size, and a hash of its first and last 64 KiB.

    It is empty if the file cannot be read or is not a regular file.

    Args:
        path: A file.
        open_file: Opens it. The default follows links.
    """
    try:
        with open(open_file(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.sha256(file.read(IDENTITY_BYTES))
            file.seek(max(size - IDENTITY_BYTES, 0))
            digest.update(file.read(IDENTITY_BYTES))
    except OSError:
        return ""
    return f"{size}-{digest.hexdigest()[:24]}"

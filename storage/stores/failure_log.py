"""``failures.jsonl``: a log of failed videos, to which several extractions can append.

Each line is about a video, and a later line replaces an earlier one. A line is a ``Failure``, or states that the video
no longer fails: ``{"video_id": "a", "failed": false}``.
"""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..common.errors import UserError
from ..common.files import MAX_LINE_BYTES, check_regular, write_jsonl
from ..common.locks import file_lock
from ..common.terminal import note_once
from ..common.writing import errors_naming, open_to_write
from ..records import Failure

FAILURES_NAME = "failures.jsonl"
MAX_SUPERSEDED = 1000
"""A log is compacted at the start of an extraction if it has more superseded lines than this, and more than current
ones.
"""


class FailureLog:
    """The failed videos, read from a log and updated with it.

    Example:
        >>> log = FailureLog(Path("features/s3d/failures.jsonl"))
        >>> log.append({"a": Failure(video_id="a", path="a.mp4", kind="unreadable", message="no frames")})
        >>> log.append({"a": None})
        >>> log.failures
        {}
    """

    def __init__(self, path: Path) -> None:
        """Read a log; a missing file is an empty log.

        Raises:
            UserError: The file is not a log of failures.
        """
        self.path = path
        self.failures: dict[str, Failure] = {}
        """{video id: failure}"""
        self._begin(None)
        self._read()

    def append(self, changes: Mapping[str, Failure | None]) -> None:
        """Append changes {video id: failure, or None if it no longer fails}, and read the lines of other processes.

        Raises:
            UserError: The file is no log, or is in a folder where writing is forbidden.
            OSError: It cannot be written.
        """
        with file_lock(self.path):
            self._read()
            if self._is_shared:
                write_jsonl(self.path, map(asdict, self.failures.values()))
            lines = "".join(_line(video_id, failure) for video_id, failure in changes.items())
            with open_to_write(self.path, "ab") as file, errors_naming(self.path):
                file.write((("\n" if self._is_cut else "") + lines).encode())
                file.flush()
                os.fsync(file.fileno())
            self._read()

    def compact(self) -> None:
        """Rewrite the log if most of its lines are superseded. ``append`` rewrites it only if the file is a link."""
        if self._num_superseded <= max(MAX_SUPERSEDED, len(self.failures)):
            return
        with file_lock(self.path):
            self._read()
            write_jsonl(self.path, map(asdict, self.failures.values()))
            self._read()

    def remove(self, video_ids: Collection[str]) -> set[str]:
        """Remove all lines about some videos, also superseded ones; return the ids of those that had failed."""
        if not os.path.lexists(self.path):
            return set()
        with file_lock(self.path):
            self._read()
            gone = set(video_ids) & self.failures.keys()
            if gone or self._num_superseded:
                write_jsonl(self.path, (asdict(f) for f in self.failures.values() if f.video_id not in gone))
                self._read()
        return gone

    def _begin(self, file: tuple[int, int] | None) -> None:
        self._file = file
        """Device and inode of the file that was read; None if there is none."""
        self._num_lines = self._num_bytes = self._num_superseded = 0
        self._is_cut = self._is_shared = False
        self.failures.clear()

    def _read(self) -> None:
        """Read the new lines since the last call; all lines if the file was replaced."""
        check_regular(self.path)
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            self._begin(None)
            return
        with file:
            about = os.fstat(file.fileno())
            if (about.st_dev, about.st_ino) != self._file or about.st_size < self._num_bytes:
                self._begin((about.st_dev, about.st_ino))
            self._is_shared = about.st_nlink > 1 or self.path.is_symlink()  # a copy made of hard links
            self._is_cut = False
            file.seek(self._num_bytes)
            while line := file.readline(MAX_LINE_BYTES + 1):
                self._take(line)
                if not line.endswith(b"\n"):  # it may still be written: it is read again
                    self._is_cut = True
                    break
                self._num_lines += 1
                self._num_bytes += len(line)

    def _take(self, line: bytes) -> None:
        where = f"{self.path}, line {self._num_lines + 1:,}"
        if not line.strip():
            return
        try:
            row = json.loads(line.decode("utf-8-sig" if not self._num_lines else "utf-8"))
        except (ValueError, RecursionError) as error:
            if not line.startswith(b"{") or len(line) > MAX_LINE_BYTES:
                raise _no_log(where, error) from None
            note_once(f"note: {where}: cut short, as by a machine that stopped; it is ignored")
            self._num_superseded += 1
            return
        try:
            failure = None if row.get("failed") is False else Failure(**row)
            video_id = row["video_id"]
            self._num_superseded += (video_id in self.failures) + (failure is None)
        except (TypeError, KeyError, AttributeError) as error:
            raise _no_log(where, error) from None
        set_failure(self.failures, video_id, failure)


def set_failure(failures: dict[str, Failure], video_id: str, failure: Failure | None) -> None:
    """Put the failure of a video last; remove the video if ``failure`` is None."""
    failures.pop(video_id, None)
    if failure is not None:
        failures[video_id] = failure


def read_failures(path: Path) -> dict[str, Failure]:
    """Read the current {video id: failure} of a log.

    Raises:
        UserError: The file is not a log of failures.
    """
    return FailureLog(path).failures


def _line(video_id: str, failure: Failure | None) -> str:
    row: dict[str, Any] = {"video_id": video_id, "failed": False} if failure is None else asdict(failure)
    return json.dumps(row, ensure_ascii=False) + "\n"


def _no_log(where: str, error: Exception) -> UserError:
    return UserError(f"{where}: not a failure of a video ({error}); remove that line, and the video is tried again")

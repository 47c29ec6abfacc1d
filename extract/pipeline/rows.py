"""The rows of a video while it is extracted: features in memory, frames in a file."""

import mmap
import tempfile
import weakref
from functools import cached_property
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from ...storage.common.writing import NO_ROOM, make_folder
from ...storage.records import Profile

PENDING_ROW = np.empty(0, dtype=np.float32)
"""Stands for a row whose batch is still being computed."""


class Rows(Protocol):
    """The rows of one video for one extractor."""

    def __len__(self) -> int:
        """Return the number of rows, with those that are being computed."""
        ...

    def add(self) -> None:
        """Add a row that is to be computed."""
        ...

    def fill(self, first: int, computed: np.ndarray) -> None:
        """Take the rows [N, D] from index ``first`` on. Their memory may change afterwards.

        Raises:
            OSError: There is no room for them.
        """
        ...

    def stacked(self) -> np.ndarray:
        """Return all rows, [T, D]; they are computed."""
        ...


class FeatureRows(Rows):
    """Rows in memory."""

    def __init__(self) -> None:
        self._rows: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self) -> None:
        """Add a row that is to be computed."""
        self._rows.append(PENDING_ROW)

    def fill(self, first: int, computed: np.ndarray) -> None:
        """Take rows. They are copied, so that nothing that stays lies in the memory of the thread that computed it."""
        self._rows[first : first + len(computed)] = computed.copy()

    def stacked(self) -> np.ndarray:
        """Return all rows."""
        return np.stack(self._rows)


class FrameRows(Rows):
    """Rows of bytes in a file without a name, because the frames of an hour of video may have gigabytes."""

    def __init__(self, dimension: int, folder: Path | None) -> None:
        """Make no file yet.

        Args:
            dimension: Bytes of a row.
            folder: Folder of the file; None for the system's.
        """
        self._dimension, self._folder, self._num_rows = dimension, folder, 0

    def __len__(self) -> int:
        return self._num_rows

    @cached_property
    def _file(self) -> IO[bytes]:
        if self._folder is not None:
            make_folder(self._folder)
        file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (closed with these rows)
        weakref.finalize(self, file.close)
        return file

    def add(self) -> None:
        """Add a row that is to be taken."""
        self._num_rows += 1

    def fill(self, first: int, computed: np.ndarray) -> None:
        """Write rows to their place in the file."""
        try:
            self._file.seek(first * self._dimension)
            self._file.write(computed.data)
            self._file.flush()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise OSError(
                f"{self._folder or tempfile.gettempdir()}: disk full: the frames of a video wait there until they are "
                "written; make room, or pass another --root; what is on disk is kept"
            ) from None

    def stacked(self) -> np.ndarray:
        """Return all rows: a read-only array over the file, which lives as long as anything refers to it."""
        memory = mmap.mmap(self._file.fileno(), self._num_rows * self._dimension, access=mmap.ACCESS_READ)
        return np.frombuffer(memory, np.uint8).reshape(-1, self._dimension)


def new_rows(profile: Profile, folder: Path | None) -> Rows:
    """Return rows of a profile, still empty. Those of frames are kept in a file in ``folder``."""
    return FrameRows(profile.dimension, folder) if profile.is_frames else FeatureRows()

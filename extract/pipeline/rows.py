"""The feature vectors of a video during its extraction: features in memory, frames in a file."""

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
"""Placeholder of a feature vector whose batch is still being computed."""


class Rows(Protocol):
    """The feature vectors of one video for one extractor."""

    def __len__(self) -> int:
        """Return the number of feature vectors, including pending ones."""
        ...

    def add(self) -> None:
        """Add a pending feature vector."""
        ...

    def fill(self, first: int, computed: np.ndarray) -> None:
        """Store computed vectors [N, D] from index ``first`` on. The caller may reuse their memory afterwards.

        Raises:
            OSError: The disk is full.
        """
        ...

    def stacked(self) -> np.ndarray:
        """Return all feature vectors, [T, D]; none may be pending."""
        ...


class FeatureRows(Rows):
    """Feature vectors in memory."""

    def __init__(self) -> None:
        self._rows: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self) -> None:
        """Add a pending feature vector."""
        self._rows.append(PENDING_ROW)

    def fill(self, first: int, computed: np.ndarray) -> None:
        """Copy the vectors, which keeps them out of the memory of the thread that computed them."""
        self._rows[first : first + len(computed)] = computed.copy()

    def stacked(self) -> np.ndarray:
        """Return all feature vectors."""
        return np.stack(self._rows)


class FrameRows(Rows):
    """Frames in a file without a name, since the frames of an hour of video may take gigabytes."""

    def __init__(self, dimension: int, folder: Path | None) -> None:
        """Remember the sizes; the file is created later.

        Args:
            dimension: Bytes of a frame.
            folder: Folder of the file; None for the system's folder of temporary files.
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
        """Add a pending frame."""
        self._num_rows += 1

    def fill(self, first: int, computed: np.ndarray) -> None:
        """Write frames to their place in the file."""
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
        """Return all frames: a read-only array over the file, which exists as long as the array."""
        memory = mmap.mmap(self._file.fileno(), self._num_rows * self._dimension, access=mmap.ACCESS_READ)
        return np.frombuffer(memory, np.uint8).reshape(-1, self._dimension)


def new_rows(profile: Profile, folder: Path | None) -> Rows:
    """Return an empty ``Rows`` for a profile. Frames are stored in a file in ``folder``."""
    return FrameRows(profile.dimension, folder) if profile.is_frames else FeatureRows()

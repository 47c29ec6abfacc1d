"""The feature store: a folder of shards with one profile. A shard that has its final name is complete (``shards``)."""

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ..records import StoredVideo, VideoFeatures
from ..shards.format import Shard
from ..shards.rewrite import ShardPart
from .snapshot import Snapshot
from .store import Clip, Window

T = TypeVar("T")


def checksum_of_all(checksums: dict[bytes, int]) -> int:
    """Return one checksum of all videos, which does not depend on their order.

    Args:
        checksums: Checksum of the rows by video id in UTF-8.
    """
    return sum(zlib.crc32(video_id, checksum) for video_id, checksum in checksums.items()) % 2**63


class FeatureStore:
    """Features in a folder of shards (see ``Store``). Threads, forked and spawned processes may share a store.

    Files are opened when they are needed. Of two shards with the same video the one with the later name counts. Names
    begin with the time of writing; shards whose names have no valid time are the oldest.
    """

    MAX_OPEN_SHARDS = 128

    def __init__(self, folder: str | Path, *, check_rows: bool = False) -> None:
        """Open a store.

        Args:
            folder: The folder of the shards, or one that stands for a remote store.
            check_rows: Compare the rows of a video with their checksum at every read, which reads all of them.

        Raises:
            UserError: There is no store, a shard has another schema, or profiles or weights are mixed. With
                ``check_rows``, reading raises it for damaged rows.
        """
        self.folder = Path(folder)
        self.check_rows = check_rows
        self._snapshot = Snapshot(self.folder, self.MAX_OPEN_SHARDS)
        first = self._snapshot.shards[0]
        self.profile, self.weights, self.origin = first.profile, first.weights, first.origin

    @property
    def name(self) -> str:
        """Name of the store's folder."""
        return self.folder.name

    @property
    def where(self) -> str:
        """Path of the store's folder, for messages."""
        return str(self.folder)

    @property
    def shards(self) -> list[Shard]:
        """All shards, in order."""
        return self._snapshot.shards

    def video_ids(self) -> list[str]:
        """Return the ids of all videos."""
        return list(self._snapshot.positions)

    def __contains__(self, video_id: str) -> bool:
        return video_id in self._snapshot.positions

    def __len__(self) -> int:
        return len(self._snapshot.positions)

    def place(self, video_id: str) -> tuple[Shard, np.void]:
        """Return the shard that a video is read from, and its entry in that shard's index."""
        shard, index = self._snapshot.locate(video_id)
        return shard, shard.videos[index]

    def spans(self, video_ids: Sequence[str]) -> np.ndarray:
        """Return when the first row of each video starts and its last row ends, float64 [N, 2].

        Of shards on another machine only these times are fetched.
        """
        return self._read(lambda snapshot: snapshot.spans(video_ids))

    def shard_of(self, video_ids: Sequence[str]) -> np.ndarray:
        """Return the index among ``shards``, int64, of the one that each video is read from."""
        return self._snapshot.shard_of(video_ids)

    def read_from(self) -> list[ShardPart]:
        """Return every shard with its videos that are in use; later shards replaced the others."""
        return self._snapshot.parts()

    def rows_checksum(self) -> int:
        """Return a checksum of all videos and their rows, which does not depend on how they are split into shards."""
        checksums: dict[bytes, int] = {}
        for table in (part.videos for part in self.read_from()):
            checksums.update(zip(table["video_id"].tolist(), table["checksum"].tolist(), strict=True))
        return checksum_of_all(checksums)

    def about(self, video_id: str) -> StoredVideo:
        """Return what the store knows about a video without reading its rows."""
        return self._snapshot.about(video_id)

    def source(self, video_id: str) -> str:
        """Return the identity of the file that the features were made from."""
        return self.place(video_id)[1]["source"].decode()

    def duration_seconds(self, video_id: str) -> float:
        """Return when the frames, or the sound, end."""
        return float(self.place(video_id)[1]["duration_seconds"])

    def partial(self, video_id: str) -> str:
        """Return what of the video is missing in its rows or was damaged; empty if all is well."""
        return self.place(video_id)[1]["partial"].decode()

    def get(
        self,
        video_id: str,
        *,
        start_seconds: float | None = None,
        end_seconds: float | None = None,
        dtype: DTypeLike | None = np.float32,
    ) -> VideoFeatures:
        """Return the rows of a video, or those that a clip of it touches (see ``Store.get``)."""
        return self.get_clips([(video_id, start_seconds, end_seconds)], dtype=dtype)[0]

    def get_clips(self, clips: Sequence[Clip], *, dtype: DTypeLike | None = np.float32) -> list[VideoFeatures]:
        """Return the rows of many clips, in the order of ``clips``. With ``dtype`` None, the arrays are read-only."""

        def read(snapshot: Snapshot) -> list[VideoFeatures]:
            windows = snapshot.windows(clips)
            rows = snapshot.get_rows(windows, check=self.check_rows)
            return [
                snapshot.record(window, features if dtype is None else features.astype(dtype))
                for window, features in zip(windows, rows, strict=True)
            ]

        return self._read(read)

    def windows(self, clips: Sequence[Clip]) -> list[Window]:
        """Return the rows that each clip touches (``rows_of_clip``), without reading features."""
        return self._read(lambda snapshot: snapshot.windows(clips))

    def get_rows(self, windows: Sequence[Window]) -> list[np.ndarray]:
        """Return the features [T, D] of each window as they are stored: read-only arrays over the files.

        The disk is asked for all of them at once, in the order in which they lie there.
        """
        return self._read(lambda snapshot: snapshot.get_rows(windows, check=self.check_rows))

    def _read(self, read: Callable[[Snapshot], T]) -> T:
        """Read an answer from one snapshot, so that threads may read while the store is compacted."""
        while True:
            snapshot = self._snapshot
            try:
                return read(snapshot)
            except FileNotFoundError:  # the store was compacted: the same rows are in other shards now
                self._snapshot = Snapshot(self.folder, self.MAX_OPEN_SHARDS)

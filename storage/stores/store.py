"""The interface of all feature stores, on disk or in memory."""

import zlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from ..records import Profile, StoredVideo, VideoFeatures, Weights

ClipSpan = tuple[str, float | None, float | None]
"""Video id, start and end in seconds. None: from the start of the video, to its end."""
RowRange = tuple[str, int, int]
"""Video id, first row, and the row after the last, counted within the video."""


def rows_of_clip(starts: np.ndarray, ends: np.ndarray, start_seconds: float | None, end_seconds: float | None) -> slice:
    """Return the rows that a clip touches: from the row in which it starts to the row in which it ends.

    At a constant rate of f rows a second these are rows int(start * f) to int(end * f), both included. A clip has no
    rows if it starts at or after the end of the last row, ends before the start of the first row, or ends before it
    starts. A clip that ends after the last row ends with it.

    Args:
        starts: Start of each row in seconds, ascending: [T].
        ends: End of each row in seconds: [T].
        start_seconds: Start of the clip; None for the start of the video.
        end_seconds: End of the clip; None for the end of the video.

    Source: ``youtube_dataloader.py`` of HowTo100M.
    """
    low, high = 0, len(starts)
    if start_seconds is not None:
        is_after = high and start_seconds >= ends[-1]
        low = high if is_after else max(int(starts.searchsorted(start_seconds, "right")) - 1, 0)
    if end_seconds is not None:
        high = max(int(starts.searchsorted(end_seconds, "right")), low)
    return slice(low, high)


def checksum_of_all(checksums: dict[bytes, int]) -> int:
    """Return one checksum of all videos, which does not depend on their order.

    Args:
        checksums: Checksum of the rows by video id in UTF-8.
    """
    return sum(zlib.crc32(video_id, checksum) for video_id, checksum in checksums.items()) % 2**63


class Store(Protocol):
    """Features of videos, read by video id.

    ``FeatureStore`` reads them from a folder, ``MemoryStore`` holds them in memory. All methods that take a video id
    raise ``KeyError`` if the store does not have it.
    """

    @property
    def name(self) -> str:
        """Name of the features: that of the store's folder, or of the profile."""
        ...

    @property
    def where(self) -> str:
        """The place of the features, for messages."""
        ...

    @property
    def profile(self) -> Profile:
        """Everything that decides the features' numbers."""
        ...

    @property
    def weights(self) -> Weights:
        """The weights that the model ran with."""
        ...

    @property
    def origin(self) -> str:
        """The maker of the features: ``EXTRACTED``, or whoever stated the profile."""
        ...

    def __len__(self) -> int:
        """Return the number of videos."""
        ...

    def __contains__(self, video_id: str) -> bool:
        """Return True if the store has the video."""
        ...

    def video_ids(self) -> list[str]:
        """Return the ids of all videos."""
        ...

    def about(self, video_id: str) -> StoredVideo:
        """Return what the store knows about a video without reading its rows."""
        ...

    def source(self, video_id: str) -> str:
        """Return the identity of the file that the features were made from."""
        ...

    def duration_seconds(self, video_id: str) -> float:
        """Return when the frames, or the sound, end."""
        ...

    def partial(self, video_id: str) -> str:
        """Return what of the video is missing in its rows or was damaged; empty if all is well."""
        ...

    def spans(self, video_ids: Sequence[str]) -> np.ndarray:
        """Return when the first row of each video starts and its last row ends, without reading features.

        In seconds, float64 [N, 2]; NaN for a video without rows.
        """
        ...

    def shard_of(self, video_ids: Sequence[str]) -> np.ndarray:
        """Return the number, int64, of the shard that each video is in; 0 for all if there are no shards."""
        ...

    def rows_checksum(self) -> int:
        """Return a checksum of all videos and their rows, which does not depend on how the store keeps them."""
        ...

    def get(
        self,
        video_id: str,
        *,
        start_seconds: float | None = None,
        end_seconds: float | None = None,
        dtype: DTypeLike | None = np.float32,
    ) -> VideoFeatures:
        """Return the rows of a video, or those that a clip of it touches (``rows_of_clip``).

        Args:
            video_id: Id of the video.
            start_seconds: Start of the clip; None for the start of the video.
            end_seconds: End of the clip; None for the end of the video.
            dtype: Type of the features; None for the type that they are stored in.
        """
        ...

    def get_clips(self, clips: Sequence[ClipSpan], *, dtype: DTypeLike | None = np.float32) -> list[VideoFeatures]:
        """Return the rows of many clips, in the order of ``clips``. With ``dtype`` None, the arrays are read-only."""
        ...

    def row_ranges(self, clips: Sequence[ClipSpan]) -> list[RowRange]:
        """Return the rows that each clip touches (``rows_of_clip``), without reading features."""
        ...

    def get_rows(self, ranges: Sequence[RowRange]) -> list[np.ndarray]:
        """Return the features [T, D] of each range in the type that they are stored in; the arrays are read-only."""
        ...

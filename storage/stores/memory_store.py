"""Features in memory: for notebooks, tests, and data sets that need no disk."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import DTypeLike

from ..records import Profile, StoredVideo, VideoFeatures, Weights
from ..shards.format import EXTRACTED, checksum
from ..shards.write import check_storable, stored_columns
from .store import ClipSpan, RowRange, checksum_of_all, rows_of_clip


class MemoryStore:
    """Features in memory (see ``Store``), such as those that ``extract_video`` returns.

    Of two records with the same video id the later one counts.
    """

    def __init__(
        self, profile: Profile, weights: Weights, videos: Iterable[VideoFeatures], *, origin: str = EXTRACTED
    ) -> None:
        """Make a store of records.

        Args:
            profile: How the features were made.
            weights: The weights that the model ran with.
            videos: The features. They are not copied, and must not change afterwards.
            origin: ``EXTRACTED``, or who stated the profile.

        Raises:
            ValueError: Features have another dimension than the profile's, or contain non-finite values.
        """
        self.profile, self.weights, self.origin = profile, weights, origin
        self._videos: dict[str, VideoFeatures] = {}
        for video in videos:
            check_storable(video, profile, video.features.dtype)
            self._videos[video.video_id] = video

    @property
    def name(self) -> str:
        """Name of the profile."""
        return self.profile.name

    @property
    def where(self) -> str:
        """Description for messages."""
        return f"{self.name} in memory"

    def video_ids(self) -> list[str]:
        """Return the ids of all videos."""
        return list(self._videos)

    def __contains__(self, video_id: str) -> bool:
        return video_id in self._videos

    def __len__(self) -> int:
        return len(self._videos)

    def about(self, video_id: str) -> StoredVideo:
        """Return what the store knows about a video besides its rows."""
        return self._videos[video_id].about

    def source(self, video_id: str) -> str:
        """Return the identity of the file that the features were made from."""
        return self._videos[video_id].source

    def duration_seconds(self, video_id: str) -> float:
        """Return when the frames, or the sound, end."""
        return self._videos[video_id].duration_seconds

    def partial(self, video_id: str) -> str:
        """Return what of the video is missing in its rows or was damaged; empty if all is well."""
        return self._videos[video_id].partial

    def spans(self, video_ids: Sequence[str]) -> np.ndarray:
        """Return when the first row of each video starts and its last row ends, float64 [N, 2]."""
        videos = [self._videos[video_id] for video_id in video_ids]
        spans = [(v.start_seconds[0], v.end_seconds[-1]) if len(v.features) else (np.nan, np.nan) for v in videos]
        return np.array(spans, dtype=np.float64).reshape(-1, 2)

    def shard_of(self, video_ids: Sequence[str]) -> np.ndarray:
        """Return 0 for each video: there are no shards."""
        return np.zeros(len(video_ids), dtype=np.int64)

    def rows_checksum(self) -> int:
        """Return a checksum of all videos and their rows: that of a ``FeatureStore`` with the same values and types."""
        return checksum_of_all(
            {
                video_id.encode(): checksum(stored_columns(video, video.features.dtype))
                for video_id, video in self._videos.items()
            }
        )

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

    def get_clips(self, clips: Sequence[ClipSpan], *, dtype: DTypeLike | None = np.float32) -> list[VideoFeatures]:
        """Return the rows of many clips, in the order of ``clips``. With ``dtype`` None, the features are read-only."""
        ranges = self.row_ranges(clips)
        return [
            self._record(row_range, features if dtype is None else features.astype(dtype))
            for row_range, features in zip(ranges, self.get_rows(ranges), strict=True)
        ]

    def row_ranges(self, clips: Sequence[ClipSpan]) -> list[RowRange]:
        """Return the rows that each clip touches (``rows_of_clip``)."""
        ranges = []
        for video_id, start_seconds, end_seconds in clips:
            video = self._videos[video_id]
            part = rows_of_clip(video.start_seconds, video.end_seconds, start_seconds, end_seconds)
            ranges.append((video_id, part.start, part.stop))
        return ranges

    def get_rows(self, ranges: Sequence[RowRange]) -> list[np.ndarray]:
        """Return the features [T, D] of each range as they are stored: read-only views."""
        parts = []
        for video_id, low, high in ranges:
            part = self._videos[video_id].features[low:high]
            part.flags.writeable = False
            parts.append(part)
        return parts

    def _record(self, row_range: RowRange, features: np.ndarray) -> VideoFeatures:
        video_id, low, high = row_range
        video = self._videos[video_id]
        return replace(
            video,
            features=features,
            start_seconds=video.start_seconds[low:high],
            end_seconds=video.end_seconds[low:high],
            valid_frames=video.valid_frames[low:high],
        )

"""Features in memory: for notebooks, tests, and data sets that need no disk."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..records import Profile, StoredVideo, VideoFeatures, Weights
from ..shards.format import EXTRACTED, Provenance
from ..shards.write import check_storable
from .store import RowRange, RowTimes, WritableStore, refuse_mixed


class MemoryStore(WritableStore):
    """Features in memory, such as the result of ``extract_video``. It is also its own writer.

    If two records have the same video id, the later one is used.

    Example:
        >>> from vlalign.storage import MemoryStore, open_store
        >>> store = open_store("vlalign_data/demo/features/s3d")
        >>> memory = MemoryStore(store.profile, store.weights, [store.get("demo0000")])
        >>> memory.video_ids()
        ['demo0000']
    """

    def __init__(
        self, profile: Profile, weights: Weights, videos: Iterable[VideoFeatures] = (), *, origin: str = EXTRACTED
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
        self._made_with: dict[str, set[str]] = {}
        self._videos: dict[str, VideoFeatures] = {}
        for video in videos:
            check_storable(video, profile, video.features.dtype)
            self._videos[video.video_id] = video

    @property
    def where(self) -> str:
        """Description for messages."""
        return f"{self.name} in memory"

    @property
    def made_with(self) -> Mapping[str, Collection[str]]:
        """All written values of ``Provenance.made_with``, such as versions of programs."""
        return self._made_with

    def video_ids(self) -> list[str]:
        """Return the ids of all videos."""
        return list(self._videos)

    def __contains__(self, video_id: str) -> bool:
        return video_id in self._videos

    def __len__(self) -> int:
        return len(self._videos)

    def about(self, video_id: str) -> StoredVideo:
        """Return the facts about a video, without its rows.

        Args:
            video_id: Id of the video.
        """
        return self._videos[video_id].about

    def row_times(self, video_id: str) -> RowTimes:
        """Return the times of a video's rows.

        Args:
            video_id: Id of the video.
        """
        video = self._videos[video_id]
        return RowTimes(video.start_seconds, video.end_seconds, video.valid_frames)

    def get_rows(self, ranges: Sequence[RowRange]) -> list[np.ndarray]:
        """Return the features [T, D] of each range as they are stored: read-only views.

        Args:
            ranges: Video id, first row and the row after the last, of each range.
        """
        parts = []
        for video_id, low, high in ranges:
            part = self._videos[video_id].features[low:high]
            part.flags.writeable = False
            parts.append(part)
        return parts

    def provenance(self) -> Provenance:
        """Return how the features are made."""
        return Provenance(profile=self.profile, weights=self.weights, origin=self.origin)

    def write(self, videos: Sequence[VideoFeatures], provenance: Provenance, *, dtype: str = "float16") -> None:
        """Add videos (see ``StoreWriter.write``).

        Args:
            videos: Features [T, D] and times of each video.
            provenance: How the features were made (``refuse_mixed``).
            dtype: Type that the features are stored in, float16 or float32; uint8 for frames.

        Raises:
            UserError: The features have another profile, weights or origin than the store's.
            ValueError: The features cannot be stored (``check_storable``).
        """
        refuse_mixed(self, provenance)
        for video in videos:
            check_storable(video, self.profile, dtype)
        for video in videos:
            features = video.features.astype(dtype)  # a copy, since the caller may change the array
            self._videos[video.video_id] = replace(video, features=features)
        for name, value in provenance.made_with.items():
            self._made_with.setdefault(name, set()).add(value)

    def remove(self, video_ids: Collection[str]) -> list[str]:
        """Remove videos; return the ids that the store did not have.

        Args:
            video_ids: Ids of the videos to remove.
        """
        return [video_id for video_id in video_ids if self._videos.pop(video_id, None) is None]

"""Features in memory, read as a store is: for notebooks, tests, and sets that need no disk."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import DTypeLike

from .feature_store import Clip, rows_of_clip
from .records import Profile, VideoFeatures, Weights
from .shards.format import EXTRACTED
from .shards.write import check_storable


class MemoryStore:
    """What ``FeatureStore`` is to a folder, to records such as those that ``extract_video`` gives; of two with one id the later counts.

    Raises ``ValueError`` for features of another width than the profile's, and for ones that are not finite.
    """

    def __init__(
        self, profile: Profile, weights: Weights, videos: Iterable[VideoFeatures], *, origin: str = EXTRACTED
    ) -> None:
        self.profile, self.weights, self.origin = profile, weights, origin
        self._videos: dict[str, VideoFeatures] = {}
        for video in videos:
            check_storable(video, profile, video.features.dtype)
            self._videos[video.video_id] = video

    def video_ids(self) -> list[str]:
        return list(self._videos)

    def __contains__(self, video_id: str) -> bool:
        return video_id in self._videos

    def __len__(self) -> int:
        return len(self._videos)

    def source(self, video_id: str) -> str:
        return self._videos[video_id].source

    def duration_seconds(self, video_id: str) -> float:
        return self._videos[video_id].duration_seconds

    def partial(self, video_id: str) -> str:
        return self._videos[video_id].partial

    def get(
        self,
        video_id: str,
        *,
        start_seconds: float | None = None,
        end_seconds: float | None = None,
        dtype: DTypeLike | None = np.float32,
    ) -> VideoFeatures:
        video = self._videos[video_id]
        part = rows_of_clip(video.start_seconds, video.end_seconds, start_seconds, end_seconds)
        return replace(
            video,
            features=video.features[part] if dtype is None else video.features[part].astype(dtype),
            start_seconds=video.start_seconds[part],
            end_seconds=video.end_seconds[part],
            valid_frames=video.valid_frames[part],
        )

    def get_clips(self, clips: Sequence[Clip], *, dtype: DTypeLike | None = np.float32) -> list[VideoFeatures]:
        return [self.get(video_id, start_seconds=start, end_seconds=end, dtype=dtype) for video_id, start, end in clips]

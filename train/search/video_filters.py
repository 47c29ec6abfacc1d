"""Filters of the videos that are searched: by split, length, and whether captions are known."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...storage.captions.files import read_captions, read_captions_about
from ...storage.common.errors import SettingError
from ...storage.dataset.folder import DatasetFolder
from ...storage.records import SPLITS
from .search import Search


@dataclass(frozen=True)
class VideoFilters:
    """Which videos are searched."""

    split: str | None = None
    """Only videos whose first caption is in this split; None: any."""
    has_caption: bool | None = None
    """Only videos with (True) or without (False) a known caption; None: both."""
    min_seconds: float = 0.0
    """Only videos at least as long."""
    max_seconds: float = float("inf")
    """Only videos at most as long."""

    def __post_init__(self) -> None:
        if self.split is not None and self.split not in SPLITS:
            raise SettingError("split", self.split, f"expected one of {', '.join(SPLITS)}")
        if not 0 <= self.min_seconds < float("inf"):
            raise SettingError("min_seconds", self.min_seconds, "expected 0 or more")
        if not self.max_seconds >= self.min_seconds:
            raise SettingError("max_seconds", self.max_seconds, f"expected {self.min_seconds:g}, the minimum, or more")

    def videos(self, search: Search, split_of: Mapping[str, str]) -> set[str] | None:
        """Return the ids of the videos that pass; None for all.

        Args:
            search: Has the videos.
            split_of: The splits of captioned videos (``splits_of_videos``).
        """
        if self == VideoFilters():
            return None
        return {
            video_id
            for video_id in search.index.video_ids
            if (self.split is None or split_of.get(video_id) == self.split)
            and (self.has_caption is None or (video_id in split_of) == self.has_caption)
            and self.min_seconds <= search.encoder.duration_seconds(video_id) <= self.max_seconds
        }


def splits_of_videos(dataset: DatasetFolder) -> dict[str, str]:
    """Return {video id: split of its first caption}; nothing without captions."""
    if read_captions_about(dataset.captions) is None:
        return {}
    found: dict[str, str] = {}
    for caption in read_captions(dataset.captions):
        found.setdefault(caption.video_id, caption.split)
    return found

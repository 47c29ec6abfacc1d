"""Clips of videos: the candidates of retrieval, stored in columns."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np


@dataclass(frozen=True)
class Clip:
    """A part of a video, or all of it (None, None)."""

    video_id: str
    start_seconds: float | None
    end_seconds: float | None

    @property
    def clip_id(self) -> str:
        """As ``Caption.clip_id``."""
        if self.start_seconds is None:
            return self.video_id
        return f"{self.video_id}#{self.start_seconds}-{self.end_seconds}"


def evenly(length: int, most: int) -> np.ndarray:
    """Return at most ``most`` of the indices 0 to ``length`` - 1, evenly spread."""
    return np.linspace(0, length - 1, min(most, length)).round().astype(int)


class Groups(Sequence[list[int]]):
    """The members of each group, in order."""

    def __init__(self, members: np.ndarray, starts: np.ndarray) -> None:
        """Make groups from arrays.

        Args:
            members: The members of the first group, then of the second, and so on.
            starts: Where in ``members`` each group begins, and where the last one ends: [num_groups + 1].
        """
        self.members, self.starts = members, starts

    @classmethod
    def of(cls, group_of_member: np.ndarray, num_groups: int) -> "Groups":
        """Group the indices of ``group_of_member``, which holds each member's group."""
        members = np.argsort(group_of_member, kind="stable").astype(np.int32)
        sizes = np.bincount(group_of_member, minlength=num_groups)
        return cls(members, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        if isinstance(index, slice):
            return [self._group(group) for group in range(*index.indices(len(self)))]
        return self._group(range(len(self))[index])

    def _group(self, group: int) -> list[int]:
        return self.members[self.starts[group] : self.starts[group + 1]].tolist()


class Clips(Sequence[Clip]):
    """Clips in columns; records are created on access."""

    def __init__(
        self, video_ids: Sequence[str], video: np.ndarray, start_seconds: np.ndarray, end_seconds: np.ndarray
    ) -> None:
        """Make clips from columns.

        Args:
            video_ids: The videos.
            video: Index of each clip's video among ``video_ids``.
            start_seconds: When each clip starts; NaN for a clip that is a whole video.
            end_seconds: When each clip ends; NaN for a clip that is a whole video.
        """
        self.video_ids, self.video = video_ids, video
        self.start_seconds, self.end_seconds = start_seconds, end_seconds

    @classmethod
    def of(cls, clips: Iterable[Clip]) -> "Clips":
        """Make clips from records."""
        listed, index_of = list(clips), {}
        video = np.array([index_of.setdefault(clip.video_id, len(index_of)) for clip in listed], dtype=np.int32)
        starts = np.array([clip.start_seconds for clip in listed], dtype=np.float64)
        ends = np.array([clip.end_seconds for clip in listed], dtype=np.float64)
        return cls(list(index_of), video, starts, ends)

    def __len__(self) -> int:
        return len(self.video)

    @overload
    def __getitem__(self, index: int) -> Clip: ...
    @overload
    def __getitem__(self, index: slice) -> list[Clip]: ...
    def __getitem__(self, index: int | slice) -> Clip | list[Clip]:
        if isinstance(index, slice):
            return [self._clip(i) for i in range(*index.indices(len(self)))]
        return self._clip(index)

    def _clip(self, index: int) -> Clip:
        video_id, start = self.video_ids[int(self.video[index])], self.start_seconds[index].item()
        if math.isnan(start):
            return Clip(video_id, None, None)
        return Clip(video_id, start, self.end_seconds[index].item())

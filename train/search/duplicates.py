"""Near-duplicates: videos of a data set with nearly the same vectors."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...storage.common.errors import SettingError
from .encoder import l2_normalize
from .grouping import NEAR_DUPLICATE_COSINE
from .search import Search

BLOCK_VIDEOS = 2048


@dataclass(frozen=True)
class Duplicates:
    """Videos that are nearly the same."""

    video_ids: list[str]
    """Sorted."""
    lowest_cosine: float
    """Lowest cosine of the similar pairs in the group."""


def find_duplicates(search: Search, *, cosine: float = NEAR_DUPLICATE_COSINE) -> list[Duplicates]:
    """Return groups of videos that look nearly the same, the largest first.

    Two videos are alike if the cosine of their vectors, each of the whole video, is high enough. Videos that are
    alike through other videos are in one group.

    Args:
        search: The data set.
        cosine: Least cosine, up to 1.

    Raises:
        SettingError: ``cosine`` is not between 0 and 1.
    """
    if not 0 < cosine <= 1:
        raise SettingError("cosine", cosine, "expected more than 0, and at most 1")
    rows = search.index.whole_videos()
    video_ids = [search.index.video_ids[number] for number in search.index.video[rows]]
    vectors = l2_normalize(search.index.vectors_of(rows))
    group_of, lowest = list(range(len(rows))), dict.fromkeys(range(len(rows)), 1.0)

    def root(member: int) -> int:
        while group_of[member] != member:
            group_of[member] = group_of[group_of[member]]
            member = group_of[member]
        return member

    for first, second, value in _pairs(vectors, cosine):
        low, high = sorted((root(first), root(second)))
        group_of[high] = low
        lowest[low] = min(lowest[low], lowest[high], value)
    groups: dict[int, list[str]] = {}
    for member, video_id in enumerate(video_ids):
        groups.setdefault(root(member), []).append(video_id)
    found = [Duplicates(sorted(ids), lowest[group]) for group, ids in groups.items() if len(ids) > 1]
    return sorted(found, key=lambda group: (-len(group.video_ids), group.video_ids))


def _pairs(vectors: np.ndarray, cosine: float) -> Iterator[tuple[int, int, float]]:
    """Yield each pair of similar vectors once, with its cosine, a block of the matrix at a time."""
    for top in range(0, len(vectors), BLOCK_VIDEOS):
        for left in range(top, len(vectors), BLOCK_VIDEOS):
            block = vectors[top : top + BLOCK_VIDEOS] @ vectors[left : left + BLOCK_VIDEOS].T
            if left == top:
                block = np.triu(block, 1)
            for row, column in np.argwhere(block >= cosine).tolist():
                yield top + row, left + column, float(block[row, column])

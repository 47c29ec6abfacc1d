"""Grouping of moments: each video once, and near-duplicates folded under the best of them."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from .encoder import l2_normalize
from .moments import Moment

NEAR_DUPLICATE_COSINE = 0.98
"""Vectors with at least this cosine look nearly the same."""
FOLD_AHEAD = 8
"""Before a moment is returned, this many moments after it are searched for its near-duplicates. Near-duplicates have
nearly the same score, so most of them follow directly. With a larger number, a page takes more than 1.3 times as long
as without folding."""

MAX_COMPARED, MAX_IN_A_ROW = 2000, 500
"""Maximum number of moments that later ones are compared with; number of near-duplicates in a row after which no more
are folded. Otherwise a library of nearly identical videos would be searched to its end for one page."""


def one_of_each_video(moments: Iterable[Moment], num_videos: int) -> Iterator[Moment]:
    """Yield the first moment of each video.

    Args:
        moments: The best first.
        num_videos: Number of videos that moments can be of. Once all were seen, no further moments are computed.
    """
    seen: set[str] = set()
    if not num_videos:
        return
    for moment in moments:
        if moment.video_id not in seen:
            seen.add(moment.video_id)
            yield moment
            if len(seen) == num_videos:
                return


def fold_similar(moments: Iterable[Moment], vector_of: Callable[[Moment], np.ndarray]) -> Iterator[Moment]:
    """Yield moments without those that look nearly the same as a better one of another video.

    A moment that only a caption found must also have the same caption as the better one: two interviews can look the
    same, but differ in what is said.

    Near-duplicates among the ``FOLD_AHEAD`` moments after the better one are in its ``Moment.similar``; later ones are
    only skipped. So the result does not depend on how many moments are requested. Each moment is compared with the
    first ``MAX_COMPARED`` that are kept. After ``MAX_IN_A_ROW`` near-duplicates in a row, all moments are kept.

    Args:
        moments: The best first.
        vector_of: Returns the vector of a moment [D].
    """
    waiting: deque[tuple[int, list[Moment]]] = deque()
    """(place, the moment and its similar ones)"""
    groups: list[list[Moment]] = []
    """Groups of the moments that others are compared with; empty after they were yielded."""
    video_ids: list[str] = []
    captions: list[str | None] = []
    vectors = np.zeros((0, 0), np.float32)
    num_in_a_row = 0
    for place, moment in enumerate(moments):
        group = [moment]
        if num_in_a_row < MAX_IN_A_ROW:
            vector = l2_normalize(vector_of(moment))
            if not video_ids:
                vectors = np.empty((MAX_COMPARED, len(vector)), np.float32)
            cosines = vectors[: len(video_ids)] @ vector
            rows = [
                row
                for row in np.flatnonzero(cosines >= NEAR_DUPLICATE_COSINE)
                if video_ids[row] != moment.video_id and (moment.found_by != "text" or captions[row] == moment.caption)
            ]
            num_in_a_row = num_in_a_row + 1 if rows else 0
            if rows:
                if groups[rows[0]]:
                    groups[rows[0]].append(moment)
                group = []
            elif len(video_ids) < MAX_COMPARED:
                vectors[len(video_ids)] = vector
                video_ids.append(moment.video_id)
                captions.append(moment.caption)
                groups.append(group)
        if group:
            waiting.append((place, group))
        while waiting and place - waiting[0][0] >= FOLD_AHEAD:
            yield _taken(waiting.popleft()[1])
    for _, group in waiting:
        yield _taken(group)


def _taken(group: list[Moment]) -> Moment:
    """Empty a group; return its moment with the similar ones."""
    best, *others = group
    group.clear()
    return replace(best, similar=tuple(others)) if others else best

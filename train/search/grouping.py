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
"""Moments behind one that are looked at for near-duplicates of it, before it is returned. These have nearly the same
score, so most of them come at once. With more, a page takes more than 1.3 times as long as without folding."""


def one_of_each_video(moments: Iterable[Moment], num_videos: int) -> Iterator[Moment]:
    """Yield the first moment of each video.

    Args:
        moments: The best first.
        num_videos: Number of videos that they can be of: once all were seen, the rest is not computed.
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

    These are in ``Moment.similar`` of the better one if they are among the ``FOLD_AHEAD`` moments behind it; later ones
    are only skipped. So the result does not depend on how many moments are asked for.

    Args:
        moments: The best first.
        vector_of: Returns the vector of a moment [D].
    """
    waiting: deque[tuple[int, int, list[Moment]]] = deque()
    """(place, row of the vector, the moment and its similar ones)"""
    video_ids: list[str] = []
    vectors = np.zeros((0, 0), np.float32)
    for place, moment in enumerate(moments):
        vector = l2_normalize(vector_of(moment))
        cosines = vectors[: len(video_ids)] @ vector if video_ids else np.zeros(0)
        rows = [row for row in np.flatnonzero(cosines >= NEAR_DUPLICATE_COSINE) if video_ids[row] != moment.video_id]
        if rows:
            for _, row, group in waiting:
                if row == rows[0]:
                    group.append(moment)
        else:
            if len(video_ids) == len(vectors):  # room for twice as many
                more = np.zeros((len(vectors) + 1, len(vector)), np.float32)
                vectors = np.concatenate([vectors.reshape(-1, len(vector)), more])
            vectors[len(video_ids)] = vector
            waiting.append((place, len(video_ids), [moment]))
            video_ids.append(moment.video_id)
        while waiting and place - waiting[0][0] >= FOLD_AHEAD:
            yield _folded(waiting.popleft()[2])
    for _, _, group in waiting:
        yield _folded(group)


def _folded(group: list[Moment]) -> Moment:
    best, *others = group
    return replace(best, similar=tuple(others)) if others else best

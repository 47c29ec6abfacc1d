"""Assignment of videos to workers, also of the videos of a worker that ended.

This is bookkeeping only, without Ray, clock or files, so that a simulated cluster can run exactly the rules of a real
one. Videos and workers are numbers.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence

import numpy as np

MAX_WAITING = 16
"""Largest number of videos that wait at a worker, so that it need not ask for each one. Towards the end fewer wait,
so that no video waits for long while another worker is idle."""
ENDS_OF_A_SUSPECT, MAX_ENDS = 2, 3
"""A video that ``ENDS_OF_A_SUSPECT`` workers were extracting when they ended is a suspect: it gets a worker for itself.
After ``MAX_ENDS`` workers it is given up."""


class VideoScheduler:
    """Assigns videos to workers."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """Begin with all videos new.

        Args:
            sizes: Size of each video, in any unit. The largest videos come first, so that none is still running at
                the end when all others are done.
        """
        self._new = deque(np.argsort(-np.asarray(sizes, np.int64), kind="stable").tolist())
        self._returned: deque[int] = deque()
        self._suspects: deque[int] = deque()
        self._isolated: dict[int, int] = {}
        """{worker: suspect that waits until the worker has nothing else}"""
        self._assigned: dict[int, set[int]] = {}
        """{worker: videos that it was given and has not computed}"""
        self._computed: dict[int, set[int]] = {}
        """{worker: videos that it has computed and not written to disk yet}"""
        self._ends: Counter[int] = Counter()
        self._on_previous_workers: set[int] = set()
        """New videos that a worker of an earlier call is extracting."""
        self._completed = bytearray(len(self._new))
        """True for each video that is on disk, has failed or is given up; it is not assigned again."""
        self.num_left = len(self._new)

    @property
    def completed(self) -> np.ndarray:
        """Whether each video is on disk, has failed or is given up, as bool [num_videos]."""
        return np.frombuffer(self._completed, np.bool_)

    @property
    def num_computed(self) -> int:
        """Number of videos that are computed and not on disk yet."""
        return sum(map(len, self._computed.values()))

    def next(self, worker: int, num_waiting: int) -> tuple[list[int], int | None]:
        """Assign videos to a worker.

        Args:
            worker: The worker that asks.
            num_waiting: Videos that it was given and has not begun.

        Returns:
            More videos, and at how many waiting ones the worker should ask again. None instead of that number means
            that nothing follows for now and that it should finish what it has.
        """
        assigned = self._assigned.setdefault(worker, set())
        if worker not in self._isolated and self._has_next(self._suspects):
            self._isolated[worker] = self._suspects.popleft()
        if worker in self._isolated:
            given = [] if assigned else [self._isolated[worker]]
            assigned.update(given)
            return given, None
        max_waiting = min(max((len(self._new) + len(self._returned)) // (2 * len(self._assigned)), 1), MAX_WAITING)
        given = []
        while len(given) + num_waiting < max_waiting and (self._has_next(self._returned) or self._has_next(self._new)):
            given.append((self._returned or self._new).popleft())
        assigned.update(given)
        return given, max_waiting // 2 if self._has_next(self._returned) or self._has_next(self._new) else None

    def _has_next(self, videos: deque[int]) -> bool:
        """Return whether the queue has a video to assign. Drop others from its front until it does."""
        while videos and (
            self._completed[videos[0]] or (videos is self._new and videos[0] in self._on_previous_workers)
        ):
            self._on_previous_workers.discard(videos.popleft())
        return bool(videos)

    def take_over(self, worker: int, unwritten: Iterable[int], written: Iterable[int]) -> None:
        """Continue with a worker of an earlier call. Must be called before any of its videos is assigned.

        Args:
            worker: The worker.
            unwritten: Videos that it was given and that are not on disk.
            written: Videos that it has written to disk.
        """
        self._assigned.setdefault(worker, set()).update(unwritten)
        self._on_previous_workers |= self._assigned[worker]
        self.mark_written(written)

    def mark_written(self, videos: Iterable[int]) -> None:
        """Note that videos are on disk, whichever worker wrote them."""
        for video in videos:
            self._complete(video)

    def _complete(self, video: int) -> None:
        if not self._completed[video]:
            self._completed[video] = True
            self.num_left -= 1

    def mark_computed(self, worker: int, video: int) -> None:
        """Note that a worker has computed the features of a video, which are not on disk yet."""
        self._unassign(worker, video)
        self._computed.setdefault(worker, set()).add(video)

    def mark_completed(self, worker: int, video: int) -> None:
        """Note that all of a video is on disk, or that it has failed."""
        self._unassign(worker, video)
        self._computed.get(worker, set()).discard(video)
        self._ends.pop(video, None)
        self._complete(video)

    def _unassign(self, worker: int, video: int) -> None:
        self._assigned.get(worker, set()).discard(video)
        if self._isolated.get(worker) == video:
            del self._isolated[worker]

    def worker_ended(self, worker: int, *, blame_videos: bool = True) -> list[int]:
        """Return the videos of a worker that ended to the others, except those on disk.

        Args:
            worker: The worker.
            blame_videos: True if one of its videos may have ended it.

        Returns:
            Videos that are given up.
        """
        given_up = []
        isolated = self._isolated.pop(worker, None)
        assigned = self._assigned.pop(worker, set())
        if isolated is not None and isolated not in assigned:
            self._suspects.appendleft(isolated)
        for video in sorted(assigned):
            if self._completed[video]:
                continue
            self._ends[video] += blame_videos
            if self._ends[video] >= MAX_ENDS:
                given_up.append(video)
                self._complete(video)
            elif self._ends[video] >= ENDS_OF_A_SUSPECT:
                self._suspects.append(video)
            else:
                self._returned.append(video)
        self._returned.extend(sorted(self._computed.pop(worker, ())))
        return given_up

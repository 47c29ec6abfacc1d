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
        self._alone: dict[int, int] = {}
        """For some workers, the suspect that waits until the worker has nothing else."""
        self._in_hand: dict[int, set[int]] = {}
        """For each worker, the videos that it was given and has not finished."""
        self._finished: dict[int, set[int]] = {}
        """For each worker, the videos that it has finished and not written to disk yet."""
        self._ends: Counter[int] = Counter()
        self._elsewhere: set[int] = set()
        """New videos that a worker of an earlier call is extracting."""
        self._settled = bytearray(len(self._new))
        """For each video, whether it is on disk or given up; it is not assigned again."""
        self.num_left = len(self._new)

    def next(self, worker: int, num_waiting: int) -> tuple[list[int], int | None]:
        """Assign videos to a worker.

        Args:
            worker: The worker that asks.
            num_waiting: Videos that it was given and has not begun.

        Returns:
            More videos, and at how many waiting ones the worker should ask again. None instead of that number means
            that nothing follows for now and that it should finish what it has.
        """
        in_hand = self._in_hand.setdefault(worker, set())
        if worker not in self._alone and self._has_next(self._suspects):
            self._alone[worker] = self._suspects.popleft()
        if worker in self._alone:
            given = [] if in_hand else [self._alone[worker]]
            in_hand.update(given)
            return given, None
        most = min(max((len(self._new) + len(self._returned)) // (2 * len(self._in_hand)), 1), MAX_WAITING)
        given = []
        while len(given) + num_waiting < most and (self._has_next(self._returned) or self._has_next(self._new)):
            given.append((self._returned or self._new).popleft())
        in_hand.update(given)
        return given, most // 2 if self._has_next(self._returned) or self._has_next(self._new) else None

    def _has_next(self, videos: deque[int]) -> bool:
        """Return whether the queue has a video to assign. Drop others from its front until it does."""
        while videos and (self._settled[videos[0]] or (videos is self._new and videos[0] in self._elsewhere)):
            self._elsewhere.discard(videos.popleft())
        return bool(videos)

    def take_over(self, worker: int, held: Iterable[int], kept: Iterable[int]) -> None:
        """Continue with a worker of an earlier call. Must be called before any of its videos is assigned.

        Args:
            worker: The worker.
            held: Videos that it is extracting.
            kept: Videos that it has written to disk.
        """
        self._in_hand.setdefault(worker, set()).update(held)
        self._elsewhere |= self._in_hand[worker]
        self.on_disk(kept)

    def on_disk(self, videos: Iterable[int]) -> None:
        """Note that videos are on disk, whichever worker wrote them."""
        for video in videos:
            self._settle(video)

    def _settle(self, video: int) -> None:
        if not self._settled[video]:
            self._settled[video] = True
            self.num_left -= 1

    def finished(self, worker: int, video: int) -> None:
        """Note that a worker has finished a video, which is not on disk yet."""
        self._take(worker, video)
        self._finished.setdefault(worker, set()).add(video)

    def done(self, worker: int, video: int) -> None:
        """Note that all of a video is on disk, or that it has failed."""
        self._take(worker, video)
        self._finished.get(worker, set()).discard(video)
        self._ends.pop(video, None)
        self._settle(video)

    def _take(self, worker: int, video: int) -> None:
        self._in_hand.get(worker, set()).discard(video)
        if self._alone.get(worker) == video:
            del self._alone[worker]

    def ended(self, worker: int, *, by_a_video: bool = True) -> list[int]:
        """Return the videos of a worker that ended to the others, except those on disk.

        Args:
            worker: The worker.
            by_a_video: Whether one of its videos may have ended it.

        Returns:
            Videos that are given up.
        """
        given_up = []
        alone = self._alone.pop(worker, None)
        in_hand = self._in_hand.pop(worker, set())
        if alone is not None and alone not in in_hand:
            self._suspects.appendleft(alone)
        for video in sorted(in_hand):
            if self._settled[video]:
                continue
            self._ends[video] += by_a_video
            if self._ends[video] >= MAX_ENDS:
                given_up.append(video)
                self._settle(video)
            elif self._ends[video] >= ENDS_OF_A_SUSPECT:
                self._suspects.append(video)
            else:
                self._returned.append(video)
        self._returned.extend(sorted(self._finished.pop(worker, ())))
        return given_up

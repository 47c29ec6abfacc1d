"""Which worker extracts which video next, and what becomes of the videos of a worker that ended.

Bookkeeping alone, without Ray, clock or files, so that a simulation of a cluster runs the very rules that a cluster
does. Videos and workers are numbers.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence

import numpy as np

AHEAD = 16
"""Videos that a worker has waiting at most, so that it need not ask for each; towards the end fewer, so that none
waits for long while another worker has nothing."""
ALONE_FROM, MOST_ENDS = 2, 3
"""A video that was in the hands of so many workers as they ended gets one of its own; after so many it is given up."""


class Dispatch:
    def __init__(self, sizes: Sequence[int]) -> None:
        """``sizes`` of all videos, in any unit: the largest come first, so that none is left over at the end while
        others wait."""
        self._new = deque(np.argsort(-np.asarray(sizes, np.int64), kind="stable").tolist())
        self._returned: deque[int] = deque()
        self._suspects: deque[int] = deque()
        self._alone: dict[int, int] = {}
        """The suspect that waits until a worker has nothing else in hand."""
        self._in_hand: dict[int, set[int]] = {}
        self._finished: dict[int, set[int]] = {}
        """Of each worker: what it was given and has not finished; what it finished, but has not on disk yet."""
        self._ends: Counter[int] = Counter()
        self._elsewhere: set[int] = set()
        """Those among the new ones that a worker of an earlier call has in hand."""
        self._settled = bytearray(len(self._new))
        """Of each video, whether it is on disk or given up; nobody is given it again."""
        self.num_left = len(self._new)

    def next(self, worker: int, num_waiting: int) -> tuple[list[int], int | None]:
        """Videos for a worker beside the ``num_waiting`` that it has not begun, and at how many of them it should ask
        again; None: nothing follows for now, and it should finish what it has."""
        in_hand = self._in_hand.setdefault(worker, set())
        if worker not in self._alone and self._has(self._suspects):
            self._alone[worker] = self._suspects.popleft()
        if worker in self._alone:
            given = [] if in_hand else [self._alone[worker]]
            in_hand.update(given)
            return given, None
        most = min(max((len(self._new) + len(self._returned)) // (2 * len(self._in_hand)), 1), AHEAD)
        given = []
        while len(given) + num_waiting < most and (self._has(self._returned) or self._has(self._new)):
            given.append((self._returned or self._new).popleft())
        in_hand.update(given)
        return given, most // 2 if self._has(self._returned) or self._has(self._new) else None

    def _has(self, videos: deque[int]) -> bool:
        """Whether there is one that is to be given to somebody; then it is the first."""
        while videos and (self._settled[videos[0]] or (videos is self._new and videos[0] in self._elsewhere)):
            self._elsewhere.discard(videos.popleft())
        return bool(videos)

    def take_over(self, worker: int, held: Iterable[int], kept: Iterable[int]) -> None:
        """A worker of an earlier call goes on with the videos ``held``; it has brought those in ``kept`` to disk. To
        be called before any of them is given to somebody."""
        self._in_hand.setdefault(worker, set()).update(held)
        self._elsewhere |= self._in_hand[worker]
        self.on_disk(kept)

    def on_disk(self, videos: Iterable[int]) -> None:
        """They are, whoever brought them there, and whether or not he said so before he ended."""
        for video in videos:
            self._settle(video)

    def _settle(self, video: int) -> None:
        if not self._settled[video]:
            self._settled[video] = True
            self.num_left -= 1

    def finished(self, worker: int, video: int) -> None:
        """The worker is through with a video, which is not on disk yet."""
        self._take(worker, video)
        self._finished.setdefault(worker, set()).add(video)

    def done(self, worker: int, video: int) -> None:
        """All of a video is on disk, or known not to be possible."""
        self._take(worker, video)
        self._finished.get(worker, set()).discard(video)
        self._ends.pop(video, None)
        self._settle(video)

    def _take(self, worker: int, video: int) -> None:
        self._in_hand.get(worker, set()).discard(video)
        if self._alone.get(worker) == video:
            del self._alone[worker]

    def ended(self, worker: int, *, by_a_video: bool = True) -> list[int]:
        """A worker is gone. What it did not have on disk is for others to do; returns the videos that are given up.

        ``by_a_video``: whether one that it had in hand may have been the cause.
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
            if self._ends[video] >= MOST_ENDS:
                given_up.append(video)
                self._settle(video)
            elif self._ends[video] >= ALONE_FROM:
                self._suspects.append(video)
            else:
                self._returned.append(video)
        self._returned.extend(sorted(self._finished.pop(worker, ())))
        return given_up

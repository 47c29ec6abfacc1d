"""Assign videos to workers, including the videos of a worker that has ended.

This module does bookkeeping only, without Ray, clock or files: a simulated cluster follows exactly the rules of a real
one. Videos, workers and places are numbers. A place is the source of a video, such as a bucket or a disk.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

MAX_WAITING = 16
"""Maximum number of videos that wait at a worker: workers request videos in groups. Towards the end fewer wait, so that
no video waits at one worker while another is idle.
"""
ENDS_OF_A_SUSPECT, MAX_ENDS = 2, 6
"""A video is a suspect if ``ENDS_OF_A_SUSPECT`` workers ended while extracting it; it then gets a worker for itself.
After ``MAX_ENDS`` workers it is given up. Some workers may end for other reasons: with a worker killed every ten
seconds, two of 96 videos would be given up after three ends, and one after four.
"""

COMPLETED, ABANDONED = 1, 2
"""States of a video that is not assigned again. A video is abandoned if its place cannot be read."""

MayRead = Callable[[int], bool]
"""Returns whether a worker may be given videos of a place."""


class _Queue:
    """Videos in the order in which they are assigned, by place."""

    def __init__(self, places: Sequence[int], is_obsolete: Callable[[int], bool], videos: Sequence[int] = ()) -> None:
        """Begin with some videos.

        Args:
            places: The place of each video.
            is_obsolete: Returns whether a video is not to be assigned any more.
            videos: The first videos, in order.
        """
        self._places, self._is_obsolete = places, is_obsolete
        self._rank = np.zeros(len(places), np.int64)
        self._rank[list(videos)] = np.arange(len(videos))
        self._next_rank = self._num_videos = len(videos)
        self._by_place: defaultdict[int, deque[int]] = defaultdict(deque)
        for video in videos:
            self._by_place[places[video]].append(video)
        self._fronts = sorted((int(self._rank[queue[0]]), place) for place, queue in self._by_place.items())
        """A heap: the place of the first video is on top."""

    def add(self, video: int) -> None:
        self._rank[video] = self._next_rank
        self._next_rank += 1
        self._num_videos += 1
        place = self._places[video]
        if not self._by_place[place]:
            heapq.heappush(self._fronts, (int(self._rank[video]), place))
        self._by_place[place].append(video)

    def first(self, may_read: MayRead, *, take: bool) -> int | None:
        """Return the first video that may be assigned to a worker, or None; with ``take``, remove it."""
        kept, found = [], None
        while self._fronts and found is None:
            _, place = heapq.heappop(self._fronts)
            queue = self._by_place[place]
            num_before = len(queue)
            while queue and self._is_obsolete(queue[0]):
                queue.popleft()
            if queue and may_read(place):
                found = queue.popleft() if take else queue[0]
            self._num_videos -= num_before - len(queue)
            if queue:
                kept.append((int(self._rank[queue[0]]), place))
        for front in kept:
            heapq.heappush(self._fronts, front)
        return found

    def of_place(self, place: int) -> list[int]:
        """Return the videos from one source (place), in the order in which they are assigned."""
        return [video for video in self._by_place.get(place, ()) if not self._is_obsolete(video)]

    def __len__(self) -> int:
        return self._num_videos


class VideoScheduler:
    """Assigns videos to workers."""

    def __init__(self, sizes: Sequence[int], places: Sequence[int] | None = None) -> None:
        """Start with all videos unassigned.

        Args:
            sizes: Size of each video, in any unit. The largest videos come first: a large one at the end would run
                alone.
            places: The place of each video; None if all have the same.
        """
        order = np.argsort(-np.asarray(sizes, np.int64), kind="stable").tolist()
        self.places = [0] * len(order) if places is None else places
        self._place_numbers = np.asarray(self.places, np.int32)
        self._completed = bytearray(len(order))
        """The state of each video: ``COMPLETED`` (on disk, failed or given up), ``ABANDONED``, or 0 if it may still be
        assigned."""
        self._on_previous_workers: set[int] = set()
        """New videos that a worker of an earlier call is extracting."""
        self._new = _Queue(self.places, self._is_new_no_more, order)
        self._returned = _Queue(self.places, self._is_completed)
        self._suspects = _Queue(self.places, self._is_completed)
        self._deferred = _Queue(self.places, self._is_completed)
        """Videos that failed and are tried once more, after all others."""
        self._isolated: dict[int, int] = {}
        """{worker: suspect that waits until the worker has no other video}"""
        self._assigned: dict[int, dict[int, None]] = {}
        """{worker: videos that it was given and has not computed, in order}"""
        self._computed: dict[int, set[int]] = {}
        """{worker: videos that it has computed and not written to disk yet}"""
        self._copies: dict[int, set[int]] = {}
        """{video: workers} of videos that two workers extract, because the first one is slow."""
        self._superfluous: defaultdict[int, list[int]] = defaultdict(list)
        """{worker: videos that another worker has computed first}"""
        self._ends: Counter[int] = Counter()
        self._abandoned: set[int] = set()
        """Abandoned places: their videos are no longer assigned."""
        self.num_left, self.num_abandoned = len(order), 0

    def _is_completed(self, video: int) -> bool:
        return bool(self._completed[video])

    def _is_new_no_more(self, video: int) -> bool:
        return video in self._on_previous_workers or self._is_completed(video)

    @property
    def completed(self) -> np.ndarray:
        """True for each video that is on disk, has failed or is given up, as bool [num_videos]."""
        return np.frombuffer(self._completed, np.uint8) == COMPLETED

    @property
    def num_computed(self) -> int:
        """Number of videos that are computed but not yet on disk."""
        return sum(map(len, self._computed.values()))

    def next(
        self, worker: int, num_waiting: int, may_read: MayRead = lambda _: True, max_waiting: int = MAX_WAITING
    ) -> tuple[list[int], int | None]:
        """Assign videos to a worker.

        Args:
            worker: The requesting worker.
            num_waiting: Number of videos assigned to it and not begun.
            may_read: Returns whether it may get videos of a place.
            max_waiting: Maximum number of videos that wait at it.

        Returns:
            (videos, number of waiting videos at which the worker should request more). None instead of the number means
            that there are no more for now: the worker should finish its videos.
        """
        assigned = self._assigned.setdefault(worker, {})
        if worker not in self._isolated and (suspect := self._suspects.first(may_read, take=True)) is not None:
            self._isolated[worker] = suspect
        if worker in self._isolated:
            given = [] if assigned else [self._isolated[worker]]
            assigned.update(dict.fromkeys(given))
            return given, None
        most = min(max((len(self._new) + len(self._returned)) // (2 * len(self._assigned)), 1), max_waiting)
        given = []
        while len(given) + num_waiting < most and (video := self._first(may_read, take=True)) is not None:
            given.append(video)
        assigned.update(dict.fromkeys(given))
        return given, most // 2 if self._first(may_read, take=False) is not None else None

    def _first(self, may_read: MayRead, *, take: bool) -> int | None:
        for queue in (self._returned, self._new, self._deferred):
            if (video := queue.first(may_read, take=take)) is not None:
                return video
        return None

    def copy(self, worker: int, may_read: MayRead, is_slow: Callable[[int], bool]) -> int | None:
        """Assign a slow worker's unfinished video to an idle worker as well: the first result counts.

        Args:
            worker: A worker without videos, for which ``next`` has none.
            may_read: Returns whether it may get videos of a place.
            is_slow: Returns whether a video was assigned long enough ago for a second try.
        """
        others = [(owner, videos) for owner, videos in self._assigned.items() if videos and owner != worker]
        for owner, videos in sorted(others, key=lambda other: -len(other[1])):
            if owner in self._isolated:
                continue
            for video in reversed(videos):  # the last is the least likely to have been started
                if video not in self._copies and may_read(self.places[video]) and is_slow(video):
                    self._copies[video] = {owner, worker}
                    self._assigned.setdefault(worker, {})[video] = None
                    return video
        return None

    def take_superfluous(self, worker: int) -> list[int]:
        """Return videos of a worker that another worker has finished in the meantime; they may be dropped."""
        return self._superfluous.pop(worker, [])

    def _drop_copies(self, worker: int, video: int) -> None:
        """Make a worker the only one that has a video."""
        for other in self._copies.pop(video, {worker}) - {worker}:
            self._unassign(other, video)
            self._superfluous[other].append(video)

    def take_over(self, worker: int, unwritten: Iterable[int], written: Iterable[int]) -> None:
        """Continue with a worker of an earlier call. Must be called before any of its videos is assigned.

        Args:
            worker: The worker.
            unwritten: Videos that it was given and that are not on disk.
            written: Videos that it has written to disk.
        """
        self._assigned.setdefault(worker, {}).update(dict.fromkeys(unwritten))
        self._on_previous_workers |= self._assigned[worker].keys()
        self.mark_written(written)

    def mark_written(self, videos: Iterable[int]) -> None:
        """Record that videos are on disk, whichever worker wrote them."""
        written = set(videos)
        for computed in self._computed.values():
            computed -= written
        for video in written:
            self._complete(video)

    def _complete(self, video: int, how: int = COMPLETED) -> None:
        if not self._completed[video]:
            self._completed[video] = how
            self.num_left -= 1

    def mark_computed(self, worker: int, video: int) -> None:
        """Record that a worker has computed a video's features, which are not on disk yet."""
        self._drop_copies(worker, video)
        self._unassign(worker, video)
        self._computed.setdefault(worker, set()).add(video)

    def num_assigned(self, worker: int) -> int:
        """Return how many videos a worker has that it has not computed."""
        return len(self._assigned.get(worker, {}))

    def has(self, worker: int, video: int) -> bool:
        """Return whether a worker has a video that it has not computed."""
        return video in self._assigned.get(worker, {})

    def hold(self, worker: int, video: int) -> bool:
        """Record that a video failed. It is assigned again only after ``defer``.

        Returns:
            False if another worker also has it and may succeed.
        """
        self._unassign(worker, video)
        return not self._copies.pop(video, set()) - {worker}

    def defer(self, video: int) -> None:
        """Assign a video once more, after all others."""
        self._return(self._deferred, video)

    def _return(self, queue: _Queue, video: int) -> None:
        """Assign a video again, unless its place was abandoned meanwhile."""
        if self.places[video] in self._abandoned:
            self.num_abandoned += not self._completed[video]
            self._complete(video, ABANDONED)
        else:
            queue.add(video)

    @property
    def num_in_hand(self) -> int:
        """Number of videos that workers have and have not computed."""
        return sum(map(len, self._assigned.values()))

    def untried(self, place: int) -> list[int]:
        """Return the videos of a place that wait to be assigned."""
        return self._new.of_place(place) + self._deferred.of_place(place)

    def abandon(self, place: int) -> int:
        """Assign no more videos of a place. Return the number of its unfinished videos that no worker has."""
        self._abandoned.add(place)
        held = {video for videos in self._assigned.values() for video in videos}
        held |= {video for videos in self._computed.values() for video in videos}
        left = [
            video
            for video in np.flatnonzero(self._place_numbers == place).tolist()
            if not self._completed[video] and video not in held
        ]
        for video in left:
            self._complete(video, ABANDONED)
        self.num_abandoned += len(left)
        return len(left)

    def mark_completed(self, worker: int, video: int) -> None:
        """Record that all of a video is on disk, or that it has failed."""
        self._drop_copies(worker, video)
        self._unassign(worker, video)
        self._computed.get(worker, set()).discard(video)
        self._ends.pop(video, None)
        self._complete(video)

    def _unassign(self, worker: int, video: int) -> None:
        self._assigned.get(worker, {}).pop(video, None)
        if self._isolated.get(worker) == video:
            del self._isolated[worker]

    def worker_ended(self, worker: int, *, blame_videos: bool = True) -> list[int]:
        """Give the videos of an ended worker back to the other workers, except videos on disk.

        Args:
            worker: The worker.
            blame_videos: True if one of its videos may have caused the end.

        Returns:
            Videos that are given up.
        """
        given_up = []
        isolated = self._isolated.pop(worker, None)
        assigned = self._assigned.pop(worker, {})
        self._superfluous.pop(worker, None)
        if isolated is not None and isolated not in assigned:
            self._return(self._suspects, isolated)
        for video in sorted(assigned):
            if self._completed[video]:
                continue
            if video in self._copies:
                del self._copies[video]  # another worker also has it
                continue
            self._ends[video] += blame_videos
            if self._ends[video] >= MAX_ENDS:
                given_up.append(video)
                self._complete(video)
            elif self._ends[video] >= ENDS_OF_A_SUSPECT:
                self._return(self._suspects, video)
            else:
                self._return(self._returned, video)
        for video in sorted(self._computed.pop(worker, ())):
            self._return(self._returned, video)
        return given_up

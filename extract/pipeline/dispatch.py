"""Assign videos to workers, and find the cause of failures: the video, its place, or the machine.

A place is a source of videos: a bucket, a server, or a folder. Several consecutive failures on one machine at one place
start a check: can this machine read a known good video from there? If yes, the failed videos are at fault. If not, the
machine gets no more videos of the place until a later check succeeds (a circuit breaker). A machine that cannot read
places that others can read is excluded. A place that no machine can read is given up after a while; its videos remain
for the next call.

This module does bookkeeping only: it uses neither Ray nor files, and takes the time from the
caller's clock.
"""

import math
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ...storage.common.errors import Unfinished
from ...storage.common.terminal import number_of, say
from ...storage.dataset.folder import DatasetFolder
from ...storage.dataset.trusted_folders import AllowedFolders
from ...storage.records import VideoRecord
from ..decoding.errors import NOT_OF_THE_VIDEO
from .failure_budget import FailureBudget
from .pending_work import Extraction, VideoTask, is_transient
from .scheduler import MAX_WAITING, VideoScheduler
from .shard_writing import VideoOutcome

MANY_FAILURES = 5
"""Number of consecutive failures that starts a check of their cause."""
CANDIDATES = 4
"""Number of videos that a check tries if no video of the place is known to be good."""
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 5.0, 60.0
"""Time between the checks of a place that cannot be read. It doubles with each check."""
CHECKS_OF_A_MACHINE = 3
"""A machine that fails this many checks at a place that others can read is excluded."""
PATIENCE_SECONDS = 300.0
"""A place that no machine can read for this long is given up for this call."""
SLOW_SECONDS = 60.0
"""An idle worker also gets a video that another worker has had for longer than this."""


@dataclass
class Check:
    """A request to a machine: try to read any of these videos."""

    machine: str
    place: int
    tasks: list[VideoTask]
    is_known_good: bool
    """True if the videos were read before: a failure is then not caused by them."""


@dataclass
class _Link:
    """The unexplained failures of one machine at one place."""

    failures: list[VideoOutcome] = field(default_factory=list)
    """Failures since the last success whose cause is unknown."""
    is_checked: bool = False
    """True while a check is under way."""
    problem: str = ""
    """Reason why the place cannot be read; empty if it can."""
    opened: float = 0.0
    """Time at which the place was found to be unreadable."""
    next_check: float = 0.0
    num_checks: int = 0

    @property
    def is_clear(self) -> bool:
        """True if there are no failures to explain, of the machine or of the place."""
        return not (self.failures or self.is_checked or self.problem)


class Dispatch:
    """Assigns videos to workers, and decides on the failed ones."""

    def __init__(
        self,
        extraction: Extraction,
        report: Callable[[VideoOutcome, str], None],
        *,
        in_order_of_size: bool = True,
        say: Callable[[str], None] = say,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with all videos unassigned.

        Args:
            extraction: What to extract.
            report: Called once with the final outcome of each video, and the machine.
            in_order_of_size: Start with the largest videos, else with the first. Videos that failed in an earlier call
                come last.
            say: Shows a message about a place or a machine.
            clock: Returns the time in seconds.
        """
        self.extraction, self._report, self._say, self._clock = extraction, report, say, clock
        self.tasks = extraction.tasks
        self.index = {task.video.video_id: number for number, task in enumerate(self.tasks)}
        self.place_names, places = places_of(extraction.settings.folder, [task.video for task in self.tasks])
        known = {video_id for failures in extraction.pending.failures.values() for video_id in failures}
        sizes = [task.size if in_order_of_size and task.video.video_id not in known else -1 for task in self.tasks]
        self.scheduler = VideoScheduler(sizes, places)
        self.budget = FailureBudget(extraction)
        self.excluded: dict[str, str] = {}
        """{machine: why it gets no more videos}"""
        self.given_up: dict[str, str] = {}
        """{place: why it cannot be read} of the places that were given up."""
        self._links: defaultdict[str, dict[int, _Link]] = defaultdict(dict)
        """{machine: {place: unexplained failures}}; few entries, even with many machines and places"""
        self._last_success: defaultdict[int, dict[str, float]] = defaultdict(dict)
        """{place: {machine: time at which it could read the place last}}"""
        self._good: dict[int, int] = {}
        """{place: a video that could be read}"""
        self._earlier: dict[int, list[VideoTask]] = {}
        """{place: some videos that earlier calls extracted}"""
        self._tried_twice: set[int] = set()
        self._started, self._times_given = clock(), dict[int, float]()
        self._is_listed = False
        self._random = random.Random(0)

    # Videos

    @property
    def is_done(self) -> bool:
        """True if no video is left to try."""
        return not self.scheduler.num_left

    def may_read(self, machine: str, place: int) -> bool:
        """Return whether a machine may be given videos of a place."""
        link = self._link(machine, place)
        is_open = link is not None and (link.problem or link.is_checked)
        return not (is_open or machine in self.excluded or self.place_names[place] in self.given_up)

    def _link(self, machine: str, place: int) -> _Link | None:
        return self._links[machine].get(place)

    def next(
        self, worker: int, machine: str, num_waiting: int = 0, *, max_waiting: int = MAX_WAITING, idle: bool = False
    ) -> tuple[list[VideoTask], int | None]:
        """Assign videos to a worker; see ``VideoScheduler.next``. The first call writes the data set's list of videos.

        Args:
            worker: The worker.
            machine: Its machine.
            num_waiting: Videos assigned to it and not begun.
            max_waiting: Maximum number of videos that wait at it.
            idle: True if it has no video. At the end, it may then also get a slow worker's video.
        """
        if not self._is_listed:  # the weights of the first worker are loaded, and fit the stores
            self.extraction.write_list()
            self._is_listed = True

        def may_read(place: int) -> bool:
            return self.may_read(machine, place)

        given, refill_at = self.scheduler.next(worker, num_waiting, may_read, max_waiting)
        now = self._clock()
        if not given and idle and not self._settle_all(machine):
            slow = self.scheduler.copy(worker, may_read, lambda video: now - self._given_at(video) > SLOW_SECONDS)
            given = [] if slow is None else [slow]
        self._times_given |= dict.fromkeys(given, now)
        return [self.tasks[number] for number in given], refill_at

    def _given_at(self, video: int) -> float:
        """Return the time when a video was assigned; for a video of an earlier call, the start of this one."""
        return self._times_given.get(video, self._started)

    def outcome(self, worker: int, machine: str, outcome: VideoOutcome) -> None:
        """Take the outcome of a video.

        Raises:
            TooManyFailures: More videos have failed than allowed.
        """
        number = self.index.get(outcome.video_id)
        if number is None or not self.scheduler.has(worker, number):  # of an earlier call, or another worker was faster
            return
        place = self.scheduler.places[number]
        if outcome.failure is None:
            self.scheduler.mark_computed(worker, number)
            self._succeeded(machine, place, number)
            self.finish(outcome, machine)
            return
        if not self.scheduler.hold(worker, number):
            return
        if self.place_names[place] in self.given_up:
            self.scheduler.defer(number)  # which leaves it with the others of its place
            return
        link = self._links[machine].setdefault(place, _Link())
        link.failures.append(outcome)
        if link.problem or self.excluded.get(machine):
            self._try_again(link)
        elif len(link.failures) >= MANY_FAILURES:
            link.next_check = min(link.next_check, self._clock())

    def _succeeded(self, machine: str, place: int, number: int | None) -> None:
        """Record that a machine can read a place: its earlier failures there are then the videos' own."""
        self._last_success[place][machine] = self._clock()
        if number is not None:
            self._good[place] = number
        link = self._link(machine, place)
        if link is None:
            return
        if link.problem:
            self._say(f"note: {self.place_names[place]} can be read again{_on(machine)}")
            link.problem, link.num_checks = "", 0
            self._try_again(link)
        else:
            self._settle(machine, link)

    def _settle(self, machine: str, link: _Link) -> None:
        failures, link.failures = link.failures, []
        own = []
        for outcome in failures:
            number = self.index[outcome.video_id]
            if _may_succeed(outcome) and number not in self._tried_twice:
                self._tried_twice.add(number)
                self.scheduler.defer(number)
            else:
                self.scheduler.mark_completed(-1, number)
                self._report(outcome, machine)
                own.append(outcome)
        for outcome in own:  # only now, because it may end the call
            self.budget.note(outcome)

    def _settle_all(self, machine: str) -> bool:
        """Resolve the few failures of an otherwise idle machine; return whether there were any."""
        few = [
            link
            for place, link in self._links[machine].items()
            if link.failures and not link.is_checked and not self._is_suspect(machine, place, link)
        ]
        for link in few:
            self._settle(machine, link)
        return bool(few)

    def _try_again(self, link: _Link) -> None:
        for outcome in link.failures:
            self.scheduler.defer(self.index[outcome.video_id])
        link.failures.clear()

    def finish(self, outcome: VideoOutcome, machine: str) -> None:
        """Take the final outcome of a video.

        Raises:
            TooManyFailures: More videos have failed than allowed.
        """
        self._report(outcome, machine)
        self.budget.note(outcome)

    def written(self, worker: int, video_ids: Sequence[str]) -> None:
        """Record that the features of videos are on disk."""
        for video_id in video_ids:
            if (number := self.index.get(video_id)) is not None:
                self.scheduler.mark_completed(worker, number)

    # Places and machines

    def due_checks(self, machines: Sequence[str]) -> list[Check]:
        """Return the checks to make now on some machines; ``checked`` takes the answers."""
        now, checks = self._clock(), []
        for machine in machines:
            unclear = {place: link for place, link in self._links[machine].items() if not link.is_clear}
            self._links[machine] = unclear
            for place, link in unclear.items():
                if self._is_suspect(machine, place, link) and not link.is_checked and now >= link.next_check:
                    link.is_checked = True
                    checks.append(self._check(machine, place, link))
        return checks

    def _is_suspect(self, machine: str, place: int, link: _Link) -> bool:
        """Return whether a check must find the cause: there are many failures, or only other machines can read the
        place.
        """
        readers = self._last_success[place]
        is_only_here = bool(readers) and machine not in readers and any(map(_may_succeed, link.failures))
        return bool(link.problem) or len(link.failures) >= MANY_FAILURES or is_only_here

    def _check(self, machine: str, place: int, link: _Link) -> Check:
        if place in self._good:
            return Check(machine, place, [self.tasks[self._good[place]]], True)
        if good := self._extracted_before(place):
            return Check(machine, place, good, True)
        others = self.scheduler.untried(place)
        numbers = self._random.sample(others, min(CANDIDATES, len(others)))
        numbers += [self.index[outcome.video_id] for outcome in link.failures[-1:]]
        return Check(machine, place, [self.tasks[number] for number in numbers], False)

    def _extracted_before(self, place: int) -> list[VideoTask]:
        """Return some videos of a place that an earlier call has extracted."""
        if place not in self._earlier:
            settings, failures = self.extraction.settings, self.extraction.pending.failures
            failed = {video_id for its in failures.values() for video_id in its}
            known = [v for v in self.extraction.videos if v.video_id not in self.index and v.video_id not in failed]
            names, places = places_of(settings.folder, known)
            by_name: defaultdict[str, list[VideoRecord]] = defaultdict(list)
            for video, its_place in zip(known, places, strict=True):
                by_name[names[its_place]].append(video)
            for mine, name in enumerate(self.place_names):
                there = by_name[name]
                chosen = self._random.sample(there, min(CANDIDATES, len(there)))
                self._earlier[mine] = [VideoTask(video, settings.store_names) for video in chosen]
        return self._earlier[place]

    def checked(self, check: Check, readable: str, problem: str) -> None:
        """Process the answer to a check.

        Args:
            check: The check.
            readable: Id of a readable video; empty if there is none.
            problem: Reason if there is none; empty if the place can be read.
        """
        machine, place, now = check.machine, check.place, self._clock()
        link = self._links[machine].setdefault(place, _Link())
        link.is_checked = False
        if not problem:
            self._succeeded(machine, place, self.index.get(readable))
            return
        if not check.is_known_good and any(map(_was_read, link.failures)):
            self._settle(machine, link)
            return
        if not check.is_known_good:
            undecided = [outcome for outcome in link.failures if _may_succeed(outcome)]
            link.failures = [outcome for outcome in link.failures if not _may_succeed(outcome)]
            self._settle(machine, link)
            link.failures = undecided
            if not undecided and not link.problem:
                return
        if not link.problem:
            link.opened, link.num_checks = now, 0
            self._say(
                f"note: {self.place_names[place]} cannot be read{_on(machine)} ({problem}); its videos wait; it "
                f"is tried again for {_minutes(PATIENCE_SECONDS)}, or until all other videos are done"
            )
        link.problem, link.num_checks = problem, link.num_checks + 1
        link.next_check = now + min(FIRST_PAUSE_SECONDS * 2 ** min(link.num_checks - 1, 10), MAX_PAUSE_SECONDS)
        self._try_again(link)
        others = [at for other, at in self._last_success[place].items() if other != machine]
        can_others = any(at >= link.opened for at in others)
        is_useful = any(its.get(machine, -math.inf) >= link.opened for its in self._last_success.values())
        if link.num_checks >= CHECKS_OF_A_MACHINE and can_others and not is_useful:
            self.exclude(machine, f"{self.place_names[place]}: {problem}; other machines can read it")

    def cancel_check(self, check: Check) -> None:
        """Record that a check was not made."""
        if link := self._link(check.machine, check.place):
            link.is_checked = False

    def return_failures(self, machine: str) -> None:
        """Return videos with unexplained failures to the other machines, because this machine ends."""
        for link in self._links[machine].values():
            self._try_again(link)

    def exclude(self, machine: str, reason: str) -> None:
        """Give a machine no more videos."""
        if machine not in self.excluded:
            self.excluded[machine] = reason
            self._say(f"warning: machine {machine} is no longer used: {reason}; its videos go to other machines")

    def give_up_places(self, machines: Sequence[str]) -> None:
        """Give up places that no machine has been able to read for long, once no other video is left."""
        now = self._clock()
        if self.scheduler.num_in_hand:
            return
        used = [self._links[machine] for machine in machines if machine not in self.excluded]
        for place in [place for place, link in used[0].items() if link.problem] if used else []:
            broken = [link for links in used if (link := links.get(place)) and link.problem]
            if len(broken) == len(used) and now - max(its.opened for its in broken) > PATIENCE_SECONDS:
                name, problem = self.place_names[place], broken[-1].problem
                self.given_up[name] = problem
                num_videos = number_of(self.scheduler.abandon(place), "videos")
                self._say(
                    f"warning: {name} could not be read for {_minutes(now - broken[-1].opened)} ({problem}); given "
                    f"up for this call, with {num_videos}"
                )
                for link in broken:
                    link.problem = ""

    def problems(self) -> list[str]:
        """Return a line for each place that cannot be read now, or was given up."""
        lines = [f"{name} was given up: {problem}" for name, problem in self.given_up.items()]
        for machine, links in self._links.items():
            for place, link in links.items():
                if link.problem and machine not in self.excluded:
                    lines.append(f"{self.place_names[place]} cannot be read{_on(machine)}: {link.problem}")
        return lines

    def raise_if_left(self) -> None:
        """Raise ``Unfinished`` if videos were left because their place could not be read."""
        if self.given_up:
            whys = "; ".join(f"{place}: {problem}" for place, problem in self.given_up.items())
            raise Unfinished(
                f"{whys}; {number_of(self.scheduler.num_abandoned, 'videos')} are left, which do not count as failed; "
                "run the same command again once it can be read"
            )


def places_of(dataset: DatasetFolder, videos: Sequence[VideoRecord]) -> tuple[list[str], list[int]]:
    """Return the names of all places, and the number of each video's place.

    The place of an address is its server or bucket. The place of a file is the allowed folder that contains it, or else
    the common folder of all other files.
    """
    named = [str(dataset.path.absolute()), *AllowedFolders.named(dataset).folders]
    prefixes = [folder.rstrip("/") + "/" for folder in sorted(named, key=len, reverse=True)]
    names = [
        _server_of(video.url) if video.url else _folder_of(dataset.video_file(video), prefixes) for video in videos
    ]
    if others := {name for name in names if "://" not in name and f"{name}/" not in prefixes}:
        common = os.path.commonpath(list(others))
        names = [common if name in others else name for name in names]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return list(numbers), [numbers[name] for name in names]


def _was_read(outcome: VideoOutcome) -> bool:
    """Return whether a file was read and found wanting."""
    return outcome.failure is not None and outcome.failure.kind not in NOT_OF_THE_VIDEO


def _may_succeed(outcome: VideoOutcome) -> bool:
    return outcome.failure is not None and is_transient(outcome.failure)


def _minutes(seconds: float) -> str:
    return number_of(round(seconds / 60), "minutes")


def _on(machine: str) -> str:
    return f" on machine {machine}" if machine else ""


def _server_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _folder_of(file: str, prefixes: Sequence[str]) -> str:
    return next((prefix for prefix in prefixes if file.startswith(prefix)), os.path.dirname(file)).rstrip("/") or "/"

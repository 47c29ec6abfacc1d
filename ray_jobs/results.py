"""The results of an extraction by video and machine, and the rate at which they come.

This is bookkeeping only, without Ray, files or a clock of its own. Videos are numbers. A video has one result, the
latest: it counts once, even after losses, restarts and retries.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..extract.pipeline.run_state import SHOWN_REASONS, FailureReason
from ..extract.pipeline.shard_writing import VideoOutcome
from ..storage.records import Failure

RATE_SECONDS = 300.0
"""Time over which the rate is computed."""
MIN_RESULTS = 2
"""With fewer results in that time, nothing is estimated."""
MIN_ERROR = 0.05
"""Minimum relative error of the rate."""
NONE, WHOLE, PARTIAL, FAILED = range(4)
"""Results of a video. A video is partial if it is damaged or lacks some of the features."""


class Results:
    """The latest result of each video, and the machine that it came from."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """Begin without results.

        Args:
            sizes: Size of each video in bytes; 0 if it is not known: the mean size is then used.
        """
        known = np.asarray(sizes, np.float64)
        mean = known[known > 0].mean() if (known > 0).any() else 1.0
        self.work = np.where(known > 0, known, mean)
        """Cost of each video, in bytes; 1 for each if no size is known."""
        self.kind = np.zeros(len(known), np.uint8)
        self.seconds, self.rows, self.bytes = np.zeros(len(known)), *np.zeros((2, len(known)), np.int64)
        self.machine = np.zeros(len(known), np.int32)
        """Index in ``machines``."""
        self.machines: list[str] = []
        self._indices: dict[str, int] = {}
        self._failures: dict[int, list[Failure]] = {}
        self._by_kind: Counter[tuple[str, int]] = Counter()
        """Number of videos, by kind of failure and machine."""
        self._examples: dict[str, Failure] = {}
        """The latest failure of each kind."""

    def machine_index(self, name: str) -> int:
        """Return the index of a machine, which is added if it is new."""
        if name not in self._indices:
            self._indices[name] = len(self.machines)
            self.machines.append(name)
        return self._indices[name]

    def record(self, number: int, outcome: VideoOutcome, machine: str) -> None:
        """Record the result of a video, which replaces any earlier one."""
        self._count_failures(number, -1)
        failures = [outcome.failure] if outcome.failure else list(outcome.failures.values())
        self.machine[number] = self.machine_index(machine)
        self._failures.pop(number, None)
        if failures:
            self._failures[number] = failures
            self._examples |= {failure.kind: failure for failure in failures}
        self._count_failures(number, 1)
        self.kind[number] = FAILED if outcome.failure else PARTIAL if outcome.partial or failures else WHOLE
        self.seconds[number], self.rows[number], self.bytes[number] = (
            (0, 0, 0) if outcome.failure else (outcome.seconds, outcome.num_rows, outcome.num_bytes)
        )

    def _count_failures(self, number: int, change: int) -> None:
        for kind in {failure.kind for failure in self._failures.get(number, ())}:
            self._by_kind[kind, int(self.machine[number])] += change

    def by_machine(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of values [num_videos], or how many are True, over the videos of each machine."""
        if values.dtype == bool:
            return np.bincount(self.machine[values], minlength=len(self.machines))
        return np.bincount(self.machine, values, minlength=len(self.machines))

    def failures(self) -> dict[str, int]:
        """Return the number of videos by kind of failure."""
        found: Counter[str] = Counter()
        for (kind, _), count in self._by_kind.items():
            found[kind] += count
        return {kind: count for kind, count in found.most_common() if count}

    def failures_by_machine(self) -> dict[int, dict[str, int]]:
        """Return ``failures`` of each machine that has any, by its index."""
        found: defaultdict[int, dict[str, int]] = defaultdict(dict)
        for (kind, machine), count in self._by_kind.most_common():
            if count:
                found[machine][kind] = count
        return dict(found)

    def reasons(self) -> tuple[FailureReason, ...]:
        """Return the commonest kinds of failure, each with an example and its machines."""
        found = []
        for kind, count in list(self.failures().items())[:SHOWN_REASONS]:
            example = self._examples[kind]
            where = Counter(
                {self.machines[m]: n for (its_kind, m), n in self._by_kind.items() if its_kind == kind and n}
            )
            found.append(
                FailureReason(
                    kind=kind,
                    count=count,
                    video_id=example.video_id,
                    message=" ".join(example.message.split())[:300],
                    machines=dict(where.most_common()),
                )
            )
        return tuple(found)


@dataclass(frozen=True)
class Sample:
    """The figures at one time."""

    seconds: float
    """The time, by any clock that never goes back."""
    num_results: int
    work: float
    video_seconds: float
    by_machine: np.ndarray
    """Number of results of each machine."""

    @classmethod
    def of(cls, results: Results, seconds: float) -> "Sample":
        """Take a sample now."""
        has_result = results.kind != NONE
        return cls(
            seconds,
            int(has_result.sum()),
            float(results.work @ has_result),
            float(results.seconds.sum()),
            results.by_machine(has_result),
        )


@dataclass(frozen=True)
class Rate:
    """The rate between two samples."""

    num_results: int
    videos_per_second: float
    work_per_second: float
    playback_speed: float
    """Seconds of video in a second."""
    by_machine: np.ndarray
    """Videos in a second, of each machine."""

    def seconds_left(self, work_left: float) -> tuple[int, int, int] | None:
        """Return the shortest, the expected and the longest time that work takes, in seconds; None if it is not known.

        n results have a relative error of 1/sqrt(n), as if they came at random.
        """
        if not work_left:
            return 0, 0, 0
        if self.num_results < MIN_RESULTS:
            return None
        error = max(1 / math.sqrt(self.num_results), MIN_ERROR)
        expected = work_left / self.work_per_second
        return round(expected / (1 + error)), round(expected), round(expected / (1 - error))


class Rates:
    """Samples of the last minutes, and the first one."""

    def __init__(self, first: Sample) -> None:
        """Begin with the first sample."""
        self.first = first
        self._samples = deque([first])

    def add(self, sample: Sample) -> None:
        """Add a sample, and drop samples that are too old."""
        self._samples.append(sample)
        while len(self._samples) > 2 and self._samples[1].seconds <= sample.seconds - RATE_SECONDS:
            self._samples.popleft()

    def recent(self) -> Rate | None:
        """Return the rate of the last five minutes; None before the first result."""
        return rate_between(self._samples[0], self._samples[-1])

    def overall(self) -> Rate | None:
        """Return the rate since the first sample; None before the first result."""
        return rate_between(self.first, self._samples[-1])


def rate_between(first: Sample, last: Sample) -> Rate | None:
    """Return the rate between two samples; None if no time is between them, or there are no results yet."""
    seconds = last.seconds - first.seconds
    if seconds <= 0 or not last.num_results:
        return None
    before = np.zeros_like(last.by_machine)
    before[: len(first.by_machine)] = first.by_machine
    num_results = last.num_results - first.num_results
    return Rate(
        num_results,
        num_results / seconds,
        (last.work - first.work) / seconds,
        max(last.video_seconds - first.video_seconds, 0.0) / seconds,
        np.maximum(last.by_machine - before, 0) / seconds,
    )

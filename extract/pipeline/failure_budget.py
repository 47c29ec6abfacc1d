"""The number of videos that may fail before an extraction stops."""

from collections import defaultdict
from dataclasses import dataclass

from ...storage.common.errors import Unfinished
from ...storage.common.terminal import number_of
from ..settings import parse_max_failures
from .pending_work import Extraction, is_transient
from .shard_writing import VideoOutcome

MIN_FAILURES = 50
"""Minimum number of failed videos before a limit on their share stops the run: a share of fewer is too uncertain."""
NUM_REASONS = 5


@dataclass
class _Reason:
    """The failures of one kind."""

    count: int = 0
    example: str = ""


class FailureBudget:
    """Counts failures and stops the run when there are too many."""

    def __init__(self, extraction: Extraction) -> None:
        """Begin without failures."""
        self._accepts = extraction.settings.accepts
        self._limit = extraction.settings.max_failures
        self._share, self._number = parse_max_failures(self._limit)
        pending = extraction.pending
        self._known = {video_id for failures in pending.failures.values() for video_id in failures}
        """Videos that failed in an earlier call. They are not counted again."""
        self.num_tried = self.num_failed = 0
        self.reasons: defaultdict[str, _Reason] = defaultdict(_Reason)

    def note(self, outcome: VideoOutcome) -> None:
        """Count a video.

        Raises:
            TooManyFailures: More videos have failed than allowed.
        """
        if outcome.video_id in self._known:
            return
        self.num_tried += 1
        if outcome.failure is None or self._accepts(outcome.failure.kind, transient=is_transient(outcome.failure)):
            return
        self.num_failed += 1
        reason = self.reasons[outcome.failure.kind]
        reason.count += 1
        reason.example = reason.example or f"{outcome.path}: {outcome.failure.message}"
        if self._number is not None:
            exceeded = self.num_failed > self._number
        else:
            exceeded = self.num_failed >= MIN_FAILURES and self.num_failed > self._share * self.num_tried
        if exceeded:
            raise TooManyFailures(
                f"{number_of(self.num_failed, 'videos')} of {self.num_tried:,} failed, more than --max-failures "
                f"{self._limit} allows; fix the cause and run the same command again, or raise --max-failures",
                self.commonest(),
            )

    def commonest(self) -> list[str]:
        """Return the commonest reasons of failures: kind, number, and an example."""
        return [
            f"{kind}: {number_of(reason.count, 'videos')}, such as {reason.example}"
            for kind, reason in sorted(self.reasons.items(), key=lambda item: -item[1].count)[:NUM_REASONS]
        ]


class TooManyFailures(Unfinished):
    """More videos have failed than allowed."""

    def __init__(self, message: str, reasons: list[str]) -> None:
        super().__init__(message)
        self.reasons = reasons

"""Give the videos of an extraction to processes of this machine on request, and collect their final outcomes."""

import threading
from collections.abc import Iterator

from ...storage.common.progress import progress
from ...storage.common.signals import report_saved_work, uninterrupted
from ...storage.common.terminal import say
from ..settings import WorkerSettings
from .canary import first_readable
from .dispatch import Check, Dispatch
from .failure_budget import TooManyFailures
from .pending_work import Extraction, VideoTask
from .shard_writing import ShardsWritten, VideoOutcome, report_outcome
from .video_jobs import END, ClosableIterator, End

THIS = ""
"""Name of this machine: empty, since messages need not name it."""


class LocalTasks:
    """Hands out videos and collects their outcomes. All processes of this machine count as one worker."""

    def __init__(self, extraction: Extraction, worker: WorkerSettings) -> None:
        """Start with all videos of an extraction.

        Args:
            extraction: The extraction.
            worker: Settings of a process, used for checks of readability.
        """
        self._final: list[VideoOutcome] = []
        self._worker = worker
        self._checks: list[_CheckThread] = []
        self.dispatch = Dispatch(extraction, lambda outcome, _: self._final.append(outcome), in_order_of_size=False)

    def __iter__(self) -> Iterator[VideoTask | None]:
        """Yield each video, and None when the next one must wait for other videos or for a place."""
        while (task := self.next()) is not END:
            yield task

    def next(self) -> VideoTask | End | None:
        """Return the next video, None if there is none at the moment, or ``END``."""
        for thread in [thread for thread in self._checks if not thread.is_alive()]:
            self._checks.remove(thread)
            if thread.error is not None:
                raise thread.error
            self.dispatch.checked(thread.check, *thread.answer)
        for check in self.dispatch.due_checks([THIS]):
            self._checks.append(_CheckThread(self._worker, check))
            self._checks[-1].start()
        self.dispatch.give_up_places([THIS])
        if self.dispatch.is_done:
            return END
        given, _ = self.dispatch.next(0, THIS, max_waiting=1, idle=not self.dispatch.scheduler.num_assigned(0))
        return given[0] if given else None

    def take(self, outcome: VideoOutcome) -> list[VideoOutcome]:
        """Record the outcome of a video; return the outcomes that are final now.

        Raises:
            TooManyFailures: More videos have failed than allowed.
        """
        self.dispatch.outcome(0, THIS, outcome)
        if outcome.failure is None:
            self.dispatch.written(0, [outcome.video_id])  # it will be written, whatever ends the run
        return self.final()

    def final(self) -> list[VideoOutcome]:
        """Return the outcomes that became final since the last call."""
        final, self._final[:] = list(self._final), []
        return final


def record_outcomes(
    events: ClosableIterator[VideoOutcome | ShardsWritten], extraction: Extraction, tasks: LocalTasks
) -> None:
    """Carry out an extraction and show its progress. A video that fails is recorded, and the others continue.

    Args:
        events: Events of ``extract_into_stores``.
        extraction: Receives the failures and problems.
        tasks: Its videos.
    """
    pending = extraction.pending

    def outcomes() -> Iterator[VideoOutcome]:
        try:
            for event in events:
                if isinstance(event, ShardsWritten):
                    pending.write_failures()
                else:
                    yield from tasks.take(event)
        except TooManyFailures as stop:
            yield from tasks.final()
            for reason in stop.reasons:
                say(f"failures: {reason}")
            raise
        yield from tasks.final()

    num_made = 0
    with report_saved_work(lambda: f"{num_made:,} videos of this call are kept" if num_made else ""):
        try:
            for outcome in progress(outcomes(), total=len(extraction.tasks), what="extracting", unit="videos"):
                num_made += outcome.failure is None
                report_outcome(outcome, extraction)
        finally:
            with uninterrupted():
                events.close()
                pending.write_failures()


class _CheckThread(threading.Thread):
    """Makes a check, in a daemon thread: a disk that does not answer must not keep the process from ending."""

    def __init__(self, worker: WorkerSettings, check: Check) -> None:
        super().__init__(daemon=True)
        self.check, self._worker = check, worker
        self.answer = ("", "")
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.answer = first_readable(self._worker, self.check.tasks, are_good=self.check.is_known_good)
        except Exception as error:  # a fault of ours, which ends the call
            self.error = error

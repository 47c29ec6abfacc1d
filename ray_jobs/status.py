"""The state of a cluster extraction: table on a terminal, log file, page, and metrics for Prometheus."""

import json
import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from ..extract.pipeline.run_state import MachineState, RunState, machine_table, reason_lines, table
from ..extract.pipeline.scheduler import VideoScheduler
from ..extract.pipeline.shard_writing import VideoOutcome
from ..storage.common.progress import LOG_EVERY_SECONDS, Listener, Progress
from ..storage.common.terminal import escape_controls, messages_are_shown, number_of, say
from ..storage.common.writing import errors_naming, make_folder, open_to_write
from .metrics import Metrics
from .results import FAILED, NONE, PARTIAL, Rates, Results, Sample
from .run_page import RunPage
from .worker import WorkerReport

MAX_SHOWN_MACHINES = 16
"""Machines in the table on a terminal, which must fit into it."""


class Status:
    """Counts the workers' reports and displays them."""

    def __init__(
        self,
        scheduler: VideoScheduler,
        sizes: Sequence[int],
        log: Path,
        *,
        call: Mapping[str, str],
        on_progress: Listener | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without results.

        Args:
            scheduler: Knows which videos are done.
            sizes: Size of each video's file in bytes, 0 if it is not known. The time left is estimated from it.
            log: File for the JSON lines, ``<dataset>/jobs/NAME.jsonl``. A page for browsers is written beside it.
            call: Options of the call, and where its driver runs, to be shown.
            on_progress: Called with the progress whenever it is shown.
            clock: Returns the time in seconds.
        """
        self._scheduler, self._clock, self._on_progress = scheduler, clock, on_progress
        self.log, self._call = log, dict(call)
        self.results = Results(sizes)
        self.num_ended = 0
        self.started = clock()
        self._rates = Rates(Sample.of(self.results, self.started))
        self._times: dict[int, tuple[str, float, float]] = {}
        """For each worker, its machine, its seconds of computing and its age."""
        self.problems: Sequence[str] = ()
        """Value of ``RunState.problems``."""
        self._states: dict[str, tuple[str, str]] = {}
        """{machine: (state, reason)} of machines that do not simply work."""
        self._logged = -LOG_EVERY_SECONDS
        self._num_lines = 0
        self._writer = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None
        self._metrics = Metrics(log.parent.parent.name)
        self._page = RunPage(log.with_suffix(".html"), log.parent.parent.name)
        make_folder(log.parent)

    def outcome(self, number: int, outcome: VideoOutcome, machine: str) -> None:
        """Count a video that is computed or has failed. A later outcome of the same video replaces the earlier one.

        Args:
            number: Number of the video in ``sizes``.
            outcome: The video's outcome.
            machine: Name of the machine that tried it.
        """
        self.results.record(number, outcome, machine)

    def note_times(self, worker: int, report: WorkerReport, machine: str) -> None:
        """Note how long a worker has computed, and its machine."""
        self.results.machine_index(machine)
        self._times[worker] = machine, report.compute_seconds, report.seconds

    def note_machine(self, machine: str, state: str, reason: str = "") -> None:
        """Record that a machine is in another state than working.

        Args:
            machine: Its name.
            state: The state, such as "draining" or "not used"; "" if it is working again.
            reason: Why, in a few words.
        """
        self.results.machine_index(machine)
        self._states[machine] = state, reason
        if not state:
            del self._states[machine]

    @property
    def num_on_disk(self) -> int:
        """Number of this call's videos that have features on disk."""
        return int((self._scheduler.completed & (self.results.kind != FAILED)).sum())

    def state(self, workers: Collection[int] = (), *, whole_call: bool = False) -> RunState:
        """Return the state now.

        Args:
            workers: Numbers of the workers that are running.
            whole_call: Give the rate of the whole call, not of the last five minutes.
        """
        now, results, done = self._clock(), self.results, self._scheduler.completed
        self._rates.add(Sample.of(results, now))
        rate = self._rates.overall() if whole_call else self._rates.recent()
        left = rate.seconds_left(float(results.work @ ~done)) if rate else None
        total = sum(age for _, _, age in self._times.values())
        return RunState(
            time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            seconds=round(now - self.started, 1),
            videos=int(done.sum()),
            videos_left=self._scheduler.num_left + self._scheduler.num_abandoned,
            hours=round(float(results.seconds.sum()) / 3600, 3),
            rows=int(results.rows.sum()),
            bytes=int(results.bytes.sum()),
            partial=int((done & (results.kind == PARTIAL)).sum()),
            failed=int((done & (results.kind == FAILED)).sum()),
            computed=self._scheduler.num_computed,
            failures=results.failures(),
            ended_workers=self.num_ended,
            workers=len(workers),
            worker_hours=round(total / 3600, 3),
            compute_share=round(_compute_share(self._times.values()), 3),
            seconds_left=left[1] if left else None,
            seconds_left_range=(left[0], left[2]) if left else None,
            videos_per_second=round(rate.videos_per_second, 4) if rate else None,
            playback_speed=round(rate.playback_speed, 2) if rate else None,
            machines=self._machines(workers, rate.by_machine if rate else None),
            reasons=results.reasons(),
            call=self._call,
            problems=tuple(self.problems),
        )

    def _machines(self, workers: Collection[int], rates: np.ndarray | None) -> tuple[MachineState, ...]:
        """Return the state of each machine, by name."""
        results, done = self.results, self._scheduler.completed & (self.results.kind != NONE)
        videos, partial = results.by_machine(done), results.by_machine(done & (results.kind == PARTIAL))
        rows, seconds = results.by_machine(results.rows), results.by_machine(results.seconds)
        num_workers = Counter(self._times[worker][0] for worker in workers if worker in self._times)
        times: defaultdict[str, list[tuple[str, float, float]]] = defaultdict(list)
        for of_worker in self._times.values():
            times[of_worker[0]].append(of_worker)
        failures = results.failures_by_machine()
        found = []
        for index, name in enumerate(results.machines):
            state, reason = self._states.get(name, ("working" if num_workers[name] else "no workers", ""))
            found.append(
                MachineState(
                    name=name,
                    state=state,
                    reason=reason,
                    workers=num_workers[name],
                    videos=int(videos[index]),
                    partial=int(partial[index]),
                    rows=int(rows[index]),
                    hours=round(float(seconds[index]) / 3600, 3),
                    videos_per_second=None if rates is None else round(float(rates[index]), 4),
                    compute_share=round(_compute_share(times[name]), 3),
                    failures=failures.get(index, {}),
                )
            )
        return tuple(sorted(found, key=lambda machine: machine.name))

    def show(self, workers: Collection[int]) -> None:
        """Update the table and the metrics; from time to time, write a line to the log, and the page.

        A thread writes log and page, so that a slow disk does not stop the driver. The next call raises its errors.

        Args:
            workers: Numbers of the workers that are running.
        """
        state = self.state(workers)
        self._metrics.show(state)
        due = self._clock() - self._logged >= LOG_EVERY_SECONDS
        if due and (self._writing is None or self._writing.done()):
            self.finish_writing()
            self._logged = self._clock()
            self._writing = self._writer.submit(self._write, state)
        self._report(state, ended=False)
        if sys.stderr.isatty() and messages_are_shown():  # a program that calls the library gets no table
            width = shutil.get_terminal_size().columns - 1  # a longer line would take two, and stay
            lines = [escape_controls(line)[:width] for line in (*table(state), "", *_live_machines(state))]
            self._clear()
            sys.stderr.write("\n".join(lines) + "\n")
            self._num_lines = len(lines)
        elif due:
            say(_line(state))

    def finish_writing(self) -> None:
        """Wait until the displayed figures are in the log. Raises ``OSError`` if it could not be written."""
        if self._writing is not None:
            self._writing.result()

    def say(self, message: str) -> None:
        """Print a message above the table."""
        self._clear()
        say(message)

    def summary(self) -> list[str]:
        """Write the log's last line and the page; return the final lines for the terminal, which replace the table.

        If the call ended early, ``problems`` contains the reasons.
        """
        self._clear()
        self.finish_writing()
        state = replace(self.state(whole_call=True), finished=True)
        self._write(state)
        self._report(state, ended=True)
        hours = state.hours / state.worker_hours if state.worker_hours else 0.0
        return [
            *table(state),
            f"{'cost':<16}{state.worker_hours:,.2f} worker hours, {hours:,.2f} hours of video in each",
            f"{'log':<16}{self.log}",
            f"{'page':<16}{self._page.path}",
            *(machine_table(state.machines) if len(state.machines) > 1 else []),
            *reason_lines(state.reasons),
        ]

    def _report(self, state: RunState, *, ended: bool) -> None:
        if self._on_progress is not None:
            self._on_progress(
                Progress(
                    what="extracting",
                    unit="videos",
                    done=state.videos,
                    total=state.total,
                    earlier=0,
                    seconds=state.seconds,
                    note=number_of(state.workers, "workers"),
                    ended=ended,
                )
            )

    def _clear(self) -> None:
        if self._num_lines:
            sys.stderr.write(f"\x1b[{self._num_lines}F\x1b[J")
            self._num_lines = 0

    def _write(self, state: RunState) -> None:
        with errors_naming(self.log), open_to_write(self.log, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(state)) + "\n")
        self._page.show(state)


def _compute_share(times: Collection[tuple[str, float, float]]) -> float:
    """Return the share of workers' time in which networks computed."""
    total = sum(age for _, _, age in times)
    return sum(computed for _, computed, _ in times) / total if total else 0.0


def _line(state: RunState) -> str:
    failed = f", {state.failed:,} failed" if state.failed else ""
    problems = "".join(f"; {problem}" for problem in state.problems)
    computed = f" ({state.computed:,} more not on disk yet)" if state.computed else ""
    workers = number_of(state.workers, "workers")
    return (
        f"extracting: {state.videos:,} of {state.total:,} videos{computed}{failed}, {workers} "
        f"computing {state.compute_share:.0%} of the time, {state.rate_text()}, {state.time_left_text()} left{problems}"
    )


def _live_machines(state: RunState) -> list[str]:
    """Return the table of machines for a terminal. Machines that fail or do not work are first."""
    ordered = sorted(state.machines, key=lambda each: (each.state == "working", -sum(each.failures.values())))
    more = len(ordered) - MAX_SHOWN_MACHINES
    lines = machine_table(ordered[:MAX_SHOWN_MACHINES])
    return [*lines, f"... and {more} more; --status shows all"] if more > 0 else lines

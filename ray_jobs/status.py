"""The state of an extraction on many machines: a table that is redrawn on a terminal, lines elsewhere, JSON lines in
a file, and metrics for Ray's dashboard."""

import json
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from ray.util.metrics import Gauge

from ..extract.pipeline.shard_writing import VideoOutcome
from ..storage.common.progress import LOG_EVERY_SECONDS, Listener, Progress
from ..storage.common.terminal import escape_controls, messages_are_shown, say
from ..storage.common.writing import errors_naming, make_folder, open_to_write
from .worker import WorkerReport

MEASURES = {
    "videos": "videos that are done, including failed ones",
    "videos_left": "videos that are not done, or whose features are not on disk yet",
    "hours": "hours of video in the extracted features",
    "rows": "rows of extracted features",
    "bytes": "bytes of extracted features",
    "failures": "videos that gave no features, or not all",
    "ended_workers": "workers that ended early",
    "workers": "workers that are running",
    "compute_share": "share of the workers' time in which networks computed",
}
"""Metrics in Ray's dashboard, by the name of a figure."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The state at one time: a line of the log."""

    time: str
    seconds: float
    videos: int
    videos_left: int
    hours: float
    rows: int
    bytes: int
    partial: int
    failures: dict[str, int]
    """By kind."""
    ended_workers: int
    workers: int
    worker_hours: float
    compute_share: float
    seconds_left: int | None
    """None until it can be estimated."""

    def rate(self) -> str:
        """Return the speed in words."""
        seconds = max(self.seconds, 1e-9)
        times = 3600 * self.hours / seconds
        return f"{self.videos / seconds:,.2f} videos/s, {times:,.1f} times as fast as they play"

    def time_left(self) -> str:
        """Return the time left in words."""
        return "?" if self.seconds_left is None else str(timedelta(seconds=self.seconds_left))


class Status:
    """Counts what workers report and shows it."""

    def __init__(self, num_videos: int, total_bytes: int, log: Path, on_progress: Listener | None = None) -> None:
        """Begin with nothing done.

        Args:
            num_videos: Videos to extract.
            total_bytes: Size of their files. The time left is estimated from it, because the largest videos come first.
            log: File for the JSON lines.
            on_progress: Called with the progress whenever it is shown.
        """
        self._on_progress = on_progress
        self.num_videos, self.total_bytes, self.log = num_videos, max(total_bytes, 1), log
        self.num_done = self.num_rows = self.num_bytes = self.bytes_read = self.num_partial = self.num_ended = 0
        self.seconds_of_video = 0.0
        self._counted: set[str] = set()
        self.failures: Counter[str] = Counter()
        self.started = time.monotonic()
        self._times: dict[int, tuple[float, float]] = {}
        """For each worker, its seconds of computing and its age."""
        self._logged = 0.0
        self._num_lines = 0
        self._gauges = {name: Gauge(f"vlalign_extract_{name}", meaning) for name, meaning in MEASURES.items()}
        make_folder(log.parent)

    def outcome(self, outcome: VideoOutcome, size: int) -> None:
        """Count a video of ``size`` bytes that is done or has failed.

        A video that is lost with its worker is extracted again, and only the first result counts.
        """
        if outcome.video_id in self._counted:
            return
        self._counted.add(outcome.video_id)
        self.num_done += 1
        self.bytes_read += size
        self.failures.update(failure.kind for failure in outcome.failures.values())
        if outcome.failure:
            self.failures[outcome.failure.kind] += 1
            return
        self.num_partial += bool(outcome.partial)
        self.seconds_of_video += outcome.seconds
        self.num_rows += outcome.num_rows
        self.num_bytes += outcome.num_bytes

    def note_times(self, worker: int, report: WorkerReport) -> None:
        """Note how long a worker has computed."""
        self._times[worker] = report.compute_seconds, report.seconds

    def figures(self, num_left: int, num_workers: int) -> Figures:
        """Return the state now."""
        seconds = time.monotonic() - self.started
        computed = sum(compute_seconds for compute_seconds, _ in self._times.values())
        total = sum(age for _, age in self._times.values())
        share_done = min(self.bytes_read / self.total_bytes, 1.0)  # files may have grown since they were listed
        return Figures(
            time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            seconds=round(seconds, 1),
            videos=self.num_done,
            videos_left=num_left,
            hours=round(self.seconds_of_video / 3600, 3),
            rows=self.num_rows,
            bytes=self.num_bytes,
            partial=self.num_partial,
            failures=dict(self.failures),
            ended_workers=self.num_ended,
            workers=num_workers,
            worker_hours=round(total / 3600, 3),
            compute_share=round(computed / total, 3) if total else 0.0,
            seconds_left=round(seconds * (1 - share_done) / share_done) if share_done else None,
        )

    def show(self, num_left: int, num_workers: int) -> None:
        """Update the table and the metrics; from time to time, write a line to the log."""
        figures = self.figures(num_left, num_workers)
        for name, gauge in self._gauges.items():
            value = getattr(figures, name)
            gauge.set(float(sum(value.values()) if isinstance(value, dict) else value))
        due = time.monotonic() - self._logged >= LOG_EVERY_SECONDS
        if due:
            self._logged = time.monotonic()
            self._write(figures)
        self._report(figures, ended=False)
        if sys.stderr.isatty() and messages_are_shown():  # a program that calls the library gets no table
            lines = self._table(figures)
            self._clear()
            sys.stderr.write("\n".join(map(escape_controls, lines)) + "\n")
            self._num_lines = len(lines)
        elif due:
            say(self._line(figures))

    def say(self, message: str) -> None:
        """Log a message, which stays above the table."""
        self._clear()
        say(message)

    def summary(self, num_left: int) -> list[str]:
        """Return lines for the end, which replace the table, and write the last line of the log."""
        self._clear()
        figures = self.figures(num_left, 0)
        self._write(figures, finished=True)
        self._report(figures, ended=True)
        hours = figures.hours / figures.worker_hours if figures.worker_hours else 0.0
        return [
            *self._table(figures),
            f"{'cost':<16}{figures.worker_hours:,.2f} worker hours, {hours:,.2f} hours of video in each",
            f"{'log':<16}{self.log}",
        ]

    def _report(self, figures: Figures, *, ended: bool) -> None:
        if self._on_progress is not None:
            self._on_progress(
                Progress(
                    what="extracting",
                    unit="videos",
                    done=figures.videos,
                    total=self.num_videos,
                    earlier=0,
                    seconds=figures.seconds,
                    note=f"{figures.workers} workers",
                    ended=ended,
                )
            )

    def _clear(self) -> None:
        if self._num_lines:
            sys.stderr.write(f"\x1b[{self._num_lines}F\x1b[J")
            self._num_lines = 0

    def _write(self, figures: Figures, *, finished: bool = False) -> None:
        line = asdict(figures) | ({"finished": True} if finished else {})
        with errors_naming(self.log), open_to_write(self.log, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _line(self, figures: Figures) -> str:
        failed = f", {sum(self.failures.values()):,} failed" if self.failures else ""
        return (
            f"extracting: {figures.videos:,} of {self.num_videos:,} videos{failed}, {figures.workers} workers "
            f"computing {figures.compute_share:.0%} of their time, {figures.rate()}, {figures.time_left()} left"
        )

    def _table(self, figures: Figures) -> list[str]:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in self.failures.most_common()) or "none"
        rows = {
            "videos": f"{figures.videos:,} of {self.num_videos:,}, {figures.partial:,} of them partial",
            "failures": kinds,
            "hours of video": f"{figures.hours:,.2f}",
            "rows": f"{figures.rows:,} ({figures.bytes / 1e6:,.1f} MB)",
            "workers": f"{figures.workers}, {figures.ended_workers} ended early",
            "computing": f"{figures.compute_share:.0%} of the workers' time",
            "rate": figures.rate(),
            "time left": figures.time_left(),
        }
        return [f"{name:<16}{value}" for name, value in rows.items()]

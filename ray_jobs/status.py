"""What is going on in a run over many machines: a table that is drawn anew on a terminal, lines elsewhere, JSON lines
in a file, and metrics for Ray's dashboard."""

import json
import sys
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from ray.util.metrics import Gauge

from ..extract.run import Outcome
from ..storage.common.progress import LOG_EVERY_SECONDS
from ..storage.common.terminal import harmless, say
from ..storage.files import errors_naming
from .worker import Answer

MEASURES = {
    "videos": "videos that are done, failed ones included",
    "videos_left": "videos that are not, or whose features are not on disk yet",
    "hours": "hours of video in the features made",
    "rows": "rows of features made",
    "bytes": "bytes of features made",
    "failures": "videos that gave no features, or not all",
    "ended_workers": "workers that ended before their time",
    "workers": "workers that are there",
    "compute_share": "the part of the workers' time in which networks computed",
}


class Status:
    """``total_bytes``: of the video files; time left is told by them, since the largest come first."""

    def __init__(self, num_videos: int, total_bytes: int, log: Path) -> None:
        self.num_videos, self.total_bytes, self.log = num_videos, max(total_bytes, 1), log
        self.num_done = self.num_rows = self.num_bytes = self.bytes_read = self.num_partial = self.num_ended = 0
        self.seconds_of_video = 0.0
        self.failures: Counter[str] = Counter()
        self.started = time.monotonic()
        self._answers: dict[int, tuple[float, float]] = {}
        self._logged = self._lines = 0
        self._gauges = {name: Gauge(f"vlalign_extract_{name}", told) for name, told in MEASURES.items()}
        log.parent.mkdir(parents=True, exist_ok=True)

    def outcome(self, outcome: Outcome, size: int) -> None:
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

    def answered(self, worker: int, answer: Answer) -> None:
        self._answers[worker] = answer.compute_seconds, answer.seconds

    def figures(self, num_left: int, num_workers: int) -> dict[str, Any]:
        seconds = time.monotonic() - self.started
        computed, there = (
            (sum(values) for values in zip(*self._answers.values(), strict=True)) if self._answers else (0.0, 0.0)
        )
        share_done = self.bytes_read / self.total_bytes
        return {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(seconds, 1),
            "videos": self.num_done,
            "videos_left": num_left,
            "hours": round(self.seconds_of_video / 3600, 3),
            "rows": self.num_rows,
            "bytes": self.num_bytes,
            "partial": self.num_partial,
            "failures": dict(self.failures),
            "ended_workers": self.num_ended,
            "workers": num_workers,
            "worker_hours": round(there / 3600, 3),
            "compute_share": round(computed / there, 3) if there else 0.0,
            "seconds_left": round(seconds * (1 - share_done) / share_done) if share_done else None,
        }

    def show(self, num_left: int, num_workers: int) -> None:
        figures = self.figures(num_left, num_workers)
        for name, gauge in self._gauges.items():
            value = figures[name]
            gauge.set(float(sum(value.values()) if isinstance(value, dict) else value))
        due = time.monotonic() - self._logged >= LOG_EVERY_SECONDS
        if due:
            self._logged = time.monotonic()
            self.write(figures)
        if sys.stderr.isatty():
            lines = self.table(figures)
            self._clear()
            sys.stderr.write("\n".join(map(harmless, lines)) + "\n")
            self._lines = len(lines)
        elif due:
            say(self.line(figures))

    def say(self, message: str) -> None:
        """A line that stays, above the table."""
        self._clear()
        say(message)

    def _clear(self) -> None:
        if self._lines:
            sys.stderr.write(f"\x1b[{self._lines}F\x1b[J")
            self._lines = 0

    def write(self, figures: dict[str, Any]) -> None:
        with errors_naming(self.log), self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(figures) + "\n")

    def line(self, figures: dict[str, Any]) -> str:
        rate, left = self._rate(figures), self._left(figures)
        failed = f", {sum(self.failures.values()):,} failed" if self.failures else ""
        return (
            f"extracting: {figures['videos']:,} of {self.num_videos:,} videos{failed}, "
            f"{figures['workers']} workers computing {figures['compute_share']:.0%} of their time, {rate}, {left} left"
        )

    def table(self, figures: dict[str, Any]) -> list[str]:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in self.failures.most_common()) or "none"
        rows = {
            "videos": f"{figures['videos']:,} of {self.num_videos:,}, {figures['partial']:,} of them partial",
            "failures": kinds,
            "hours of video": f"{figures['hours']:,.2f}",
            "rows": f"{figures['rows']:,} ({figures['bytes'] / 1e6:,.1f} MB)",
            "workers": f"{figures['workers']}, {figures['ended_workers']} ended before their time",
            "computing": f"{figures['compute_share']:.0%} of the workers' time",
            "rate": self._rate(figures),
            "time left": self._left(figures),
        }
        return [f"{name:<16}{value}" for name, value in rows.items()]

    @staticmethod
    def _rate(figures: dict[str, Any]) -> str:
        seconds = max(figures["seconds"], 1e-9)
        return f"{figures['videos'] / seconds:,.2f} videos/s, {3600 * figures['hours'] / seconds:,.1f} times as fast as they play"

    @staticmethod
    def _left(figures: dict[str, Any]) -> str:
        return "?" if figures["seconds_left"] is None else str(timedelta(seconds=figures["seconds_left"]))

    def summary(self, num_left: int) -> list[str]:
        """Lines for the end, in place of the table."""
        self._clear()
        figures = self.figures(num_left, 0)
        self.write(figures | {"finished": True})
        each = figures["hours"] / figures["worker_hours"] if figures["worker_hours"] else 0.0
        return [
            *self.table(figures),
            f"{'cost':<16}{figures['worker_hours']:,.2f} hours of workers, {each:,.2f} hours of video in each",
            f"{'log':<16}{self.log}",
        ]

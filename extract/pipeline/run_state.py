"""The state of an extraction on many machines: a line of its log, how it is read, and how it is shown.

The call may run elsewhere, or have ended: this module needs no cluster, only the log in the data set's folder.
"""

import json
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from ...storage.common.errors import UserError
from ...storage.common.files import check_regular
from ...storage.common.terminal import number_of
from ...storage.common.validation import is_number, is_text
from ...storage.dataset.folder import DatasetFolder
from .pending_work import PendingWork

SILENT_SECONDS = 60.0
"""A call without output for this long has ended. A running call writes a line every 15 seconds."""
LAST_BYTES = 1 << 22
"""Number of bytes read from the end of a log, enough for its last line."""
MAX_NUMBER = 1e18
SHOWN_REASONS = 5
LONG_HOURS = 48
"""Longer times are shown in days."""
MACHINE_COLUMNS = ("machine", "state", "workers", "videos", "rows", "hours", "videos/s", "networks", "failures")


@dataclass(frozen=True, kw_only=True)
class MachineState:
    """The work and the state of one machine."""

    name: str
    state: str
    """Such as "working" or "draining"."""
    reason: str = ""
    """Reason for the state; may be empty."""
    workers: int = 0
    videos: int = 0
    """Number of finished videos, including failed ones."""
    partial: int = 0
    rows: int = 0
    hours: float = 0.0
    """Hours of video."""
    videos_per_second: float | None = None
    """Speed over the last five minutes."""
    compute_share: float = 0.0
    """Share of its workers' time in which networks computed. In the rest they loaded, or waited for decoders."""
    failures: dict[str, int] = field(default_factory=dict)
    """By kind."""


@dataclass(frozen=True, kw_only=True)
class FailureReason:
    """A kind of failure, and a video that has it."""

    kind: str
    count: int
    video_id: str
    message: str
    machines: dict[str, int]
    """Number of videos by machine, largest first."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The state at one time: a line of the log. Each video counts once, regardless of retries."""

    time: str
    """In ISO format, by the clock of the driver's machine."""
    seconds: float
    """Since the call began."""
    videos: int
    """Videos that are done: on disk, or failed."""
    videos_left: int
    hours: float
    """Hours of video with extracted features."""
    rows: int
    bytes: int
    partial: int
    """Videos among ``videos`` that are damaged, or lack some of the features."""
    failures: dict[str, int]
    """By kind."""
    ended_workers: int
    workers: int
    worker_hours: float
    compute_share: float
    seconds_left: int | None
    """None until it can be estimated."""
    seconds_left_range: tuple[int, int] | None = None
    failed: int = 0
    """Videos among ``videos`` that gave no features."""
    computed: int = 0
    """Videos that are computed and not on disk yet."""
    videos_per_second: float | None = None
    """Speed over the last five minutes; in the last line, over the whole call. None if unknown."""
    playback_speed: float | None = None
    """Seconds of video extracted per second, over the same time."""
    machines: tuple[MachineState, ...] = ()
    reasons: tuple[FailureReason, ...] = ()
    """The most frequent kinds of failures, largest first."""
    call: dict[str, str] = field(default_factory=dict)
    """The options of the call, and where its driver runs."""
    problems: tuple[str, ...] = ()
    """A line for each place that cannot be read, and for the reason if the call ended early."""
    finished: bool = False
    """True for the last line of a call, even if videos are left."""

    @property
    def total(self) -> int:
        """Number of videos of the call."""
        return self.videos + self.videos_left

    @property
    def time_text(self) -> str:
        """The time for people, such as "2026-11-29 03:00:00 UTC"."""
        return self.time.replace("T", " ").replace("+00:00", " UTC")

    @property
    def share_done(self) -> float:
        """Share of the videos that are done, from 0 to 1."""
        return self.videos / self.total if self.total else 1.0

    def rate_text(self) -> str:
        """Return the rate in words."""
        if self.videos_per_second is None:
            return "?"
        speed = "" if self.playback_speed is None else f", {self.playback_speed:,.1f} times playback speed"
        return f"{self.videos_per_second:,.2f} videos/s{speed}"

    def time_left_text(self) -> str:
        """Return the time left in words, such as "1:40 to 2:10 h"; "?" if it is not known."""
        if not self.videos_left:
            return "none"
        if self.finished or self.problems:
            return "?"
        if self.seconds_left is None:
            return "?"
        low, high = self.seconds_left_range or (self.seconds_left, self.seconds_left)
        if high < 60:
            return "less than a minute"
        if low >= 3600 * LONG_HOURS:
            return f"{low / 86400:.1f} to {high / 86400:.1f} days"
        ends = low // 60, math.ceil(high / 60)
        if high < 3600:
            return f"{ends[0]} to {ends[1]} min"
        return " to ".join(f"{minutes // 60}:{minutes % 60:02d}" for minutes in ends) + " h"

    def videos_text(self) -> str:
        """Return in words how many videos are done: whole, partial and failed."""
        computed = f"; {self.computed:,} more computed, not on disk yet" if self.computed else ""
        percent = math.floor(100 * self.share_done)
        whole = self.videos - self.partial - self.failed
        kinds = f"{whole:,} whole, {self.partial:,} partial, {self.failed:,} failed"
        return f"{self.videos:,} of {self.total:,} ({percent} %): {kinds}{computed}"

    def kinds_text(self) -> str:
        """Return the failures by kind in words."""
        return kinds_text(self.failures) or "none"


def kinds_text(failures: Mapping[str, int]) -> str:
    """Return counts by kind as text, largest first."""
    ordered = sorted(failures.items(), key=lambda item: -item[1])
    return ", ".join(f"{kind} {count:,}" for kind, count in ordered)


# Text for terminals


def table(state: RunState) -> list[str]:
    """Return lines with all figures, except the figures of single machines."""
    rows = {
        "videos": state.videos_text(),
        "failures": state.kinds_text(),
        "hours of video": f"{state.hours:,.2f}",
        "rows": f"{state.rows:,} ({state.bytes / 1e6:,.1f} MB)",
        "workers": f"{state.workers} running, {state.ended_workers} ended early",
        "computing": f"{state.compute_share:.0%} of the workers' time",
        "rate": state.rate_text(),
        "time left": state.time_left_text(),
    }
    return [
        *(f"{name:<16}{value}" for name, value in rows.items()),
        *(f"problem{'':<9}{line}" for line in state.problems),
    ]


def machine_row(machine: MachineState) -> tuple[str, ...]:
    """Return the cells of a machine, one for each of ``MACHINE_COLUMNS``."""
    rate = "?" if machine.videos_per_second is None else f"{machine.videos_per_second:,.2f}"
    partial = f"partial {machine.partial:,}" if machine.partial else ""
    return (
        machine.name,
        f"{machine.state}: {machine.reason}" if machine.reason else machine.state,
        f"{machine.workers:,}",
        f"{machine.videos:,}",
        f"{machine.rows:,}",
        f"{machine.hours:,.2f}",
        rate,
        f"{machine.compute_share:.0%}",
        ", ".join(filter(None, (kinds_text(machine.failures), partial))) or "none",
    )


def machine_table(machines: Sequence[MachineState]) -> list[str]:
    """Return a table of machines as lines; no lines without machines."""
    rows = [MACHINE_COLUMNS, *map(machine_row, machines)] if machines else []
    widths = [max(len(row[column]) for row in rows) if rows else 0 for column in range(len(MACHINE_COLUMNS))]
    lefts = {0, 1, len(MACHINE_COLUMNS) - 1}
    return [
        "  ".join(
            cell.ljust(width) if column in lefts else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def reason_lines(reasons: Sequence[FailureReason]) -> list[str]:
    """Return a line for each of the commonest reasons of failure, with an example and the machines."""
    return [
        f"{reason.kind}: {number_of(reason.count, 'videos')} (on {kinds_text(reason.machines)}), such as "
        f"{reason.video_id!r}: {reason.message}"
        for reason in reasons[:SHOWN_REASONS]
    ]


def activity_text(state: RunState, now: datetime) -> str:
    """Return in words whether the call that wrote ``state`` is still running at ``now``."""
    then, again = datetime.fromisoformat(state.time), "run the same command again to continue"
    if state.finished:
        left = f"{number_of(state.videos_left, 'videos')} left; {again}" if state.videos_left else "nothing left"
        failed = f" and {number_of(state.failed, 'videos')} failed (see failures.jsonl)" if state.failed else ""
        return f"ended at {state.time_text} with {left}{failed}"
    age = (now - then).total_seconds()
    if age < -SILENT_SECONDS:
        return f"last heard of at {state.time_text}, which is later than now; compare the clocks of the machines"
    if age > SILENT_SECONDS:
        ago = timedelta(seconds=round(age))
        return f"not running any more: last heard of at {state.time_text}, {ago} ago, without an end; {again}"
    return f"running, last heard of {max(age, 0):.0f} s ago"


# The log


def last_log(dataset: DatasetFolder) -> Path | None:
    """Return the log of the last cluster call, if there was one. Log names contain the time."""
    return max((dataset.path / "jobs").glob("extract-*.jsonl"), default=None)


def read_last_state(path: Path) -> RunState:
    """Return the state in the last complete line of a log; the driver may be writing another line.

    Raises:
        UserError: No line has a valid state.
    """
    check_regular(path)
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - LAST_BYTES, 0))
        lines = file.read(LAST_BYTES).splitlines()
    problem = "it is empty"
    for line in reversed(lines):
        try:
            return parse_state(json.loads(line))
        except (ValueError, OverflowError, RecursionError) as error:
            problem = " ".join(str(error).split())[:200]
    raise UserError(f"{path}: no line has a valid state of an extraction ({problem}); remove it")


def parse_state(values: Any) -> RunState:
    """Return the state in a line of a log, of this or an earlier version. Raises ``ValueError`` for an invalid line."""
    if not isinstance(values, dict):
        raise ValueError(f"a {type(values).__name__}; expected an object")
    if "seconds_left_range" not in values and values.get("seconds"):  # a line of version 1.0
        values = values | {"videos_per_second": values.get("videos", 0) / values["seconds"]}
    state = _parse(RunState, values, "")
    if datetime.fromisoformat(state.time).tzinfo is None:
        raise ValueError(f"time {state.time!r}: expected one with its time zone")
    return state


def _parse(kind: Any, value: Any, where: str) -> Any:
    """Parse a JSON value as the type ``kind``. The value is untrusted."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else _parse(inner[0], value, where)
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, dict):
        hints = get_type_hints(kind)
        needed = [each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING]
        if missing := [name for name in needed if name not in value]:
            raise ValueError(f"{where or 'the line'} has no {missing[0]!r}")
        return kind(**{name: _parse(hint, value[name], name) for name, hint in hints.items() if name in value})
    if origin is tuple and isinstance(value, list):
        parts = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        if len(parts) == len(value):
            return tuple(_parse(part, each, where) for part, each in zip(parts, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return {_parse(str, key, where): _parse(inner[1], each, where) for key, each in value.items()}
    if (kind is str and is_text(value)) or (kind is bool and isinstance(value, bool)):
        return value
    if kind in (int, float) and isinstance(value, int | float) and is_number(value) and abs(value) < MAX_NUMBER:
        return kind(max(value, 0))  # version 1.0 wrote a negative time when files had grown
    raise ValueError(f"{where} is {json.dumps(value)[:60]}")


# The output of --status


def status_lines(dataset: DatasetFolder, now: datetime | None = None) -> list[str]:
    """Return the state of a data set's extraction as text.

    Without a log, which only a cluster writes, these lines list existing features and failures.

    Raises:
        UserError: There is no such data set, or its log has no state.
    """
    if not dataset.path.is_dir():
        raise UserError(f"{dataset.path}: no such data set; pass --dataset and --root of one that was extracted")
    log = last_log(dataset)
    if log is None:
        return _store_lines(dataset)
    state = read_last_state(log)
    options = ", ".join(f"{name} {value}" for name, value in state.call.items())
    machines, reasons = machine_table(state.machines), reason_lines(state.reasons)
    return [
        f"{dataset.path}: {activity_text(state, now or datetime.now(timezone.utc))}",
        *([f"{'call':<16}{options}"] if options else []),
        *table(state),
        f"{'log':<16}{log}",
        *(["", *machines] if machines else []),
        *(["", "commonest failures:", *reasons] if reasons else []),
    ]


def _store_lines(dataset: DatasetFolder) -> list[str]:
    names = sorted(folder.name for folder in dataset.features("").glob("*") if folder.is_dir())
    pending, num_videos = PendingWork(dataset, names), len(dataset.read_videos())
    lines = [f"{dataset.path}: {number_of(num_videos, 'videos')}; no log of a cluster in {dataset.path / 'jobs'}"]
    for name in names:
        store, failures = pending.stores.get(name), list(pending.failures[name].values())
        lines.append(f"{name}: {len(store) if store else 0:,} videos with features, {len(failures):,} failed")
        kinds: dict[str, int] = {}
        for failure in failures:
            kinds[failure.kind] = kinds.get(failure.kind, 0) + 1
        for kind, count in sorted(kinds.items(), key=lambda item: -item[1])[:SHOWN_REASONS]:
            example = next(failure for failure in failures if failure.kind == kind)
            lines.append(f"  {kind}: {number_of(count, 'videos')}, such as {example.video_id!r}: {example.message}")
    return lines

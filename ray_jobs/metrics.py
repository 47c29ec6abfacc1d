"""Metrics of an extraction for Prometheus, by way of Ray, which serves them with the prefix ``ray_``.

``ray_jobs/grafana.json`` is a dashboard of them.
"""

from collections.abc import Iterator, Mapping

from ray.util.metrics import Counter, Gauge

from ..extract.pipeline.run_state import RunState

PREFIX = "vlalign_extract_"
DATASET, MACHINE, KIND = ("dataset",), ("dataset", "machine"), ("dataset", "machine", "kind")
GAUGES = {
    "videos_done": ("videos that are on disk or failed", DATASET),
    "videos_left": ("videos that are neither on disk nor failed", DATASET),
    "videos_per_second": ("videos in a second, in the last five minutes", DATASET),
    "time_left_seconds": ("expected time until all videos are done", DATASET),
    "workers": ("running workers", MACHINE),
    "compute_ratio": ("share of the workers' time in which networks computed, from 0 to 1", MACHINE),
}
COUNTERS = {
    "videos_total": ("videos that were extracted or failed", MACHINE),
    "partial_videos_total": ("videos that are damaged, or lack some of the features", MACHINE),
    "rows_total": ("rows of extracted features", MACHINE),
    "video_seconds_total": ("length of the videos whose features were extracted", MACHINE),
    "failures_total": ("videos that gave no features, or not all", KIND),
    "ended_workers_total": ("workers that ended early", DATASET),
    "feature_bytes_total": ("bytes of extracted features", DATASET),
}
"""{name: (description, tags)}"""

Value = tuple[str, float, Mapping[str, str]]


class Metrics:
    """The metrics of one call."""

    def __init__(self, dataset: str) -> None:
        """Take the name of the data set, with which all metrics are tagged."""
        self._dataset = dataset
        self._gauges = {name: Gauge(PREFIX + name, words, tags) for name, (words, tags) in GAUGES.items()}
        self._counters = {name: Counter(PREFIX + name, words, tags) for name, (words, tags) in COUNTERS.items()}
        self._counted: dict[tuple[str, ...], float] = {}

    def show(self, state: RunState) -> None:
        """Show the state of the call."""
        for name, value, tags in _values(state):
            tags = {"dataset": self._dataset, **tags}
            if name in self._gauges:
                self._gauges[name].set(value, tags)
                continue
            key = (name, *tags.values())
            if (more := value - self._counted.get(key, 0.0)) > 0:
                self._counters[name].inc(more, tags)
                self._counted[key] = value


def _values(state: RunState) -> Iterator[Value]:
    """Yield each metric with its tags, without the data set."""
    yield "videos_done", state.videos, {}
    yield "videos_left", state.videos_left, {}
    yield "ended_workers_total", state.ended_workers, {}
    yield "feature_bytes_total", state.bytes, {}
    if state.videos_per_second is not None:
        yield "videos_per_second", state.videos_per_second, {}
    if state.seconds_left is not None:
        yield "time_left_seconds", state.seconds_left, {}
    for machine in state.machines:
        tags = {"machine": machine.name}
        yield "workers", machine.workers, tags
        yield "compute_ratio", machine.compute_share, tags
        yield "videos_total", machine.videos, tags
        yield "partial_videos_total", machine.partial, tags
        yield "rows_total", machine.rows, tags
        yield "video_seconds_total", 3600 * machine.hours, tags
        for kind, count in machine.failures.items():
            yield "failures_total", count, {**tags, "kind": kind}

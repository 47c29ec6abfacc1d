"""The result of a benchmark: metrics beside a random baseline, and notes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RANDOM = "random baseline"
"""Name of the random baseline in tables."""
MIN_COMPARABLE = 100
"""Minimum number of queries for a comparison. With fewer, a single query moves a metric by more than a point."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The result of a measurement."""

    what: str
    """Size of the benchmark, such as "12 of 12 queries in 3 videos"."""
    metrics: Mapping[str, Mapping[str, float]]
    """{row of the table, such as "search" or "random baseline": {metric: value}}"""
    rows: Sequence[Mapping[str, Any]]
    """For each query, the results and the right answers."""
    notes: Sequence[str]
    """Differences from the published protocol, and other limits of comparisons."""
    num_items: int
    """Number of evaluated queries with right answers."""


def metric_table(metrics: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield a table: a line for each metric, and a column for each row of ``Measured.metrics``."""
    names = list(dict.fromkeys(name for values in metrics.values() for name in values))
    width = max(map(len, names), default=0) + 2
    widths = [max(len(row) + 2, 14) for row in metrics]
    yield f"{'percent':<{width}}" + "".join(f"{row:>{w}}" for row, w in zip(metrics, widths, strict=True))
    for name in names:
        columns = zip(metrics.values(), widths, strict=True)
        cells = (f"{values[name]:>{w}.2f}" if name in values else " " * w for values, w in columns)
        yield f"{name:<{width}}" + "".join(cells)

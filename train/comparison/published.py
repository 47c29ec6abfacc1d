"""A paper's values for a run's settings, looked up among the rows of all suites."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..recipes.departures import Departure
from ..recipes.train_config import TrainConfig
from .run_metrics import RunMetrics
from .suite_files import Suite, all_suites, row_config

REQUEST = {"normalize": "none", "ties": "average", "rerank": None}
"""Parts of a request that must equal the row's, with their defaults."""


@dataclass(frozen=True)
class Published:
    """The values that a paper reports."""

    values: Mapping[str, float]
    """{metric: value}"""
    source: str
    """Paper, table and row."""
    departures: tuple[Departure, ...]
    """Departures of the row's table from the paper."""


def published_values(config: TrainConfig, metrics: RunMetrics | None) -> Published | None:
    """Return a paper's values for exactly these settings on this data set; None if no suite has such a row.

    If several rows have these settings, the first is used. The seed and the initial run's name are ignored; the paper's
    device and number of processes are not known.
    """
    return next(iter(published_rows(config, metrics)), None)


def published_rows(config: TrainConfig, metrics: RunMetrics | None) -> tuple[Published, ...]:
    """Return the values of all rows with exactly these settings on this data set."""
    if metrics is None or metrics.test.split != "test":
        return ()
    request = {name: metrics.request.get(name, default) for name, default in REQUEST.items()}
    return tuple(_rows().get(_key(config, metrics.test.dataset, request), ()))


def _key(config: TrainConfig, dataset: str, request: Mapping[str, Any]) -> str:
    settings = {n: v for n, v in config.flat().items() if n != "seed"} | {"init": bool(config.init)}
    return json.dumps([settings, dataset, request], sort_keys=True, default=str)


@lru_cache(maxsize=1)
def _rows() -> dict[str, list[Published]]:
    found: dict[str, list[Published]] = {}
    for suite in all_suites():
        for dataset in suite.datasets:
            _add(found, suite, dataset)
    return found


def _add(found: dict[str, list[Published]], suite: Suite, dataset: str) -> None:
    for row in suite.printed_rows(dataset):
        if row.stage is None and not row.other_method:
            config = row_config(suite, row, dataset, {})
            source = f"{suite.source}: {row.name}"
            printed = zip(suite.columns, row.published[dataset], strict=True)
            values = {name: value for name, value in printed if value is not None}
            if not values:  # unreadable; another table may have the same row
                continue
            published = Published(values, source, suite.departures_for(dataset))
            request = {**REQUEST, "normalize": config.objective.normalization, **row.task_settings}
            found.setdefault(_key(config, dataset, request), []).append(published)

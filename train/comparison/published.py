"""The figure that a paper has for a run's settings: looked up among the rows of all suites."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..recipes.departures import Departure
from ..recipes.train_config import TrainConfig
from .measures import Measured
from .suite_files import Suite, all_suites, row_config

ASKED = {"normalize": "none", "ties": "average", "rerank": None}
"""Parts of a question that must be the row's, with their defaults."""


@dataclass(frozen=True)
class Published:
    """The figures that a paper reports."""

    figures: Mapping[str, float]
    """{measure: value}"""
    source: str
    """Paper, table and row."""
    departures: tuple[Departure, ...]
    """Where the row's table departs from the paper."""


def published_figure(config: TrainConfig, measured: Measured | None) -> Published | None:
    """Return what a paper reports for exactly these settings on this data set; None if no suite has such a row.

    Seed and name of the initial run do not count, and the device and number of processes are not known.
    """
    if measured is None or measured.test.split != "test":
        return None
    question = {name: measured.question.get(name, default) for name, default in ASKED.items()}
    return _rows().get(_key(config, measured.test.dataset, question))


def _key(config: TrainConfig, asked: str, question: Mapping[str, Any]) -> str:
    settings = {n: v for n, v in config.flat().items() if n != "seed"} | {"init": bool(config.init)}
    return json.dumps([settings, asked, question], sort_keys=True, default=str)


@lru_cache(maxsize=1)
def _rows() -> dict[str, Published]:
    found: dict[str, Published] = {}
    for suite in all_suites():
        for dataset in suite.datasets:
            _add(found, suite, dataset)
    return found


def _add(found: dict[str, Published], suite: Suite, dataset: str) -> None:
    for row in suite.rows:
        if dataset in row.figures and row.stage is None:
            config = row_config(suite, row, dataset, {})
            source = f"{suite.source}: {row.name}"
            figures = dict(zip(suite.columns, row.figures[dataset], strict=True))
            published = Published(figures, source, suite.departures_for(dataset))
            found.setdefault(_key(config, dataset, {**ASKED, **row.question}), published)

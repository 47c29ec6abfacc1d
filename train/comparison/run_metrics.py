"""Metrics and test sets of evaluations, for comparing runs. Files are not trusted."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...storage.common.errors import UserError
from ...storage.common.files import read_json
from ...storage.common.validation import is_text
from ..evaluation import TASKS
from ..evaluation.own_metrics import own_metric_values
from ..evaluation.task import Metrics, counted
from ..runs.files import METRICS_FILE

NOT_IN_REQUEST = ("inputs", "model_sha256", "device", "word_times")
"""Fields of ``fingerprint`` in ``metrics.json`` that are no part of the request: data, model and device."""


@dataclass(frozen=True)
class TestSet:
    """The data that a run was evaluated on."""

    dataset: str
    protocol: str
    split: str
    checksum: str
    """Checksum of the captions and clips that were used; the same for the same test set."""
    size: str
    """The part of the split that was used, such as "550 captions and 110 clips"."""
    is_whole: bool
    """True if nothing of the split was skipped."""


@dataclass(frozen=True)
class RunMetrics:
    """The metrics of one evaluation of a run."""

    run: str
    task: str
    test: TestSet
    request: Mapping[str, Any]
    """The settings that decide the metrics besides model and data, such as ``{"ties": "average"}``."""
    values: Mapping[str, float]
    """{metric: value}"""
    stages: Mapping[str, Mapping[str, float]]
    """{stage: metrics of its score alone}, for runs with several stages."""
    main: tuple[str, ...]
    """The metrics that tables show first."""
    notes: tuple[str, ...]
    """Notes to show with every figure."""
    is_own: bool = False
    """True for a custom task. Its module is not imported; the table is in ``metrics.json``."""


@dataclass(frozen=True)
class _Table:
    """The metrics of a task that tables show."""

    values: Mapping[str, float]
    stages: Mapping[str, Mapping[str, float]]
    main: tuple[str, ...]
    caption_name: str
    item_name: str


def _table_of(metrics: Metrics) -> _Table:
    """Return the table of a task of this package, or the table that a custom task wrote into the file."""
    if task := TASKS.get(metrics["task"]):
        table, stages = task.table_metrics(metrics), task.stage_metrics(metrics)
        return _Table(table, stages, task.main_metrics, task.caption_name, task.item_name)
    written = metrics["table"]
    texts = [metrics["task"], written["caption_name"], written["item_name"], *written["metrics"], *written["main"]]
    if not all(map(is_text, texts)) or written["item_name"] not in ("captions", "clips", "videos"):
        raise ValueError("its table has names that are not text, or its item_name is not captions, clips or videos")
    return _Table(
        written["metrics"], written["stages"], tuple(written["main"]), written["caption_name"], written["item_name"]
    )


def parse_run_metrics(metrics: Metrics) -> RunMetrics:
    """Check and return the metrics of an evaluation.

    Args:
        metrics: Contents of ``metrics.json``.

    Raises:
        KeyError, TypeError, ValueError: They are not as an evaluation writes them.
    """
    table = _table_of(metrics)
    names = ("run", "dataset", "protocol", "split", "split_checksum")
    if not all(is_text(metrics[name]) for name in names):
        raise ValueError(f"one of {', '.join(names)} is not text")
    values = dict(table.values)
    own = {f"own {name}" if name in values else name: value for name, value in own_metric_values(metrics).items()}
    values |= own
    stages = {name: dict(values) for name, values in table.stages.items()}
    for name, value in [*values.items(), *(item for stage in stages.values() for item in stage.items())]:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{name} is not a finite number")
    notes = [*metrics["not_comparable"], *([metrics["note"]] if metrics["note"] else [])]
    if not all(map(is_text, notes)):
        raise ValueError("its notes are not text")
    counts = [(metrics[f"num_{name}"], metrics[f"num_{name}_of_split"]) for name in ("captions", "clips", "videos")]
    test = TestSet(
        dataset=metrics["dataset"],
        protocol=metrics["protocol"],
        split=metrics["split"],
        checksum=metrics["split_checksum"],
        size=f"{counted(metrics, 'captions', table.caption_name)} and {counted(metrics, table.item_name)}",
        is_whole=all(used == whole for used, whole in counts),
    )
    fingerprint = TASKS.get(metrics["task"], TASKS["retrieval"]).request_of(metrics)
    request = {name: fingerprint[name] for name in sorted(fingerprint) if name not in NOT_IN_REQUEST}
    main = (*own, *(name for name in table.main if name in values))  # who asks for a metric wants to see it first
    name, is_own = metrics["task"], metrics["task"] not in TASKS
    return RunMetrics(metrics["run"], name, test, request, values, stages, main, tuple(notes), is_own)


def read_run_metrics(folder: Path) -> RunMetrics | None:
    """Return the metrics of the evaluation in a folder; None if there was none.

    Raises:
        UserError: The file is not a valid file of vlalign-evaluate.
    """
    path = folder / METRICS_FILE
    if not path.exists():
        return None
    metrics = read_json(path)
    try:
        return parse_run_metrics(metrics)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        todo = "remove it and run vlalign-evaluate again"
        raise UserError(f"{path}: not a valid file of vlalign-evaluate; {todo}") from None

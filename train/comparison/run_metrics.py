"""Metrics of evaluations by which runs are compared, and their test sets. Files are not trusted."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...storage.common.errors import UserError
from ...storage.common.files import read_json
from ...storage.common.validation import is_text
from ..evaluation import TASKS
from ..evaluation.task import Metrics, counted
from ..runs.files import METRICS_FILE

NOT_IN_REQUEST = ("inputs", "model_sha256", "device")
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
    """Nothing of the split was skipped."""


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
    """{stage: values of its score alone}, for runs whose score has several."""
    main: tuple[str, ...]
    """The metrics that tables show first."""
    notes: tuple[str, ...]
    """The note to show with every figure."""


def parse_run_metrics(metrics: Metrics) -> RunMetrics:
    """Return the metrics of an evaluation, checked.

    Args:
        metrics: Contents of ``metrics.json``.

    Raises:
        KeyError, TypeError, ValueError: They are not as an evaluation writes them.
    """
    task = TASKS[metrics["task"]]
    names = ("run", "dataset", "protocol", "split", "split_checksum")
    if not all(is_text(metrics[name]) for name in names):
        raise ValueError(f"one of {', '.join(names)} is not text")
    values = dict(task.table_metrics(metrics))
    stages = {name: dict(values) for name, values in task.stage_metrics(metrics).items()}
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
        size=f"{counted(metrics, 'captions', task.caption_name)} and {counted(metrics, task.item_name)}",
        is_whole=all(used == whole for used, whole in counts),
    )
    fingerprint = metrics["fingerprint"]
    request = {name: fingerprint[name] for name in sorted(fingerprint) if name not in NOT_IN_REQUEST}
    main = tuple(name for name in task.main_metrics if name in values)
    return RunMetrics(metrics["run"], task.name, test, request, values, stages, main, tuple(notes))


def read_run_metrics(folder: Path) -> RunMetrics | None:
    """Return the metrics of the evaluation in a folder; None if there was none.

    Raises:
        UserError: The file is not as an evaluation writes it.
    """
    path = folder / METRICS_FILE
    if not path.exists():
        return None
    metrics = read_json(path)
    try:
        return parse_run_metrics(metrics)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        todo = "remove it and run vlalign-evaluate again"
        raise UserError(f"{path}: not as an evaluation writes it; {todo}") from None

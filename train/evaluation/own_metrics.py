"""Custom metrics: functions of the similarities, from modules outside this package.

A metric is a function of

- the similarities, float32 [num_texts, num_videos] (clips are videos here), by which the clips are ranked for each
  caption; the array cannot be written to;
- the index of the right video of each text, int64 [num_texts].

It returns a number, or {name: number}. ``vlalign.train.metrics.retrieval_metrics`` takes the same two arguments.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...storage.common.errors import UserError
from ...storage.common.plugins import Plugin, errors_of_plugin
from ...storage.common.terminal import one_line
from ...storage.common.validation import is_number, is_text

Metric = Callable[[np.ndarray, np.ndarray], float | Mapping[str, float]]
OwnMetrics = dict[str, dict[str, float]]
"""{metric, as the user named it: {name: value}}, as ``own_metrics`` in ``metrics.json`` has them."""


def own_metrics(metrics: Sequence[Plugin], similarity: np.ndarray, text_to_video: np.ndarray) -> OwnMetrics:
    """Compute the metrics.

    Args:
        metrics: Each has a ``Metric``.
        similarity: float32 [num_texts, num_videos]
        text_to_video: [num_texts], index of the right video of each text.

    Raises:
        UserError: A metric fails, or returns anything but finite numbers.
    """
    similarity, text_to_video = _read_only(similarity), _read_only(text_to_video.astype(np.int64))
    found: OwnMetrics = {}
    for metric in metrics:
        with errors_of_plugin(metric):
            values = metric.value(similarity, text_to_video)
        found[metric.text] = _numbers(metric, values)
    return found


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _numbers(metric: Plugin, values: Any) -> dict[str, float]:
    """Return the values of a metric by name; a single number has the function's name."""
    named = values if isinstance(values, Mapping) else {getattr(metric.value, "__name__", metric.text): values}
    numbers = {name: _number(value) for name, value in named.items()}
    if not numbers or not all(is_text(name) and value is not None for name, value in numbers.items()):
        shown = one_line(repr(values))[:100]
        raise UserError(f"metric {metric.text}: returned {shown}; expected a finite number, or finite numbers by name")
    return {name: value for name, value in numbers.items() if value is not None}


def _number(value: Any) -> float | None:
    """Return a finite number as a Python number; None for anything else. Numbers of NumPy and PyTorch have ``item``."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    return value if is_number(value) else None


def own_metric_values(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the custom metrics in ``metrics.json``: {name: value}.

    If two metrics share a name, the metric's own name is put before it. If the task's metrics have a name, such as
    "R@1", "own" is put before it.

    Raises:
        ValueError: They are not as an evaluation writes them.
    """
    own = metrics.get("own_metrics", {})
    if not isinstance(own, dict) or not all(isinstance(values, dict) for values in own.values()):
        raise ValueError("own_metrics is not an object of numbers by metric and name")
    pairs = [(metric, name, value) for metric, values in own.items() for name, value in values.items()]
    names = [name for _, name, _ in pairs]
    shown = {name if names.count(name) == 1 else f"{metric} {name}": value for metric, name, value in pairs}
    taken = metrics.get("metrics", {}).get("text_to_video", {})
    return {f"own {name}" if name in taken else name: value for name, value in shown.items()}

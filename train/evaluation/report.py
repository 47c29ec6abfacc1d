"""The report of an evaluation: one HTML file that needs no other file."""

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jinja2

from ...storage.common.files import write_text
from ...storage.stores.thumbnails import ThumbnailStore
from ..runs.files import EVENTS_FILE, REPORT_FILE
from ..runs.load import Run
from ..runs.run_json import read_events
from .own_metrics import own_metric_values
from .svg import svg_of, with_plain_texts
from .task import Metrics, Task, counted
from .thumbnails import images_of, shown_clips

NOT_IN_THE_LOSS = ("step", "learning_rate", "codewords_in_use")
"""Fields of a training event that are not terms of the loss."""
VALIDATION_METRICS = {"validation_mean_rank": "mean rank (1 is best)", "validation_error": "wrong, percent"}
"""Validation metrics that the loss curve shows: {field of an event: label of its axis}."""


@with_plain_texts
def loss_curve(events: Sequence[Mapping[str, float | None]]) -> str:
    """Return an SVG of every term of the loss, and of the validation metric, by training step.

    Args:
        events: Lines of ``events.jsonl``.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.2), layout="constrained")
    left = figure.add_subplot()
    terms = [name for name in events[0] if name not in NOT_IN_THE_LOSS and not name.startswith("validation")]
    for name in terms:
        left.plot(_values(events, "step"), _values(events, name), label=name, linewidth=2 if name == "loss" else 1)
    left.set(xlabel="training step", ylabel="loss", ylim=(0, None))
    for name, unit in VALIDATION_METRICS.items():
        if validated := [event for event in events if event.get(name) is not None]:
            right = left.twinx()
            label = name.replace("_", " ")
            right.plot(_values(validated, "step"), _values(validated, name), "k.--", label=label)
            right.set(ylabel=unit, ylim=(0, None))
    figure.legend(loc="outside upper center", ncols=len(terms) + 1, frameon=False)
    return svg_of(figure)


def _values(events: Sequence[Mapping[str, float | None]], name: str) -> list[float]:
    values = [event.get(name) for event in events]
    return [math.nan if value is None else value for value in values]


def write_report(run: Run, task: Task[Any], metrics: Metrics, page: Mapping[str, object], folder: Path) -> None:
    """Write ``report.html`` into a folder.

    Args:
        run: The run that was evaluated.
        task: The task that it was evaluated on.
        metrics: Contents of ``metrics.json``.
        page: Variables of the task's page.
        folder: Where the report goes.
    """
    write_text(folder / REPORT_FILE, _render(run, task, metrics, page, folder))


def _render(run: Run, task: Task[Any], metrics: Metrics, page: Mapping[str, object], folder: Path) -> str:
    """Return the HTML of a report."""
    page_file = task.page or Path(__file__).with_name("task.html.jinja")
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader([Path(__file__).parent, page_file.parent]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script, thumbnails = task.script, ThumbnailStore(run.dataset.thumbnails)
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    events = read_events(run.folder / EVENTS_FILE)
    return templates.get_template("report.html.jinja").render(
        task_page=page_file.name,
        task=task,
        own_metrics=own_metric_values(metrics),
        script=script,
        allowed_script=f"'sha256-{checksum}'" if script else "'none'",
        about=run.about,
        result=metrics,
        counted=partial(counted, metrics),
        curve=loss_curve(events),
        num_steps=f"{events[-1]['step']:,}",  # the setting may be 0: as many as fit the data
        images=partial(images_of, thumbnails),
        shown_clips=partial(shown_clips, run.dataset, thumbnails, folder),
        **task.page_functions(),
        **page,
    )

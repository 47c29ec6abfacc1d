"""A run's report: one HTML file that needs nothing else."""

import base64
import io
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from ..storage.files import read_jsonl, write_text
from ..storage.thumbnails import ThumbnailStore
from .checkpoint import Run
from .metrics import RECALL_AT
from .runs import EVENTS_FILE, REPORT_FILE


def loss_curve(events: list[dict[str, Any]]) -> str:
    """An SVG of every term of the loss, and of the validation clips' mean rank, by training step."""
    from matplotlib.figure import Figure  # seconds to import

    figure = Figure(figsize=(7.5, 3.2), layout="constrained")
    left = figure.add_subplot()
    steps = [event["step"] for event in events]
    terms = [name for name in events[0] if name not in ("step", "learning_rate") and not name.startswith("validation")]
    for name in terms:
        left.plot(steps, [event[name] for event in events], label=name, linewidth=2 if name == "loss" else 1)
    left.set(xlabel="training step", ylabel="loss", ylim=(0, None))
    validated = [e for e in events if e.get("validation_mean_rank") is not None]
    if validated:
        right = left.twinx()
        right.plot([e["step"] for e in validated], [e["validation_mean_rank"] for e in validated], "k.--", label="validation mean rank")
        right.set(ylabel="mean rank (1 is best)", ylim=(0, None))
    figure.legend(loc="outside upper center", ncols=len(terms) + 1, frameon=False)
    svg = io.StringIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()[svg.getvalue().index("<svg") :]


def render_report(
    run_name: str, about: dict[str, Any], result: dict[str, Any], events: list[dict], queries: list[dict], thumbnails: ThumbnailStore
) -> str:
    def pictures(hit: dict[str, Any]) -> list[str]:
        shown = thumbnails.get(hit["video_id"])
        if hit["start_seconds"] is not None:
            shown = [t for t in shown if hit["start_seconds"] <= t.seconds <= hit["end_seconds"]] or shown[:1]
        return [f"data:image/jpeg;base64,{base64.b64encode(t.jpeg).decode()}" for t in shown]

    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
        files(__package__).joinpath("report.html.jinja").read_text(encoding="utf-8")
    )
    return template.render(
        run_name=run_name,
        about=about,
        result=result,
        recalls=[f"R@{k}" for k in RECALL_AT if k < result["num_clips"]],
        curve=loss_curve(events),
        queries=queries,
        pictures=pictures,
    )


def write_report(run: Run, result: dict[str, Any], queries: list[dict[str, Any]], folder: Path) -> None:
    events = read_jsonl(run.folder / EVENTS_FILE)
    html = render_report(run.folder.name, run.about, result, events, queries, ThumbnailStore(run.dataset.thumbnails))
    write_text(folder / REPORT_FILE, html)

"""Step localisation: find when each step of its task is done in a video, as CrossTask asks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...storage.common.problems import Problems
from .drawing import svg_of, with_plain_texts
from .task import Figures, NoSettings, Question, Task, TaskResult, counted

if TYPE_CHECKING:
    from ..runs.checkpoint import Run
    from .ask_steps import LocalizedVideo

COLUMNS = {"recall": "recall", "recall_spans": "with spans", "chance": "chance", "ceiling": "in order"}
"""Columns of the table: {field of the figures: heading}."""
RIGHT, WRONG = "#12805c", "#d4380d"


class Steps(Task[NoSettings]):
    """Finding the time at which a video shows each step of its task.

    ``metrics.json`` has ``steps`` (``ask_steps.AllFigures``) and the ``weights`` of the stages of the score.
    """

    name = "steps"
    description = "when each step of its task is done in a video (CrossTask)"
    caption_name = "steps"
    item_name = "videos"
    main_measures = ("recall", "recall with spans")

    def page_functions(self) -> Mapping[str, Callable[..., Any]]:
        """Return what draws a video's steps."""
        return {"step_figure": step_figure}

    def ask(self, run: "Run", question: Question[NoSettings], problems: Problems) -> TaskResult:
        """Place the steps of each video of a split."""
        from .ask_steps import localize

        return localize(run, question, problems)

    def count(self, figures: Figures) -> str:
        """Return how many tasks and videos were asked."""
        return f"steps of {len(figures['steps']['tasks'])} tasks in {counted(figures, 'videos')}"

    def measures(self, figures: Figures) -> Mapping[str, float]:
        """Return the mean recalls over tasks, in percent."""
        return {"recall": figures["steps"]["recall"], "recall with spans": figures["steps"]["recall_spans"]}

    def summary(self, figures: Figures) -> Iterator[str]:
        """Yield the table of recalls, and how many videos were left out."""
        steps = figures["steps"]
        yield steps_table(steps)
        yield (
            "with spans: a step may last, and counts as the share of its seconds that is right; "
            "in order: the most that the task's order allows"
        )
        if steps["num_infeasible"]:
            yield f"{steps['num_infeasible']:,} videos are left out: they have fewer seconds than their task has steps"
        yield f"checksum of the split's clips and steps: {figures['split_checksum']}"


def steps_table(steps: Mapping[str, Any]) -> str:
    """Return a table of recalls: a row for each task, and one for their mean.

    Args:
        steps: ``ask_steps.AllFigures``
    """
    lines = [f"{'recall, percent':<32}" + "".join(f"{label:>12}" for label in COLUMNS.values()) + f"{'videos':>9}"]
    for title, row in [*steps["tasks"].items(), ("mean over tasks", steps)]:
        cells = "".join(f"{row[name]:>12.1f}" for name in COLUMNS)
        lines.append(f"{title[:31]:<32}{cells}{row['num_videos']:>9,}")
    return "\n".join(lines)


@with_plain_texts
def step_figure(video: "LocalizedVideo", steps: Sequence[str]) -> str:
    """Return an SVG of a video's scores, of where each step is shown, and of where it was placed.

    Args:
        video: The video with its steps placed.
        steps: Texts of the task's steps.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.6 + 0.28 * len(steps)), layout="constrained")
    axes = figure.add_subplot()
    num_frames, extent = len(video.scores_TK), (0, len(video.scores_TK), len(steps) - 0.5, -0.5)
    axes.imshow(video.scores_TK.T, aspect="auto", cmap="Greys", interpolation="nearest", extent=extent)
    for step in range(len(steps)):
        edges = np.flatnonzero(np.diff(video.shown_TK[:, step].astype(int), prepend=0, append=0)).reshape(-1, 2)
        spans = [(start, end - start) for start, end in edges.tolist()]
        axes.broken_barh(spans, (step - 0.42, 0.84), facecolor="none", edgecolor=RIGHT, lw=1.6)
        second = np.flatnonzero(video.placed["recall"].step_T == step + 1).item()
        right = bool(video.shown_TK[second, step])
        axes.plot(second + 0.5, step, "o" if right else "x", color=RIGHT if right else WRONG, markersize=6)
    axes.set_yticks(range(len(steps)), steps, fontsize=8)
    axes.set(xlabel="seconds", xlim=(0, num_frames), ylim=(len(steps) - 0.5, -0.5))
    return svg_of(figure)

"""Action segmentation: find which step each second of a video shows, as COIN asks."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...storage.common.problems import Problems
from .drawing import svg_of, with_plain_texts
from .task import Figures, NoSettings, Question, Task, TaskResult, counted

if TYPE_CHECKING:
    from ..runs.checkpoint import Run

COLUMNS = ("accuracy", "steps_accuracy", "macro_accuracy", "edit", "F1@10", "F1@25", "F1@50")
GREY = (0.95, 0.95, 0.96, 1)


class Segmentation(Task[NoSettings]):
    """Finding the step that each second of a video shows.

    ``metrics.json`` has ``segmentation`` and, for calling every second background, ``all_background`` (both
    ``segment_metrics.SegmentationMetrics``), and the numbers of seconds and labels, ``num_frames`` and ``num_labels``.
    """

    name = "segmentation"
    description = "which step each second of a video shows (COIN), for a run with --objective segmentation"
    caption_name = "segments"
    item_name = "videos"
    main_measures = ("accuracy", "steps accuracy", "edit", "F1@50")

    def page_functions(self) -> Mapping[str, Callable[..., Any]]:
        """Return what draws a video's labels."""
        return {"segments_figure": segments_figure}

    def ask(self, run: "Run", question: Question[NoSettings], problems: Problems) -> TaskResult:
        """Label each second of the videos of a split."""
        from .ask_segmentation import segment

        return segment(run, question, problems)

    def count(self, figures: Figures) -> str:
        """Return how many seconds of how many videos were labelled."""
        return f"{figures['num_frames']:,} seconds of {counted(figures, 'videos')}"

    def heading(self, figures: Figures) -> str:
        """Return the heading, with the number of steps."""
        return f"{super().heading(figures)}; {figures['num_labels']:,} steps to choose from"

    def measures(self, figures: Figures) -> Mapping[str, float]:
        """Return the run's metrics, in percent."""
        return {name.replace("_", " "): figures["segmentation"][name] for name in COLUMNS}

    def summary(self, figures: Figures) -> Iterator[str]:
        """Yield the table of metrics."""
        yield segmentation_table(figures)
        yield (
            "accuracy: of all seconds, background included, as published; "
            "steps: of the seconds that show a step; macro: the mean over labels"
        )
        yield f"checksum of the split's clips and steps: {figures['split_checksum']}"


def segmentation_table(figures: Figures) -> str:
    """Return a table of the run's metrics, and of those of calling every second background."""
    lines = [f"{'percent':<16}" + "".join(f"{name.replace('_accuracy', ''):>10}" for name in COLUMNS)]
    for label, row in (("segmentation", figures["segmentation"]), ("all background", figures["all_background"])):
        lines.append(f"{label:<16}" + "".join(f"{row[name]:>10.2f}" for name in COLUMNS))
    return "\n".join(lines)


@with_plain_texts
def segments_figure(predicted_T: np.ndarray, true_T: np.ndarray) -> str:
    """Return an SVG of two strips over time: what is shown above, what was found below.

    Each step has a colour; the background is grey.

    Args:
        predicted_T: [T], the labels that were found.
        true_T: [T], the labels that were annotated.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.1), layout="constrained")
    axes = figure.add_subplot()
    steps = [label for label in np.union1d(predicted_T, true_T) if label != 0]
    colors = {label: colormaps["tab20"](index % 20) for index, label in enumerate(steps)}
    for row, labels_T in enumerate((true_T, predicted_T)):
        strip = [colors.get(label, GREY) for label in labels_T]
        axes.imshow([strip], aspect="auto", interpolation="nearest", extent=(0, len(labels_T), row + 0.45, row - 0.45))
    axes.set_yticks([0, 1], ["shown", "found"])
    axes.set(xlabel="seconds", ylim=(1.5, -0.5))
    return svg_of(figure)

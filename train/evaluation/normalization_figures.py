"""Figures of the retrieval page on how evenly clips are retrieved, and on the space of texts and clips (NCL)."""

from collections.abc import Mapping, Sequence

from .embedding_space import Projection, Similarities
from .representation import FalseRates, QueueSize
from .svg import svg_of, with_plain_texts

DIRECTIONS = {"text_to_video": "text to video", "video_to_text": "video to text"}


@with_plain_texts
def errors_figure(before: Mapping[str, float], after: Mapping[str, float], name: str) -> str:
    """Return an SVG: the normalisation errors of both directions, without and with a normalisation (NCL, Figure 2).

    Args:
        before: {direction: error} of the scores as they are.
        after: The same of the normalised scores.
        name: The normalisation.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for offset, errors, label in (-0.2, before, "scores as they are"), (0.2, after, name):
        bars = axes.bar([index + offset for index in range(2)], [errors[d] for d in DIRECTIONS], 0.36, label=label)
        axes.bar_label(bars, fmt="%.2f", padding=2)
    axes.set(xticks=range(2), xticklabels=list(DIRECTIONS.values()), ylabel="normalisation error")
    axes.margins(y=0.15)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return svg_of(figure)


@with_plain_texts
def rates_figure(rates: Sequence[FalseRates]) -> str:
    """Return an SVG: false negatives and false positives over the sum of retrieval probabilities (NCL, Figure 3)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    left = figure.add_subplot()
    right = left.twinx()
    sums = [of_bin["sum"] for of_bin in rates]
    lines = [
        *left.plot(sums, [of_bin["false_negative"] for of_bin in rates], "o-", color="C0", label="false negatives"),
        *right.plot(sums, [of_bin["false_positive"] for of_bin in rates], "s--", color="C1", label="false positives"),
    ]
    left.axvline(1, color="0.5", linewidth=1, linestyle=":")
    left.set(xlabel="sum of a clip's retrieval probabilities", ylabel="false negatives, %", ylim=(0, None))
    right.set(ylabel="false positives, %", ylim=(0, None))
    figure.legend(handles=lines, loc="outside upper center", ncols=2, frameon=False)
    return svg_of(figure)


@with_plain_texts
def queue_figure(sizes: Sequence[QueueSize]) -> str:
    """Return an SVG: R@1 over the number of training queries used for the biases (NCL, Figure 5)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(range(len(sizes)), [size["recall"] for size in sizes], "o-")
    labels = [f"{size['num_queries']:,}" for size in sizes]
    axes.set(xticks=range(len(sizes)), xlabel="training queries", ylabel="R@1, text to video")
    axes.set_xticklabels(labels, rotation=30)
    return svg_of(figure)


@with_plain_texts
def space_figure(space: Projection) -> str:
    """Return an SVG: texts and clips in a plane, with the mean of each (NCL, Figure 7)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for points, mean, color, label in (
        (space["texts"], space["mean_text"], "C0", "captions"),
        (space["clips"], space["mean_clip"], "C1", "clips"),
    ):
        axes.scatter(points[:, 0], points[:, 1], s=8, alpha=0.6, color=color, label=label, linewidths=0)
        axes.plot(*mean, "X", color=color, markersize=11, markeredgecolor="black")
    axes.set(xlabel="first principal component", ylabel="second", xticks=[], yticks=[])
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return svg_of(figure)


@with_plain_texts
def similarities_figure(similarities: Similarities) -> str:
    """Return an SVG: mean similarities within and across modalities (NCL, Figure 8)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    names = {"text_text": "captions", "clip_clip": "clips", "text_clip": "captions\nand clips"}
    values = [similarities[name] for name in names]
    bars = axes.bar(range(3), [0.0 if value is None else value for value in values], 0.6, color=["C0", "C1", "C2"])
    axes.bar_label(bars, labels=["-" if value is None else f"{value:.2f}" for value in values], padding=2)
    axes.axhline(0, color="0.5", linewidth=1)
    axes.set(xticks=range(3), xticklabels=list(names.values()), ylabel="mean cosine")
    axes.margins(y=0.15)
    return svg_of(figure)

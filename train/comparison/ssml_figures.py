"""Figures 2 and 3 of SSML: its error bound in numerical simulations, and its toy data."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...storage.common.progress import progress
from ..evaluation.tsne import tsne
from .table import Column, Number, ResultsTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIXED = {"K": 4, "eta": 0.5, "M": 1250, "T": 50}
"""Values of the parameters that are not swept, from the toy data (section 6.1). The paper does not print them."""
SWEEPS: dict[str, tuple[float, ...]] = {
    "K": (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24),
    "eta": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "M": (150, 250, 400, 600, 800, 1000, 1250, 1600, 2500, 4000),
    "T": (5, 10, 20, 30, 40, 50, 70, 100, 150, 200, 300),
}
"""{parameter: its values}"""
SIMULATION_SEEDS = range(3)
TOY_SEED, TOY_NEIGHBORS, TOY_THRESHOLD = 0, 4, 0.48
"""k of section 6.1, and the threshold in the caption of Figure 3."""


def draw_bounds(root: Path, dataset: str | None) -> "tuple[Figure, ResultsTable]":
    """Draw Figure 2: the bound of Theorem 1 and the error of simulated pairs, as K, eta, M and T are swept one by one.

    A red dashed line marks K = M / T (1 - eta).
    """
    del root, dataset  # the figure needs no data set
    from matplotlib.figure import Figure

    points = [(name, value) for name, values in SWEEPS.items() for value in values]
    computed = progress(points, total=len(points), what="computing bounds", unit="points")
    found = {(name, value): _bound_and_error(FIXED | {name: value}) for name, value in computed}
    figure = Figure(figsize=(14, 3.2), layout="constrained")
    rows, notes = [], []
    for axes, (name, values) in zip(figure.subplots(1, len(SWEEPS)), SWEEPS.items(), strict=True):
        bounds, errors = zip(*(found[name, value] for value in values), strict=True)
        limit = _limit(name)
        axes.plot(values, bounds, ".-", label="bound (Eq. 5, 6), approximated")
        axes.plot(values, errors, ".:", color="tab:gray", label="simulated pairs")
        axes.axvline(limit, color="red", linestyle="--", label="K = M / T (1 - eta)")
        axes.set(xlabel=name, ylabel="error", ylim=(0, 1.02))
        rows += [(name, *map(Number, (v, b, e, limit))) for v, b, e in zip(values, bounds, errors, strict=True)]
        lowest, fewest = values[int(np.argmin(bounds))], values[int(np.argmin(errors))]
        notes.append(
            f"{name}: the bound is lowest, {min(bounds):.3f}, at {lowest:g}; the error of simulated pairs, "
            f"{min(errors):.3f}, at {fewest:g}; K = M / T (1 - eta) at {limit:g}"
        )
    figure.axes[0].legend(fontsize=8)
    columns = (
        Column("swept", is_text=True),
        *map(Column, ("value", "bound", "simulated error", "value where K = M / T (1 - eta)")),
    )
    fixed = ", ".join(f"{name} {value:g}" for name, value in FIXED.items())
    notes.append(f"the others are {fixed}, and concepts 6 standard deviations apart: the paper does not print them")
    return figure, ResultsTable(columns, tuple(rows), tuple(notes))


def _bound_and_error(at: dict[str, float]) -> tuple[float, float]:
    from .density_bound import error_bound, simulated_error  # torch takes seconds to import

    setting = int(at["K"]), int(at["M"]), int(at["T"]), at["eta"]
    errors = [simulated_error(*setting, np.random.default_rng(seed)) for seed in SIMULATION_SEEDS]
    return error_bound(*setting), float(np.mean(errors))


def _limit(name: str) -> float:
    """Return the value of a parameter at which K = M / T (1 - eta), the others being fixed."""
    k, noise, num_pairs, num_concepts = FIXED.values()
    return {
        "K": num_pairs / num_concepts * (1 - noise),
        "eta": 1 - k * num_concepts / num_pairs,
        "M": k * num_concepts / (1 - noise),
        "T": num_pairs * (1 - noise) / k,
    }[name]


def draw_toy_data(root: Path, dataset: str | None) -> "tuple[Figure, ResultsTable]":
    """Draw Figure 3: t-SNE of the toy data's captions and clips, and the distribution of p-hat (Eq. 2)."""
    del root, dataset  # the figure needs no data set
    from matplotlib.figure import Figure

    from ..density import pair_association_probability
    from .density_bound import toy_data

    data = toy_data(np.random.default_rng(TOY_SEED))
    probability = pair_association_probability(data.clips, data.captions, TOY_NEIGHBORS)
    places = {"captions": tsne(data.captions), "clips": tsne(data.clips)}
    figure = Figure(figsize=(14, 4.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    _draw_places(left, places["captions"], data.is_right, "(a) t-SNE of captions")
    _draw_distribution(middle, probability, data.is_right)
    _draw_places(right, places["clips"], data.is_right, "(c) t-SNE of clips")
    is_taken = probability > TOY_THRESHOLD
    precision, recall = data.is_right[is_taken].mean(), is_taken[data.is_right].mean()
    names = ("p", "p-hat", "caption x", "caption y", "clip x", "clip y")
    values = np.column_stack([data.is_right, probability, places["captions"], places["clips"]])
    rows = tuple((index, *map(Number, map(float, row))) for index, row in enumerate(values))
    note = f"threshold {TOY_THRESHOLD}: precision {precision:.2f}, recall {recall:.2f}; the paper: both about 0.9"
    return figure, ResultsTable((Column("pair"), *map(Column, names)), rows, (note,))


def _draw_places(axes: "Axes", places: np.ndarray, is_right: np.ndarray, title: str) -> None:
    for wanted, color, label in ((True, "green", "p = 1"), (False, "red", "p = 0")):
        axes.scatter(*places[is_right == wanted].T, s=5, color=color, label=label, alpha=0.6, linewidths=0)
    axes.set(title=title, xticks=[], yticks=[])
    axes.legend(fontsize=8, markerscale=2)


def _draw_distribution(axes: "Axes", probability: np.ndarray, is_right: np.ndarray) -> None:
    """Draw the share of right pairs up to each value of p-hat, and the share of wrong ones above it."""
    thresholds = np.linspace(0, 1, 201)
    right, wrong = (np.sort(probability[is_right == wanted]) for wanted in (True, False))
    up_to = np.searchsorted(right, thresholds, side="right") / len(right)
    above = 1 - np.searchsorted(wrong, thresholds, side="right") / len(wrong)
    axes.plot(thresholds, up_to, color="green", label="CDF, p = 1")
    axes.plot(thresholds, above, "--", color="red", label="inverse CDF, p = 0")
    axes.axvline(TOY_THRESHOLD, color="gray", linewidth=0.8, linestyle=":")
    axes.set(title="(b) distribution of p-hat", xlabel="p-hat", ylim=(0, 1))
    axes.legend(fontsize=8)

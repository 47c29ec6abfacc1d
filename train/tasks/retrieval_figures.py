"""Figures of the retrieval page: the similarities at a glance, clips that are found too often, and stage weights."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from ..data.pairs import Pairs
from .drawing import svg_of, with_plain_texts

MOST_CELLS = 160
"""Rows, and columns, of the picture of similarities. Of more captions or clips, each cell shows the mean of several."""
NEAREST = 10
"""A clip is counted for each query that has it among this many first clips (NCL, section 1: hubs)."""
SHOWN_HUBS = 5


class Hub(TypedDict):
    """A clip and how often it is found."""

    video_id: str
    start_seconds: float | None
    end_seconds: float | None
    times_first: int
    """Queries for which it comes first."""
    times_right: int
    """Queries for which it is right."""


class Overview(TypedDict):
    """All scores of a split at a glance."""

    reciprocal_ranks: np.ndarray
    """[rows, columns], of clips by caption; captions in the order of their clips."""
    num_found: np.ndarray
    """[num_clips]: queries that have the clip among their ``NEAREST`` first, as a multiple of the mean."""
    num_never: int
    """Clips that come first for no query."""
    hubs: list[Hub]


def overview_of(scores: np.ndarray, pairs: Pairs) -> Overview:
    """Return what the figures show.

    Args:
        scores: [num_captions, num_clips]
        pairs: Captions and clips of the split.
    """
    num_captions, num_clips = scores.shape
    order = np.argsort(pairs.clip_of_caption, kind="stable")
    rows = np.array_split(order, min(num_captions, MOST_CELLS))
    first_columns = np.array([part[0] for part in np.array_split(np.arange(num_clips), min(num_clips, MOST_CELLS))])
    widths = np.diff(first_columns, append=num_clips)
    reciprocal_ranks = np.empty((len(rows), len(widths)), dtype=np.float32)
    num_found = np.zeros(num_clips, dtype=np.int64)
    first = np.zeros(num_clips, dtype=np.int64)
    for index, captions in enumerate(rows):
        by_rank = np.argsort(-scores[captions], axis=1, kind="stable")
        reciprocal = np.empty(by_rank.shape, dtype=np.float32)
        np.put_along_axis(reciprocal, by_rank, (1 / np.arange(1, num_clips + 1, dtype=np.float32))[None], axis=1)
        reciprocal_ranks[index] = np.add.reduceat(reciprocal.mean(axis=0), first_columns) / widths
        num_found += np.bincount(by_rank[:, :NEAREST].ravel(), minlength=num_clips)
        first += np.bincount(by_rank[:, 0], minlength=num_clips)
    times_right = np.bincount(pairs.clip_of_caption, minlength=num_clips)
    most = np.argsort(-first, kind="stable")[:SHOWN_HUBS].tolist()
    return {
        "reciprocal_ranks": reciprocal_ranks,
        "num_found": num_found / max(num_found.mean(), 1e-9),
        "num_never": int((first == 0).sum()),
        "hubs": [
            {
                "video_id": pairs.clips[clip].video_id,
                "start_seconds": pairs.clips[clip].start_seconds,
                "end_seconds": pairs.clips[clip].end_seconds,
                "times_first": int(first[clip]),
                "times_right": int(times_right[clip]),
            }
            for clip in most
        ],
    }


@with_plain_texts
def matrix_figure(overview: Overview) -> str:
    """Return an SVG: all captions and clips, bright where a clip comes first."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    picture = axes.imshow(overview["reciprocal_ranks"], aspect="auto", cmap="viridis", vmin=0)
    axes.set(xlabel="clips", ylabel="captions, in the order of their clips", xticks=[], yticks=[])
    figure.colorbar(picture, ax=axes, label="1 / rank")
    return svg_of(figure)


@with_plain_texts
def hub_figure(overview: Overview) -> str:
    """Return an SVG: how often each clip is found."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    found = np.sort(overview["num_found"])[::-1]
    axes.plot(np.arange(1, len(found) + 1), found, drawstyle="steps-mid")
    axes.axhline(1, color="0.5", linewidth=1, linestyle="--")
    axes.set(
        xlabel="clips, most often found first",
        ylabel=f"times among the first {NEAREST},\nas a multiple of the mean",
        ylim=(0, None),
    )
    return svg_of(figure)


@with_plain_texts
def weights_figure(tried: Sequence[Mapping[str, Any]], chosen: Mapping[str, float]) -> str:
    """Return an SVG: how well each weight of each stage ranks the validation split, with the best of other weights.

    Args:
        tried: ``TriedWeights`` of a run.
        chosen: {stage: weight that the run has}
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 2.8), layout="constrained")
    axes = figure.add_subplot()
    for stage in chosen:
        weights = sorted({each["weights"][stage] for each in tried})
        best = [
            max(each["mean_reciprocal_rank"] for each in tried if each["weights"][stage] == weight)
            for weight in weights
        ]
        (line,) = axes.plot(weights, best, ".-", label=stage.replace("_", " "))
        if chosen[stage] in weights:
            axes.plot([chosen[stage]], [best[weights.index(chosen[stage])]], "o", color=line.get_color(), markersize=9)
    axes.set(xlabel="weight of the stage", ylabel="mean reciprocal rank,\nvalidation")
    figure.legend(loc="outside upper center", ncols=len(chosen), frameon=False)
    return svg_of(figure)

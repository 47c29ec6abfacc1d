"""Figures of the retrieval page: the similarities at a glance, clips that are found too often, and stage weights."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from ..data.pairs import Pairs
from .query_list import best_of
from .svg import svg_of, with_plain_texts

MAX_CELLS = 160
"""Upper limit of the rows, and of the columns, of the similarity figure. With more captions or clips, a cell shows the
mean of several."""
NEAREST = 10
"""A clip is counted for each query that has it among this many first clips (NCL, section 1: hubs)."""
SHOWN_CLIPS = 5
MAX_RANKS = 1000
"""Clips beyond this rank are 0 in the similarity figure: their 1 / rank would hardly be seen."""


class FoundClip(TypedDict):
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
    found_most: list[FoundClip]
    """The clips that come first for most queries."""


class OverviewCounts:
    """Counts the data of the figures, from scores that are added in parts."""

    def __init__(self, pairs: Pairs) -> None:
        """Begin with no caption of ``pairs``."""
        self._pairs = pairs
        num_captions, num_clips = len(pairs.captions), len(pairs.clips)
        self._row_of_caption = np.empty(num_captions, dtype=np.int64)
        order = np.argsort(pairs.clip_of_caption, kind="stable")
        for row, captions in enumerate(np.array_split(order, min(num_captions, MAX_CELLS))):
            self._row_of_caption[captions] = row
        self._column_of_clip = np.repeat(
            np.arange(min(num_clips, MAX_CELLS)),
            [len(part) for part in np.array_split(np.arange(num_clips), min(num_clips, MAX_CELLS))],
        )
        self._sums = np.zeros((self._row_of_caption.max() + 1, self._column_of_clip.max() + 1))
        self._num_found = np.zeros(num_clips, dtype=np.int64)
        self._times_first = np.zeros(num_clips, dtype=np.int64)

    def add(self, first: int, scores: np.ndarray) -> None:
        """Count the results of captions ``first`` to ``first + R - 1``.

        Args:
            first: Index of the first caption.
            scores: [R, num_clips]
        """
        reciprocal = 1 / np.arange(1, MAX_RANKS + 1)
        for row, of_caption in zip(self._row_of_caption[first : first + len(scores)], scores, strict=True):
            by_rank = best_of(of_caption, MAX_RANKS)
            self._sums[row] += np.bincount(
                self._column_of_clip[by_rank], reciprocal[: len(by_rank)], minlength=self._sums.shape[1]
            )
            self._num_found[by_rank[:NEAREST]] += 1
            self._times_first[by_rank[0]] += 1

    def overview(self) -> Overview:
        """Return the data of the figures."""
        pairs, times_first = self._pairs, self._times_first
        times_right = np.bincount(pairs.clip_of_caption, minlength=len(pairs.clips))
        num_cells = np.outer(np.bincount(self._row_of_caption), np.bincount(self._column_of_clip))
        found_most = np.argsort(-times_first, kind="stable")[:SHOWN_CLIPS].tolist()
        return {
            "reciprocal_ranks": (self._sums / num_cells).astype(np.float32),
            "num_found": self._num_found / max(self._num_found.mean(), 1e-9),
            "num_never": int((times_first == 0).sum()),
            "found_most": [
                {
                    "video_id": pairs.clips[clip].video_id,
                    "start_seconds": pairs.clips[clip].start_seconds,
                    "end_seconds": pairs.clips[clip].end_seconds,
                    "times_first": int(times_first[clip]),
                    "times_right": int(times_right[clip]),
                }
                for clip in found_most
            ],
        }


@with_plain_texts
def matrix_figure(overview: Overview) -> str:
    """Return an SVG: all captions and clips, bright where a clip comes first."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(overview["reciprocal_ranks"], aspect="auto", cmap="viridis", vmin=0)
    axes.set(xlabel="clips", ylabel="captions, in the order of their clips", xticks=[], yticks=[])
    figure.colorbar(image, ax=axes, label="1 / rank")
    return svg_of(figure)


@with_plain_texts
def hubness_figure(overview: Overview) -> str:
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
    """Return an SVG: how well each weight of a stage ranks the validation split, with the best weights of the others.

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

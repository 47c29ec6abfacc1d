"""Figures of a codebook, for the retrieval page of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.text_inputs import ROWS_OF_TOKEN
from .codewords import ONE_SIDE
from .svg import svg_of, with_plain_texts
from .tsne import tsne

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HIGHLIGHT = "#d4380d"


@with_plain_texts
def codebook_figures(codebook: Mapping[str, Any]) -> str:
    """Return SVGs of P(label | codeword) (CMCM, Figures 3 and 5), and of how codewords are shared (Figure 6), in one
    string.

    Args:
        codebook: What ``codewords.read_codebook`` returned.
    """
    from matplotlib.figure import Figure

    matrices, label, figures = codebook["matrices"], codebook["label_name"], []
    if matrices["labels"] and matrices["codewords"]:
        figure = Figure(figsize=(7.5, 6.4), layout="constrained")
        for axes, side in zip(figure.subplots(2, 1), ("clips", "captions"), strict=True):
            image = axes.imshow(matrices[side], aspect="auto", vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
            axes.set_yticks(range(len(matrices["labels"])), matrices["labels"], fontsize=7)
            axes.set(xlabel="codewords, the most frequent first", title=f"P({label} | codeword), {side}")
            figure.colorbar(image, ax=axes)
        figures.append(svg_of(figure))
    figure = Figure(figsize=(7.5, 2.4), layout="constrained")
    axes = figure.add_subplot()
    axes.hist(codebook["sharing"]["part_of_clips"], bins=20, range=(0, 1))
    axes.set(xlabel="share of a codeword's uses in clips (0: captions only, 1: clips only)", ylabel="codewords")
    figures.append(svg_of(figure))
    if len(codebook["vectors"]):
        figures.append(svg_of(_plane(codebook["vectors"], np.array(codebook["sharing"]["part_of_clips"]))))
    return "".join(figures)


def _plane(vectors_VD: np.ndarray, part_of_clips_V: np.ndarray) -> Figure:
    """Return a figure of the codewords in a plane (t-SNE), coloured by the side that uses them (Figure 6)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes, places_V2 = figure.add_subplot(), tsne(vectors_VD)
    sides = {
        "used by clips": part_of_clips_V > ONE_SIDE,
        "used by captions": part_of_clips_V < 1 - ONE_SIDE,
        "jointly used": (part_of_clips_V <= ONE_SIDE) & (part_of_clips_V >= 1 - ONE_SIDE),
    }
    for name, is_in in sides.items():
        axes.scatter(*places_V2[is_in].T, s=8, label=f"{name}: {is_in.sum():,}")
    axes.legend(fontsize=8)
    axes.set(title="t-SNE of the codewords", xticks=[], yticks=[])
    return figure


@with_plain_texts
def spectrogram_figure(rows_TD: np.ndarray, is_replaced: Sequence[bool]) -> str:
    """Return an SVG of a recording's log-mel rows, with the tokens that a codeword replaces in colour.

    Args:
        rows_TD: [T, D] log-mel rows.
        is_replaced: For each token of 16 rows, whether the codeword replaces it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2, 1.3), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(rows_TD.T, aspect="auto", origin="lower", cmap="Greys", interpolation="nearest")
    for token in np.flatnonzero(is_replaced).tolist():
        axes.axvspan(ROWS_OF_TOKEN * token, ROWS_OF_TOKEN * (token + 1), color=HIGHLIGHT, alpha=0.35, lw=0)
    axes.set_xlim(0, len(rows_TD))
    axes.set_axis_off()
    return svg_of(figure)


def grid_figure(
    is_replaced: Sequence[bool], grid: tuple[int, int, int], images: Sequence[Any]
) -> list[tuple[Any | None, str]]:
    """Return an image, and an SVG to lay over it, for each part of a clip's time.

    The SVG marks the cells of the grid that a codeword replaces. It covers the middle square of the image, which is the
    network's input.

    Args:
        is_replaced: For each cell of the grid, in order of time, height and width.
        grid: Number of cells in time, height and width.
        images: The clip's thumbnails in order of time. The one in the middle of each part is used.
    """
    figures = []
    for time, cells_HW in enumerate(np.reshape(is_replaced, grid)):
        cells = "".join(f'<rect x="{x}" y="{y}" width="1" height="1"/>' for y, x in np.argwhere(cells_HW))
        image = images[(2 * time + 1) * len(images) // (2 * grid[0])] if images else None
        figures.append((image, f'<svg viewBox="0 0 {grid[2]} {grid[1]}" preserveAspectRatio="none">{cells}</svg>'))
    return figures

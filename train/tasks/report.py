"""A run's report: one HTML file that needs nothing else."""

import base64
import functools
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import jinja2
import numpy as np

from ...storage.files import write_text
from ...storage.thumbnails import ThumbnailStore
from ..checkpoint import Run
from ..metrics import RECALL_AT
from ..models.spoken import ROWS_OF_TOKEN
from ..run_files import read_events
from ..runs import EVENTS_FILE, REPORT_FILE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .steps import LocalizedVideo


T = TypeVar("T")


def with_plain_texts(draw: Callable[..., T]) -> Callable[..., T]:
    """Whatever a caption or a name is, a figure shows it as it is: Matplotlib would take what stands between two dollars for a formula,
    and, where its settings say so, give every text to LaTeX."""

    @functools.wraps(draw)
    def drawn(*args: Any) -> T:
        import matplotlib  # seconds to import

        with matplotlib.rc_context({"text.parse_math": False, "text.usetex": False}):
            return draw(*args)

    return drawn


@with_plain_texts
def loss_curve(events: list[dict[str, Any]]) -> str:
    """An SVG of every term of the loss, and of what the validation split judges by, by training step."""
    from matplotlib.figure import Figure  # seconds to import

    figure = Figure(figsize=(7.5, 3.2), layout="constrained")
    left = figure.add_subplot()
    steps = [event["step"] for event in events]
    others = ("step", "learning_rate", "codewords_in_use")
    terms = [name for name in events[0] if name not in others and not name.startswith("validation")]
    for name in terms:
        values = [np.nan if event.get(name) is None else event[name] for event in events]
        left.plot(steps, values, label=name, linewidth=2 if name == "loss" else 1)
    left.set(xlabel="training step", ylabel="loss", ylim=(0, None))
    for name, unit in (("validation_mean_rank", "mean rank (1 is best)"), ("validation_error", "wrong, percent")):
        if validated := [e for e in events if e.get(name) is not None]:
            right = left.twinx()
            right.plot(
                [e["step"] for e in validated], [e[name] for e in validated], "k.--", label=name.replace("_", " ")
            )
            right.set(ylabel=unit, ylim=(0, None))
    figure.legend(loc="outside upper center", ncols=len(terms) + 1, frameon=False)
    return svg_of(figure)


def svg_of(figure: "Figure") -> str:
    svg = io.StringIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()[svg.getvalue().index("<svg") :]


@with_plain_texts
def codebook_figures(codebook: dict[str, Any]) -> list[str]:
    """SVGs: P(verb | codeword) by clips above and by captions below (CMCM, Figure 3), and how far each codeword is one side's own
    (Figure 6)."""
    from matplotlib.figure import Figure

    matrices, figures = codebook["matrices"], []
    if matrices["labels"] and matrices["codewords"]:
        figure = Figure(figsize=(7.5, 6.4), layout="constrained")
        for axes, side in zip(figure.subplots(2, 1), ("clips", "captions"), strict=True):
            image = axes.imshow(matrices[side], aspect="auto", vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
            axes.set_yticks(range(len(matrices["labels"])), matrices["labels"], fontsize=7)
            axes.set(xlabel="codewords, the most frequent first", title=f"P(verb | codeword), {side}")
            figure.colorbar(image, ax=axes)
        figures.append(svg_of(figure))
    figure = Figure(figsize=(7.5, 2.4), layout="constrained")
    axes = figure.add_subplot()
    axes.hist(codebook["sharing"]["part_of_clips"], bins=20, range=(0, 1))
    axes.set(
        xlabel="part of a codeword's use that is the clips' (0: captions alone, 1: clips alone)", ylabel="codewords"
    )
    figures.append(svg_of(figure))
    return figures


@with_plain_texts
def spectrogram_figure(rows_TD: np.ndarray, heard: Sequence[bool]) -> str:
    """An SVG: a recording's log-mel rows, and, in colour, the tokens of 16 rows that a codeword replaces."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2, 1.3), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(rows_TD.T, aspect="auto", origin="lower", cmap="Greys", interpolation="nearest")
    for number in np.flatnonzero(heard):
        axes.axvspan(ROWS_OF_TOKEN * number, ROWS_OF_TOKEN * (number + 1), color="#d4380d", alpha=0.35, lw=0)
    axes.set_xlim(0, len(rows_TD))
    axes.set_axis_off()
    return svg_of(figure)


def grid_figure(
    lit: Sequence[bool], grid: tuple[int, int, int], pictures: Sequence[str]
) -> list[tuple[str | None, str]]:
    """Of each part of a clip's time: a picture from its middle, and an SVG, to be laid over the middle square of it that the network saw,
    with the places that a codeword replaces in colour."""
    figures = []
    for time, places_HW in enumerate(np.reshape(lit, grid)):
        cells = "".join(f'<rect x="{x}" y="{y}" width="1" height="1"/>' for y, x in np.argwhere(places_HW))
        picture = pictures[(2 * time + 1) * len(pictures) // (2 * grid[0])] if pictures else None
        figures.append((picture, f'<svg viewBox="0 0 {grid[2]} {grid[1]}" preserveAspectRatio="none">{cells}</svg>'))
    return figures


@with_plain_texts
def step_figure(video: "LocalizedVideo", steps: Sequence[str]) -> str:
    """An SVG: the scores of a video's seconds for its task's steps, where each step is shown, and where it was placed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.6 + 0.28 * len(steps)), layout="constrained")
    axes = figure.add_subplot()
    num_frames = len(video.scores_TK)
    axes.imshow(
        video.scores_TK.T,
        aspect="auto",
        cmap="Greys",
        interpolation="nearest",
        extent=(0, num_frames, len(steps) - 0.5, -0.5),
    )
    for number in range(len(steps)):
        shown = np.flatnonzero(np.diff(video.shown_TK[:, number].astype(int), prepend=0, append=0)).reshape(-1, 2)
        axes.broken_barh(
            [(start, end - start) for start, end in shown],
            (number - 0.42, 0.84),
            facecolor="none",
            edgecolor="#12805c",
            lw=1.6,
        )
        (placed,) = np.flatnonzero(video.placed["recall"].step_T == number + 1)
        right = bool(video.shown_TK[placed, number])
        axes.plot(placed + 0.5, number, "o" if right else "x", color="#12805c" if right else "#d4380d", markersize=6)
    axes.set_yticks(range(len(steps)), steps, fontsize=8)
    axes.set(xlabel="seconds", xlim=(0, num_frames), ylim=(len(steps) - 0.5, -0.5))
    return svg_of(figure)


@with_plain_texts
def segments_figure(found_T: np.ndarray, true_T: np.ndarray) -> str:
    """An SVG: two strips over time, what is shown above and what was found below; a colour a step, nothing for the background."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.1), layout="constrained")
    axes = figure.add_subplot()
    steps = [label for label in np.union1d(found_T, true_T) if label != 0]
    colors = {label: colormaps["tab20"](place % 20) for place, label in enumerate(steps)}
    for row, labels_T in enumerate((true_T, found_T)):
        strip = [colors.get(label, (0.95, 0.95, 0.96, 1)) for label in labels_T]
        axes.imshow([strip], aspect="auto", interpolation="nearest", extent=(0, len(labels_T), row + 0.45, row - 0.45))
    axes.set_yticks([0, 1], ["shown", "found"])
    axes.set(xlabel="seconds", ylim=(1.5, -0.5))
    return svg_of(figure)


def render_report(
    run_name: str,
    about: dict[str, Any],
    result: dict[str, Any],
    events: list[dict],
    shown: dict[str, Any],
    thumbnails: ThumbnailStore,
) -> str:
    """``shown``: what the page of the result's task draws."""

    def pictures(hit: dict[str, Any]) -> list[str]:
        found = thumbnails.get(hit["video_id"])
        if hit["start_seconds"] is not None:
            found = [t for t in found if hit["start_seconds"] <= t.seconds <= hit["end_seconds"]] or found[:1]
        return [f"data:image/jpeg;base64,{base64.b64encode(t.jpeg).decode()}" for t in found]

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("report.html.jinja").render(
        run_name=run_name,
        about=about,
        result=result,
        recall_at=RECALL_AT,
        curve=loss_curve(events),
        codebook_figures=codebook_figures,
        step_figure=step_figure,
        segments_figure=segments_figure,
        spectrogram_figure=spectrogram_figure,
        grid_figure=grid_figure,
        pictures=pictures,
        **shown,
    )


def write_report(run: Run, result: dict[str, Any], shown: dict[str, Any], folder: Path) -> None:
    events = read_events(run.folder / EVENTS_FILE)
    html = render_report(run.folder.name, run.about, result, events, shown, ThumbnailStore(run.dataset.thumbnails))
    write_text(folder / REPORT_FILE, html)

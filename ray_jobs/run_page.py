"""The page of an extraction on a cluster: one file beside the log, which loads nothing from other hosts."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

import jinja2

from ..extract.pipeline.run_state import MACHINE_COLUMNS, RunState, machine_row
from ..storage.common.files import write_text
from ..storage.common.terminal import number_of

WRITE_EVERY_SECONDS = 60.0
STALE_SECONDS = 180
"""Age after which the page marks the call as ended."""
MAX_POINTS = 400
"""Maximum number of points of the curve. If there are more, every second one is dropped."""
SCRIPT = (
    "const {written, limit} = document.body.dataset;"
    "if (limit && Date.now() - Date.parse(written) > 1000 * limit) document.querySelector('#stale').hidden = false"
)
CHART_WIDTH, CHART_HEIGHT = 1000, 200


class RunPage:
    """The page of one call."""

    def __init__(self, path: Path, dataset: str) -> None:
        """Take the place of the page, and the name of the data set."""
        self.path, self._dataset = path, dataset
        self._points: list[tuple[float, int]] = [(0.0, 0)]
        """Seconds since the call began, and videos that were done."""
        self._written = -WRITE_EVERY_SECONDS

    def show(self, state: RunState) -> None:
        """Add the state to the curve. Write the page once a minute, and at the end."""
        self._points.append((state.seconds, state.videos))
        if len(self._points) > MAX_POINTS:
            self._points = self._points[::2]
        if state.finished or state.seconds - self._written >= WRITE_EVERY_SECONDS:
            self._written = state.seconds
            write_text(self.path, render_page(state, [*self._points, (state.seconds, state.videos)], self._dataset))


def render_page(state: RunState, points: Sequence[tuple[float, int]], dataset: str) -> str:
    """Return the page as HTML. Names, ids and messages may be hostile: all are escaped.

    Args:
        state: The state to show.
        points: (seconds since the call began, videos that were done), by time.
        dataset: Name of the data set.
    """
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    last = max(points[-1][0], 1e-9)
    curve = " ".join(
        f"{CHART_WIDTH * seconds / last:.1f},{CHART_HEIGHT * (1 - videos / max(state.total, 1)):.1f}"
        for seconds, videos in points
    )
    parts = {
        "whole": state.videos - state.partial - state.failed,
        "partial": state.partial,
        "failed": state.failed,
        "computed": state.computed,
    }
    return templates.get_template("run_page.html.jinja").render(
        state=state,
        minutes=number_of(round(state.seconds / 60), "minutes"),
        number_of=number_of,
        dataset=dataset,
        columns=MACHINE_COLUMNS,
        rows=[machine_row(machine) for machine in state.machines],
        parts={name: (count, 100 * count / max(state.total, 1)) for name, count in parts.items() if count > 0},
        curve=curve,
        width=CHART_WIDTH,
        height=CHART_HEIGHT,
        limit="" if state.finished else STALE_SECONDS,
        refresh=int(WRITE_EVERY_SECONDS),
        script=SCRIPT,
        script_hash=base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode(),
    )

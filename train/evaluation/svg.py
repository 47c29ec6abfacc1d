"""Figures of reports as SVG: the common parts.

Tasks import this module. Matplotlib, which takes seconds, is imported where a figure is drawn.
"""

import functools
import html
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec

from ...storage.common.matplotlib_settings import default_settings
from ...storage.common.packages import missing_package_message
from ...storage.common.terminal import note_once

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")


def with_plain_texts(draw: Callable[P, str]) -> Callable[P, str]:
    """Decorate a drawing function: captions and names are drawn literally.

    Without Matplotlib, the figure is a line of text.
    """

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            with default_settings():
                return draw(*args, **kwargs)
        except ModuleNotFoundError as error:
            note_once("note: " + (line := f"no figures: {missing_package_message(error)}"))
            return f"<p>{html.escape(line)}</p>"

    return drawn


def svg_of(figure: "Figure") -> str:
    """Return a figure as an ``<svg>`` element."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    svg = file.getvalue()
    return svg[svg.index("<svg") :]

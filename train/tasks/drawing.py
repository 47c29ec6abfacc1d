"""Code that all drawings of a report share. Matplotlib is imported where a figure is drawn: that takes seconds."""

import functools
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")


def with_plain_texts(draw: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that draws, so that captions and names appear as they are.

    Matplotlib would otherwise read what stands between two dollar signs as a formula, and a user's settings may send
    every text to LaTeX.
    """

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> T:
        import matplotlib

        with matplotlib.rc_context({"text.parse_math": False, "text.usetex": False}):
            return draw(*args, **kwargs)

    return drawn


def svg_of(figure: "Figure") -> str:
    """Return a figure as an ``<svg>`` element."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    svg = file.getvalue()
    return svg[svg.index("<svg") :]

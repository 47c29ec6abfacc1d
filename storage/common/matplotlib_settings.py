"""Drawings as vlalign makes them, whatever Matplotlib's own files say."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def default_settings() -> Iterator[None]:
    """Draw with Matplotlib's defaults, and texts as they are.

    Matplotlib reads a ``matplotlibrc`` in the current folder, which may send every text to LaTeX. Texts between two
    dollar signs would be formulas.

    Raises:
        ModuleNotFoundError: Matplotlib is not installed.
    """
    import matplotlib  # takes a second

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"text.parse_math": False, "text.usetex": False})
        yield

"""Fixed settings for drawings, independent of Matplotlib's own files."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def default_settings() -> Iterator[None]:
    """Use Matplotlib's defaults in the block, and draw texts literally.

    Matplotlib would read a ``matplotlibrc`` in the current folder, which may pass every text to LaTeX. Texts between
    two dollar signs would become formulas.

    Raises:
        ModuleNotFoundError: Matplotlib is not installed.
    """
    import matplotlib  # takes a second

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"text.parse_math": False, "text.usetex": False})
        yield

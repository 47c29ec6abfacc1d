"""Reproduce the papers' figures, and tables without training: ``vlalign-runs --figure "SSML, Figure 2"``.

To add one, write a function that returns a Matplotlib figure (None for a table) and its numbers, and add it to
``FIGURES``. It must import Matplotlib and torch only when it is called, so that the command line starts quickly.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...storage.common.errors import SettingError, UserError
from ...storage.common.files import write_text
from ...storage.common.matplotlib_settings import default_settings
from ...storage.common.packages import missing_package_message
from ...storage.common.writing import atomic_write
from .ssml_figures import draw_bounds, draw_toy_data
from .table import ResultsTable, as_csv
from .taco_figures import (
    examples_by_token_weight,
    sizes_by_video_layers,
    sizes_of_methods,
    strategies,
    token_statistics,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = "figures"
"""Folder under the root that figures are written into."""
FIGURES: dict[str, Callable[[Path, str | None], "tuple[Figure | None, ResultsTable]"]] = {
    "SSML, Figure 2": draw_bounds,
    "SSML, Figure 3": draw_toy_data,
    "TACo, Table 1": strategies,
    "TACo, Table 10": token_statistics,
    "TACo, Table 13": sizes_by_video_layers,
    "TACo, Table 14": sizes_of_methods,
    "TACo, Figure 3": examples_by_token_weight,
}
"""{paper and figure or table: function that makes it}. It is called with the folder of all data sets, and a data
set's name or None. A figure of runs finds its data set with ``find_dataset``. The notes of the numbers are printed."""


def draw_paper_figure(name: str, root: Path, dataset: str | None) -> tuple[ResultsTable, tuple[Path, ...]]:
    """Reproduce a paper's figure or table in ``<root>/figures``: its numbers as CSV, and a figure also as SVG.

    Args:
        name: One of ``FIGURES``.
        root: Folder of all data sets.
        dataset: Name of the data set that the figure is about; None: it needs none, or there is only one.

    Returns:
        The numbers, and the files.

    Raises:
        SettingError: There is no such figure.
        UserError: Matplotlib is not installed, or there are no runs for the figure.

    Example:
        >>> draw_paper_figure("SSML, Figure 3", Path("vlalign_data"), None)  # doctest: +SKIP
    """
    if name not in FIGURES:
        raise SettingError("figure", name, f"expected one of {'; '.join(FIGURES)}")
    try:
        with default_settings():
            import matplotlib

            matplotlib.rcParams["svg.hashsalt"] = name  # the same bytes each time
            figure, numbers = FIGURES[name](root, dataset)
            files = tuple(_write(figure, numbers, root / FOLDER / _file_name(name, dataset)))
    except ModuleNotFoundError as error:
        raise UserError(f"{name}: {missing_package_message(error)}") from None
    return numbers, files


def _file_name(name: str, dataset: str | None) -> str:
    """Return "ssml-figure2" for "SSML, Figure 2"."""
    paper, _, figure = name.lower().partition(", ")
    return "-".join(filter(None, (paper, figure.replace(" ", ""), dataset)))


def _write(figure: "Figure | None", numbers: ResultsTable, stem: Path) -> Iterator[Path]:
    if figure is not None:
        drawn = stem.with_name(f"{stem.name}.svg")
        with atomic_write(drawn) as partial:
            figure.savefig(partial, format="svg", metadata={"Date": None})
        yield drawn
    written = stem.with_name(f"{stem.name}.csv")
    write_text(written, as_csv(numbers) + "\n")
    yield written

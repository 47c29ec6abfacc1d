"""Write docs/departures.md from the data of the tables' notes.

python docs/make_departures.py
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from vlalign.train.comparison.suite_files import all_suites
from vlalign.train.recipes.departures import KINDS, Departure, all_departures, in_order

PAGE = Path(__file__).with_name("departures.md")
ESCAPED = "\\`*_[]<>|#"
HEAD = """# Departures from the papers

The tables of [`--suite`](comparing.md#a-papers-table) and [`vlalign-runs`](comparing.md#all-runs) have a paper's
results and ours. This page lists all departures that limit their comparability. Each table prints its departures below
its results (in CSV, in the column `departures`). A run of a paper's recipe prints their number with its result, and its
`report.html` and `metrics.json` list them.

No row of these tables has been reproduced with a paper's data, features and number of steps, since videos and published
weights of the data sets were not available. The papers' equations are tested one by one.

There are three kinds of departures:

- *departs*: our method differs from the paper's;
- *open*: the paper does not specify it completely, so we made a choice;
- *missing*: rows, columns or parts that we do not reproduce.

`docs/make_departures.py` writes this page from `train/recipes/departure_data/` (departures of recipes) and
`train/comparison/suite_data/` (departures of single tables).
"""


def make_page() -> str:
    """Return the page."""
    shared, suites = all_departures(), all_suites()
    lines = [HEAD]
    for paper in dict.fromkeys(departure.paper for departure in shared):
        lines += [f"## {paper}", ""]
        lines += _listed(in_order(d for d in shared if d.paper == paper))
        lines += ["", "Single tables:", ""]
        for suite in suites:
            if suite.paper == paper:
                lines += _listed(in_order(suite.departures), f"`{suite.name}`, ")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _listed(departures: Iterable[Departure], prefix: str = "") -> Iterator[str]:
    for departure in departures:
        recipes = ", ".join(f"`{pattern}`" for pattern in departure.recipes)
        where = f"{prefix}{departure.place}" + (f" ({recipes})" if recipes else "")
        yield f"- *{departure.kind}*, {where}: {_escaped(departure.text)}"


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in ESCAPED else c for c in text)


def main() -> None:
    """Write the page."""
    assert set(KINDS) == {"departs", "open", "missing"}, "the page explains each kind"
    PAGE.write_text(make_page(), encoding="utf-8")


if __name__ == "__main__":
    main()

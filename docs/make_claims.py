"""Write docs/claims.md from the papers' claims and the rows of the suites.

python docs/make_claims.py
"""

from collections.abc import Iterator
from pathlib import Path

from vlalign.train.comparison.claims import NOTHING_REPRODUCED, STATES, Claim, all_claims
from vlalign.train.comparison.suite_files import read_suite

PAGE = Path(__file__).with_name("claims.md")
ESCAPED = "\\`*_[]<>|#"
HEAD = f"""# What the five papers print, and what runs here

Each table, figure and theorem of the five papers has a line here, and each row that a paper prints. Of these,
{NOTHING_REPRODUCED}: videos and published weights of the data sets were not available. `vlalign-runs --claims` shows
the same list, and counts the rows of which your own runs have exactly the paper's settings.

| state | meaning |
|---|---|
| {STATES["runs"]} | a test trains and evaluates it, or computes it, on made-up data with few steps |
| {STATES["carried"]} | the paper's values are here; no test runs it |
| {STATES["missing"]} | nothing computes it |
| {STATES["drawing"]} | it shows the method or chosen examples |

Rows of other methods, which a paper compares itself with, are shown in its tables and not trained.
[Departures](departures.md) lists where our method differs from the papers'.

`docs/make_claims.py` writes this page from `train/comparison/claim_data/` and `train/comparison/suite_data/`.
"""


def make_page() -> str:
    """Return the page."""
    lines = [HEAD]
    for paper in dict.fromkeys(claim.paper for claim in all_claims()):
        claims = [claim for claim in all_claims() if claim.paper == paper]
        lines += [f"## {paper}", "", "| claim | about | state | command | limits |", "|---|---|---|---|---|"]
        lines += [_line(claim) for claim in claims]
        lines += ["", "Rows:", ""]
        lines += [line for claim in claims for line in _rows(claim)]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _line(claim: Claim) -> str:
    commands = "<br>".join(f"`{command}`" for command in claim.commands)
    return f"| {claim.name} | {_escaped(claim.title)} | {STATES[claim.state]} | {commands} | {_escaped(claim.why)} |"


def _rows(claim: Claim) -> Iterator[str]:
    """Yield a line for each data set of each suite: its trained rows, and its rows of other methods."""
    for suite in map(read_suite, claim.suites):
        for dataset in suite.datasets:
            rows = suite.printed_rows(dataset)
            ours = "; ".join(_escaped(row.name) for row in rows if not row.other_method)
            others = "; ".join(_escaped(row.name) for row in rows if row.other_method)
            yield f"- {claim.item}, {dataset}: {ours}" + (f". Other methods: {others}" if others else "")


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in ESCAPED else c for c in text)


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")

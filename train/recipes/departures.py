"""Departures of recipes from their papers, for comparing our figures with the papers'.

``departure_data`` has a JSON file for each paper: its name as ``paper``, and ``departures``, a list of objects with the
fields of ``Departure``. Departures of a single table are in its suite (``comparison/suite_data``).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...storage.common.files import read_json

FOLDER = Path(__file__).with_name("departure_data")
PAGE = "docs/departures.md"
KINDS = {"departs": "departs from", "open": "left open by", "missing": "not reproduced from"}
"""{kind: how its note begins}. We do something differently; the paper leaves it open, and we chose; or we lack it."""
PLACE = re.compile(r"\b(sections?|appendix|appendices|Eq\.|Tables?|Figures?) [\dA-G]", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Departure:
    """A difference between our computation and a paper's method."""

    paper: str
    place: str
    """Place in the paper, such as "section 3.3, Eq. 3"."""
    text: str
    """What the paper has or leaves open, and our way."""
    kind: str = "departs"
    """A key of ``KINDS``."""
    recipes: tuple[str, ...] = ()
    """Patterns of the affected recipes, such as "taco-*-finetune"; empty if the departure is listed in a suite, or
    concerns a part of the paper that no suite has."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r}: expected one of {', '.join(KINDS)}")
        if not PLACE.search(self.place):
            raise ValueError(f"place {self.place!r}: names no section, appendix, equation, table or figure")
        if not self.text:
            raise ValueError(f"text of {self.place}: is empty")

    def __str__(self) -> str:
        return f"{KINDS[self.kind]} {self.paper}, {self.place}: {self.text}"


def read_departures(paper: str, listed: Iterable[Mapping[str, Any]]) -> tuple[Departure, ...]:
    """Return the departures that the JSON of a paper or a suite lists.

    Raises:
        TypeError, ValueError: The list is malformed.
    """
    return tuple(Departure(paper=paper, **{**about, "recipes": tuple(about.get("recipes", ()))}) for about in listed)


@lru_cache(maxsize=1)
def all_departures() -> tuple[Departure, ...]:
    """Return the departures from all papers, in the order of the files."""
    files = [read_json(path) for path in sorted(FOLDER.glob("*.json"))]
    return tuple(departure for about in files for departure in read_departures(about["paper"], about["departures"]))


def departures_of(recipes: Iterable[str]) -> tuple[Departure, ...]:
    """Return the departures of some recipes, each once. Small recipes and "default" are from no paper and have none."""
    of_papers = [recipe for recipe in recipes if not recipe.endswith("-small")]
    return in_order(
        departure
        for departure in all_departures()
        if any(fnmatchcase(recipe, pattern) for recipe in of_papers for pattern in departure.recipes)
    )


def in_order(departures: Iterable[Departure]) -> tuple[Departure, ...]:
    """Return departures sorted by kind: changes, choices, missing parts."""
    kinds = list(KINDS)
    return tuple(sorted(departures, key=lambda departure: kinds.index(departure.kind)))


def recipe_note(recipe: str) -> str | None:
    """Return a line with the number of a recipe's departures from its paper; None if there are none."""
    if not (found := departures_of([recipe])):
        return None
    paper = found[0].paper
    return f"recipe {recipe} departs from {paper} in {len(found)} points: {PAGE}#{paper.lower()}"

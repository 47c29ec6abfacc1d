"""Each hyperparameter that a paper prints is the recipe's, or one of the recipe's departures names it.

``printed`` has a JSON file for each paper: its name as ``paper``, and ``printed``, a list of objects with

- ``recipes``: patterns of the recipes that it is about;
- ``setting`` and ``value``: the setting and the paper's value of it; no setting if we have none such;
- ``place`` and ``quote``: where the paper prints it, and its words;
- ``departure``: if the recipe does otherwise, words of the departure that says so.

``pytest -v`` shows a line for each recipe and value.
"""

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from helpers.needs import shared
from vlalign.storage.common.files import read_json
from vlalign.train.recipes.departures import PLACE, departures_of
from vlalign.train.recipes.recipes import PAPER_RECIPES, make_config

FILES = [read_json(path) for path in sorted(Path(__file__).with_name("printed").glob("*.json"))]
PRINTED = [(about["paper"], entry) for about in FILES for entry in about["printed"]]
OF_PAPERS = [name for name in PAPER_RECIPES if not name.endswith("-small")]
CASES = [
    (recipe, entry)
    for _, entry in PRINTED
    for recipe in OF_PAPERS
    if any(fnmatchcase(recipe, pattern) for pattern in entry["recipes"])
]


def shown(recipe: str, entry: dict[str, Any]) -> str:
    what = f"{entry['setting']}={entry['value']}" if "setting" in entry else entry["quote"][:40]
    return f"{recipe}: {what} ({entry['place']}), {'listed' if 'departure' in entry else 'met'}"


@pytest.mark.parametrize(("recipe", "entry"), CASES, ids=[shown(recipe, entry) for recipe, entry in CASES])
def test_a_recipe_meets_what_its_paper_prints_or_says_that_it_does_not(recipe, entry):
    given = {"dataset": "d", "init": "x" if recipe.endswith("-finetune") else ""}
    config = make_config(recipe, given).flat()
    is_met = "setting" in entry and config[entry["setting"]] == entry["value"]
    listed = [departure for departure in departures_of([recipe]) if entry.get("departure", "\0") in departure.text]
    if "departure" in entry:
        assert listed, f"no departure of {recipe} says {entry['departure']!r}"
        assert not is_met, "the recipe meets it, so no departure may say otherwise"
    else:
        assert is_met, f"{entry.get('setting')}: the paper has {entry.get('value')}, {recipe} has something else"


@pytest.mark.parametrize("paper", [about["paper"] for about in FILES])
def test_the_paper_prints_these_words(paper):
    """The text of the papers is not part of the repository."""
    text = plain(shared(f"papers/{paper.lower()}.txt").read_text(encoding="utf-8"))
    for entry in [entry for name, entry in PRINTED if name == paper]:
        assert PLACE.search(entry["place"]), entry
        assert plain(entry["quote"]) in text, entry["quote"]


def plain(text: str) -> str:
    """Return the letters and digits of a text, with single spaces between the words."""
    return " ".join(re.findall(r"\w+", text))


def test_every_recipe_of_a_paper_has_such_values():
    about = {name for name, _ in CASES}
    papers = {about["paper"] for about in FILES}
    recipes = {name for name in OF_PAPERS if {d.paper for d in departures_of([name])} <= papers}
    assert recipes - about == set()

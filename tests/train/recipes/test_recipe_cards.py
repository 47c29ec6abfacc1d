"""docs/recipes.md has a row for each recipe of a paper, and is what its script makes of the code today."""

import importlib.util
import re
from pathlib import Path

from vlalign.train.recipes.recipes import PAPER_RECIPES, RECIPES

TOP = Path(__file__).resolve().parents[3]


def test_the_page_is_current():
    spec = importlib.util.spec_from_file_location("make_recipe_cards", TOP / "docs" / "make_recipe_cards.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (TOP / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert page == module.make_page(), "run python docs/make_recipe_cards.py"


def test_each_recipe_has_a_row_with_its_steps_batch_and_features():
    page = (TOP / "docs" / "recipes.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w-]+)` (\| .* points \|)$", page, re.MULTILINE))
    assert set(rows) == {name for name in PAPER_RECIPES if not name.endswith("-small")}
    for name, row in rows.items():
        recipe = RECIPES[name]
        assert f"| {recipe['num_steps']:,} x {recipe['batch_size']:,} |" in row
        assert f"`{recipe['features']}`" in row and f"| {recipe['learning_rate']:g} |" in row

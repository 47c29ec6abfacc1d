"""Suites: the rows of a paper's table, each a recipe with settings, and the values that the paper prints.

A suite is a JSON file in ``suite_data``:

- ``source``: paper and table; ``title``: what the table is about; ``notes`` (optional): how to read it;
- ``departures``: where this table departs from the paper, with the fields of ``recipes.departures.Departure``, in
  addition to the departures of the recipes; an empty list if nowhere;
- ``columns``: the metrics of the paper's columns, as ``Task.table_metrics`` names them;
- ``datasets``: {data set: {"recipe": name, "settings": {...}}}, what its rows start from; no recipe if all rows are
  trained on another data set;
- ``rows``: ``name``, and what the row changes: ``settings``; ``recipe`` {data set: name}; ``trained_on`` for a run of
  another data set; ``init``, the name of the row whose run training starts from; ``task_settings``, the settings of
  the evaluation's task; ``stage``, the part of the score whose metrics are the row's; ``published`` {data set: the
  paper's values of the columns, null for a dash}. A row with ``other_method`` is a method that the paper compares with:
  it has only its name and values, and is shown, not trained.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...storage.common.errors import SettingError
from ...storage.common.files import read_json
from ..recipes.departures import Departure, departures_of, in_order, read_departures
from ..recipes.recipes import RECIPES, make_config
from ..recipes.train_config import TrainConfig, settings_of_others

FOLDER = Path(__file__).with_name("suite_data")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a paper's table."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, str] = field(default_factory=dict)
    """{data set: recipe}, instead of the data set's."""
    trained_on: str | None = None
    """The data set of the training, if it is not the one of the evaluation."""
    init: str | None = None
    """The row whose run initialises the training."""
    task_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the task."""
    stage: str | None = None
    """The stage of the score whose metrics are the row's; None for the fused score."""
    published: Mapping[str, list[float | None]] = field(default_factory=dict)
    """{data set: the paper's values of the columns, None for a dash}; for a data set without values, the row is only
    trained if other rows start from it."""
    other_method: bool = False
    """True for a method that the paper compares with. Its values are shown; it is not trained."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """The recipe and settings that all rows of a data set start from."""

    recipe: str = ""
    """Recipe; empty if nothing is trained on the data set. The test set then has the default protocol."""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """A table of a paper."""

    name: str
    source: str
    """Paper and table."""
    title: str
    columns: tuple[str, ...]
    """Names of the metrics."""
    datasets: Mapping[str, Start]
    rows: tuple[Row, ...]
    departures: tuple[Departure, ...]
    """Departures of this table from the paper, in addition to its recipes' departures."""
    notes: tuple[str, ...] = ()
    """Notes for reading the table."""

    @property
    def paper(self) -> str:
        """The paper's name."""
        return paper_of(self.source)

    def row(self, name: str) -> Row:
        """Return the row with this name."""
        return next(row for row in self.rows if row.name == name)

    def printed_rows(self, dataset: str) -> list[Row]:
        """Return the rows with published values for a data set, including other methods' rows."""
        return [row for row in self.rows if dataset in row.published]

    def rows_for(self, dataset: str) -> list[Row]:
        """Return the rows that are trained for a data set: those with published values, and those they start from, in
        the table's order."""
        needed = {row.name for row in self.printed_rows(dataset) if not row.other_method}
        for row in reversed(self.rows):
            if row.name in needed and row.init:
                needed.add(row.init)
        return [row for row in self.rows if row.name in needed]

    def departures_for(self, dataset: str) -> tuple[Departure, ...]:
        """Return all departures on a data set: the table's own, and its recipes'."""
        start = self.datasets[dataset].recipe
        recipes = {row.recipe.get(dataset, start) for row in self.rows_for(dataset)}
        return in_order([*self.departures, *departures_of(recipes)])


def paper_of(source: str) -> str:
    """Return the paper's name: "TACo, Table 3" -> "TACo"."""
    return source.partition(",")[0]


def suite_names() -> list[str]:
    """Return the names of all suites."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


@lru_cache
def read_suite(name: str) -> Suite:
    """Return a suite.

    Raises:
        SettingError: There is no such suite.
    """
    if name not in suite_names():
        raise SettingError("suite", name, f"expected one of {', '.join(suite_names())}")
    about = read_json(FOLDER / f"{name}.json")
    return Suite(
        name=name,
        source=about["source"],
        title=about["title"],
        columns=tuple(about["columns"]),
        datasets={dataset: Start(**start) for dataset, start in about["datasets"].items()},
        rows=tuple(Row(**row) for row in about["rows"]),
        departures=read_departures(paper_of(about["source"]), about["departures"]),
        notes=tuple(about.get("notes", ())),
    )


def all_suites() -> list[Suite]:
    """Return all suites."""
    return [read_suite(name) for name in suite_names()]


def row_settings(suite: Suite, row: Row, dataset: str, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return (recipe of a row, its settings merged with the given ones).

    Args:
        suite: The row's suite.
        row: The row.
        dataset: The data set that the table is about.
        given: Settings for all rows, such as a lower number of steps.

    Raises:
        SettingError: A given setting is one that the rows set.
    """
    taken = {name for other in suite.rows for name in other.settings}
    if twice := [name for name in given if name in taken]:
        raise SettingError(twice[0], given[twice[0]], f"the rows of {suite.name} set it; omit it")
    start = suite.datasets[dataset]
    recipe = row.recipe.get(dataset, start.recipe)
    of_dataset = {} if row.trained_on else start.settings
    return recipe, {**of_dataset, **given, **row.settings}


def given_for(suite: Suite, row: Row, dataset: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the common settings that have an effect on a row.

    Raises:
        SettingError: A given setting cannot be used.
    """
    config = row_config(suite, row, dataset, given)
    ignored = {*config.ignored_settings(), *settings_of_others({**given, "objective": config.objective.name})}
    return {name: value for name, value in given.items() if name not in ignored}


def row_config(suite: Suite, row: Row, dataset: str, given: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration of a row's run. ``init`` is the name of the row that it starts from.

    Raises:
        SettingError: A given setting cannot be used.
    """
    recipe, settings = row_settings(suite, row, dataset, given)
    protocol = RECIPES.get(recipe, {}).get("protocol", "")
    names = {"dataset": row.trained_on or dataset, "protocol": protocol} | ({"init": row.init} if row.init else {})
    return make_config(recipe, {**settings, **names})

"""Writes the table of all settings of vlalign-train into docs/training.md, from the code. Run it after a change."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from vlalign.storage.common.settings import info_of
from vlalign.train.objectives import OBJECTIVES
from vlalign.train.recipes.train_config import COMPONENTS, objective_settings

PAGE = Path(__file__).with_name("training.md")
BEGIN, END = "<!-- settings: written by make_settings.py -->\n", "<!-- end of settings -->\n"


def table() -> str:
    """Return the table: a row for each option, its description and its default without a recipe."""
    rows = ["| option | what it sets | without a recipe |", "|---|---|---|"]
    for option, text, default in [*_of_components(), *_of_objectives()]:
        rows.append(f"| `--{option.replace('_', '-')}` | {text.replace('|', '/')} | {default} |")
    return "\n".join(rows) + "\n"


def _of_components() -> Iterator[tuple[str, str, str]]:
    for component in reversed(COMPONENTS.values()):
        for field in fields(component):
            if field.name not in ("dataset", "protocol", "features"):
                yield field.name, info_of(field).help, _shown(field.default)


def _of_objectives() -> Iterator[tuple[str, str, str]]:
    for name, having in objective_settings().items():
        [field] = [field for field in fields(next(iter(having.values()))) if field.name == name]
        users = "" if len(having) == len(OBJECTIVES) else f"{', '.join(f'`{user}`' for user in having)}: "
        defaults = dict.fromkeys(_shown(getattr(objective, name)) for objective in having.values())
        yield name, users + info_of(field).help, " or ".join(defaults)


def _shown(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"`{value}`" if value != "" else ""


def page() -> str:
    """Return docs/training.md with the table generated from the code."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

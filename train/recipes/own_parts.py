"""Load custom objectives and encoders: if the user names them, or if a file does and their module is trusted."""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...storage.common.errors import SettingError
from ...storage.common.plugins import (
    Plugin,
    PluginFacts,
    facts_of_plugin,
    load_plugin,
    loaded_plugin,
    names_plugin,
    plugin_names,
    trusted_plugin,
)
from ...storage.common.terminal import one_line
from ..objectives import OBJECTIVES, objective_problem
from ..settings import ENCODERS, encoder_problem
from .train_config import TrainConfig

GROUPS = {"objective": "objectives", "encoder": "encoders"}
"""{setting that may name a custom part: the part's group of plugins}"""
BUILT_IN: Mapping[str, Mapping[str, object]] = {"objective": OBJECTIVES, "encoder": ENCODERS}
PROBLEMS = {"objective": objective_problem, "encoder": encoder_problem}


def load_named(settings: Mapping[str, Any], modules_in: str = "") -> dict[str, Any]:
    """Load the custom parts of the user's settings; return the settings with their names.

    Args:
        settings: Settings by name. "objective" and "encoder" may be the names of built-in parts, ``MODULE:NAME``, names
            of entry points, or classes.
        modules_in: Folder to search for modules, in addition to the import path; empty: the current folder.

    Raises:
        UserError: A part cannot be loaded, or is no objective or encoder.
    """
    loaded = dict(settings)
    for setting, group in GROUPS.items():
        named = settings.get(setting)
        if named is None or (isinstance(named, str) and named in BUILT_IN[setting]):
            continue
        if isinstance(named, str) and not names_plugin(group, named):
            near = difflib.get_close_matches(named, BUILT_IN[setting], n=1)
            meant = f"; nearest: {near[0]}" if near else ""
            known = ", ".join([*BUILT_IN[setting], *plugin_names(group)])
            problem = f"expected one of {known}, or MODULE:NAME, such as my_module:MyThing, for your own{meant}"
            raise SettingError(setting, one_line(named)[:200], problem)
        loaded[setting] = _known(setting, load_plugin(group, named, modules_in, problem=PROBLEMS[setting]))
    return loaded


def load_from_file(settings: Mapping[str, Any], named_in: Path | str) -> None:
    """Load the custom parts that a file's settings name, if their modules are trusted. Other names are left alone.

    Args:
        settings: Settings by name.
        named_in: The file.

    Raises:
        SettingError: A module is not trusted. Nothing was imported.
        UserError: A part cannot be loaded, or is no objective or encoder.
    """
    for setting, group in GROUPS.items():
        text = settings.get(setting)
        if not isinstance(text, str) or text in BUILT_IN[setting]:
            continue
        if names_plugin(group, text):
            _known(setting, trusted_plugin(group, text, (), named_in, problem=PROBLEMS[setting]))


def load_in_child(plugins: Iterable[tuple[str, str, str]]) -> None:
    """Load custom parts for another process, which sent (setting, name, folder of the module) for each."""
    for setting, text, folder in plugins:
        _known(setting, load_plugin(GROUPS[setting], text, folder, problem=PROBLEMS[setting]))


def _known(setting: str, plugin: Plugin) -> str:
    """Return a part's name in settings; set it as the name of an objective."""
    if setting == "objective":
        plugin.value.name = plugin.text  # used in run.json, options and messages
    return plugin.text


def plugins_of(config: TrainConfig) -> dict[str, Plugin]:
    """Return the custom parts of a configuration: {"objective" or "encoder": part}."""
    names = {"objective": config.objective.name, "encoder": config.model.encoder}
    found = {
        setting: loaded_plugin(GROUPS[setting], name)
        for setting, name in names.items()
        if name not in BUILT_IN[setting]
    }
    return {setting: plugin for setting, plugin in found.items() if plugin is not None}


def facts_of_plugins(config: TrainConfig) -> dict[str, PluginFacts]:
    """Return the facts about custom parts that a run records; empty if it has none."""
    return {setting: facts_of_plugin(plugin) for setting, plugin in plugins_of(config).items()}


def sent_plugins(config: TrainConfig) -> list[tuple[str, str, str]]:
    """Return the argument of ``load_in_child`` for another process."""
    return [(setting, plugin.text, plugin.folder) for setting, plugin in plugins_of(config).items()]

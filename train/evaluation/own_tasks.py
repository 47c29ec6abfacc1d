"""Tasks by name: the built-in ones, and custom ones from other modules."""

import inspect
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

from ...storage.common.errors import UserError
from ...storage.common.plugins import (
    Plugin,
    errors_of_plugin,
    load_plugin,
    names_plugin,
    plugin_names,
    trusted_plugin,
)
from ...storage.common.settings import Settings
from ...storage.common.validation import DATASET_NAME
from . import TASKS
from .task import Task

RESERVED_SETTINGS = ("task", "split", "weights", "metrics", "plugins", "page", "model_sha256", "inputs", "device")
"""Names in the fingerprint of an evaluation that no setting of a task can have."""


def is_own_task(name: str) -> bool:
    """Return whether a name is MODULE:NAME or an entry point in ``vlalign.tasks``. Nothing is imported."""
    return name not in TASKS and names_plugin("tasks", name)


def known_tasks() -> str:
    """List the possible tasks, for messages."""
    return ", ".join([*TASKS, *plugin_names("tasks"), "MODULE:NAME"])


def load_task(named: str | type[Task[Any]]) -> Task[Any]:
    """Return a task that the user named: a key of ``TASKS``, "MODULE:NAME", an entry point, or, in Python, the class.

    Raises:
        UserError: The module cannot be imported, or has no such task.
    """
    if isinstance(named, str) and named in TASKS:
        return TASKS[named]
    return _task_of(load_plugin("tasks", named))


def trusted_task(name: str, trusted: Collection[str], named_in: Path) -> Task[Any]:
    """Return a task that a file names. Its module is imported only if the user trusts it.

    Raises:
        UserError: As for ``load_task``; or the module is not trusted.
    """
    return TASKS[name] if name in TASKS else _task_of(trusted_plugin("tasks", name, trusted, named_in))


def _task_of(plugin: Plugin) -> Task[Any]:
    """Check a loaded class, and return a task of this class."""
    what, kind = f"task {plugin.text}", plugin.value
    if not isinstance(kind, type) or not issubclass(kind, Task) or inspect.isabstract(kind):
        raise UserError(f"{what}: expected a class derived from vlalign.train.Task, with a method evaluate")
    for attribute in ("name", "description"):
        if not isinstance(getattr(kind, attribute, None), str):
            raise UserError(f"{what}: its {attribute!r} is missing or not text")
    if not DATASET_NAME.fullmatch(kind.name) or kind.name in TASKS:
        problem = f"expected letters, digits, '.', '_' and '-', and none of {', '.join(TASKS)}"
        raise UserError(f"{what}: its name is {kind.name!r}; {problem}")
    settings = kind.settings_type
    if not isinstance(settings, type) or not issubclass(settings, Settings):
        raise UserError(f"{what}: its settings_type is not a dataclass derived from vlalign.train.Settings")
    if taken := [field.name for field in fields(settings) if field.name in RESERVED_SETTINGS]:
        raise UserError(f"{what}: a setting cannot be named {taken[0]!r}; expected another name")
    with errors_of_plugin(plugin):
        task = kind()
    task.plugin = plugin
    return task

"""Custom parts (plugins): classes and functions from modules outside this package, by name.

A part is named ``MODULE:NAME``, such as "my_module:MyObjective", or by an entry point of an installed package, in a
group such as ``vlalign.objectives`` (``GROUPS``).
A part that the user names is imported (``load_plugin``). A part that a file names is imported only if the user trusts
its module (``trusted_plugin``).
"""

import contextlib
import hashlib
import importlib
import importlib.metadata
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

from . import own_modules
from .errors import SettingError, UserError, VlalignError, reason_of
from .own_modules import content_of, import_own
from .terminal import one_line

GROUPS = {
    "objectives": "objective",
    "encoders": "encoder",
    "datasets": "data set",
    "tasks": "task",
    "metrics": "metric",
    "stores": "store",
}
"""{group: description of its parts}. Its entry points are in the group ``vlalign.GROUP``."""
PLUGIN_NAME = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*)")
MAX_SHOWN_CHARACTERS = 200
"""Maximum length of a name in a message: a file may have a name of any length."""
CODE_SUFFIXES = (*SOURCE_SUFFIXES, *BYTECODE_SUFFIXES, *EXTENSION_SUFFIXES)
"""Suffixes of the files that Python may take a module from."""
MAIN = "__main__"
"""The module of a class that a script, a notebook or an interactive session defines."""


@dataclass(frozen=True)
class Plugin:
    """A loaded custom part."""

    text: str
    """The part as the user named it, such as "my_module:MyObjective"."""
    module: str
    sha256: str
    """SHA-256 of the module's file, or of all modules of its package, when it was loaded."""
    folder: str
    """The folder of the import path that has the module."""
    value: Any
    """The class, function or instance."""


class PluginFacts(TypedDict):
    """The facts about a custom part in ``run.json``."""

    name: str
    module: str
    sha256: str


class UntrustedModule(SettingError):
    """A file names a module that the user does not trust. It was not imported; the message explains how to trust it."""

    def __init__(self, module: str, trusted: str, problem: str) -> None:
        """Create the error for a module, with the trusted modules and the message."""
        super().__init__("trust", trusted, problem)
        self.args = (module, trusted, problem)  # for pickling
        self.module = module

    def __str__(self) -> str:
        return self.problem

    def of_command(self) -> str:
        """Return the message, which already names the option."""
        return self.problem


Problem = Callable[[Any], str | None]
"""Returns the reason why a value is not a part of a group, such as "is no class"; None if it is one."""
_TRUSTED: set[str] = set()
_LOADED: dict[tuple[str, str], Plugin] = {}
_SHA256: dict[str, str] = {}
"""{module: its SHA-256 when first loaded}: a later edit does not change the code that runs."""


def is_plugin_name(text: str) -> bool:
    """Return whether a text has the form MODULE:NAME."""
    return PLUGIN_NAME.fullmatch(text) is not None


def plugin_names(group: str) -> list[str]:
    """Return the names of the entry points that installed packages declare in a group. Imports none of them."""
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=f"vlalign.{group}")})


def names_plugin(group: str, text: str) -> bool:
    """Return whether a text is MODULE:NAME, or the name of an entry point of a group. Nothing is imported."""
    return is_plugin_name(text) or text in plugin_names(group)


def loaded_plugin(group: str, text: str) -> Plugin | None:
    """Return a part that this process has loaded, or None."""
    return _LOADED.get((group, text))


def loaded_plugins(group: str) -> list[Plugin]:
    """Return the parts of a group that this process has loaded."""
    return [plugin for (of_group, _), plugin in _LOADED.items() if of_group == group]


def load_plugin(group: str, named: Any, folder: str | Path = "", *, problem: Problem | None = None) -> Plugin:
    """Load a part that the user named.

    Args:
        group: One of ``GROUPS``.
        named: "MODULE:NAME", the name of an entry point, or in Python the class or function itself.
        folder: Folder to search after the import path; empty for the current folder.
        problem: Returns the reason why a part is not of this group; None if it is.

    Raises:
        UserError: There is no such module or part, the module cannot be imported, or the part is of another group.
    """
    if not isinstance(named, str):
        if not (inspect.isclass(named) or inspect.isroutine(named)):
            shown = f"{GROUPS[group]} {_shown(repr(named))}"
            raise UserError(f"{shown}: of type {type(named).__name__}; expected its name, its class or its function")
        text = f"{named.__module__}:{named.__qualname__}"
        plugin = _LOADED.get((group, text))
        if plugin is None or plugin.value is not named:
            _SHA256.pop(named.__module__, None)  # the module may have been loaded again
            plugin = _register(group, text, sys.modules[named.__module__], named, problem)
        return plugin
    match, plugin = PLUGIN_NAME.fullmatch(named), _LOADED.get((group, named))
    if plugin is not None:
        module, value = sys.modules.get(plugin.module), plugin.value
        again = getattr(module, match["name"], value) if match else value
        if module is None or again is value:
            return plugin
        _SHA256.pop(plugin.module, None)  # the module was loaded again
        return _register(group, named, module, again, problem)
    what, where = f"{GROUPS[group]} {_shown(named)}", folder
    if match:
        module_name, name = match["module"], match["name"]
    else:
        module_name, name = _entry_point(group, named)
        what, where = f"{what} ({module_name}:{name})", None  # search no folder: the package is installed
    if module_name == MAIN:
        raise UserError(
            f"{what}: a script, notebook or session defined it; move it into a module, such as my_module.py"
        )
    module = _import(module_name, what, where)
    try:
        value = getattr(module, name)
    except AttributeError:
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module_name]
        has = f"it has {', '.join(own)}" if own else "it defines nothing"
        raise UserError(f"{what}: module {_shown(module_name)} has no {_shown(name)}; {has}") from None
    except (Exception, SystemExit) as error:  # custom code may raise anything
        raise UserError(f"{what}: cannot be used: {reason_of(error)}{_place(error)}") from None
    return _register(group, named, module, value, problem)


def trusted_modules(trust: Iterable[str]) -> tuple[str, ...]:
    """Return the modules of an argument ``trust``.

    Raises:
        SettingError: It is a single text, whose letters would be taken as modules, or an item is not a text.
    """
    modules = () if isinstance(trust, str) else tuple(trust)
    if isinstance(trust, str) or not all(isinstance(module, str) for module in modules):
        raise SettingError("trust", repr(trust), "expected a list of modules by name, such as ['my_module']")
    return modules


def trust_modules(modules: Iterable[str]) -> None:
    """Trust these modules when files name them, until this process ends.

    Raises:
        SettingError: As for ``trusted_modules``.
    """
    _TRUSTED.update(trusted_modules(modules))


def check_trusted(what: str, module: str, trusted: Iterable[str], named_in: Path | str) -> None:
    """Raise ``UntrustedModule`` if a file names a part whose module the user does not trust.

    Args:
        what: The named part, such as "the objective my_module:MyObjective".
        module: Its module.
        trusted: Modules that the user trusts.
        named_in: The file.
    """
    modules = trusted_modules(trusted)
    if module not in modules:
        shown = _shown(module)
        problem = (
            f"{named_in} names {what}, whose module {shown} would be run; "
            f"if you trust it, pass --trust {shown}, or trust=[{shown!r}] in Python"
        )
        raise UntrustedModule(shown, ",".join(sorted(modules)), problem)


def check_named(group: str, text: str, trusted: Iterable[str], named_in: Path | str) -> None:
    """Raise ``UntrustedModule`` for a part whose module ``trusted_plugin`` would refuse. Nothing is imported."""
    if loaded_plugin(group, text) is None:
        match = PLUGIN_NAME.fullmatch(text)
        module = match["module"] if match else _entry_point(group, text)[0]
        modules = {*trusted_modules(trusted), *_TRUSTED}
        check_trusted(f"the {GROUPS[group]} {_shown(text)}", module, modules, named_in)


def trusted_plugin(
    group: str, text: str, trusted: Iterable[str], named_in: Path | str, *, problem: Problem | None = None
) -> Plugin:
    """Load a part that a file names, if the user trusts its module.

    Args:
        group: One of ``GROUPS``.
        text: "MODULE:NAME", or the name of an entry point.
        trusted: Modules that may be imported, in addition to ``trust_modules``. A part that the user named in this
            process needs no trust.
        named_in: The file.
        problem: As for ``load_plugin``.

    Raises:
        UntrustedModule: The module is not trusted. Nothing was imported.
        UserError: As for ``load_plugin``.
    """
    check_named(group, text, trusted, named_in)
    return load_plugin(group, text, problem=problem)


@contextlib.contextmanager
def errors_of_plugin(plugin: Plugin) -> Iterator[None]:
    """Turn errors of a custom part in the block into a ``UserError``: one line with the place in its code."""
    try:
        yield
    except VlalignError:
        raise
    except (Exception, SystemExit) as error:  # custom code may raise anything
        raise UserError(_message(plugin, error)) from error


def message_of_plugin(error: BaseException) -> str | None:
    """Return a line for an error of a custom part, with the place in its code; None for other errors."""
    passed = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    for plugin in _LOADED.values():
        if isinstance(error, Exception) and _file_of(plugin) in passed:
            return _message(plugin, error)
    return None


def _message(plugin: Plugin, error: BaseException) -> str:
    return f"{plugin.text}: {reason_of(error)}{_place(error, _file_of(plugin))}; see --verbose"


def _file_of(plugin: Plugin) -> str | None:
    return getattr(sys.modules.get(plugin.module), "__file__", None)


def facts_of_plugin(plugin: Plugin) -> PluginFacts:
    """Return the facts about a part that a run records."""
    return {"name": plugin.text, "module": plugin.module, "sha256": plugin.sha256}


def _entry_point(group: str, name: str) -> tuple[str, str]:
    """Return the module and the attribute of an entry point."""
    found = {
        (entry.module, entry.attr) for entry in importlib.metadata.entry_points(group=f"vlalign.{group}", name=name)
    }
    what = f"{GROUPS[group]} {_shown(name)}"
    if not found:
        others = ", ".join(plugin_names(group)) or "none"
        raise UserError(
            f"{what}: unknown; expected MODULE:NAME, such as my_module:MyThing, or an entry point of an installed "
            f"package (group vlalign.{group}): {others}"
        )
    if len(found) > 1:
        several = " and ".join(sorted(f"{module}:{attr}" for module, attr in found))
        raise UserError(f"{what}: {several} have this name; pass one of them as MODULE:NAME")
    return found.pop()


def _shown(name: str) -> str:
    """Shorten and escape a name for a message: a file may contain any name."""
    return one_line(name)[:MAX_SHOWN_CHARACTERS]


def _import(name: str, what: str, folder: str | Path | None) -> ModuleType:
    try:
        return import_own(name, folder)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            missing = _shown(error.name)
            where = "" if folder is None else f"{missing.replace('.', '/')}.py in {str(folder) or os.getcwd()}, or "
            raise UserError(f"{what}: no module {missing}; expected {where}an installed package") from None
        raise _not_imported(name, what, error) from None
    except (Exception, SystemExit) as error:  # custom code may raise anything
        raise _not_imported(name, what, error) from None


def _not_imported(name: str, what: str, error: BaseException) -> UserError:
    return UserError(f"{what}: module {_shown(name)} cannot be imported: {reason_of(error)}{_place(error)}")


def _place(error: BaseException, within: str | None = None) -> str:
    """Return the last place of an error outside this module and Python's own import system.

    Args:
        error: The error.
        within: A file; if the error passed through it, the last place there is returned.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen")
        and frame.filename not in (__file__, own_modules.__file__, importlib.__file__)
    ]
    library = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
    frames = (
        [frame for frame in frames if frame.filename == within]
        or [frame for frame in frames if within is not None or not frame.filename.startswith(library)]
        or frames
    )
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _register(group: str, text: str, module: ModuleType, value: Any, problem: Problem | None) -> Plugin:
    if problem is not None and (what := problem(value)) is not None:
        raise UserError(f"{GROUPS[group]} {_shown(text)}: {what}")
    sha256, folder = _source_of(module, value)
    plugin = Plugin(text, module.__name__, sha256, folder, value)
    _LOADED[group, text] = plugin
    return plugin


def _source_of(module: ModuleType, value: Any) -> tuple[str, str]:
    """Return the sha256 of a module's source, and the folder of the import path that has it."""
    name, file = module.__name__, getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():  # a notebook, an interactive session or standard input
        try:
            return hashlib.sha256(inspect.getsource(value).encode()).hexdigest(), ""
        except (OSError, TypeError):
            raise UserError(
                f"{name}:{value.__name__}: has no source; write it into a file, such as my_module.py"
            ) from None
    path = Path(file).absolute()
    depth = name.count(".") + (path.name == "__init__.py")  # of the file below the folder of the import path
    folder = path.parents[depth]
    if name not in _SHA256:
        top = path.parents[depth - 1] if depth else path
        _SHA256[name] = _sha256_of(sorted(_code_in(top)) if depth else [path], folder)
    return _SHA256[name], str(folder)


def _code_in(package: Path) -> Iterator[Path]:
    """Yield the files of a package's modules. ``__pycache__`` is skipped, since it is never used."""
    for path in package.rglob("*"):
        if path.name.endswith(CODE_SUFFIXES) and path.parent.name != "__pycache__" and path.is_file():
            yield path


def _sha256_of(files: Sequence[Path], folder: Path) -> str:
    """Return the SHA-256 of a file; of several files, the SHA-256 of their names and contents."""
    if len(files) == 1:
        return hashlib.sha256(content_of(files[0])).hexdigest()
    digest = hashlib.sha256()
    for file in files:
        content = content_of(file)
        digest.update(f"{file.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()

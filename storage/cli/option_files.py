"""Files with options of a command, by name: TOML or YAML."""

import argparse
import difflib
import reprlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..common.errors import UserError, refuse_unreadable

MAX_BYTES = 1 << 16
"""A file with options is small."""


def read_option_file(path: Path, known: Mapping[str, argparse.Action], given: Sequence[str]) -> list[str]:
    """Return the options in a file as arguments that may stand before those of the command line.

    Args:
        path: ``.toml``, ``.yaml`` or ``.yml``. Names are those of the options, with ``-`` or ``_``.
        known: The command's options by name.
        given: Arguments of the command line. Options that stand there are left out, so that the command line wins.

    Raises:
        UserError: The file cannot be read, or has a name or a value that does not fit.
    """
    arguments: list[str] = []
    for key, value in _read(path).items():
        name = str(key).replace("_", "-")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            raise UserError(f"{path}: unknown option {key!r}" + (f"; nearest: {', '.join(near)}" if near else ""))
        if not any(argument.split("=")[0] in known[name].option_strings for argument in given):
            arguments += _arguments(path, name, known[name], value)
    return arguments


def _read(path: Path) -> dict[Any, Any]:
    if path.suffix not in (".toml", ".yaml", ".yml"):
        raise UserError(f"{path}: expected a .toml, .yaml or .yml file with options")
    with refuse_unreadable(path, "not readable"), path.open("rb") as file:
        text = file.read(MAX_BYTES + 1).decode("utf-8")
    if len(text) > MAX_BYTES:
        raise UserError(f"{path}: more than {MAX_BYTES:,} bytes; expected a few options")
    if path.suffix == ".toml":
        if sys.version_info < (3, 11):
            raise UserError(f"{path}: TOML is read from Python 3.11 on; write the options as YAML")
        import tomllib

        with refuse_unreadable(path, "not TOML"):
            read = tomllib.loads(text)
    else:
        with refuse_unreadable(path, "not YAML", errors=(yaml.YAMLError, ValueError, RecursionError)):
            read = yaml.safe_load(text)
    if read is None:
        return {}
    if not isinstance(read, dict):
        raise UserError(f"{path}: expected options by name, such as features: s3d")
    return read


def _arguments(path: Path, name: str, action: argparse.Action, value: Any) -> list[str]:
    """Return one option and its value as arguments."""
    option = f"--{name}"
    if value is None:
        return []
    if isinstance(action, argparse.BooleanOptionalAction) or action.nargs == 0:
        if not isinstance(value, bool):
            raise UserError(f"{path}: {name}: expected true or false, not {reprlib.repr(value)[:100]}")
        if value:
            return [option]
        return [f"--no-{name}"] if isinstance(action, argparse.BooleanOptionalAction) else []
    values = value if isinstance(value, list) else [value]
    if isinstance(value, bool) or not all(isinstance(each, str | int | float) for each in values):
        raise UserError(f"{path}: {name}: expected a text, a number or a list of them, not {reprlib.repr(value)[:100]}")
    texts = [str(each) for each in values]
    if isinstance(action, argparse._AppendAction):
        return [f"{option}={text}" for text in texts]
    if action.nargs is not None:
        return [option, *texts]
    return [f"{option}={','.join(texts)}"]


def as_option_file(options: Mapping[str, argparse.Action], parsed: argparse.Namespace) -> str:
    """Return the options that have a value as the YAML text of a file for ``read_option_file``."""
    values = {name: getattr(parsed, action.dest) for name, action in options.items()}
    kept = {name: _plain(value) for name, value in values.items() if value is not None and value is not False}
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float) else str(value)

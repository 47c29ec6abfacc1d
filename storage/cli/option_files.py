"""Files with options of a command, by name: TOML or YAML. A mistake names the file and the line."""

import argparse
import contextlib
import difflib
import re
import reprlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from ..common.errors import UserError, refuse_unreadable, unreadable

MAX_BYTES = 1 << 16
"""A file with options is small."""
NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""A text that begins with ``-`` and that ``argparse`` takes for a value."""
MAX_TRIED = 20
"""Maximum number of lines of a TOML file that are tried in the search for a key."""


@dataclass
class FileOptions:
    """Command-line options read from a file."""

    arguments: list[str] = field(default_factory=list)
    """The options as arguments, to be put before the command line's own."""
    places: dict[str, str] = field(default_factory=dict)
    """{``dest`` of an option: its file and line}, for messages."""


def read_option_file(
    path: Path,
    known: Mapping[str, argparse.Action],
    given: Sequence[str],
    *,
    only_typed: Collection[str] = (),
    skip_unknown: bool = False,
) -> FileOptions:
    """Read the options in a file.

    Args:
        path: ``.toml``, ``.yaml`` or ``.yml``. Names are those of the options, with ``-`` or ``_``.
        known: The command's options by name.
        given: Arguments of the command line. Their options are skipped: the command line wins.
        only_typed: Names of options that a file may contain only with their default, as written by ``--print-config``.
        skip_unknown: Skip unknown names instead of refusing them.

    Raises:
        UserError: The file cannot be read, or has a repeated name, an unknown name, a name that is allowed only on the
            command line, or an invalid value.
    """
    options, lines = FileOptions(), dict[str, int]()
    for key, value, line in _read(path):
        place, name = f"{path}, line {line}", str(key).replace("_", "-")
        if name in only_typed:
            if value is None or (name in known and value == known[name].default):
                continue
            problem = f"a file cannot permit imports, access, connections or deletion; pass --{name} yourself"
            raise UserError(f"{place}: {name}: {problem}")
        if name not in known:
            if skip_unknown:
                continue
            near = difflib.get_close_matches(name, known, n=3)
            raise UserError(
                f"{place}: unknown option {key!r}" + (f"; nearest: {', '.join(near)}" if near else "; see --help")
            )
        if name in lines:
            raise UserError(f"{place}: {name} is already in line {lines[name]}; expected each option once")
        lines[name] = line
        if not any(argument.split("=")[0] in known[name].option_strings for argument in given):
            options.arguments += _arguments(place, name, known[name], value)
            options.places[known[name].dest] = place
    return options


def _read(path: Path) -> Iterator[tuple[Any, Any, int]]:
    """Yield (key, value, line) of a file; a repeated key is yielded twice."""
    if path.suffix not in (".toml", ".yaml", ".yml"):
        raise UserError(f"{path}: expected a .toml, .yaml or .yml file with options")
    text = _read_text(path)
    return _read_toml(path, text) if path.suffix == ".toml" else _read_yaml(path, text)


def _read_text(path: Path) -> str:
    with refuse_unreadable(path, "not readable"), path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UserError(f"{path}: more than {MAX_BYTES:,} bytes; expected a few options")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise unreadable(_place(path, content.count(b"\n", 0, error.start)), "not readable", error) from None


def _place(path: Path, num_lines_before: int) -> str:
    return f"{path}, line {num_lines_before + 1}"


@contextlib.contextmanager
def _refuse_bad_yaml(path: Path, text: str) -> Iterator[None]:
    """Turn PyYAML's errors in the block into a ``UserError`` with file and line."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise unreadable(_place(path, mark.line) if mark else path, "not YAML", error) from None
    except yaml.reader.ReaderError as error:
        raise unreadable(_place(path, text.count("\n", 0, error.position)), "not YAML", error) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise unreadable(path, "not YAML", error) from None


def _read_yaml(path: Path, text: str) -> Iterator[tuple[Any, Any, int]]:
    with _refuse_bad_yaml(path, text):
        loader = yaml.SafeLoader(text)
        document = loader.get_single_node()
        if document is None:
            return
        if not isinstance(document, yaml.MappingNode):
            where = _place(path, document.start_mark.line)
            raise UserError(f"{where}: expected options by name, such as features: s3d")
        loader.flatten_mapping(document)
        pairs = [
            (*(loader.construct_object(node, deep=True) for node in pair), pair[0].start_mark.line + 1)
            for pair in document.value
        ]
    yield from pairs


def _read_toml(path: Path, text: str) -> Iterator[tuple[Any, Any, int]]:
    if sys.version_info < (3, 11):
        raise UserError(f"{path}: TOML needs Python 3.11 or newer; write the options as YAML")
    import tomllib

    try:
        read = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        at = re.search(r"\(at line (\d+)", str(error))
        line = int(at[1]) if at else len(text.splitlines())
        raise unreadable(f"{path}, line {line}", "not TOML", error) from None
    for key, value in read.items():
        yield key, value, _line_in_toml(text, key, tomllib.loads)


def _line_in_toml(text: str, key: str, loads: Callable[[str], object]) -> int:
    """Return the line of a key in a TOML file, which ``tomllib.loads`` does not report.

    A line inside a multi-line string may look like a key; the lines before it are then no complete file. A key with
    escapes is not found: the result is 1.
    """
    name = re.escape(key)
    matches = re.finditer(rf"""^[ \t]*\[*[ \t]*(?:{name}|"{name}"|'{name}')[ \t]*[=.\]]""", text, re.MULTILINE)
    line = 1
    for match in islice(matches, MAX_TRIED):
        line = text.count("\n", 0, match.start()) + 1
        try:
            loads(text[: match.start()])
        except ValueError:
            continue
        break
    return line


def _arguments(place: str, name: str, action: argparse.Action, value: Any) -> list[str]:
    """Return one option and its value as arguments. No value can be mistaken for an option."""
    option = f"--{name}"
    if value is None:
        return []
    if isinstance(action, argparse.BooleanOptionalAction) or action.nargs == 0:
        if not isinstance(value, bool):
            raise UserError(f"{place}: {name}: expected true or false, got {reprlib.repr(value)[:100]}")
        if value:
            return [option]
        return [f"--no-{name}"] if isinstance(action, argparse.BooleanOptionalAction) else []
    values = value if isinstance(value, list) else [value]
    if isinstance(value, bool) or not all(isinstance(each, str | int | float) for each in values):
        expected = "expected a text, a number or a list of them"
        raise UserError(f"{place}: {name}: {expected}, got {reprlib.repr(value)[:100]}")
    texts = [str(each) for each in values]
    if isinstance(action, argparse._AppendAction):
        return [f"{option}={text}" for text in texts]
    if action.nargs is not None:  # the values are arguments of their own
        if odd := next((text for text in texts if text[:1] in ("-", "@") and not NUMBER.fullmatch(text)), None):
            raise UserError(f"{place}: {name}: expected values that do not begin with {odd[0]}, got {odd[:100]!r}")
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

"""Checking a cluster file before ``ray submit`` reads it: ``python ray_jobs/cluster_file.py FILE``.

Ray takes a key that stands twice without a word, and names no line for other mistakes. The rules are Ray's own schema.
"""

import argparse
import contextlib
import copy
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import jsonschema
import ray.autoscaler
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from vlalign.storage.cli.command import run_command
from vlalign.storage.cli.option_files import read_small_text, refuse_bad_yaml
from vlalign.storage.cli.parser import new_parser
from vlalign.storage.common.errors import EXIT_DONE, READ_ERRORS, UserError, refuse_unreadable
from vlalign.storage.common.terminal import one_line, show

SCHEMA = Path(ray.autoscaler.__file__).with_name("ray-schema.json")
MAX_CHARACTERS = 300
REFUSALS = (*READ_ERRORS, click.ClickException)
"""Errors that Ray raises for a file that it does not take."""

Lines = dict[tuple[str | int, ...], int]
"""{keys that lead to a value: line of its last key}, such as ``{("provider", "type"): 9}``."""


def check_cluster_file(path: Path) -> None:
    """Check a file for Ray's cluster launcher.

    Raises:
        UserError: It is no YAML, or a key in it stands twice or is unknown, or a value has the wrong type or is out of
            range. The message names the file and the line.
    """
    text = read_small_text(path, "a cluster file")
    lines: Lines = {(): 1}
    with refuse_bad_yaml(path, text):
        loader = yaml.SafeLoader(text)
        document = loader.get_single_node()
        if not isinstance(document, yaml.MappingNode):
            raise UserError(f"{path}, line 1: expected a cluster file, which begins with cluster_name: NAME")
        _find_lines(path, document, (), lines, set())
        config: dict[str, Any] = loader.construct_document(document)
    try:
        checked = _completed(config)
    except REFUSALS:  # of a wrong type, which the schema names; Ray takes min_workers away before it looks
        checked = {key: value for key, value in config.items() if key != "min_workers"}
    schema = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    if mistakes := [_mistake(error, lines) for error in schema.iter_errors(checked)]:
        line, problem = min(mistakes)
        raise UserError(f"{path}, line {line}: {problem}")
    with refuse_unreadable(path, "Ray refuses it", errors=REFUSALS):
        validate_config(_completed(config))


def _completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cluster file as Ray completes it; what Ray prints meanwhile is about its own additions."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return prepare_config(copy.deepcopy(dict(config)))


def _find_lines(path: Path, node: yaml.Node, keys: tuple[str | int, ...], lines: Lines, seen: set[int]) -> None:
    """Add the lines of all keys below a node, and refuse a key that stands twice. A repeated part is read once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            lines[(*keys, number)] = item.start_mark.line + 1
            _find_lines(path, item, (*keys, number), lines, seen)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place, line = (*keys, str(key.value)), key.start_mark.line + 1
            if place in lines:
                raise UserError(f"{path}, line {line}: {key.value!r} stands in line {lines[place]} already")
            lines[place] = line
            _find_lines(path, value, place, lines, seen)


def _mistake(error: jsonschema.ValidationError, lines: Lines) -> tuple[int, str]:
    """Return the line of a mistake, and what it is."""
    keys: Sequence[str | int] = tuple(error.absolute_path)
    if error.validator == "additionalProperties":
        found, schema = error.instance, error.schema
        assert isinstance(found, dict) and isinstance(schema, dict), "only mappings have properties"
        keys = (*keys, next(key for key in found if key not in schema.get("properties", {})))
    while keys not in lines:  # a part that is repeated by an alias, or that Ray fills in
        keys = keys[:-1]
    named = ".".join(map(str, keys))
    return lines[keys], one_line(f"{named}: {error.message}" if named else error.message)[:MAX_CHARACTERS]


def check(args: argparse.Namespace) -> int:
    """Run the command."""
    for path in args.files:
        check_cluster_file(path)
        show(f"{path}: Ray can read it")
    return EXIT_DONE


def main(argv: list[str] | None = None) -> int:
    """Run the command ``cluster_file.py`` and return its exit code."""
    parser = new_parser(
        "cluster_file",
        "Check files for Ray's cluster launcher: unknown or repeated keys, wrong types, values out of range.",
        "python ray_jobs/cluster_file.py ray_jobs/extract_howto100m.yaml",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", type=Path)
    return run_command(check, parser, argv)


if __name__ == "__main__":
    sys.exit(main())

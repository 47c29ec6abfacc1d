"""Parsers of command lines: common options, one-line errors, short help, and options from a file."""

import argparse
import difflib
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

from ..common.errors import EXIT_DONE, EXIT_MISTAKE, SettingError, UserError
from ..common.packages import package_version
from ..common.plugins import check_named, names_plugin
from ..common.settings import Settings, info_of, names_of_options, types_of
from .option_files import as_option_file, read_option_file

SHELLS = ("bash", "zsh", "tcsh")
"""Shells that completion supports."""
DEVICE_HELP = "cpu, cuda, cuda:N or mps; auto: the first GPU, or the CPU (default: auto)"
"""Help text of ``--device`` for commands that use one device."""
NOT_SETTINGS = ("help", "help_all", "version", "config", "print_config", "print_completion")
"""Options that an option file cannot hold."""
ONLY_TYPED = (
    *("trust", "stores", "spacy-model"),  # modules
    *("allow-folder", "allow-host", "videos", "host", "no-token"),  # permissions
    "address",
    *("delete", "rename", "yes", "prune", "forget"),
    *("export", "clips"),  # files
)
"""Options, of any command, that import, permit, connect, delete, or write anywhere. An option file cannot set them."""


@dataclass(frozen=True)
class OwnPart:
    """The kind of custom part that an option may name."""

    group: str
    """The part's group of plugins."""
    built_in: Collection[str] = ()
    """Built-in names. They are never custom parts, whatever installed packages declare."""


class Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line, with the nearest known options.

    ``--help`` hides the options of ``hide_from_short_help``; ``--help-all`` shows all options.
    """

    passes_on = False
    """True if unknown options belong to another command; the result has them in ``passed_on``."""
    intermixed = False
    """True if options may appear between optional positional arguments."""
    reads_ahead = False
    """True if all unknown options, of the command line and of a file, are for another parser."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take the arguments of ``argparse.ArgumentParser``."""
        super().__init__(*args, **kwargs)
        self._rare: list[argparse.Action] = []
        self._shows_all = False
        self.places: dict[str, str] = {}
        """{``dest`` of an option that an option file gave: its file and line}."""
        self.own_parts: Mapping[str, OwnPart] = {}
        """{``dest`` of an option: the kind of custom part that it may name}; needs the option ``--trust``. A part named
        by a file is refused unless its module is trusted, so a command may import the values of these options.
        """

    def hide_from_short_help(self, actions: Iterable[argparse.Action]) -> None:
        """Show these options with ``--help-all`` only."""
        self._rare += actions

    # The stub has overloads for the type of ``namespace``, which is not used here.
    def parse_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> Any:
        """Parse ``args``, by default the arguments of the process. Exit with code 2 on a mistake."""
        given = sys.argv[1:] if args is None else list(args)
        self.places = {}
        parsed, unknown = self._parse(given, namespace)
        if getattr(parsed, "config", None) is not None:
            parsed, unknown = self._parse_with_file(parsed.config, given, namespace)
        if self.passes_on or self.reads_ahead:
            parsed.passed_on = unknown
        elif unknown:
            near = difflib.get_close_matches(unknown[0].split("=")[0], _options(self), n=3)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            if not near and re.match("-[^-]", unknown[0]) and "--" not in given:
                hint = "; write -- before ids and names that begin with -"
            self.error(f"unknown: {' '.join(unknown)}{hint}")
        if getattr(parsed, "print_config", False):
            self._print_message(self._config_of(parsed), sys.stdout)
            self.exit(EXIT_DONE)
        return parsed

    def _parse_with_file(self, path: Path, given: Sequence[str], namespace: Any) -> tuple[Any, list[str]]:
        """Return the options of a command line and a file, and the unknown arguments."""
        only_typed = [name for name in ONLY_TYPED if f"--{name}" in self._option_string_actions]
        try:
            options = read_option_file(
                path, self._settings(), given, only_typed=only_typed, skip_unknown=self.reads_ahead
            )
        except UserError as error:
            self.error(str(error))
        self.places = options.places
        # otherwise the last option would take the next argument
        end = [f"--config={path}"] if options.arguments else []
        parsed, unknown = self._parse([*options.arguments, *end, *given], namespace)
        try:
            self._check_own_parts(parsed)
        except UserError as error:
            self.error(self.message(error))
        return parsed, unknown

    def _check_own_parts(self, parsed: Any) -> None:
        """Raise ``UntrustedModule`` for a custom part that a file names and whose module is not trusted."""
        for dest, part in self.own_parts.items():
            named = getattr(parsed, dest) if dest in self.places else None
            for text in named if isinstance(named, list) else [named]:
                if text is not None and text not in part.built_in and names_plugin(part.group, text):
                    check_named(part.group, text, parsed.trust, self.places[dest])

    def _settings(self) -> dict[str, argparse.Action]:
        """Return {name without dashes: option}, except options for help and files, and ``--no-...``."""
        return {
            option.removeprefix("--"): action
            for option, action in self._option_string_actions.items()
            if option.startswith("--") and action.dest not in NOT_SETTINGS and not option.startswith("--no-")
        }

    def _config_of(self, parsed: Any) -> str:
        """Return the options as text of an option file; options that a file must not contain are comments."""
        options = self._option_string_actions
        typed = {name: options[f"--{name}"] for name in ONLY_TYPED if f"--{name}" in options}
        given = {name: action for name, action in typed.items() if getattr(parsed, action.dest) != action.default}
        settings = {name: action for name, action in self._settings().items() if name not in typed}
        text = as_option_file(settings, parsed)
        if given:
            text += "# pass these on the command line, since a file cannot set them:\n"
            text += "".join(f"# {line}\n" for line in as_option_file(given, parsed).splitlines())
        return text

    def _parse(self, arguments: Sequence[str], namespace: Any) -> tuple[Any, list[str]]:
        """Return the options and the unknown arguments; an error in an option from a file names file and line."""
        parse = self.parse_known_intermixed_args if self.intermixed else self.parse_known_args
        self.exit_on_error = False
        try:
            parsed, unknown = parse(arguments, namespace)
            if unknown and self.intermixed and "--" in arguments:
                # intermixed parsing ignores a "--" that precedes all positional arguments
                parsed, unknown = self.parse_known_args(arguments, namespace)
            return parsed, unknown
        except argparse.ArgumentError as error:
            action = self._option_string_actions.get((error.argument_name or "").split("/")[0])
            place = None if action is None else self.places.get(action.dest)
            self.error(f"{place}: {error}" if place else str(error))

    def message(self, error: UserError) -> str:
        """Return an error's message; for a setting, with its option's name, and the file and line if a file set it."""
        if not isinstance(error, SettingError):
            return str(error)
        place = self.places.get(error.setting)
        return f"{place}: {error.of_command()}" if place else error.of_command()

    def convert_arg_line_to_args(self, arg_line: str) -> list[str]:
        """Split a line of a file with arguments as a shell would."""
        return shlex.split(arg_line, comments=True)

    def error(self, message: str) -> NoReturn:
        """Print a mistake in one line and exit with code 2."""
        self.exit(EXIT_MISTAKE, f"{self.prog}: error: {message}; see {self.prog} --help\n")

    def format_usage(self) -> str:
        """Return a one-line usage without the options; the help lists them below it."""
        return f"usage: {self._short_usage()}\n"

    def _short_usage(self) -> str:
        names = {"?": "[{}]", argparse.SUPPRESS: "[{}]", "*": "[{} ...]", "+": "{} [{} ...]"}
        positional = [
            action for action in self._actions if not action.option_strings and action.help != argparse.SUPPRESS
        ]
        parts = [
            names.get(str(action.nargs), "{}").replace("{}", str(action.metavar or action.dest))
            for action in positional
        ]
        return " ".join([self.prog, *parts, "[OPTIONS]"])

    def format_help(self) -> str:
        """Return the help; rare options are included only for ``--help-all``."""
        self.usage = self._short_usage().replace("%", "%%")
        if self._shows_all or not self._rare:
            return super().format_help()
        helps, groups = [action.help for action in self._rare], list(self._action_groups)
        try:
            for action in self._rare:
                action.help = argparse.SUPPRESS
            self._action_groups[:] = [group for group in groups if not _is_hidden(group)]
            more = f"\n{len(self._rare)} more options: {self.prog} --help-all\n"
            return super().format_help() + more
        finally:
            self._action_groups[:] = groups
            for action, text in zip(self._rare, helps, strict=True):
                action.help = text

    def show_all(self) -> None:
        """Print the help with all options."""
        self._shows_all = True
        self.print_help()


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps a text of one line, such as a description; keeps a text of several lines, such as an example.

    Names with hyphens are not broken and can be copied.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text if "\n" in text else "\n".join(self._split_lines(text, width))
        return super()._fill_text(lines, width, indent)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def _is_hidden(group: argparse._ArgumentGroup) -> bool:
    actions = group._group_actions
    return bool(actions) and all(action.help == argparse.SUPPRESS for action in actions)


def _options(parser: argparse.ArgumentParser) -> list[str]:
    """Return all long options, including those of actions."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    nested = [option for action in actions for choice in action.choices.values() for option in _options(choice)]
    return [option for option in parser._option_string_actions if option.startswith("--")] + nested


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, Parser)
        parser.show_all()
        parser.exit(EXIT_DONE)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser._print_message(f"{parser.prog} {package_version()}\n", sys.stdout)
        parser.exit(EXIT_DONE)


class _Completion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, _: Any, values: Any, *__: Any) -> None:
        import shtab

        parser._print_message(shtab.complete(parser, shell=values) + "\n", sys.stdout)
        parser.exit(EXIT_DONE)


def new_parser(prog: str, description: str, example: str) -> Parser:
    """Return a parser with the common options for help and messages, and an example at the end of its help."""
    parser = Parser(prog=prog, description=description, **formatted(example))
    add_messages(parser)
    version = parser.add_argument(
        "--version", action=_Version, nargs=0, default=argparse.SUPPRESS, help="show vlalign's version and exit"
    )
    completion = parser.add_argument(
        "--print-completion",
        action=_Completion,
        choices=SHELLS,
        default=argparse.SUPPRESS,
        help="print the shell's completion script, and exit",
    )
    parser.hide_from_short_help([version, completion])
    return parser


def formatted(example: str) -> dict[str, Any]:
    """Return the keyword arguments of a parser or an action whose help ends with ``example``."""
    return {
        "epilog": f"example:\n  {example}",
        "formatter_class": _HelpFormatter,
        "allow_abbrev": False,
    }


def command_parser(prog: str, description: str, example: str) -> Parser:
    """Return a parser with the options that all commands about a data set take."""
    parser = new_parser(prog, description, example)
    add_dataset(parser)
    config = parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML or YAML file of options, by their names without leading dashes; the command line overrides it",
    )
    print_config = parser.add_argument(
        "--print-config", action="store_true", help="print the options as a file for --config, and exit"
    )
    parser.hide_from_short_help([config, print_config])
    return parser


def parser_ahead(prog: str, own_parts: Mapping[str, OwnPart]) -> Parser:
    """Return a parser for the options that name custom parts; they are parsed before the options of these parts.

    The caller adds these options.
    """
    parser = Parser(prog=prog, add_help=False, allow_abbrev=False)
    parser.reads_ahead, parser.own_parts = True, own_parts
    parser.add_argument("--config", type=Path)
    add_trust(parser)
    return parser


def add_settings(parser: Parser, group: argparse._ArgumentGroup, settings: type[Settings]) -> None:
    """Add an option for each field of a dataclass of settings. ``--help-all`` shows them."""
    parser.hide_from_short_help([add_setting(group, settings, field.name) for field in fields(settings)])


def add_setting(
    group: argparse._ActionsContainer,
    settings: type[Settings],
    name: str,
    *,
    default: Any = MISSING,
    help: str | None = None,
) -> argparse.Action:
    """Add the option of a setting, and return it.

    Args:
        group: The parser, or a group of its options.
        settings: The dataclass that declares the setting.
        name: Name of the setting's field.
        default: Value if the option is not given (default: the setting's own).
        help: Its help (default: the setting's description and default).
    """
    [field] = [field for field in fields(settings) if field.name == name]
    kind, info = types_of(settings)[name], info_of(field)
    default = field.default if default is MISSING else default
    if help is None:
        shows_default = default is not None and default is not False and kind is not list
        help = f"{info.help} (default: {default})" if shows_default else info.help
    keywords: dict[str, Any] = {"default": default, "help": help.replace("%", "%%")}
    if kind is bool:
        keywords["action"] = argparse.BooleanOptionalAction
    elif kind is list:
        keywords |= {"action": "append", "default": list(default or ()), "metavar": info.placeholder(str)}
    else:
        keywords |= {"type": kind, "metavar": info.placeholder(kind)}
    option = group.add_argument(f"--{name.replace('_', '-')}", **keywords)
    if info.choices is not None:
        option.choices = _Suggestions(info.choices)
    return option


class _Suggestions(list[str]):
    """Choices for the shell's completion. The settings themselves refuse other values and name the valid ones."""

    def __contains__(self, value: object) -> bool:
        return True


def given_settings(args: argparse.Namespace, settings: type[Settings]) -> dict[str, Any]:
    """Return {name: value} for the options of a settings dataclass."""
    return {name: getattr(args, name) for name in names_of_options(settings)}


def add_stores(parser: Parser) -> None:
    """Add ``--stores``, for commands that read features."""
    stores = parser.add_argument(
        "--stores",
        metavar="MODULE:NAME",
        help="your own class or function that opens the feature stores (default: stores under --root)",
    )
    parser.hide_from_short_help([stores])


def add_messages(parser: Parser) -> None:
    """Add the options about help and messages."""
    all_of_it = parser.add_argument(
        "--help-all", action=_HelpAll, nargs=0, default=argparse.SUPPRESS, help="show all options and exit"
    )
    level = parser.add_mutually_exclusive_group()
    quiet = level.add_argument(
        "--quiet", action="store_true", help="show only warnings, errors and results: no progress, no notes"
    )
    verbose = level.add_argument(
        "--verbose", action="store_true", help="show the time of each message, and the line of code of an error"
    )
    parser.hide_from_short_help([all_of_it, quiet, verbose])


def default_root() -> Path:
    """Return the folder of all data sets if ``--root`` is not given."""
    return Path(os.environ.get("VLALIGN_ROOT", "vlalign_data"))


def next_call(command: str, root: Path, dataset: str, stores: str | None = None, *, protocol: str | None = None) -> str:
    """Return a line with the next command for a data set, with ``--stores`` if its stores are custom."""
    options = ["--dataset", dataset] if root == default_root() else ["--root", str(root), "--dataset", dataset]
    options += ["--stores", stores] if stores else []
    options += ["--protocol", protocol] if protocol else []
    return f"now: {shlex.join([command, *options])}"


def add_dataset(parser: Parser) -> None:
    """Add ``--root``, ``--dataset`` and ``--allow-folder``."""
    parser.add_argument(
        "--root",
        type=Path,
        default=default_root(),
        help="folder of all data sets (default: $VLALIGN_ROOT or ./vlalign_data)",
    )
    parser.add_argument("--dataset", help="name of the data set: its folder under --root")
    allow_folder = parser.add_argument(
        "--allow-folder",
        action="append",
        default=[],
        type=Path,
        metavar="FOLDER",
        help="trusted folder outside --root, to which videos.jsonl and links of the data set may point; needed "
        "only once",
    )
    parser.hide_from_short_help([allow_folder])


def add_trust(parser: Parser) -> None:
    """Add ``--trust``."""
    trust = parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="MODULE",
        help="your own Python module, which may be imported if a file, such as a run's run.json, names it; repeatable",
    )
    parser.hide_from_short_help([trust])

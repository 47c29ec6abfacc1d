"""The command vlalign: all commands under one name, such as ``vlalign extract``."""

import difflib
import importlib
import sys

from ..common.errors import EXIT_DONE, EXIT_MISTAKE
from ..common.packages import missing_package_message
from ..common.terminal import messages_on_terminal, warn
from .parser import Parser, new_parser

COMMANDS = {
    "extract": ("vlalign.extract.cli.extract", "run feature extractors over videos"),
    "transcribe": (
        "vlalign.extract.cli.transcribe",
        "transcribe speech in videos, or text in frames",
    ),
    "preprocess": ("vlalign.preprocess.cli", "read captions and tag their words"),
    "train": ("vlalign.train.cli.train", "train a video-text model on features and captions"),
    "evaluate": ("vlalign.train.cli.evaluate", "evaluate a run, and write a report"),
    "search": ("vlalign.train.cli.search", "find the moments that match a text or an image"),
    "serve": ("vlalign.train.cli.serve", "search in the browser"),
    "mcp": ("vlalign.train.cli.mcp", "let language models search (MCP)"),
    "index": ("vlalign.train.cli.index", "build or update the search index of a data set"),
    "benchmark": ("vlalign.train.cli.benchmark", "measure search by a public protocol"),
    "sync": ("vlalign.train.cli.sync", "bring a data set up to date with folders of your own videos"),
    "runs": ("vlalign.train.cli.runs", "show, compare, rename and delete runs"),
    "store": ("vlalign.storage.cli.store", "inspect, check and repair feature stores; import and export features"),
    "convert": ("vlalign.extract.cli.convert", "convert checkpoints of OpenAI's CLIP and CLIP4Clip to folders"),
    "doctor": ("vlalign.extract.cli.doctor", "check the installation and this machine"),
}
"""{command: (module with its ``main`` and ``make_parser``, description)}. ``vlalign-COMMAND`` runs the same command."""


def make_parser(*, whole: bool = False) -> Parser:
    """Return the parser of vlalign.

    Args:
        whole: Include all options of all commands, whose modules take seconds to import.
    """
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {meaning}" for name, (_, meaning) in COMMANDS.items())
    parser = new_parser(
        "vlalign",
        f"From raw videos to trained, searchable video-text models.\n\ncommands, each with --help:\n{listed}",
        'vlalign extract --dataset mine --videos FOLDER --features s3d\n  vlalign search "someone cuts an onion"',
    )
    if whole:
        actions = parser.add_subparsers(dest="command", metavar="COMMAND")
        for name, (module, meaning) in COMMANDS.items():
            of_command: Parser = importlib.import_module(module).make_parser()
            actions.add_parser(name, help=meaning, parents=[of_command], add_help=False, conflict_handler="resolve")
    else:
        parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, nargs="?", help="one of these")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command that is named first with the arguments that follow; return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments and arguments[0] in COMMANDS:
        module, _ = COMMANDS[arguments[0]]
        try:
            main_of_command = importlib.import_module(module).main
        except ModuleNotFoundError as error:
            if missing := missing_package_message(error):
                with messages_on_terminal():
                    warn(f"vlalign-{arguments[0]}: error: {missing}")
                return EXIT_MISTAKE
            raise
        return main_of_command(arguments[1:])
    parser = make_parser(whole=any(argument.startswith("--print-completion") for argument in arguments))
    if arguments and not arguments[0].startswith("-"):
        near = difflib.get_close_matches(arguments[0], COMMANDS, n=3)
        parser.error(f"no command {arguments[0]!r}; " + (f"nearest: {', '.join(near)}" if near else "see the list"))
    parser.parse_args(arguments)
    parser.print_help()
    return EXIT_DONE

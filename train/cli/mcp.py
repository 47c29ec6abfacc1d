"""The command vlalign-mcp."""

import argparse
import sys

from ...storage.cli.command import run_command
from ...storage.cli.parser import Parser, add_trust, command_parser
from ...storage.common.errors import EXIT_DONE
from ...storage.common.terminal import say
from .search import add_encoder
from .serve import open_searches


def _answer(args: argparse.Namespace) -> int:
    from ..page.mcp_stdio import serve_stdio  # of the extra mcp

    if sys.stdin.isatty():
        say("note: an MCP client starts this command, and talks to it over standard input; Ctrl-C stops it")
    serve_stdio(lambda: open_searches(args))
    return EXIT_DONE


def make_parser() -> Parser:
    """Return the parser of vlalign-mcp."""
    parser = command_parser(
        "vlalign-mcp",
        "Let a language model search data sets and look at frames: a server of the Model Context Protocol (MCP). An "
        "MCP client starts it, and talks to it over standard input and output. For a server with an address, pass "
        "--mcp to vlalign-serve.",
        "vlalign-mcp words-s3d-seed0\n  vlalign-mcp --dataset mine,msrvtt --features clip_vit_b32",
    )
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help="a run's folder or name (default: the last one finished; none with --features)",
    )
    add_encoder(parser)
    add_trust(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command(_answer, make_parser(), argv)

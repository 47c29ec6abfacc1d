"""The command vlalign-index."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...storage.cli.command import run_command
from ...storage.cli.parser import Parser, add_trust, command_parser
from ...storage.common.errors import EXIT_DONE, SettingError
from ...storage.common.packages import EXTRAS, install_command
from ...storage.common.terminal import number_of, show
from .search import add_encoder, run_of, source_of

if TYPE_CHECKING:
    from ..search.build import BuiltIndex

EXAMPLES = """vlalign-index --dataset mine --features clip_vit_b32
  vlalign-index --dataset mine --features clip_vit_b32 --windows shots
  vlalign-index words-s3d-seed0 --duplicates 0.98"""


def index_parser(prog: str, description: str, examples: str) -> Parser:
    """Return the parser of a command that makes an index, here or on a cluster."""
    parser = command_parser(prog, description, examples)
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help="a run's folder or name, or hf:ORG/NAME (default: the last one finished; none with --features)",
    )
    add_encoder(parser)
    add_trust(parser)
    parser.add_argument(
        "--language",
        metavar="CODE",
        help="language of captions and subtitles, such as de, for stop words and word stems; kept for later calls "
        "until another one, or auto, is given (default: detected)",
    )
    parser.add_argument(
        "--windows",
        choices=("lengths", "shots"),
        help="search windows: shots (from features shots) or lengths (4, 8 and 16 s); kept for later calls until the "
        "other one is given (default: lengths)",
    )
    parser.add_argument(
        "--duplicates",
        type=float,
        metavar="COSINE",
        help="also list near-duplicate videos: those whose vectors have at least this cosine, such as 0.98",
    )
    return parser


def run_index(args: argparse.Namespace, build: Callable[..., "BuiltIndex"]) -> int:
    """Build an index with the options of ``index_parser``, and print the result.

    Args:
        args: The options.
        build: ``build_index``, or a function with its arguments that makes an index elsewhere.

    Returns:
        The exit code.
    """
    args.run = run_of(args)
    source = source_of(args)
    built = build(source, language=args.language, windows=args.windows)
    show(f"{built.folder}: {number_of(built.num_windows, 'windows')} of {number_of(built.num_videos, 'videos')}")
    show(f"videos added: {built.num_added:,}; outdated: {built.num_outdated:,}")
    if built.num_coded is not None:
        show(f"windows that got codes, for a faster search: {built.num_coded:,}")
    elif built.needs_codes:
        show("note: without FAISS, each search compares all windows, which takes seconds")
        show(f"install it, and run this command again: {install_command(*EXTRAS['index'])}")
    if built.num_other:
        show(f"removed {built.num_other:,} files that another model or version made")
    if args.duplicates is not None:
        from ..search.duplicates import find_duplicates
        from ..search.search import Search

        try:
            groups = find_duplicates(Search.open(source), cosine=args.duplicates)
        except SettingError as error:
            raise SettingError("duplicates", error.value, error.problem) from None
        show(f"{len(groups):,} groups of near-duplicates, with a cosine of {args.duplicates:g} or more")
        for group in groups:
            show(f"{group.lowest_cosine:.4f}  {' '.join(group.video_ids)}")
    return EXIT_DONE


def _index(args: argparse.Namespace) -> int:
    from ..search.build import build_index  # numpy and torch take their time

    return run_index(args, build_index)


def make_parser() -> Parser:
    """Return the parser of vlalign-index."""
    return index_parser(
        "vlalign-index",
        "Update the search index of a data set: encode the windows of new and changed videos, and remove outdated "
        "ones. A stopped call resumes. Small data sets do not need this command.",
        EXAMPLES,
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command(_index, make_parser(), argv)

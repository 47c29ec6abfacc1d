"""vlalign-preprocess: the command line of ``prepare_captions``."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..storage.cli.command import run_command
from ..storage.cli.parser import OwnPart, Parser, add_setting, add_trust, command_parser, given_settings, next_call
from ..storage.common.errors import EXIT_DONE, EXIT_INCOMPLETE, SettingError, UserError
from ..storage.common.settings import names_of_options
from ..storage.common.system import available_cores
from ..storage.common.terminal import say, show
from ..storage.dataset.folder import DatasetFolder
from .caption_source import known_datasets
from .corpus_statistics import format_statistics
from .datasets.own import is_own_dataset
from .prepare import PreparedCaptions, prepare_captions
from .settings import PreprocessingSettings
from .word_vectors import format_coverage


def preprocess_parser(prog: str, description: str, example: str) -> Parser:
    """Return the parser of a command that prepares captions, here or on a cluster."""
    parser = command_parser(prog, description, example)
    for name in names_of_options(PreprocessingSettings):
        add_setting(parser, PreprocessingSettings, name)
    parser.add_argument(
        "--workers",
        type=int,
        default=available_cores(),
        help="number of processes (default: all cores); the result does not depend on it",
    )
    add_trust(parser)
    parser.own_parts = {"dataset": OwnPart("datasets")}
    return parser


def _check_options(args: argparse.Namespace) -> None:
    """Raise a ``UserError`` for mistakes that only a command line can make."""
    if args.dataset is None:
        raise UserError(
            f"--dataset is missing: pass one of {known_datasets()}, your own reader as MODULE:NAME, or a name of "
            "your own with --annotations FILE"
        )
    if args.workers < 1:
        raise SettingError("workers", args.workers, "expected 1 or more")


def run_preprocess(args: argparse.Namespace, prepare: Callable[[PreprocessingSettings], PreparedCaptions]) -> int:
    """Prepare captions with the options of ``preprocess_parser``, and print the result.

    Args:
        args: The options.
        prepare: ``prepare_captions``, or a function that does the same elsewhere.

    Returns:
        The exit code.
    """
    _check_options(args)
    if is_own_dataset(args.dataset):
        folder = Path(args.root, args.dataset)  # its module names the data set's folder
    else:
        folder = DatasetFolder(args.root, args.dataset).path
    prepared = prepare(PreprocessingSettings(folder, **given_settings(args, PreprocessingSettings)))
    args.dataset = prepared.dataset.name
    return _show_prepared(prepared)


def preprocess(args: argparse.Namespace) -> int:
    """Run the command."""
    code = run_preprocess(args, partial(prepare_captions, num_processes=args.workers))
    if code == EXIT_DONE:
        has_features = DatasetFolder(args.root, args.dataset).features("").is_dir()
        say(next_call("vlalign-train" if has_features else "vlalign-extract", args.root, args.dataset))
    return code


def _show_prepared(prepared: PreparedCaptions) -> int:
    """Print the result. Return the exit code."""
    if prepared.statistics is not None:
        show(format_statistics(prepared.statistics))
        if prepared.provenance.protocol:
            show(f"protocol: {prepared.provenance.protocol}")
        for name, value in prepared.provenance.facts.items():
            show(f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value}")
        if prepared.word_vectors is not None:
            show(format_coverage(prepared.word_vectors))
    return EXIT_INCOMPLETE if prepared.num_problems else EXIT_DONE


def make_parser() -> Parser:
    """Return the parser of vlalign-preprocess."""
    return preprocess_parser(
        "vlalign-preprocess",
        "Read the captions of a data set, tag their words with spaCy, and count in how many training captions each "
        "word occurs.",
        "vlalign-preprocess --dataset demo\n  vlalign-preprocess --dataset youcook2 --annotations DIR\n"
        "  vlalign-preprocess --dataset mine --annotations captions.csv\n"
        "  vlalign-preprocess --dataset my_module:KITCHENS",
    )


def main(argv: list[str] | None = None) -> int:
    """Run vlalign-preprocess and return its exit code."""
    return run_command(preprocess, make_parser(), argv)

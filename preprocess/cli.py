"""vlalign-preprocess: the command line of ``prepare_captions``."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..storage.cli.command import run_command
from ..storage.cli.parser import Parser, command_parser, next_call
from ..storage.common.errors import EXIT_DONE, EXIT_INCOMPLETE, SettingError, UserError
from ..storage.common.system import available_cores
from ..storage.common.terminal import say, show
from ..storage.dataset.folder import DatasetFolder
from .caption_source import known_datasets
from .corpus_statistics import format_statistics
from .datasets import DATASETS
from .prepare import PreparedCaptions, prepare_captions
from .settings import SPACY_MODEL, PreprocessingSettings
from .word_vectors import format_coverage


def preprocess_parser(prog: str, description: str, example: str) -> Parser:
    """Return the parser of a command that prepares captions, here or on a cluster."""
    parser = command_parser(prog, description, example)
    protocols = [f"{name}: {', '.join(spec.protocols)}" for name, spec in DATASETS.items() if len(spec.protocols) > 1]
    parser.add_argument(
        "--annotations",
        type=Path,
        help="folder with the official files of a data set (default: annotations/ in the data set's folder), or file "
        "with your own captions",
    )
    parser.add_argument(
        "--protocol", help=f"choice of splits and captions (default: the first). {'; '.join(protocols)}"
    )
    parser.add_argument("--spacy-model", default=SPACY_MODEL, help=f"installed spaCy pipeline (default: {SPACY_MODEL})")
    parser.add_argument(
        "--language",
        help="language of the captions, such as de: spaCy's pipeline of it tags them, if it is installed (default: "
        "that of --spacy-model)",
    )
    parser.add_argument(
        "--word-vectors",
        type=Path,
        help="word2vec (binary or text), GloVe or npz file; keeps the vectors of the captions' words",
    )
    parser.add_argument(
        "--strict", action="store_true", help="stop at the first row that cannot be used, instead of skipping it"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=available_cores(),
        help="processes that tag words; the result does not depend on it (default: all cores)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="decides the demo's scenes, and the splits of your own captions if they have none (default: 0)",
    )
    return parser


def _check_options(args: argparse.Namespace) -> None:
    """Raise a ``UserError`` for mistakes that only a command line can make."""
    if args.dataset is None:
        raise UserError(
            f"--dataset is missing: pass one of {known_datasets()}, or a name of your own with --annotations FILE"
        )
    if args.workers < 1:
        raise SettingError("workers", args.workers, "expected 1 or more")


def run_preprocess(args: argparse.Namespace, prepare: Callable[[PreprocessingSettings], PreparedCaptions]) -> int:
    """Call a function with the options of ``preprocess_parser``, and print what it prepared.

    Args:
        args: The options.
        prepare: ``prepare_captions``, or a function that does the same elsewhere.

    Returns:
        The exit code.
    """
    _check_options(args)
    settings = PreprocessingSettings(
        args.dataset,
        root=args.root,
        annotations=args.annotations,
        protocol=args.protocol,
        spacy_model=args.spacy_model,
        language=args.language,
        word_vectors=args.word_vectors,
        seed=args.seed,
        strict=args.strict,
    )
    return _show_prepared(prepare(settings))


def preprocess(args: argparse.Namespace) -> int:
    """Run the command."""
    code = run_preprocess(args, partial(prepare_captions, num_processes=args.workers))
    if code == EXIT_DONE:
        has_features = DatasetFolder(args.root, args.dataset).features("").is_dir()
        say(next_call("vlalign-train" if has_features else "vlalign-extract", args.root, args.dataset))
    return code


def _show_prepared(prepared: PreparedCaptions) -> int:
    """Print what was prepared. Return the exit code."""
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
        "  vlalign-preprocess --dataset mine --annotations captions.csv",
    )


def main(argv: list[str] | None = None) -> int:
    """Run vlalign-preprocess and return its exit code."""
    return run_command(preprocess, make_parser(), argv)

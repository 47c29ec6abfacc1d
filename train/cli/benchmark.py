"""The command vlalign-benchmark."""

import argparse
from pathlib import Path

from ...storage.cli.command import run_command
from ...storage.cli.parser import Parser, add_trust, command_parser
from ...storage.common.errors import EXIT_DONE, EXIT_INCOMPLETE
from ...storage.common.terminal import show
from ...storage.records import SPLITS
from ..benchmarks import BENCHMARKS
from .search import LIKE_WEIGHT, add_encoder, run_of, source_of

EXAMPLES = """vlalign-benchmark moments --dataset charades_sta --features clip_vit_b32
  vlalign-benchmark copies --dataset vsc2022 --features clip_vit_b32 --ground-truth train_matching_ground_truth.csv
  vlalign-benchmark composed --dataset momentseeker --features siglip2 --ground-truth movie_ti2v.json"""


def _measure(args: argparse.Namespace) -> int:
    args.run = run_of(args)
    source = source_of(args)
    from ..benchmarks.run import MeasureSettings, measure  # numpy and torch take their time

    settings = MeasureSettings(
        split=args.split, protocol=args.protocol, ground_truth=args.ground_truth, like_weight=args.like_weight
    )
    result = measure(args.benchmark, source, settings)
    show("\n".join(result.summary))
    show(f"metrics: {result.folder / 'metrics.json'}")
    return EXIT_INCOMPLETE if result.num_skipped else EXIT_DONE


def make_parser() -> Parser:
    """Return the parser of vlalign-benchmark."""
    measured = "; ".join(f"{name}: {what}" for name, what in BENCHMARKS.items())
    parser = command_parser(
        "vlalign-benchmark",
        f"Measure search by a public protocol, with --features or with a run. {measured}.",
        EXAMPLES,
    )
    parser.intermixed = True
    parser.add_argument("benchmark", choices=list(BENCHMARKS), help="the protocol to measure by")
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help="a run's folder or name (default: the last one finished; none with --features)",
    )
    add_encoder(parser)
    parser.add_argument(
        "--split", choices=SPLITS, help="for moments: split whose captions are the queries (default: test)"
    )
    parser.add_argument("--protocol", help="for moments: protocol of the captions (default: the data set's own)")
    parser.add_argument(
        "--ground-truth",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="for copies and composed: the published file; may be repeated for composed",
    )
    parser.add_argument(
        "--like-weight",
        type=float,
        help=f"for composed: weight of the example beside the text, 0 to 1 (default: {LIKE_WEIGHT})",
    )
    add_trust(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command(_measure, make_parser(), argv)

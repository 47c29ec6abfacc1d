"""vlalign-preprocess: captions with POS tags, and the IDF table."""

import argparse
from pathlib import Path

from ..storage.console import Problems, UserError, command_parser, run_command, say
from ..storage.layout import DatasetFolder
from .datasets import DATASETS, own
from .prepare import format_summary, prepare, summary


def preprocess(args: argparse.Namespace) -> int:
    if args.dataset is None:
        raise UserError(f"--dataset is missing: one of {', '.join(DATASETS)}, or a name of your own with --annotations FILE")
    reader = DATASETS.get(args.dataset, own.read)
    if args.annotations is None and reader is own.read:
        raise UserError(
            f"data set {args.dataset!r}: not one of {', '.join(DATASETS)}; for your own captions pass --annotations FILE, "
            f"a .csv or .jsonl with the columns {', '.join(own.REQUIRED)}"
        )
    if args.annotations is not None and not args.annotations.exists():
        raise UserError(f"{args.annotations}: no such file; --annotations expects a .csv or .jsonl with captions")
    problems = Problems()
    dataset = DatasetFolder(args.root, args.dataset)
    captions = prepare(dataset, reader(args.annotations, args.seed, problems), spacy_model=args.spacy_model, problems=problems)
    print(format_summary(summary(captions)))
    say(f"{dataset.captions}: {len(captions):,} captions" + (f"; {problems.count:,} problems, see above" if problems.count else ""))
    return problems.exit_code()


def main(argv: list[str] | None = None) -> int:
    parser = command_parser(
        "vlalign-preprocess",
        "Reads the captions of a data set, tags their words with spaCy, and counts in how many training captions each word occurs.",
        "vlalign-preprocess --dataset demo\n  vlalign-preprocess --dataset mine --annotations captions.csv",
    )
    parser.add_argument("--annotations", type=Path, help="your own captions: a .csv or .jsonl file")
    parser.add_argument("--spacy-model", default="en_core_web_sm", help="an installed spaCy pipeline (default: en_core_web_sm)")
    parser.add_argument(
        "--seed", type=int, default=0, help="decides the demo's scenes, and the splits of captions that have none (default: 0)"
    )
    return run_command(preprocess, parser, argv)

"""vlalign-preprocess: captions with POS tags, and the IDF table."""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ..storage.common.command import command_parser, run_command
from ..storage.common.errors import UserError
from ..storage.common.problems import Problems
from ..storage.common.processes import available_cores
from ..storage.common.terminal import say, show
from ..storage.layout import DatasetFolder
from ..storage.records import Caption, VideoRecord
from .census import format_summary
from .datasets import DATASETS, demo, own
from .datasets.sources import Annotations, Dataset
from .prepare import Part, prepare
from .vectors import format_coverage, prepare_word_vectors

Read = Callable[[Problems], Iterator[VideoRecord | Caption]]
DEMO = "demo"


def choose_reader(args: argparse.Namespace) -> tuple[DatasetFolder, Read, dict[str, Any]]:
    """The folder to write to, what gives the records, and what decides them."""
    if args.dataset is None:
        raise UserError(
            f"--dataset is missing: one of {', '.join([DEMO, *DATASETS])}, or a name of your own with --annotations FILE"
        )
    spec = DATASETS.get(args.dataset)
    if args.protocol is not None and (spec is None or args.protocol not in spec.protocols):
        there = (
            f"expected one of {', '.join(spec.protocols)}" if spec and any(spec.protocols) else "it has no protocols"
        )
        raise UserError(f"--protocol {args.protocol}: not known of data set {args.dataset!r}; {there}")
    if spec is not None:
        return read_official(args, spec)
    dataset = DatasetFolder(args.root, args.dataset)
    if args.dataset == DEMO:
        return dataset, partial(demo.read, args.annotations, args.seed), {"seed": args.seed}
    if args.annotations is None:
        raise UserError(
            f"data set {args.dataset!r}: not one of {', '.join([DEMO, *DATASETS])}; for your own captions pass --annotations FILE, "
            f"a {own.SUFFIXES} with the columns {', '.join(own.REQUIRED)}"
        )
    if not args.annotations.exists():
        raise UserError(f"{args.annotations}: no such file; --annotations expects a {own.SUFFIXES} with captions")
    return dataset, partial(own.read, args.annotations, args.seed, videos=dataset.read_videos()), {"seed": args.seed}


def read_official(args: argparse.Namespace, spec: Dataset) -> tuple[DatasetFolder, Read, dict[str, Any]]:
    usual = spec.protocols[0]
    protocol = args.protocol or usual
    dataset = DatasetFolder(args.root, args.dataset, "" if protocol == usual else protocol)
    folder = args.annotations or dataset.path / "annotations"
    if not folder.is_dir():
        files = "; ".join(f"{name} ({source})" for name, source in spec.published.items())
        raise UserError(
            f"{folder}: no such folder; expected one with the files of {args.dataset} as their authors publish them: {files}"
        )
    facts = spec.facts(Annotations(folder, spec.published, Problems(quiet=True)), protocol) if spec.facts else {}
    about = {"protocol": protocol, **facts, "task": spec.task}
    if spec.steps is not None:
        about["steps"] = spec.steps(Annotations(folder, spec.published, Problems(quiet=True)))
    return dataset, lambda problems: spec.read(Annotations(folder, spec.published, problems), protocol), about


def preprocess(args: argparse.Namespace, make_parts: Callable[[Iterator[Part]], Iterator[int]] | None = None) -> int:
    """``make_parts``: as ``prepare`` takes it."""
    dataset, read, about = choose_reader(args)
    if args.workers < 1:
        raise UserError(f"--workers {args.workers}: expected 1 or more")
    with Problems(strict=args.strict, file=dataset.problems("preprocess")) as problems:
        return prepare_captions(args, dataset, read, about, problems, make_parts)


def prepare_captions(
    args: argparse.Namespace,
    dataset: DatasetFolder,
    read: Read,
    about: dict[str, Any],
    problems: Problems,
    make_parts: Callable[[Iterator[Part]], Iterator[int]] | None,
) -> int:
    summary = prepare(
        dataset,
        read,
        spacy_model=args.spacy_model,
        problems=problems,
        num_workers=args.workers,
        make_parts=make_parts,
        about=about,
    )
    if summary is None:
        return problems.exit_code()
    show(format_summary(summary))
    for name, value in about.items():
        if (
            name in ("seed", "task", "steps") or value == ""
        ):  # asked for, for later commands; or a data set without protocols
            continue
        show(f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value}")
    if args.word_vectors is not None:
        show(format_coverage(prepare_word_vectors(dataset, args.word_vectors)))
    num_captions = sum(split["captions"] for split in summary["splits"].values())
    say(
        f"{dataset.captions}: {num_captions:,} captions"
        + (f"; {problems.count:,} problems, {problems.where}" if problems.count else "")
    )
    return problems.exit_code()


def preprocess_parser(prog: str, description: str, example: str) -> argparse.ArgumentParser:
    parser = command_parser(prog, description, example)
    parser.add_argument(
        "--annotations",
        type=Path,
        help="the folder of a data set's official files (default: annotations/ in the data set's folder), or a file with your own captions",
    )
    protocols = "; ".join(
        f"{name}: {', '.join(spec.protocols)}" for name, spec in DATASETS.items() if len(spec.protocols) > 1
    )
    parser.add_argument("--protocol", help=f"which splits and captions (default: the first). {protocols}")
    parser.add_argument(
        "--spacy-model", default="en_core_web_sm", help="an installed spaCy pipeline (default: en_core_web_sm)"
    )
    parser.add_argument(
        "--word-vectors",
        type=Path,
        help="word2vec (binary or text), GloVe or npz file: keeps the vectors of the captions' words",
    )
    parser.add_argument(
        "--strict", action="store_true", help="stop at the first row that cannot be used, rather than leave it out"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=available_cores(),
        help="processes that tag; the result is the same (default: all cores)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="decides the demo's scenes, and the splits of captions that have none (default: 0)",
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = preprocess_parser(
        "vlalign-preprocess",
        "Reads the captions of a data set, tags their words with spaCy, and counts in how many training captions each word occurs.",
        "vlalign-preprocess --dataset demo\n  vlalign-preprocess --dataset youcook2 --annotations DIR\n"
        "  vlalign-preprocess --dataset mine --annotations captions.csv",
    )
    return run_command(preprocess, parser, argv)

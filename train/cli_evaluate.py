"""vlalign-evaluate: a run -> metrics beside chance, and a report."""

import argparse
from typing import Any

from ..storage.console import EXIT_DONE, EXIT_INCOMPLETE, Problems, command_parser, run_command, say
from ..storage.files import read_json, sha256_of
from .metrics import TIES, format_metrics
from .runs import METRICS_FILE, MODEL_FILE, REPORT_FILE, dataset_of, describe_inputs, find_run, open_stores, read_config, read_run


def evaluate(args: argparse.Namespace) -> int:
    folder = find_run(args.root, args.dataset, args.run)
    config = read_config(read_run(folder))
    dataset = dataset_of(folder, config)
    fingerprint = {
        "split": args.split,
        "ties": args.ties,
        "model_sha256": sha256_of(folder / MODEL_FILE),
        "inputs": describe_inputs(dataset, open_stores(dataset, config.features)),
    }
    known: dict[str, Any] = read_json(folder / METRICS_FILE) if (folder / METRICS_FILE).exists() else {}
    if known.get("fingerprint") == fingerprint and (folder / REPORT_FILE).exists():
        say(f"{folder}: evaluated before on the same data; nothing to do")
        result = known
    else:
        from .evaluate import evaluate_run  # torch and transformers, which a finished evaluation need not wait for

        result = evaluate_run(folder, args.split, args.ties, Problems(), fingerprint)
    print(
        f"{result['run']}: {result['num_captions']:,} captions and {result['num_clips']:,} clips of {result['dataset']}, {result['split']}"
    )
    print(format_metrics(result["metrics"]))
    print(f"ties: {result['ties']}; checksum of the split's clips and captions: {result['split_checksum']}")
    if result["note"]:
        print(f"note: {result['note']}")
    print(f"metrics: {folder / METRICS_FILE}")
    print(f"report:  {folder / REPORT_FILE}")
    return EXIT_INCOMPLETE if result["left_out"] else EXIT_DONE


def main(argv: list[str] | None = None) -> int:
    parser = command_parser(
        "vlalign-evaluate",
        "Retrieves videos by text and texts by video on a split, and writes metrics.json and report.html into the run's folder.",
        "vlalign-evaluate --dataset demo\n  vlalign-evaluate vlalign_data/demo/runs/taco-s3d-seed0",
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run's folder or name (default: the last one finished)")
    parser.add_argument("--split", default="test", choices=["train", "validation", "test"], help="(default: test)")
    policies = "; ".join(f"{name}: {meaning}" for name, meaning in TIES.items())
    parser.add_argument("--ties", default="average", choices=TIES, help=f"what becomes of equal scores (default: average). {policies}")
    return run_command(evaluate, parser, argv)

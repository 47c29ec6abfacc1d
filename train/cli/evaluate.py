"""The command vlalign-evaluate."""

import argparse
from dataclasses import fields

from ...storage.cli.command import run_command
from ...storage.cli.parser import DEVICE_HELP, Parser, add_settings, add_stores, command_parser
from ...storage.common.errors import EXIT_DONE, EXIT_INCOMPLETE
from ...storage.common.terminal import show
from ...storage.records import SPLITS
from ..evaluation import TASKS
from ..evaluation.evaluate import SCORE_STAGES, EvaluationSettings, evaluate
from ..runs.folder import beside, find_run, named_dataset

EXAMPLES = """vlalign-evaluate --dataset demo
  vlalign-evaluate taco-howto100m-seed0 --on youcook2 --rerank 50
  vlalign-evaluate taco-howto100m-seed0 --on crosstask"""
WEIGHT_HELP = {
    "sentence": "the sentence score",
    "token": "the tokens' score (Figure 3 of TACo)",
    "fusion": "the fusion layers' score",
    "bag": "the default recipe's score of whole clips",
    "word": "the default recipe's score of single words",
}


def _evaluate(args: argparse.Namespace) -> int:
    weights = {name: getattr(args, f"{name}_weight") for name in SCORE_STAGES}
    run = find_run(args.root, args.dataset, args.run)
    evaluation = evaluate(
        run,
        dataset=named_dataset(args.root, args.dataset, run, having="captions"),
        on=None if args.on is None else beside(run, args.on),
        protocol=args.protocol,
        stores=args.stores,
        settings=EvaluationSettings(
            task=args.task,
            split=args.split,
            score_weights={name: weight for name, weight in weights.items() if weight is not None},
            task_settings=_task_settings(args),
            device=args.device,
        ),
    )
    show("\n".join(evaluation.summary))
    show(f"metrics: {evaluation.metrics_file}")
    show(f"report:  {evaluation.report_file}")
    return EXIT_DONE if evaluation.is_complete else EXIT_INCOMPLETE


def _task_settings(args: argparse.Namespace) -> object | None:
    """Return the settings of the task whose options were given; ``evaluate`` refuses those of another task."""
    for task in TASKS.values():
        names = [field.name for field in fields(task.settings_type)]
        settings = task.settings_type(**{name: getattr(args, name) for name in names})
        if settings != task.settings_type():
            return settings
    return None


def make_parser() -> Parser:
    """Return the parser of vlalign-evaluate."""
    parser = command_parser(
        "vlalign-evaluate",
        "Evaluate a run on the task of its data set, such as text-to-video and video-to-text retrieval, and write "
        "metrics.json and report.html into the run's folder.",
        EXAMPLES,
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run's folder or name (default: the last one finished)")
    parser.add_argument(
        "--on",
        metavar="DATASET",
        help="evaluate on another data set than that of the run (zero-shot), as --dataset does; results are "
        "in on/NAME in the run's folder",
    )
    parser.add_argument(
        "--protocol", help="splits and captions of the data set that is evaluated (default: its first protocol)"
    )
    add_stores(parser)
    parser.add_argument("--split", default="test", choices=SPLITS, help="(default: test)")
    tasks = "; ".join(f"{task.name}: {task.description}" for task in TASKS.values())
    parser.add_argument("--task", choices=TASKS, help=f"what to evaluate (default: the data set's task). {tasks}")
    weights = parser.add_argument_group("weights of the fused score", "default: the run's")
    for name, meaning in WEIGHT_HELP.items():
        option = weights.add_argument(f"--{name}-weight", type=float, metavar="W", help=f"weight of {meaning}")
        parser.hide_from_short_help([option])
    parser.add_argument("--device", default="auto", help=DEVICE_HELP)
    for task in TASKS.values():
        add_settings(parser, parser.add_argument_group(f"options of --task {task.name}"), task.settings_type)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command(_evaluate, make_parser(), argv)

"""The command vlalign-evaluate."""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from ...storage.cli.command import load_own_parts, run_command
from ...storage.cli.parser import (
    DEVICE_HELP,
    OwnPart,
    Parser,
    add_setting,
    add_settings,
    add_stores,
    add_trust,
    command_parser,
    parser_ahead,
)
from ...storage.common.errors import EXIT_DONE, EXIT_INCOMPLETE, UserError
from ...storage.common.terminal import show
from ...storage.records import SPLITS
from ..evaluation import TASKS
from ..evaluation.evaluate import SCORE_STAGES, EvaluationSettings, evaluate
from ..evaluation.own_tasks import is_own_task, load_task
from ..evaluation.task import Task
from ..runs.files import SCORES_FILE
from ..runs.folder import beside, find_run, named_dataset

EXAMPLES = """vlalign-evaluate --dataset demo
  vlalign-evaluate taco-howto100m-seed0 --on youcook2 --rerank 50
  vlalign-evaluate taco-howto100m-seed0 --on crosstask"""
OWN_PARTS = {"task": OwnPart("tasks", TASKS), "metric": OwnPart("metrics")}
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
        on=None if args.on is None else beside(run, args.on, args.root),
        protocol=args.protocol,
        stores=args.stores,
        settings=EvaluationSettings(
            task=args.task,
            split=args.split,
            score_weights={name: weight for name, weight in weights.items() if weight is not None},
            task_settings=_task_settings(args),
            metrics=args.metric,
            save_scores=args.save_scores,
            device=args.device,
        ),
        trust=args.trust,
    )
    show("\n".join(evaluation.summary))
    show(f"metrics: {evaluation.metrics_file}")
    if args.save_scores:
        show(f"scores:  {evaluation.folder / SCORES_FILE}")
    show(f"report:  {evaluation.report_file}")
    return EXIT_DONE if evaluation.is_complete else EXIT_INCOMPLETE


def load_own_task(argv: Sequence[str] | None) -> Task[Any] | None:
    """Load the custom task named by a command line, or by an option file if its module is trusted.

    A task's settings are options, so the task is loaded before the other options are read.

    Args:
        argv: The command line; None: the process's. If only an option file names the module, and ``--trust`` does not,
            the command ends with an error.

    Returns:
        The task; None if it is one of this package, or none is named.

    Raises:
        UserError: The task cannot be loaded.
    """
    parser = parser_ahead("vlalign-evaluate", OWN_PARTS)
    parser.add_argument("--task")
    parser.add_argument("--metric", action="append")
    args = parser.parse_args(argv)
    return load_task(args.task) if args.task is not None and is_own_task(args.task) else None


def _own_settings(task: Task[Any]) -> list[str]:
    """Return the names of a task's settings that have no option yet, since no task of this package has them."""
    common = {field.name for other in TASKS.values() for field in fields(other.settings_type)}
    built_in = {field.name for base in task.settings_type.__mro__ if base in _BUILT_IN for field in fields(base)}
    return [field.name for field in fields(task.settings_type) if field.name not in common & built_in]


_BUILT_IN = {task.settings_type for task in TASKS.values()}


def _task_settings(args: argparse.Namespace) -> object | None:
    """Return the settings of the task whose options were given; ``evaluate`` refuses settings of another task."""
    own = [load_task(args.task)] if args.task is not None and is_own_task(args.task) else []
    for task in [*own, *TASKS.values()]:
        names = [field.name for field in fields(task.settings_type)]
        settings = task.settings_type(**{name: getattr(args, name) for name in names})
        if settings != task.settings_type():
            return settings
    return None


def make_parser(own_task: Task[Any] | None = None) -> Parser:
    """Return the parser of vlalign-evaluate, with the options of a custom task."""
    parser = command_parser(
        "vlalign-evaluate",
        "Evaluate a run on the task of its data set, such as text-to-video and video-to-text retrieval, and write "
        "metrics.json and report.html into the run's folder.",
        EXAMPLES,
    )
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="a run's folder or name, or hf:ORG/NAME (default: the last one finished)"
    )
    parser.add_argument(
        "--on",
        metavar="DATASET",
        help="evaluate on a data set other than the run's (zero-shot); --dataset does the same; results are "
        "in on/NAME in the run's folder",
    )
    parser.add_argument(
        "--protocol", help="protocol of the evaluated data set: its splits and captions (default: its first)"
    )
    add_stores(parser)
    parser.add_argument("--split", default="test", choices=SPLITS, help="(default: test)")
    tasks = "; ".join(f"{task.name}: {task.description}" for task in TASKS.values())
    parser.add_argument(
        "--task",
        metavar=f"{{{','.join(TASKS)}}}",
        help=f"task to evaluate, or your own as MODULE:NAME (default: the data set's task). {tasks}",
    )
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="a metric of your own: a function of the similarities and the right videos; may be repeated",
    )
    parser.add_argument(
        "--save-scores",
        action="store_true",
        help="save the scores of all captions with all clips as scores.npz beside the metrics",
    )
    weights = parser.add_argument_group("weights of the fused score", "default: the run's")
    for name, meaning in WEIGHT_HELP.items():
        option = weights.add_argument(f"--{name}-weight", type=float, metavar="W", help=f"weight of {meaning}")
        parser.hide_from_short_help([option])
    parser.add_argument("--device", default="auto", help=DEVICE_HELP)
    for task in TASKS.values():
        add_settings(parser, parser.add_argument_group(f"options of --task {task.name}"), task.settings_type)
    if own_task is not None:
        group = parser.add_argument_group(f"options of --task {own_task.key}")
        for name in _own_settings(own_task):
            try:
                add_setting(group, own_task.settings_type, name)
            except argparse.ArgumentError:
                problem = f"its setting {name!r} has the name of an option of vlalign-evaluate; rename it"
                raise UserError(f"task {own_task.key}: {problem}") from None
    add_trust(parser)
    parser.own_parts = OWN_PARTS
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = load_own_parts(lambda: make_parser(load_own_task(argv)), make_parser())
    return run_command(_evaluate, parser, argv)

"""vlalign-train: stores and captions -> a trained model."""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ...storage.cli.command import load_own_parts, run_command
from ...storage.cli.parser import OwnPart, Parser, add_setting, add_stores, add_trust, command_parser, parser_ahead
from ...storage.common.errors import EXIT_DONE, EXIT_INCOMPLETE, SettingError
from ...storage.common.plugins import load_plugin
from ...storage.common.settings import Settings, info_of
from ...storage.common.terminal import show
from ...storage.dataset.folder import find_dataset
from ..comparison.seeds import SeedRuns, parse_seeds, train_seeds
from ..comparison.suites import list_suites, run_suite
from ..comparison.table import as_text
from ..loop.training import is_first_process, train
from ..objectives import objectives
from ..recipes.own_parts import BUILT_IN, GROUPS, load_named, plugins_of
from ..recipes.recipes import RECIPES
from ..recipes.train_config import COMPONENTS, objective_settings

COMPONENT_ORDER = ("data", "model", "optimization", "validation")
"""The order of options, and of settings in the names of a suite's results."""
OWN_OPTIONS = ("dataset", "protocol", "features")
"""Settings whose options are defined separately, with other values or help."""
OWN_PARTS = {setting: OwnPart(group, BUILT_IN[setting]) for setting, group in GROUPS.items()}
USUAL_SETTINGS = (
    "losses",
    "encoder",
    "text_encoder",
    "precision",
    "seed",
    "num_steps",
    "batch_size",
    "learning_rate",
    "validate_every",
)
"""Settings that the short help shows."""


def train_command(args: argparse.Namespace) -> int:
    """Run vlalign-train; return its exit code."""
    if args.list_suites:
        show(as_text(list_suites()))
        return EXIT_DONE
    of_call = ("dataset", "recipe", "protocol", "init", "run_name", "device", "stores")
    names = [field.name for component in COMPONENT_ORDER for field in fields(COMPONENTS[component])]
    settings = {name: getattr(args, name) for name in [*names, *objective_settings()] if name not in of_call}
    settings["objective"] = args.objective
    call = {name: getattr(args, name) for name in of_call[1:]}
    seeds = None if args.seeds is None else parse_seeds(args.seeds)
    if args.suite is not None:
        return suite_command(args, settings, seeds)
    dataset = _dataset_folder(args)
    if seeds is not None:
        return show_seeds(train_seeds(dataset, seeds=seeds, settings=settings, **call))
    run = train(dataset, settings=settings, **call)
    if not run.was_trained_before and is_first_process():
        trusted = "".join(f" --trust {plugin.module}" for plugin in plugins_of(run.config).values())
        stores = f" --stores {args.stores}" if args.stores else ""
        show(f"trained {run.folder}; now: vlalign-evaluate {run.folder}{stores}{trusted}")
    return EXIT_INCOMPLETE if run.num_skipped else EXIT_DONE


def _dataset_folder(args: argparse.Namespace) -> Path:
    """Return the folder of the data set that is named, or of the only one that is prepared."""
    return find_dataset(args.root, args.dataset, having="captions", hint="vlalign-preprocess").path


def suite_command(args: argparse.Namespace, settings: dict[str, Any], seeds: tuple[int, ...] | None) -> int:
    """Run a suite and show its table; return the exit code."""
    for name in ("recipe", "protocol", "init", "run_name", "objective", "stores"):
        if getattr(args, name) is not None:
            raise SettingError(name, getattr(args, name), "the rows of the suite set it; omit it")
    seed = settings.pop("seed")
    if seed is not None and seeds is not None:
        raise SettingError("seed", seed, "--seeds sets the seeds; pass only one of them")
    seeds = seeds or (seed or 0,)
    result = run_suite(_dataset_folder(args), args.suite, seeds=seeds, device=args.device, settings=settings)
    if result.files:
        show(as_text(result.table))
        show(f"table: {' and '.join(map(str, result.files))}")
    return EXIT_INCOMPLETE if result.num_failed or result.num_skipped else EXIT_DONE


def show_seeds(result: SeedRuns) -> int:
    """Show the table of runs with several seeds; return the exit code."""
    if result.files:
        show(as_text(result.table))
        show(f"table: {' and '.join(map(str, result.files))}")
    return EXIT_DONE if result.is_complete else EXIT_INCOMPLETE


def add_component_settings(parser: Parser) -> None:
    """Add a group of options for the settings of each component except the objective."""
    for component in COMPONENT_ORDER:
        group, settings = parser.add_argument_group(component), COMPONENTS[component]
        for field in fields(settings):
            if field.name not in OWN_OPTIONS:
                help = f"{info_of(field).help} (default: {field.default}; a recipe may have another)"
                add_option(parser, group, settings, field.name, help)


def add_option(parser: Parser, group: argparse._ArgumentGroup, settings: type[Settings], name: str, help: str) -> None:
    """Add the option of a setting. Without the option, the value is None, and the recipe decides."""
    option = add_setting(group, settings, name, default=None, help=help)
    if name not in USUAL_SETTINGS:
        parser.hide_from_short_help([option])


def add_objective_settings(parser: Parser) -> None:
    """Add the objective's option, and the options of all objectives' settings, each with the objectives that use it."""
    group = parser.add_argument_group("objective", "\n".join(f"{n}: {o.description}" for n, o in objectives().items()))
    group.add_argument(
        "--objective",
        metavar="STR",
        help=f"loss and score, one of {', '.join(objectives())}, or your own as MODULE:NAME (default: the recipe's)",
    )
    for name, having in objective_settings().items():
        defaults = {getattr(objective, name): None for objective in having.values()}
        first = next(iter(having.values()))
        [field] = [field for field in fields(first) if field.name == name]
        users = "" if len(having) == len(objectives()) else f"of {', '.join(having)}: "
        default = " or ".join(map(str, defaults))
        help_text = f"{users}{info_of(field).help} (default: {default}; a recipe may have another)"
        if name == "losses":
            help_text += ". " + "; ".join(f"{n}: {'+'.join(o.loss_terms)}" for n, o in objectives().items())
        add_option(parser, group, first, name, help_text)


def make_parser() -> Parser:
    """Return the parser of vlalign-train."""
    parser = command_parser(
        "vlalign-train",
        "Train a video-text model on the features and captions of a data set. The same command resumes a stopped "
        "training. All settings are optional; the recipe has defaults for all. A run records them in run.json.",
        "vlalign-train --dataset demo --features s3d\n"
        "  vlalign-train --dataset demo --features s3d --seeds 0-4\n"
        "  vlalign-train --dataset youcook2 --suite taco-table3 --seeds 0-2\n"
        "  vlalign-train --recipe taco-youcook2 --num-video-layers 4 --device cuda:0,cuda:1\n"
        "  torchrun --nnodes 4 --nproc-per-node 8 --no-python vlalign-train --recipe taco-howto100m",
    )
    parser.add_argument(
        "--recipe",
        help=f"complete settings to start from, one of {', '.join(RECIPES)} (default: the data set's)",
    )
    parser.add_argument(
        "--features",
        help="the feature store to train on, such as s3d; several, separated by + or commas (default: the recipe's)",
    )
    add_stores(parser)
    parser.add_argument(
        "--protocol",
        help="protocol of the data set (its splits and captions), as for vlalign-preprocess (default: the first)",
    )
    parser.add_argument(
        "--seeds",
        metavar="SEEDS",
        help="train and evaluate a run for each of these seeds, such as 0-4 or 0,2,5, and show the mean with its "
        "standard deviation; finished runs are skipped",
    )
    parser.add_argument(
        "--suite",
        metavar="NAME",
        help="train and evaluate every row of a paper's table, and show the paper's results and ours, such as "
        "taco-table3; settings on the command line apply to all rows",
    )
    parser.add_argument("--list-suites", action="store_true", help="list the tables that --suite can run, and exit")
    parser.add_argument("--init", metavar="RUN", help="folder or name of a run; training starts from its weights")
    parser.add_argument(
        "--run-name",
        metavar="NAME",
        help="name of the run's folder (default: objective, features, settings that differ from the recipe, and seed)",
    )
    parser.add_argument(
        "--device",
        default="auto",
        help="cpu, cuda or cuda:N, or several, separated by commas, which share each batch; auto: all GPUs, or the CPU "
        "(default: auto); under torchrun, each process has its own GPU",
    )
    add_trust(parser)
    parser.own_parts = OWN_PARTS
    add_objective_settings(parser)
    add_component_settings(parser)
    return parser


def load_named_parts(argv: Sequence[str] | None, modules_in: str = "") -> None:
    """Load the custom objective, encoder and stores that a command line names.

    An objective or encoder that only an option file names is loaded if the command line trusts its module. A custom
    objective's settings are options, so the objective is loaded before the other options are read.

    Args:
        argv: The command line; None: the process's. The command ends with an error if a part cannot be loaded, or if
            only an option file names it and its module is not trusted.
        modules_in: Where modules may be besides the import path; empty: the current folder.
    """
    parser = parser_ahead("vlalign-train", OWN_PARTS)
    for name in (*OWN_PARTS, "stores"):
        parser.add_argument(f"--{name}")
    args = parser.parse_args(argv)

    def load() -> None:
        load_named({setting: getattr(args, setting) for setting in OWN_PARTS}, modules_in)
        if args.stores is not None:
            load_plugin("stores", args.stores, modules_in)

    load_own_parts(load, parser)


def main(argv: list[str] | None = None, *, modules_in: str = "") -> int:
    """Run vlalign-train and return its exit code.

    Args:
        argv: The arguments; None: the process's.
        modules_in: Where modules of one's own may be besides the import path; empty: the current folder.
    """
    load_named_parts(argv, modules_in)
    return run_command(train_command, make_parser(), argv)

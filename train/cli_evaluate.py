"""vlalign-evaluate: a run -> metrics beside chance, and a report."""

import argparse
from collections.abc import Iterator
from typing import Any

from ..storage.captions import choose_protocol, read_captions_about
from ..storage.common.command import command_parser, run_command
from ..storage.common.errors import UserError
from ..storage.common.exits import EXIT_DONE, EXIT_INCOMPLETE
from ..storage.common.problems import Problems
from ..storage.common.terminal import say, show
from ..storage.files import read_json, sha256_of
from ..storage.layout import find_dataset
from .config import HEADS, NORMALIZATIONS, TASKS, TrainConfig
from .metrics import (
    TIES,
    format_answers,
    format_metrics,
    format_normalization,
    format_segmentation,
    format_stages,
    format_steps,
)
from .run_files import read_config
from .runs import (
    METRICS_FILE,
    MODEL_FILE,
    REPORT_FILE,
    asked_dataset,
    dataset_of,
    describe_inputs,
    find_run,
    open_recordings,
    open_stores,
    read_run,
)


def evaluate(args: argparse.Namespace) -> int:
    run_folder = find_run(args.root, args.dataset, args.run)
    config = read_config(read_run(run_folder))
    own, folder = dataset_of(run_folder, config), run_folder
    on = asked_dataset(args.root, args.dataset, own, having="captions")
    if args.on is not None and on is not own:
        raise UserError(
            f"--dataset {args.dataset}, --on {args.on}: the run is of {own.name}; pass only the data set that it is to be asked about"
        )
    if args.on is not None or on is not own:
        other = on if args.on is None else find_dataset(own.root, args.on, having="captions", hint="vlalign-preprocess")
        on = choose_protocol(other, args.protocol or "")
        folder = run_folder / "on" / "-".join(filter(None, (on.name, on.protocol)))
    elif args.protocol is not None:
        raise UserError(
            f"--protocol {args.protocol}: is of the data set given with --on or --dataset; a run is asked by that of its training"
        )
    if args.rerank is not None and args.rerank < 1:
        raise UserError(f"--rerank {args.rerank}: expected 1 or more")
    given = {
        "sentence": args.sentence_weight,
        "token": args.token_weight,
        "fusion": args.fusion_weight,
        "fusion_token": args.token_weight,
    }
    weights = {
        stage: weight if given.get(stage) is None else given[stage] for stage, weight in config.score_weights.items()
    }
    rerank = args.rerank if config.has_fusion else None
    if args.rerank is not None and not config.has_fusion:
        say(f"note: --rerank {args.rerank} changes nothing: {run_folder.name} has no fusion layers")
    for option in ("sentence", "token", "fusion"):
        if getattr(args, f"{option}_weight") is not None and not {option, f"fusion_{option}"} & set(
            config.score_weights
        ):
            say(
                f"note: --{option}-weight changes nothing: the stages of {run_folder.name} are {', '.join(config.score_weights)}"
            )
    temperature = config.temperature if args.temperature is None else args.temperature
    if temperature <= 0:
        raise UserError(f"--temperature {temperature}: expected more than 0")
    task = choose_task(args, config, read_captions_about(on.captions) or {})
    fingerprint = {
        "task": task,
        "split": args.split,
        "ties": args.ties,
        "rerank": rerank,
        "weights": weights,
        "normalize": args.normalize,
        "temperature": temperature,
        "model_sha256": sha256_of(run_folder / MODEL_FILE),
        "inputs": describe_inputs(on, open_stores(on, config.features), recordings=open_recordings(on, config)),
    }
    known: dict[str, Any] = read_json(folder / METRICS_FILE) if (folder / METRICS_FILE).exists() else {}
    counted = isinstance(known, dict) and "num_captions_of_split" in known  # not in files from before this was said
    if counted and known.get("fingerprint") == fingerprint and (folder / REPORT_FILE).exists():
        say(f"{folder}: evaluated before on the same data; nothing to do")
        result = known
    else:
        from .evaluate import Question, evaluate_run

        question = Question(task, args.split, args.ties, rerank, weights, args.normalize, temperature, args.device)
        with Problems(file=on.problems("evaluate")) as problems:
            result = evaluate_run(run_folder, on, folder, question, problems, fingerprint)
    try:
        lines = say_result(result)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        if result is not known:
            raise
        path = folder / METRICS_FILE
        raise UserError(
            f"{path}: not as an evaluation writes it; remove it, and the same command evaluates again"
        ) from None
    show("\n".join(lines))
    show(f"metrics: {folder / METRICS_FILE}")
    show(f"report:  {folder / REPORT_FILE}")
    return EXIT_INCOMPLETE if result.get("left_out") else EXIT_DONE


def say_result(result: dict[str, Any]) -> list[str]:
    heading, *lines = SAY[result["task"]](result)
    lines = [heading, *(f"note: {note}" for note in result["not_comparable"]), *lines]
    return [*lines, f"note: {result['note']}"] if result["note"] else lines


def choose_task(args: argparse.Namespace, config: TrainConfig, about: dict[str, Any]) -> str:
    """What is asked: as it was given, or what run and data set are for. Raises ``UserError`` for what a run cannot be asked, and for
    what a task has nothing to do with."""
    own = config.objective if config.objective in HEADS else None
    usual = about.get("task", "retrieval")
    task = args.task or own or ("retrieval" if usual in HEADS else usual)
    if own and task != own:
        raise UserError(f"--task {task}: the run was trained with --objective {own}, and can be asked for that alone")
    if task in HEADS and own != task:
        raise UserError(
            f"--task {task}: is asked of a run that was trained with --objective {task}; this one's is {config.objective}"
        )
    if task != "retrieval":
        for name, usual in (("ties", "average"), ("rerank", None), ("normalize", "none"), ("temperature", None)):
            if getattr(args, name) != usual:
                raise UserError(f"--{name} {getattr(args, name)}: is for --task retrieval; here the task is {task}")
    return task


def of(result: dict[str, Any], name: str, called: str | None = None) -> str:
    """ "12 clips", or "12 of 30 clips" where that is not the whole split."""
    used, whole = result[f"num_{name}"], result[f"num_{name}_of_split"]
    return f"{used:,}{f' of {whole:,}' if used != whole else ''} {called or name}"


def named(result: dict[str, Any]) -> str:
    return result["run"] + (
        f" (trained on {result['trained_on']})" if result["trained_on"] != result["dataset"] else ""
    )


def say_retrieval(result: dict[str, Any]) -> Iterator[str]:
    counts = f"{of(result, 'captions')} and {of(result, 'clips')}"
    yield f"{named(result)}: {counts} of {result['dataset']}, {result['split']}"
    yield format_metrics(result["metrics"])
    if len(result["stages"]) > 1:
        yield format_stages(result["stages"], result["weights"], result["rerank"])
    yield format_normalization(result["normalization"])
    if codebook := result.get("codebook"):
        shared = f"{100 * codebook['joint']:.0f} % by clips and captions both"
        yield f"codebook: {codebook['live']:,} of {codebook['size']:,} codewords in use, {shared}; what they stand for is in the report"
    yield f"ties: {result['ties']}; checksum of the split's clips and captions: {result['split_checksum']}"


def say_steps(result: dict[str, Any]) -> Iterator[str]:
    steps = result["steps"]
    counts = f"steps of {len(steps['tasks'])} tasks in {of(result, 'videos')}"
    yield f"{named(result)}: {counts} of {result['dataset']}, {result['split']}"
    yield format_steps(steps)
    if steps["num_infeasible"]:
        yield f"{steps['num_infeasible']:,} videos are left out: they have fewer seconds than their task has steps"
    yield f"checksum of the split's clips and steps: {result['split_checksum']}"


def say_answers(result: dict[str, Any]) -> Iterator[str]:
    counts = f"{of(result, 'captions', 'questions')} about {of(result, 'videos')}"
    yield f"{named(result)}: {counts} of {result['dataset']}, {result['split']}; {result['num_answers']:,} answers to choose from"
    yield format_answers(result)
    yield f"checksum of the split's questions and answers: {result['split_checksum']}"


def say_segments(result: dict[str, Any]) -> Iterator[str]:
    counts = f"{result['num_frames']:,} seconds of {of(result, 'videos')}"
    yield f"{named(result)}: {counts} of {result['dataset']}, {result['split']}; {result['num_labels']:,} steps to choose from"
    yield format_segmentation(result)
    yield f"checksum of the split's clips and steps: {result['split_checksum']}"


SAY = {"retrieval": say_retrieval, "steps": say_steps, "vqa": say_answers, "segmentation": say_segments}


def main(argv: list[str] | None = None) -> int:
    parser = command_parser(
        "vlalign-evaluate",
        "Retrieves videos by text and texts by video on a split, or answers what else the data set asks, and writes metrics.json and "
        "report.html into the run's folder.",
        "vlalign-evaluate --dataset demo\n  vlalign-evaluate taco-howto100m-seed0 --on youcook2 --rerank 50\n"
        "  vlalign-evaluate taco-howto100m-seed0 --on crosstask",
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run's folder or name (default: the last one finished)")
    parser.add_argument(
        "--on",
        metavar="DATASET",
        help="another data set than the run's, which it never saw (zero-shot), as --dataset does; results go to on/NAME in its folder",
    )
    parser.add_argument("--protocol", help="which splits and captions of --on (default: the usual ones)")
    parser.add_argument("--split", default="test", choices=["train", "validation", "test"], help="(default: test)")
    tasks = "; ".join(f"{name}: {meaning}" for name, meaning in TASKS.items())
    parser.add_argument("--task", choices=TASKS, help=f"what is asked (default: what the data set is for). {tasks}")
    policies = "; ".join(f"{name}: {meaning}" for name, meaning in TIES.items())
    parser.add_argument(
        "--ties", default="average", choices=TIES, help=f"what becomes of equal scores (default: average). {policies}"
    )
    parser.add_argument(
        "--rerank",
        type=int,
        metavar="K",
        help="the fusion layers look only at the K best clips of each caption, and captions of each clip (default: at all pairs)",
    )
    ways = "; ".join(f"{name}: {meaning}" for name, meaning in NORMALIZATIONS.items())
    parser.add_argument(
        "--normalize", default="none", choices=NORMALIZATIONS, help=f"scores before they rank (default: none). {ways}"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="by which scores become probabilities, for that (default: that of the run's loss)",
    )
    for name, what in (
        ("sentence", "sentence's"),
        ("token", "tokens' (Figure 3 of TACo)"),
        ("fusion", "fusion layers'"),
    ):
        parser.add_argument(
            f"--{name}-weight",
            type=float,
            metavar="W",
            help=f"of the {what} score in the fused one (default: the run's)",
        )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    return run_command(evaluate, parser, argv)

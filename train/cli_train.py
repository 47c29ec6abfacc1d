"""vlalign-train: stores and captions -> a trained model."""

import argparse
import os
from dataclasses import fields
from typing import Any

from ..storage.captions import choose_protocol, read_captions_about
from ..storage.common.command import command_parser, run_command
from ..storage.common.exits import EXIT_DONE
from ..storage.common.problems import Problems
from ..storage.common.terminal import say, show
from ..storage.layout import find_dataset
from .config import ENCODERS, HEADS, LOSSES, NEGATIVES, PAIR_WEIGHTS, PRECISIONS, SCHEDULES, TrainConfig
from .recipes import RECIPES, describe, make_config, usual_recipe
from .runs import choose_features, describe_inputs, find_run, open_recordings, open_stores, trained_before

HELP = {
    "text_encoder": "'small' (two layers, learned from the captions), or a BERT-like model by folder or hub name",
    "objective": f"one of {', '.join(LOSSES)}",
    "losses": "terms of the loss, joined by +: "
    + "; ".join(f"{'+'.join(names)} ({name})" for name, names in LOSSES.items()),
    "encoder": "; ".join(f"{name}: {meaning}" for name, meaning in ENCODERS.items()),
    "embedding_size": "of the gated encoder",
    "margin": "by which a pair is to be ahead of others (SSML's delta, CMCM's M)",
    "pair_weights": "; ".join(f"{name}: {meaning}" for name, meaning in PAIR_WEIGHTS.items()),
    "density_neighbors": "K of SSML's Eq. 3",
    "normalized_loss": "with NCL's biases, in the terms of ncl, cmcm and taco",
    "query_queue": "training queries that are kept for vlalign-evaluate --normalize, where the loss is normalized",
    "clips_per_video": "clips of a video that stand in a batch together, for ssml; 0: as chance has it",
    "intra_video_rate": "part of a pair's negatives' weight that those of its video have, where clips stand together",
    "captions_per_clip": "candidates of mil-nce: a clip's own caption and those next to it in time",
    "codebook_size": "codewords of cmcm; 0: none, its baseline",
    "code_loss_weight": "alpha of CMCM's section 2.3",
    "schedule": "how the learning rate falls: "
    + "; ".join(f"{name}: {meaning}" for name, meaning in SCHEDULES.items()),
    "temperature": "by which similarities are divided (TACo's tau, NCL's gamma)",
    "negatives": "pairs for the fusion layers: "
    + "; ".join(f"{name}: {meaning}" for name, meaning in NEGATIVES.items()),
    "num_negatives": "K' of TACo's section 3.3",
    "batch_size": "pairs that are contrasted with each other, in all processes together",
    "micro_batch_size": "so many pairs a process computes at once, for the same loss in less memory and more time; 0: all",
    "seed": "of everything that is drawn at random",
    "token_loss_weight": "lambda_t of TACo's Eq. 6; lambda of ToCo's Eq. 3",
    "sentence_score_weight": "of the sentence's score in retrieval",
    "token_score_weight": "of the tokens' score in retrieval (TACo, Figure 3; lambda in ToCo)",
    "fusion_score_weight": "of the fusion layers' score in retrieval",
    "tokens_of_interest": "parts of speech that the token loss is about, such as noun+verb+adj; or none",
    "precision": f"one of {', '.join(PRECISIONS)}; bf16: layers compute in bfloat16, the rest in float32",
    "compile": "layers through torch.compile",
    "validate_every": "steps between validations; the run's state is kept as often",
}


def usual_objective(about: dict[str, Any]) -> str:
    """Of a data set, by what is asked on it."""
    return about["task"] if about.get("task") in HEADS else "taco"


def train(args: argparse.Namespace) -> int:
    dataset = find_dataset(args.root, args.dataset, having="captions", hint="vlalign-preprocess")
    about = read_captions_about(choose_protocol(dataset, args.protocol or "").captions) or {}
    recipe = args.recipe or usual_recipe(
        args.objective or usual_objective(about), dataset.name, about.get("protocol", ""), args.init or ""
    )
    dataset = choose_protocol(dataset, args.protocol or RECIPES.get(recipe, {}).get("protocol", ""))
    init = find_run(args.root, None, args.init) if args.init else None
    given = {f.name: getattr(args, f.name) for f in fields(TrainConfig) if getattr(args, f.name, None) is not None}
    if "features" in given:
        given["features"] = choose_features(dataset, given["features"])
    config = make_config(recipe, given | {"dataset": dataset.name, "protocol": dataset.protocol})
    begun_from = f"from-{init.name}" if init else ""
    name = "-".join(
        filter(None, (config.objective, config.features, config.protocol, begun_from, f"seed{config.seed}"))
    )
    folder = dataset.runs / (args.run_name or name)
    first = os.environ.get("RANK", "0") == "0"
    if trained_before(
        folder,
        config,
        describe_inputs(dataset, open_stores(dataset, config.features), init, open_recordings(dataset, config)),
    ):
        say(f"{folder}: trained before with the same settings on the same data; nothing to do")
        return EXIT_DONE
    if first:
        say("\n".join(["settings:", *describe(config, given)]))

    from .trainer import train_run

    with Problems(quiet=not first, file=dataset.problems("train")) as problems:
        train_run(dataset, config, folder, device_name=args.device, init=init, problems=problems)
    if first:
        show(f"trained {folder}; now: vlalign-evaluate {folder}")
    return problems.exit_code()


def main(argv: list[str] | None = None) -> int:
    parser = command_parser(
        "vlalign-train",
        "Trains a video-text model on the features and captions of a data set. A run that was stopped goes on where it stood.",
        "vlalign-train --dataset demo --features s3d\n"
        "  vlalign-train --recipe taco-youcook2 --num-video-layers 4 --device cuda\n"
        "  torchrun --nproc-per-node 8 --no-python vlalign-train --recipe taco-howto100m --device cuda",
    )
    parser.add_argument(
        "--recipe",
        help=f"where settings come from that are not given: one of {', '.join(RECIPES)} (default: the data set's)",
    )
    parser.add_argument(
        "--features",
        help="the feature store to train on, such as s3d; several, separated by + or commas (default: the recipe's)",
    )
    parser.add_argument(
        "--protocol",
        help="which splits and captions of the data set, as for vlalign-preprocess (default: the usual ones)",
    )
    parser.add_argument("--init", metavar="RUN", help="a run's folder or name, whose model training goes on from")
    parser.add_argument(
        "--run-name",
        metavar="NAME",
        help="name of the run's folder (default: made of objective, features, protocol and seed)",
    )
    parser.add_argument(
        "--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu); under torchrun, cuda is each process's own"
    )
    settings = parser.add_argument_group(
        "settings", "Any of them; the defaults are taco-small's. A run keeps them all in run.json."
    )
    for field in fields(TrainConfig):
        if field.name in ("dataset", "protocol", "features", "recipe", "init"):
            continue
        name, told = (
            f"--{field.name.replace('_', '-')}",
            f"{HELP.get(field.name, '')} (default: {field.default})".strip(),
        )
        if field.type is bool:
            settings.add_argument(name, action=argparse.BooleanOptionalAction, default=None, help=told)
        else:
            settings.add_argument(
                name, type=field.type, metavar=field.type.__name__.upper(), help=told.replace("%", "%%")
            )
    return run_command(train, parser, argv)

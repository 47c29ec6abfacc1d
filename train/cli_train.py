"""vlalign-train: stores and captions -> a trained model."""

import argparse
from dataclasses import fields

from ..storage.captions import choose_protocol
from ..storage.console import Problems, command_parser, run_command, say
from ..storage.layout import find_dataset
from .config import TrainConfig
from .runs import describe_inputs, open_stores, trained_before

HELP = {
    "text_encoder": "'small' (two layers, learned from the captions), or a BERT-like model by folder or hub name",
    "objective": "which losses are trained",
    "seed": "of everything that is drawn at random",
    "token_loss_weight": "lambda_t of TACo's Eq. 6",
    "token_score_weight": "of the tokens' score in retrieval (TACo, Figure 3)",
    "tokens_of_interest": "parts of speech that the token loss is about, such as noun+verb+adj; or none",
}


def train(args: argparse.Namespace) -> int:
    dataset = find_dataset(args.root, args.dataset, having="captions", hint="vlalign-preprocess")
    dataset = choose_protocol(dataset, args.protocol or "")
    given = {f.name: getattr(args, f.name) for f in fields(TrainConfig) if getattr(args, f.name, None) is not None}
    config = TrainConfig(**given | {"dataset": dataset.name, "protocol": dataset.protocol})
    name = "-".join(filter(None, (config.objective, config.features, config.protocol, f"seed{config.seed}")))
    folder = dataset.runs / (args.run or name)
    problems = Problems()
    if trained_before(folder, config, describe_inputs(dataset, open_stores(dataset, config.features))):
        say(f"{folder}: trained before with the same settings on the same data; nothing to do")
        return problems.exit_code()

    from .trainer import train_run  # torch and transformers, which a mistake in the call need not wait for

    train_run(dataset, config, folder, device_name=args.device, problems=problems)
    print(f"trained {folder}; now: vlalign-evaluate {folder}")
    return problems.exit_code()


def main(argv: list[str] | None = None) -> int:
    parser = command_parser(
        "vlalign-train",
        "Trains a video-text model on the features and captions of a data set.",
        "vlalign-train --dataset demo --features s3d",
    )
    parser.add_argument("--features", required=True, help="the feature store to train on, such as s3d; several joined by +")
    parser.add_argument("--protocol", help="which splits and captions of the data set, as for vlalign-preprocess (default: the usual ones)")
    parser.add_argument("--run", help="name of the run's folder (default: made of objective, features, protocol and seed)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    settings = parser.add_argument_group("settings", "Any of them; a run keeps them all in run.json.")
    for field in fields(TrainConfig):
        if field.name not in ("dataset", "protocol", "features"):
            name, told = f"--{field.name.replace('_', '-')}", HELP.get(field.name, "")
            settings.add_argument(
                name, type=field.type, metavar=field.type.__name__.upper(), help=f"{told} (default: {field.default})".strip()
            )
    return run_command(train, parser, argv)

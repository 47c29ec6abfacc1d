"""vlalign-train: stores and captions -> a trained model."""

import argparse
from dataclasses import fields

from ..storage.captions import choose_protocol
from ..storage.console import Problems, command_parser, run_command, say
from ..storage.layout import find_dataset
from .config import TrainConfig
from .runs import describe_inputs, open_stores, trained_before


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
    defaults = TrainConfig(dataset="", features="")
    parser.add_argument("--features", required=True, help="the feature store to train on, such as s3d; several joined by +")
    parser.add_argument("--protocol", help="which splits and captions of the data set, as for vlalign-preprocess (default: the usual ones)")
    parser.add_argument("--text-encoder", help="'small' (default: learned from the captions), or a BERT by folder or hub name")
    parser.add_argument(
        "--tokens-of-interest",
        help=f"parts of speech that the token loss is about, such as noun+verb+adj; or none (default: {defaults.tokens_of_interest})",
    )
    parser.add_argument("--run", help="name of the run's folder (default: made of objective, features and seed)")
    parser.add_argument("--seed", type=int, help="(default: 0)")
    parser.add_argument("--num-steps", type=int, help=f"(default: {defaults.num_steps})")
    parser.add_argument("--batch-size", type=int, help=f"(default: {defaults.batch_size})")
    parser.add_argument("--learning-rate", type=float, help=f"(default: {defaults.learning_rate})")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    return run_command(train, parser, argv)

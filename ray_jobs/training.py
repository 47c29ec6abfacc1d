"""Training on a Ray cluster: ``python ray_jobs/train.py --workers 8 --dataset howto100m --device cuda``, and all that
vlalign-train takes. Ray Train starts the processes, one a GPU, and starts them again where one is lost; what they run
is vlalign-train itself, which goes on from the state that it kept last in the run's folder."""

import argparse
import signal
from pathlib import Path
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.exceptions import TrainingFailedError

from ..storage.common.command import command_parser, run_command
from ..storage.common.errors import UserError
from ..storage.common.exits import EXIT_INCOMPLETE, EXIT_MISTAKE
from ..storage.common.signals import Stopped
from ..storage.common.terminal import say
from ..storage.remote.links import trust, trusted_links
from ..train.cli_train import main as train
from ..train.workers import PATIENCE
from .cluster import add_address, connect


def _train(told: dict[str, Any]) -> int:
    """In each process. Its exit code is the call's: a mistake, which would be the same the next time, is no reason to
    start again."""
    for folder, url in told["links"].items():  # the user's word, on a machine with another home folder
        trust(Path(folder), url)
    return train(told["argv"])


def on_cluster(args: argparse.Namespace) -> int:
    if args.dataset is None:
        raise UserError(f"--dataset is missing: the name of a data set under {args.root}")
    if args.workers < 1:
        raise UserError(f"--workers {args.workers}: expected 1 or more")
    args.root = args.root.absolute()
    connect(args.address)
    argv = ["--root", str(args.root), "--dataset", args.dataset, "--device", args.device, *args.passed_on]
    trainer = TorchTrainer(
        _train,
        train_loop_config={"argv": argv, "links": trusted_links(args.root / args.dataset / "features")},
        scaling_config=ScalingConfig(
            num_workers=args.workers, use_gpu=args.device != "cpu", resources_per_worker={"CPU": args.cpus_per_worker}
        ),
        run_config=RunConfig(
            storage_path=str(args.root / args.dataset / "jobs" / "ray_train"),
            failure_config=FailureConfig(max_failures=args.most_restarts),
        ),
        torch_config=TorchConfig(timeout_s=int(PATIENCE.total_seconds())),
    )
    try:
        code = trainer.fit().return_value
    except TrainingFailedError as error:
        say(f"train: error: {' '.join(str(error).split())[:500]}; the run's state is kept, and the same call goes on")
        return EXIT_INCOMPLETE
    except SystemExit:  # what Ray makes of Ctrl-C, once its workers have ended
        raise Stopped(signal.SIGINT) from None
    if code == EXIT_MISTAKE:
        say("train: error: a mistake in the call; its line stands above, from a worker")
    return code


def main(argv: list[str] | None = None) -> int:
    parser = command_parser(
        "train",
        "Does in several processes of a Ray cluster what vlalign-train does in one; takes all of its options beside these. --root is a "
        "folder that all machines see.",
        "ray submit ray_jobs/extract_howto100m.yaml ray_jobs/train.py --workers 8 --device cuda --dataset howto100m",
    )
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: a GPU for each process (default: cpu)")
    parser.add_argument("--workers", type=int, default=1, help="processes that train one model together (default: 1)")
    parser.add_argument("--cpus-per-worker", type=float, default=1.0, help="cores of each (default: 1)")
    parser.add_argument(
        "--most-restarts",
        type=int,
        default=10,
        help="how often to go on after a process or machine was lost (default: 10)",
    )
    add_address(parser)
    parser.passes_on = True
    return run_command(on_cluster, parser, argv)

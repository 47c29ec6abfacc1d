"""Training on a Ray cluster: ``python ray_jobs/train.py --workers 8 --dataset howto100m --device cuda``, with all
options of vlalign-train.

Ray Train starts the processes, one per GPU, and restarts them if one is lost. Each runs vlalign-train, which
continues from the last saved state in the run's folder.

``ray submit`` copies this one file to the head machine, where it runs with the vlalign that the cluster file installs;
so its imports are absolute.
"""

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.exceptions import TrainingFailedError
from vlalign.ray_jobs.cluster import add_address, connect, device_of_workers
from vlalign.storage.cli.command import run_command
from vlalign.storage.cli.parser import command_parser
from vlalign.storage.common.errors import EXIT_INCOMPLETE, EXIT_MISTAKE, SettingError, UserError, VlalignError
from vlalign.storage.common.signals import Stopped
from vlalign.storage.common.terminal import say
from vlalign.storage.dataset.folder import DatasetFolder, dataset_at
from vlalign.storage.remote.links import trust, trusted_links
from vlalign.train.cli.train import main as train
from vlalign.train.distributed import PATIENCE


class TrainingJobError(VlalignError):
    """Ray Train gave up: processes were lost too often. The run's state is saved."""


def train_on_cluster(
    dataset: Path | str,
    options: Sequence[str] = (),
    *,
    device: str = "auto",
    num_processes: int = 1,
    cpus_per_process: float = 1.0,
    max_restarts: int = 10,
    address: str | None = None,
) -> int:
    """Train a model in several processes of a Ray cluster.

    Args:
        dataset: The data set's folder, ``<root>/<data set>``; all machines must see it.
        options: More options of vlalign-train, such as ``["--recipe", "taco-howto100m"]``.
        device: "cpu", "cuda" for one GPU per process, or "auto": "cuda" if a machine of the cluster has a GPU.
        num_processes: Processes that train one model together.
        cpus_per_process: Cores of each process.
        max_restarts: How often to restart after a process or machine was lost.
        address: Address of the cluster, as for ``connect``.

    Returns:
        The exit code of vlalign-train.

    Raises:
        UserError: No cluster answers, or a setting cannot be used.
        TrainingJobError: Processes were lost more than ``max_restarts`` times.

    Example:
        >>> from vlalign.ray_jobs import train_on_cluster
        >>> train_on_cluster("vlalign_data/demo", ["--features", "s3d"], num_processes=2)  # doctest: +SKIP
        0
    """
    if num_processes < 1:
        raise SettingError("num_processes", num_processes, "expected 1 or more")
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")  # Ray Train would log what is printed, and print it too
    connect(address)
    device = device_of_workers(device)
    folder = dataset_at(Path(dataset).absolute()).path  # workers run in other folders
    argv = ["--root", str(folder.parent), "--dataset", folder.name, "--device", device, *options]
    trainer = TorchTrainer(
        _train,
        train_loop_config={"argv": argv, "links": trusted_links(folder / "features"), "folder": os.getcwd()},
        scaling_config=ScalingConfig(
            num_workers=num_processes, use_gpu=device != "cpu", resources_per_worker={"CPU": cpus_per_process}
        ),
        run_config=RunConfig(
            storage_path=str(folder / "jobs" / "ray_train"), failure_config=FailureConfig(max_failures=max_restarts)
        ),
        torch_config=TorchConfig(timeout_s=int(PATIENCE.total_seconds())),
    )
    try:
        code = trainer.fit().return_value
    except TrainingFailedError as error:
        raise TrainingJobError(" ".join(str(error).split())[:500]) from None
    except SystemExit:  # what Ray makes of Ctrl-C, after its workers have ended
        raise Stopped(signal.SIGINT) from None
    return EXIT_INCOMPLETE if code is None else int(code)


def _train(config: Mapping[str, Any]) -> int:
    """Run vlalign-train in one process.

    Returns its exit code instead of failing, because Ray would restart a failed process, and a mistake in the options
    would fail again.
    """
    # The user trusts these links, but this machine has another home folder.
    for folder, url in config["links"].items():
        trust(Path(folder), url)
    try:
        return train(config["argv"], modules_in=config["folder"])
    except SystemExit as stopped:  # the options cannot be parsed
        return stopped.code if isinstance(stopped.code, int) else EXIT_MISTAKE


def train_command(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.dataset is None:
        raise UserError(f"--dataset is missing: pass the name of a data set under {args.root}")
    if args.workers < 1:
        raise SettingError("workers", args.workers, "expected 1 or more")
    try:
        code = train_on_cluster(
            DatasetFolder(args.root, args.dataset).path,
            args.passed_on,
            device=args.device,
            num_processes=args.workers,
            cpus_per_process=args.cpus_per_worker,
            max_restarts=args.max_restarts,
            address=args.address,
        )
    except TrainingJobError as error:
        say(f"train: error: {error}; the run's state is saved; run the same command again to continue")
        return EXIT_INCOMPLETE
    if code == EXIT_MISTAKE:
        say("train: error: an option is wrong; see the message of a worker above")
    return code


def main(argv: list[str] | None = None) -> int:
    """Run the command ``train.py`` and return its exit code."""
    parser = command_parser(
        "train",
        "Run vlalign-train in several processes on a Ray cluster, with all options of vlalign-train and these. --root "
        "is a folder that all machines see.",
        "ray submit ray_jobs/extract_howto100m.yaml ray_jobs/train.py --workers 8 --device cuda --dataset howto100m",
    )
    parser.add_argument(
        "--device",
        default="auto",
        help="cpu, or cuda for one GPU per process; auto: cuda if a machine has a GPU (default: auto)",
    )
    parser.add_argument("--workers", type=int, default=1, help="processes that train one model together (default: 1)")
    parser.add_argument("--cpus-per-worker", type=float, default=1.0, help="cores of each process (default: 1)")
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=10,
        help="number of restarts after a process or machine was lost (default: 10)",
    )
    add_address(parser)
    parser.passes_on = True
    return run_command(train_command, parser, argv)


if __name__ == "__main__":
    sys.exit(main())

"""Extraction on a Ray cluster: ``python ray_jobs/extract_howto100m.py --dataset demo --features s3d``, with all
options of vlalign-extract.
"""

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import ray
import torch
from ray.exceptions import RayError

from ..extract.cli import Here, extract, extract_parser, measure_speed_of
from ..extract.decoding.probe import VideoError
from ..extract.plan import Probed, probe_videos
from ..extract.run import SHARD_SECONDS
from ..extract.work import WorkList
from ..storage.common.command import run_command
from ..storage.common.errors import UserError
from ..storage.common.problems import Problems
from ..storage.common.signals import keeping
from ..storage.common.terminal import say
from ..storage.profiles import PROFILES
from ..storage.remote.store import remote_store
from .cluster import add_address, connect, reason_of, share_of_worker, spread
from .cluster_run import ClusterRun
from .worker import ExtractionSettings, VideoTask

PROBE_TOGETHER = 64
"""Videos that one call on the cluster probes."""


class OnCluster(Here):
    """Carries out an extraction on a cluster instead of on this machine."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Take the options of the command."""
        super().__init__(args)
        self.share = share_of_worker(
            device=args.device,
            workers=args.workers,
            cpus_per_worker=args.cpus_per_worker,
            gpus_per_worker=args.gpus_per_worker,
        )

    def run(self, work: WorkList, todo: Sequence[VideoTask], weights: dict[str, str], problems: Problems) -> None:
        """Extract the videos in ``todo``."""
        stores = {name: remote_store(work.dataset.features(name)) for name in weights}
        settings = ExtractionSettings(
            weights=weights,
            device=self.args.device,
            precision=self.args.precision,
            allowed_hosts=self.args.allow_host,
            store_urls={name: store.url for name, store in stores.items() if store},
        )
        identity = repr([self.args.weights, self.args.device, self.args.precision, self.args.allow_host])
        run = ClusterRun(work, todo, settings, problems, self.share, self.args.shard_seconds, identity)
        resources = f"each worker has {self.share.num_cpus:g} cores and {self.share.num_gpus:g} GPUs"
        say(f"{work.dataset.path}: {len(todo):,} videos to do; {resources}")

        def kept() -> str:
            num_done = len(todo) - run.dispatch.num_left
            return f"{num_done:,} videos are on disk" if num_done else ""

        try:
            with keeping(kept):
                asyncio.run(run.run())
        finally:
            for line in run.status.summary(run.dispatch.num_left):
                say(line)

    def probe(
        self, videos: Sequence[tuple[str, Path]], features: Sequence[str]
    ) -> Iterator[tuple[str, Probed | VideoError]]:
        """Yield what is known of each video, in any order."""
        profiles = [PROFILES[name] for name in features]
        parts = (videos[first : first + PROBE_TOGETHER] for first in range(0, len(videos), PROBE_TOGETHER))
        return chain.from_iterable(spread(lambda part: list(probe_videos(part, profiles, 1)), parts, "probing"))

    def measure(self, work: WorkList, probed: Sequence[Probed], weights: dict[str, str]) -> tuple[float, str]:
        """Return the speed of all workers, estimated from that of one, and where it was measured."""

        def measured() -> float:
            if self.args.device == "cpu":
                torch.set_num_threads(self.share.num_cores)
            return measure_speed_of(self.args, work.dataset, probed, weights)

        num_workers = self.share.num_workers()
        remote = ray.remote(measured).options(num_cpus=self.share.num_cpus, num_gpus=self.share.num_gpus)
        try:
            speed = ray.get(remote.remote())
        except RayError as error:
            raise UserError(f"measuring failed on the cluster ({reason_of(error)})") from None
        return num_workers * speed, f"{num_workers:,} workers of this cluster ({speed:.2f} times on one)"


def extract_command(args: argparse.Namespace) -> int:
    """Run the command."""
    args.root = args.root.absolute()  # workers run in other folders
    connect(args.address)
    return extract(args, OnCluster)


def main(argv: list[str] | None = None) -> int:
    """Run the command ``extract_howto100m.py`` and return its exit code."""
    parser = extract_parser(
        "extract_howto100m",
        "Extract the features of a data set's videos on a Ray cluster. --root is a folder that all machines see.",
        "ray submit ray_jobs/extract_howto100m.yaml ray_jobs/extract_howto100m.py --dataset howto100m "
        "--features s3d,resnet152",
    )
    add_address(parser)
    group = parser.add_argument_group("workers")
    group.add_argument("--workers", type=int, help="largest number of workers (default: as many as fit)")
    group.add_argument(
        "--cpus-per-worker",
        type=float,
        help="cores of each worker (default: a machine's cores, divided among its GPUs if there are any)",
    )
    group.add_argument(
        "--gpus-per-worker", type=float, help="GPUs of each worker, such as 0.5 (default: 1; 0 with --device cpu)"
    )
    group.add_argument(
        "--shard-seconds",
        type=float,
        default=SHARD_SECONDS,
        help=f"longest time that finished features wait to be written, in seconds (default: {SHARD_SECONDS:g})",
    )
    return run_command(extract_command, parser, argv)

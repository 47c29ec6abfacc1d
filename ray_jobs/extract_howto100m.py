"""Extraction on a Ray cluster: ``python ray_jobs/extract_howto100m.py --dataset demo --features s3d``, with all
options of vlalign-extract.

``ray submit`` copies this one file to the head machine, where it runs with the vlalign that the cluster file installs;
so its imports are absolute.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import ray
from ray.exceptions import RayError
from vlalign.extract.cli.extract import extract_parser, run
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.pipeline.dataset import ExtractionResult, extract_dataset
from vlalign.extract.pipeline.pending_work import Extraction
from vlalign.extract.pipeline.probing import ProbedVideo, probe_videos
from vlalign.extract.pipeline.runner import Speed
from vlalign.extract.pipeline.shard_writing import SHARD_SECONDS
from vlalign.extract.pipeline.speed import measure_worker_speed
from vlalign.extract.settings import ExtractionSettings
from vlalign.ray_jobs.cluster import (
    Share,
    add_address,
    connect,
    device_of_workers,
    nodes,
    reason_of,
    share_of_worker,
    spread,
)
from vlalign.ray_jobs.driver import ExtractionDriver
from vlalign.storage.cli.command import run_command
from vlalign.storage.cli.parser import add_setting, given_settings
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.progress import Listener
from vlalign.storage.common.settings import Settings, names_of_options, setting
from vlalign.storage.common.signals import report_saved_work
from vlalign.storage.common.terminal import number_of, say
from vlalign.storage.records import Profile

PROBE_TOGETHER = 256
"""Videos that one call on the cluster probes. Each call starts a decoder, which takes as long as probing 200 videos."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(Settings):
    """The number of workers that extract, and the resources of each.

    Raises:
        SettingError: A value cannot be used.

    Example:
        >>> from vlalign.ray_jobs import WorkerOptions
        >>> WorkerOptions(workers=4, gpus_per_worker=0.5).gpus_per_worker
        0.5
    """

    workers: int | None = setting(None, "largest number of workers (default: as many as fit)", gt=0)
    cpus_per_worker: float | None = setting(
        None, "cores of each worker (default: a machine's cores, divided among its GPUs if there are any)", gt=0
    )
    gpus_per_worker: float | None = setting(None, "GPUs of each worker, such as 0.5 (default: 1; 0 on CPUs)", ge=0)
    shard_seconds: float = setting(
        SHARD_SECONDS, "longest time that finished features wait to be written, in seconds", ge=0
    )


class ClusterRunner:
    """Carries out an extraction on a cluster instead of on this machine."""

    def __init__(self, options: WorkerOptions, on_progress: Listener | None = None) -> None:
        """Take the options of the workers, and the listener that is called with the progress."""
        self.options, self._on_progress = options, on_progress

    def _share(self, settings: ExtractionSettings) -> Share:
        return share_of_worker(
            device=device_of_workers(settings.device),
            workers=self.options.workers,
            cpus_per_worker=self.options.cpus_per_worker,
            gpus_per_worker=self.options.gpus_per_worker,
        )

    def extract(self, extraction: Extraction) -> None:
        """Extract each video's missing features; see ``Runner``."""
        settings, num_tasks = extraction.settings, len(extraction.tasks)
        share, device = self._share(settings), device_of_workers(settings.device)
        worker = settings.for_worker(extraction.weights, device, share.num_cores)
        seconds = self.options.shard_seconds
        driver = ExtractionDriver(extraction, worker, share, shard_seconds=seconds, on_progress=self._on_progress)
        resources = f"for each worker cores: {share.num_cpus:g}, GPUs: {share.num_gpus:g}, device: {device}"
        say(f"{settings.folder.path}: {number_of(num_tasks, 'videos')} to do; {resources}")
        if share.max_workers is None and not any(map(share.fit, nodes())):
            say("note: no machine has room for a worker yet; one worker is requested, and more only with --workers N")

        def describe_written() -> str:
            num_done = driver.status.num_on_disk
            return f"{num_done:,} videos are on disk" if num_done else ""

        try:
            with report_saved_work(describe_written):
                asyncio.run(driver.run())
        finally:
            for line in driver.status.summary():
                say(line)

    def probe(
        self, videos: Sequence[tuple[str, Path]], profiles: Sequence[Profile]
    ) -> Iterator[tuple[str, ProbedVideo | VideoError]]:
        """Yield the facts about each video, in any order; see ``Runner``."""
        parts = (videos[first : first + PROBE_TOGETHER] for first in range(0, len(videos), PROBE_TOGETHER))
        return chain.from_iterable(spread(lambda part: list(probe_videos(part, profiles, 1)), parts, doing="probing"))

    def measure_speed(self, extraction: Extraction, probed: Sequence[ProbedVideo]) -> Speed:
        """Estimate the speed of all workers from one worker's; see ``Runner``."""
        share, device = self._share(extraction.settings), device_of_workers(extraction.settings.device)
        worker = extraction.settings.for_worker(extraction.weights, device, share.num_cores)

        def measured() -> float:
            return measure_worker_speed(worker, probed)

        num_workers = share.num_workers()
        remote = ray.remote(measured).options(num_cpus=share.num_cpus, num_gpus=share.num_gpus)
        try:
            speed = ray.get(remote.remote())
        except RayError as error:
            raise UserError(f"measuring failed on the cluster ({reason_of(error)})") from None
        workers = number_of(num_workers, "workers")
        return Speed(num_workers * speed, f"{workers} of this cluster ({speed:.2f} x real time on each)")


def extract_on_cluster(
    settings: ExtractionSettings,
    *,
    workers: WorkerOptions | None = None,
    address: str | None = None,
    on_progress: Listener | None = None,
) -> ExtractionResult:
    """Do what ``extract_dataset`` does, with workers of a Ray cluster.

    Args:
        settings: What to extract, and how. All machines must see the data set's folder.
        workers: Number of workers, and resources of each (default: as many as fit).
        address: Address of the cluster, as for ``connect``.
        on_progress: Called with the progress of the work.

    Returns:
        How many videos are complete, partial and failed.

    Raises:
        UserError: As for ``extract_dataset``; or no cluster answers, or several workers in a row did nothing.
        OSError: A file cannot be written.

    Example:
        >>> from vlalign.extract import ExtractionSettings
        >>> from vlalign.ray_jobs import WorkerOptions, extract_on_cluster
        >>> settings = ExtractionSettings(dataset="vlalign_data/mine", features="s3d")
        >>> extract_on_cluster(settings, workers=WorkerOptions(workers=4)).complete  # doctest: +SKIP
        True
    """
    connect(address)
    dataset = settings.folder.path.absolute()  # workers run in other folders
    runner = ClusterRunner(workers or WorkerOptions(), on_progress)
    return extract_dataset(replace(settings, dataset=dataset), runner=runner, on_progress=on_progress)


def extract_command(args: argparse.Namespace) -> int:
    """Run the command. ``--status`` reads files only, and needs no cluster."""
    args.root = args.root.absolute()  # workers run in other folders
    if args.status:
        return run(args)
    options = WorkerOptions(**given_settings(args, WorkerOptions))
    connect(args.address)
    return run(args, ClusterRunner(options))


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
    for name in names_of_options(WorkerOptions):
        add_setting(group, WorkerOptions, name)
    return run_command(extract_command, parser, argv)


if __name__ == "__main__":
    sys.exit(main())

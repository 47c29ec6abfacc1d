"""Extraction on Ray, and the cost of HowTo100M.

    python tests/benchmarks/cluster.py FOLDER [simulate|overhead|loop|resume|scale]

FOLDER is empty or from an earlier call. For ``scale``, which runs only on request, it has real videos of a few
minutes in total. README.md beside this file has earlier results and the machines.
"""

import argparse
import asyncio
import contextlib
import gc
import heapq
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
from vlalign.extract.pipeline.scheduler import VideoScheduler

HOURS, NUM_VIDEOS = 134_000, 1_200_000
"""HowTo100M."""
SPEED = 50.0
"""Hours of video per hour of a worker. Faster workers load the driver more, and their start costs more."""
SPREAD = 0.5
"""Standard deviation of the logarithms of lengths; that of speeds is a fifth of it."""
START_SECONDS = 90.0
"""Time until a replacement worker computes: a machine is found, and Python and the networks are loaded."""
WORKERS_OF_A_NODE = 8
SHARD_SECONDS = 120.0
NUM_STUBS = 20_000
NUM_KNOWN = 1_200_000


# A simulated cluster: the bookkeeping of the driver, with workers that only let time pass.


def simulate(_: Path) -> None:
    """Compare the total time with the ideal (even shares, nothing lost, no start-up), for 1.2 million videos."""
    rng = np.random.default_rng(0)
    seconds = np.exp(SPREAD * rng.standard_normal(NUM_VIDEOS))
    seconds *= HOURS * 3600 / seconds.sum()
    times = seconds / SPEED * np.exp(SPREAD / 5 * rng.standard_normal(NUM_VIDEOS))
    print(
        f"{NUM_VIDEOS:,} videos, {HOURS:,} hours, each worker {SPEED:g} hours an hour, {WORKERS_OF_A_NODE} workers "
        "a node"
    )
    columns = ("ideal h", "took h", "of ideal", "failures", "again h", "exchanges/s", "books s", "MB")
    print(f"{'node fails every':>18}{'workers':>9}" + "".join(f"{column:>12}" for column in columns))
    for hours, num_workers in ((1000, 8), (1000, 64), (1000, 256), (1000, 1024), (10, 1024), (1, 1024)):
        _simulate(num_workers, float(hours), seconds, times, rng)


def _simulate(
    num_workers: int, hours_to_failure: float, seconds: np.ndarray, times: np.ndarray, rng: np.random.Generator
) -> None:
    gc.collect()
    spent, num_exchanges, num_failures, lost = 0.0, 0, 0, 0.0
    started = time.perf_counter()
    scheduler = VideoScheduler((1000 * seconds).astype(np.int64))
    spent += time.perf_counter() - started
    durations = times.tolist()
    waiting: list[list[int]] = [[] for _ in range(num_workers)]
    finished: list[list[int]] = [[] for _ in range(num_workers)]
    current: list[int | None] = [None] * num_workers
    refill_at: list[int | None] = [0] * num_workers
    since = [0.0] * num_workers
    begun_at = [0.0] * num_workers
    fails_at = (
        rng.exponential(hours_to_failure * 3600, num_workers // WORKERS_OF_A_NODE).repeat(WORKERS_OF_A_NODE).tolist()
    )
    names = list(range(num_workers))
    next_name = num_workers
    events = [(START_SECONDS, worker) for worker in range(num_workers)]
    heapq.heapify(events)
    now, idle = 0.0, set()

    def exchange(worker: int) -> None:
        nonlocal spent, num_exchanges
        num_exchanges += 1
        begun = time.perf_counter()
        given, refill_at[worker] = scheduler.next(names[worker], len(waiting[worker]))
        spent += time.perf_counter() - begun
        waiting[worker] += given

    def write(worker: int) -> None:
        nonlocal spent, num_exchanges
        num_exchanges += 1
        begun = time.perf_counter()
        for video in finished[worker]:
            scheduler.mark_completed(names[worker], video)
        spent += time.perf_counter() - begun
        finished[worker].clear()
        since[worker] = now

    while scheduler.num_left:
        now, worker = heapq.heappop(events)
        if now >= fails_at[worker]:
            num_failures += 1
            unfinished = 0.0 if current[worker] is None else fails_at[worker] - begun_at[worker]
            lost += sum(durations[video] for video in finished[worker]) + unfinished
            scheduler.worker_ended(names[worker])
            names[worker], next_name = next_name, next_name + 1
            waiting[worker], finished[worker], current[worker] = [], [], None
            back = fails_at[worker] + START_SECONDS
            since[worker] = back
            fails_at[worker] = back + rng.exponential(hours_to_failure * 3600)
            heapq.heappush(events, (back, worker))
            for other in idle:  # there is work for them again
                heapq.heappush(events, (now, other))
            idle.clear()
            continue
        if current[worker] is not None:
            finished[worker].append(current[worker])
            begun = time.perf_counter()
            scheduler.mark_computed(names[worker], current[worker])
            spent += time.perf_counter() - begun
            current[worker] = None
        if finished[worker] and (now - since[worker] > SHARD_SECONDS or len(finished[worker]) >= 64):
            write(worker)
        if refill_at[worker] is not None and len(waiting[worker]) <= refill_at[worker]:
            exchange(worker)
        if not waiting[worker]:
            write(worker)
            exchange(worker)
        if waiting[worker]:
            current[worker], begun_at[worker] = waiting[worker].pop(0), now
            heapq.heappush(events, (min(now + durations[current[worker]], max(fails_at[worker], now)), worker))
        else:
            idle.add(worker)
    ideal = times.sum() / num_workers
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    figures = (ideal / 3600, now / 3600, ideal / now, num_failures, lost / 3600, num_exchanges / now, spent, megabytes)
    columns = "".join(
        f"{value:>12,.{digits}f}" for value, digits in zip(figures, (2, 2, 3, 0, 2, 1, 1, 0), strict=True)
    )
    print(f"{hours_to_failure:>16,g} h{num_workers:>9,}{columns}", flush=True)


# Real Ray


@contextlib.contextmanager
def on_ray(num_cpus: int) -> Iterator[None]:
    import ray

    ray.init(
        num_cpus=num_cpus,
        include_dashboard=False,
        namespace="vlalign",
        log_to_driver=False,
        object_store_memory=80_000_000,
    )
    try:
        yield
    finally:
        ray.shutdown()


def job_settings(root: Path, dataset: str):
    from vlalign.extract import ExtractionSettings

    return ExtractionSettings(dataset=root / dataset, features="s3d", weights={"s3d": "random"})


def overhead(folder: Path) -> None:
    """Measure the cost of Ray and the bookkeeping for 20,000 videos without work, with one and eight workers."""
    from vlalign.extract.pipeline.pending_work import Extraction, PendingWork, VideoTask
    from vlalign.extract.pipeline.shard_writing import ShardsWritten, VideoOutcome
    from vlalign.ray_jobs import actors, driver
    from vlalign.ray_jobs.cluster import Share
    from vlalign.ray_jobs.worker import ExtractionWorker, State
    from vlalign.storage.common.problems import Problems
    from vlalign.storage.dataset.folder import DatasetFolder
    from vlalign.storage.records import VideoRecord

    class Stub(ExtractionWorker):
        def load(self, *_: object) -> dict:
            self._state = State.IDLE
            return {}

        def _run(self) -> None:
            done = []
            for task in self._tasks():
                if task is None:
                    time.sleep(0.001)
                    continue
                video = task.video
                self._record(VideoOutcome(video.video_id, video.path, ["s3d"], None, "", 400.0, 600, 1_228_800))
                done.append(video.video_id)
                if len(done) == 64:
                    self._record(ShardsWritten(done))
                    done = []
            self._record(ShardsWritten(done))
            with self._changed:
                self._state = State.IDLE
                self._changed.notify_all()

    dataset = DatasetFolder(folder, "stubs")
    dataset.path.mkdir(parents=True, exist_ok=True)
    videos = [VideoRecord(video_id=f"video{number:06d}", path=f"{number}.mp4") for number in range(NUM_STUBS)]
    tasks = [VideoTask(video, ["s3d"]) for video in videos]
    settings = job_settings(folder, "stubs")
    actors.ExtractionActor = Stub
    with on_ray(2):
        for num_workers in (1, 8):
            share, weights = Share(2 / num_workers, 0.0, num_workers), {"s3d": "random"}
            extraction = Extraction(settings, videos, tasks, weights, PendingWork(dataset, ["s3d"]), Problems())
            worker = settings.for_worker(weights, "cpu", share.num_cores)
            run = driver.ExtractionDriver(extraction, worker, share, shard_seconds=SHARD_SECONDS)
            heard: list[float] = []
            run._handle_report = _noting(run._handle_report, heard)
            asyncio.run(run.run())
            took = heard[-1] - heard[0]
            print(
                f"{num_workers} workers: {NUM_STUBS:,} videos in {took:.1f} s, {1e3 * took / NUM_STUBS:.2f} ms each, "
                f"{len(heard):,} answers"
            )


def _noting(call, times: list[float]):
    def noted(*args):
        times.append(time.monotonic())
        return call(*args)

    return noted


def loop(folder: Path) -> None:
    """Compare the plain command with one worker on Ray, in turns, from the first finished video to the last."""
    from vlalign.extract.videos.selection import render_missing
    from vlalign.preprocess.datasets import demo
    from vlalign.storage.dataset.folder import DatasetFolder
    from vlalign.storage.dataset.trusted_folders import allow_folder
    from vlalign.storage.records import VideoRecord

    made = DatasetFolder(folder, "films")
    if not made.videos_file.exists():
        scenes = demo.plan_scenes(0, {"train": 100, "validation": 10, "test": 10})
        made.write_videos([record for record in demo.records(scenes) if isinstance(record, VideoRecord)])
    render_missing(made, made.read_videos())
    rates: dict[str, list[float]] = {"plain": [], "ray": []}
    for turn in range(3):
        for how in rates:
            dataset = DatasetFolder(folder / f"{how}{turn}", "films")
            shutil.rmtree(dataset.path, ignore_errors=True)  # of an earlier call
            dataset.write_videos(
                [VideoRecord(video_id=v.video_id, path=str(made.video_path(v))) for v in made.read_videos()]
            )
            allow_folder(dataset, made.path)
            ran = subprocess.run(
                [sys.executable, __file__, str(dataset.root), f"{how}-turn"], check=True, capture_output=True, text=True
            )
            rates[how].append(float(ran.stdout.split()[-1]))
    plain, ray = (float(np.median(rates[how])) for how in ("plain", "ray"))
    print(f"plain {plain:.3f} videos/s {rates['plain']}, on Ray {ray:.3f} {rates['ray']}: {ray / plain:.3f}")


def turn(root: Path, how: str) -> None:
    from vlalign.extract import extract_dataset
    from vlalign.extract.pipeline import shard_writing as plain
    from vlalign.ray_jobs import driver, extract_howto100m

    times: list[float] = []
    settings = job_settings(root, "films")
    if how == "plain":
        plain.report_outcome = _noting(plain.report_outcome, times)
        extract_dataset(settings)
    else:
        driver.Status.outcome = _noting(driver.Status.outcome, times)
        with on_ray(2):
            extract_dataset(
                settings, runner=extract_howto100m.ClusterRunner(extract_howto100m.WorkerOptions(workers=1))
            )
    print((len(times) - 1) / (times[-1] - times[0]))


def resume(folder: Path) -> None:
    """Measure time and memory to find the hundred videos that are left of 1.2 million, in a separate process."""
    from vlalign.storage import VideoFeatures, Weights, write_shard
    from vlalign.storage.common.files import file_identity
    from vlalign.storage.dataset.folder import DatasetFolder
    from vlalign.storage.profiles import PROFILES

    dataset = DatasetFolder(folder, "many")
    if not dataset.videos_file.exists():
        files = dataset.path / "files"
        shutil.rmtree(dataset.path, ignore_errors=True)
        files.mkdir(parents=True)
        profile, weights = replace(PROFILES["s3d"], dimension=4), Weights(name="none", sha256="0" * 64)
        about = {
            "start_seconds": np.zeros(1),
            "end_seconds": np.ones(1),
            "valid_frames": np.full(1, 16),
            "duration_seconds": 402.0,
        }
        flush, os.fsync = os.fsync, lambda _: None  # of files that nobody needs tomorrow
        with dataset.videos_file.with_name("new").open("w") as listed:
            for shard in range(NUM_KNOWN // 64):
                part = files / f"{shard:05d}"
                part.mkdir()
                first = part / "00.mp4"
                first.write_bytes(os.urandom(1000))
                os.utime(first, (1e9, 1e9))
                identity, videos = file_identity(first), []
                for number in range(64):
                    if number:
                        os.link(first, part / f"{number:02d}.mp4")
                    video_id = f"v{shard:05d}x{number:02d}abc"
                    listed.write(
                        json.dumps({"video_id": video_id, "path": f"files/{shard:05d}/{number:02d}.mp4"}) + "\n"
                    )
                    videos.append(
                        VideoFeatures(
                            video_id=video_id, features=np.zeros((1, 4), np.float16), source=identity, **about
                        )
                    )
                write_shard(dataset.features("s3d"), profile, weights, videos[: 64 - (shard < 100)], made_with={})
        os.fsync = flush
        dataset.videos_file.with_name("new").rename(dataset.videos_file)
    ran = subprocess.run([sys.executable, __file__, str(folder), "decide"], check=True, capture_output=True, text=True)
    print(ran.stdout.strip())


def decide(folder: Path) -> None:
    from vlalign.extract import extract_dataset
    from vlalign.extract.pipeline.runner import LocalRunner

    class Decided(LocalRunner):
        def extract(self, settings, work, todo: list, weights: dict, problems) -> None:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
            took = time.perf_counter() - started
            print(
                f"{len(todo):,} of {NUM_KNOWN:,} left to do, known after {took:.1f} s with {peak:,.0f} MB", flush=True
            )
            os._exit(0)

    started = time.perf_counter()
    extract_dataset(job_settings(folder, "many"), runner=Decided())


def scale(folder: Path) -> None:
    """Estimate what each profile costs for all of HowTo100M, from its cost for the videos in ``folder``.

    The size and frame rate of the videos decide the cost of decoding. GPU hours are not measured: they assume 100
    TFLOP/s.
    """
    import torch
    from extraction import PROFILES, drain, model_cpu_seconds
    from torch.utils.flop_counter import FlopCounterMode
    from vlalign.extract import load_extractor
    from vlalign.extract.decoding.probe import probe_video
    from vlalign.extract.models import MODELS, layers

    torch.set_num_threads(1)
    paths = sorted(path for path in folder.iterdir() if path.suffix in (".mp4", ".webm", ".mkv"))
    hours = sum(probe_video(path).duration_seconds for path in paths) / 3600
    times = HOURS / hours
    print(f"{len(paths)} videos, {3600 * hours:.0f} s; HowTo100M: {HOURS:,} hours")
    columns = ("rows, 1e9", "TB", "decoding", "network", "EFLOP", "GPU hours", "cores/GPU")
    print(f"{'':<16}" + "".join(f"{column:>12}" for column in columns))
    for name in PROFILES:
        extractor = load_extractor(name, weights="random")
        decoding, (windows,) = drain(paths, [extractor])
        some = windows[:: max(len(windows) // 24, 1)]
        network = model_cpu_seconds(extractor, some) * len(windows) / len(some)
        profile = extractor.profile
        plain = replace(extractor, network=MODELS[name]().eval().fold())
        with (
            FlopCounterMode(display=False) as counter,
            mock.patch.dict(layers.ONE_CALL_TYPES, clear=True),
        ):  # it knows no oneDNN calls
            plain.features(windows[0][None])
        exaflop = times * len(windows) * counter.get_total_flops() / 1e18
        gpu_hours = exaflop * 1e18 / 100e12 / 3600
        rows = times * len(windows)
        cores = times * decoding / 3600 / gpu_hours
        terabytes = rows * (2 * profile.dimension + 20) / 1e12
        figures = (rows / 1e9, terabytes, times * decoding / 3600, times * network / 3600, exaflop, gpu_hours, cores)
        digits = (2, 2, 0, 0, 0, 0, 1)
        print(
            f"{name:<16}" + "".join(f"{value:>12,.{n}f}" for value, n in zip(figures, digits, strict=True)), flush=True
        )


PARTS = {"simulate": simulate, "overhead": overhead, "loop": loop, "resume": resume}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("part", nargs="?", choices=[*PARTS, "scale", "plain-turn", "ray-turn", "decide"])
    args = parser.parse_args()
    folder = args.folder.absolute()
    if args.part == "decide":
        decide(folder)
    elif args.part == "scale":
        scale(folder)
    elif args.part in ("plain-turn", "ray-turn"):
        turn(folder, args.part.removesuffix("-turn"))
    else:
        for name in [args.part] if args.part else PARTS:
            print(f"--- {name}")
            PARTS[name](folder)


if __name__ == "__main__":
    main()

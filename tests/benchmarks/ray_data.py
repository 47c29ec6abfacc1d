"""Our dispatch of videos on a Ray cluster, and Ray Data: ``python tests/benchmarks/ray_data.py FOLDER [SCENARIO ...]``.

FOLDER is empty or from an earlier call. Three raylets of one core each extract made videos, as

- ``ours``: ``ray_jobs/extract_howto100m.py``;
- ``data``: Ray Data gives units of videos to a pool of actors, which run the same ``extract_into_stores``;
- ``stages``: Ray Data decodes in one pool and computes in another, with the frames in Ray's object store. Its rows are
  returned and not written.

Scenarios: ``calm``; ``workers`` (a worker is killed every few seconds); ``driver`` (the driver is killed twice, and the
same call is repeated); ``killer`` (one video kills each worker that begins it).
"""

import argparse
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

import numpy as np
from helpers.clusters import IMPORT_HOOK, PORT, SCRIPTS, Cluster, descendants, kill_all
from helpers.videos import scene
from howto100m.local_ray import proportional_bytes
from vlalign.extract.videos.demo import render_video
from vlalign.preprocess.datasets.demo import SHAPES, VERBS
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.dataset.trusted_folders import allow_folder
from vlalign.storage.records import VideoRecord
from vlalign.storage.shards.read import read_shard

ENGINES, SCENARIOS = ("ours", "data", "stages"), ("calm", "workers", "driver", "killer")
FEATURES, NUM_VIDEOS, VIDEO_SECONDS, NUM_MACHINES = "resnet152", 96, 10.0, 3
UNIT_VIDEOS = 8
"""Videos of one task of Ray Data. What a unit has finished is lost with its worker, unless a shard was written."""
WINDOWS = 16
"""Windows that the networks of ``stages`` compute together."""
KILL_EVERY_SECONDS, DRIVER_KILLS = 10.0, 2
LIMIT_SECONDS = 420.0
"""A run that takes longer is ended: it would not end by itself, or is far too slow."""
KILLER = "killer"
# Every Python of the cluster runs this first, too: it kills a worker that begins a video with a certain name.
HOOKS = (
    IMPORT_HOOK
    + """
def kill_worker(module):
    start = module._Engine._start
    def watched(self, video):
        if video.job.path.name.startswith("killer"):
            os.kill(os.getpid(), signal.SIGKILL)
        return start(self, video)
    module._Engine._start = watched

PATCHES["vlalign.extract.pipeline.engine"] = kill_worker
"""
)


# The engines of Ray Data, in the driver's process


class Units:
    """An actor of ``data``: extracts the videos of a unit into the stores."""

    def __init__(self, worker: Any) -> None:
        import torch
        from vlalign.extract.pipeline.store_extractor import make_extractors

        torch.set_num_threads(1)
        self.worker, self.extractors = worker, make_extractors(worker)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list]:
        from vlalign.extract.pipeline.shard_writing import VideoOutcome, extract_into_stores

        tasks = [pickle.loads(task) for task in batch["task"]]
        events = extract_into_stores(self.worker, self.extractors, tasks)
        return {"outcome": [pickle.dumps(event) for event in events if isinstance(event, VideoOutcome)]}


class Decoders:
    """An actor of ``stages``: decodes videos."""

    def __init__(self, worker: Any) -> None:
        from vlalign.extract.decoding.process import DecodeProcess
        from vlalign.extract.pipeline.store_extractor import make_extractors
        from vlalign.extract.pipeline.video_jobs import frame_spec_of

        (extractor,) = make_extractors(worker).values()
        self.worker, self.specs = worker, [frame_spec_of(extractor.profile)]
        self.process = DecodeProcess(self.specs)

    def __call__(self, batch: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
        from vlalign.extract.decoding.messages import DecodingFinished, Request, ThumbnailFollows, WindowReady

        for pickled in batch["task"]:
            video = pickle.loads(pickled).video
            self.process.start(Request(str(self.worker.dataset.video_path(video)), self.specs))
            while not isinstance(message := self.process.receive(), DecodingFinished):
                if isinstance(message, WindowReady):
                    frames = np.empty(message.shape, dtype=np.uint8)
                    self.process.take_frames(message, frames)
                    yield {"video_id": np.array([video.video_id]), "frames": frames[None]}
                elif isinstance(message, ThumbnailFollows):
                    self.process.receive_bytes()


class Networks:
    """An actor of ``stages``: computes windows."""

    def __init__(self, worker: Any) -> None:
        import torch
        from vlalign.extract.pipeline.store_extractor import make_extractors

        torch.set_num_threads(1)
        (self.extractor,) = make_extractors(worker).values()

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        by_shape: dict[tuple, list[int]] = {}
        for index, frames in enumerate(batch["frames"]):
            by_shape.setdefault(frames.shape, []).append(index)
        order = [index for indices in by_shape.values() for index in indices]
        found = [
            self.extractor.features(np.stack([batch["frames"][index] for index in indices])).numpy()
            for indices in by_shape.values()
        ]
        return {"video_id": batch["video_id"][order], "features": np.concatenate(found)}


class DataRunner:
    """Carries out an extraction with Ray Data; see ``Runner``."""

    def __init__(self, engine: str) -> None:
        self.engine = engine

    def extract(self, extraction: Any) -> None:
        import ray
        import ray.data
        from vlalign.extract.pipeline.shard_writing import report_outcome

        ray.init(address=f"127.0.0.1:{PORT}", log_to_driver=False)
        context = ray.data.DataContext.get_current()
        context.max_errored_blocks = -1  # a unit that fails for good does not end the others
        worker = extraction.settings.for_worker(extraction.weights, "cpu", 1)
        rows = [{"task": pickle.dumps(task)} for task in extraction.tasks]
        units = ray.data.from_items(rows, override_num_blocks=max(len(rows) // UNIT_VIDEOS, 1))
        about = {"fn_constructor_args": [worker], "num_cpus": 1}
        if self.engine == "data":
            size = ray.data.ActorPoolStrategy(min_size=1, max_size=NUM_MACHINES)
            for row in units.map_batches(Units, batch_size=UNIT_VIDEOS, compute=size, **about).iter_rows():
                report_outcome(pickle.loads(row["outcome"]), extraction)
        else:
            about["num_cpus"] = 0.5
            size = ray.data.ActorPoolStrategy(size=NUM_MACHINES)
            frames = units.map_batches(Decoders, batch_size=1, compute=size, **about)
            found = frames.map_batches(Networks, batch_size=WINDOWS, compute=size, **about)
            counts = Counter(row["video_id"] for row in found.iter_rows())
            print(f"{sum(counts.values()):,} rows of {len(counts)} videos")


def turn(engine: str, root: Path) -> None:
    """Be the driver."""
    from vlalign.extract import ExtractionSettings, extract_dataset

    settings = ExtractionSettings(dataset=root / "demo", features=FEATURES, weights={FEATURES: "random"})
    extract_dataset(settings, runner=DataRunner(engine))


# The cluster, the disturbances, and what is measured


class Memory(threading.Thread):
    """Watches the memory of the cluster's processes and of the driver's."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.cluster, self.peak, self.ended = cluster, 0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(2.0):
            self.peak = max(self.peak, sum(map(proportional_bytes, self.cluster._processes())))


def hooked_environment(place: Path, hooks: str) -> dict[str, str]:
    """Return the environment of a cluster whose Pythons all run ``hooks`` first, from a new folder ``place``."""
    (place / "hooks").mkdir(parents=True)
    (place / "hooks" / "sitecustomize.py").write_text(hooks.format(rows=str(place / "rows.txt")))
    return os.environ | {
        "PYTHONPATH": str(place / "hooks"),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": uuid.uuid4().hex,
        "OMP_NUM_THREADS": "1",
    }


def workers(cluster: Cluster) -> list[int]:
    """Return the processes that extract, of either engine."""
    named = {pid: Path(f"/proc/{pid}/cmdline") for pid in cluster._processes()}
    words = ("ExtractionActor", "MapWorker", "MapBatches", "ray::Actor")
    found = []
    for pid, path in named.items():
        try:
            line = path.read_text().split("\0")[0]
        except OSError:
            continue
        if line.startswith("ray::") and any(word in line for word in words):
            found.append(pid)
    return found


def rows_in_store(dataset: DatasetFolder) -> tuple[int, int]:
    """Return the numbers of videos and rows of all shards: more than once if they were written more than once."""
    shards = [read_shard(path) for path in dataset.features(FEATURES).glob("*.h5")]
    return sum(len(shard.videos) for shard in shards), sum(shard.num_rows for shard in shards)


def run(engine: str, scenario: str, films: DatasetFolder, folder: Path) -> None:
    """Run one engine in one scenario, and print a row of the table."""
    place = folder / f"{engine}-{scenario}"
    shutil.rmtree(place, ignore_errors=True)
    environment = hooked_environment(place, HOOKS)
    dataset = DatasetFolder(place, "demo")
    videos = [replace(video, path=str(films.video_path(video))) for video in films.read_videos()]
    if scenario == "killer":
        killer = films.path / f"{KILLER}.mp4"
        shutil.copy(films.video_path(films.read_videos()[0]), killer)
        videos.insert(20, VideoRecord(video_id=KILLER, path=str(killer)))
    dataset.write_videos(videos)
    allow_folder(dataset, films.path)
    cluster = Cluster([], environment)
    cluster.start(NUM_MACHINES)
    command = [sys.executable, __file__, "turn", engine, str(place)]
    if engine == "ours":
        asked = ["--root", str(place), "--dataset", "demo", "--features", FEATURES, "--weights", "random"]
        command = [sys.executable, str(SCRIPTS / "extract_howto100m.py"), "--address", f"127.0.0.1:{PORT}"]
        command += [*asked, "--cpus-per-worker", "1"]
    memory, num_kills = Memory(cluster), 0
    memory.start()
    started = time.monotonic()

    def start() -> subprocess.Popen:
        with (place / "log.txt").open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    driver, last_kill = start(), time.monotonic()
    try:
        while driver.poll() is None and time.monotonic() - started < LIMIT_SECONDS:
            time.sleep(0.5)
            if scenario == "workers" and time.monotonic() - last_kill > KILL_EVERY_SECONDS:
                there = workers(cluster)
                kill_all(there[:1])
                num_kills, last_kill = num_kills + bool(there), time.monotonic()
            if scenario == "driver" and num_kills < DRIVER_KILLS and time.monotonic() - last_kill > 30:
                kill_all([pid for pid in descendants(driver.pid) if pid == driver.pid])
                driver.wait()
                driver, num_kills, last_kill = start(), num_kills + 1, time.monotonic()
        seconds = time.monotonic() - started
        code = "not ended" if driver.poll() is None else str(driver.returncode)
    finally:
        memory.ended.set()
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
        cluster.stop()
    computed = sum(map(int, (place / "rows.txt").read_text().split()))
    num_videos, num_rows = rows_in_store(dataset) if engine != "stages" else (0, 0)
    figures = (num_kills, code, f"{seconds:.0f}", num_videos, num_rows, computed, f"{memory.peak / 2**30:.2f}")
    print(f"{engine:<8}{scenario:<9}" + "".join(f"{figure:>11}" for figure in figures), flush=True)


def make_films(folder: Path) -> DatasetFolder:
    """Make the videos, if they are not there."""
    films = DatasetFolder(folder, "films")
    films.path.mkdir(parents=True, exist_ok=True)
    videos = [VideoRecord(video_id=f"film{number:03}", path=f"film{number:03}.mp4") for number in range(NUM_VIDEOS)]
    for number, video in enumerate(videos):
        if not films.video_path(video).exists():
            about = {
                "shape": SHAPES[number % len(SHAPES)],
                "verb": list(VERBS)[number % len(VERBS)],
                "noise_seed": number,
            }
            render_video(scene(VIDEO_SECONDS, **about), films.video_path(video))
    films.write_videos(videos)
    return films


def main() -> None:
    if sys.argv[1] == "turn":
        turn(sys.argv[2], Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    args = parser.parse_args()
    folder = args.folder.absolute()
    films = make_films(folder)
    columns = ("kills", "exit", "seconds", "videos", "rows", "computed", "GiB")
    print(f"{'engine':<8}{'scenario':<9}" + "".join(f"{column:>11}" for column in columns))
    for scenario in args.scenarios:
        for engine in args.engines:
            if engine != "stages" or scenario == "calm":
                run(engine, scenario, films, folder)


if __name__ == "__main__":
    main()

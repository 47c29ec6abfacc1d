"""Seconds and memory with 1.2 million videos on a slow disk: ``python tests/benchmarks/many_files.py FOLDER``.

FOLDER is made if it is missing, and is used again by the next call: it takes 7 GB and 1.3 million files. Each call that
a network disk would answer waits for 2 ms (``slow_disk.c``, which gcc compiles). ``--videos 20000`` is a first try.
"""

import argparse
import ctypes
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from vlalign.extract import ExtractionSettings
from vlalign.extract.pipeline.dataset import prepare_extraction, summarize
from vlalign.extract.pipeline.shard_writing import extract_into_stores
from vlalign.extract.videos.selection import choose_videos
from vlalign.storage import FeatureStore, VideoFeatures, Weights, write_shard
from vlalign.storage.common.problems import Problems
from vlalign.storage.common.terminal import Level, messages_on_terminal
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES
from vlalign.storage.shards.names import NewShardNames
from vlalign.storage.stores.opening import open_features_writer
from vlalign.storage.stores.store_info import describe
from vlalign.storage.stores.thumbnails import Thumbnail, write_thumbnails

NUM_VIDEOS, NUM_LEFT, PER_FOLDER, SHARD_VIDEOS = 1_200_000, 100, 1000, 64
SHIM = Path(__file__).with_name("slow_disk.c")
SOURCE = "1-0123456789abcdef01234567"
PROFILE, WEIGHTS = replace(PROFILES["s3d"], dimension=4), Weights(name="made", sha256="0" * 64)


def video_id(number: int) -> str:
    return f"{number // PER_FOLDER:04d}/v{number:010d}"


def make_files(folder: Path, num_videos: int) -> None:
    """Files of a byte, which are older than their features."""
    for number in range(num_videos):
        path = folder / f"{video_id(number)}.mp4"
        if number % PER_FOLDER == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
        os.utime(path, (1e9, 1e9))


def make_store(folder: Path, num_videos: int) -> None:
    """A row of each video."""
    times = {"start_seconds": np.zeros(1), "end_seconds": np.ones(1), "valid_frames": np.full(1, 16)}
    about = times | {"duration_seconds": 402.0, "source": SOURCE, "decoder": "PyAV 18.1.0"}
    row, names, flush = np.zeros((1, PROFILE.dimension), np.float16), NewShardNames(folder), os.fsync
    os.fsync = lambda _: None  # of shards that nobody needs tomorrow
    for first in range(0, num_videos, SHARD_VIDEOS):
        numbers = range(first, min(first + SHARD_VIDEOS, num_videos))
        videos = [VideoFeatures(video_id=video_id(number), features=row, **about) for number in numbers]
        write_shard(folder, PROFILE, WEIGHTS, videos, made_with={"vlalign": "0.1.0"}, names=names)
    os.fsync = flush


def make_thumbnails(folder: Path, num_videos: int) -> None:
    """Three thumbnails of each video, without a picture: where there is one, it lies behind what is read here."""
    names, flush = NewShardNames(folder), os.fsync
    os.fsync = lambda _: None
    for first in range(0, num_videos, SHARD_VIDEOS):
        numbers = range(first, min(first + SHARD_VIDEOS, num_videos))
        shown = [Thumbnail(video_id(number), seconds, b"x", SOURCE) for number in numbers for seconds in (40, 201, 362)]
        write_thumbnails(folder, shown, names)
    os.fsync = flush


def listing(folder: Path) -> str:
    """``--videos FOLDER``: which videos there are, and that all lie where they may."""
    settings = settings_of(folder, "new")
    return f"{len(choose_videos(settings, Problems())[0]):,} videos"


def plan(folder: Path) -> str:
    """All before the first video of a new data set is probed: the listing, and the size of each file."""
    extraction = prepare_extraction(settings_of(folder, "new"), Problems(), dry_run=True)
    return f"{sum(task.size for task in extraction.tasks):,} bytes to do"


def resume(folder: Path) -> str:
    """All before the first video is decoded, if all but a few are in the store and unchanged."""
    extraction = prepare_extraction(settings_of(folder, "known"), Problems(), dry_run=False)
    return f"{len(extraction.tasks):,} videos left"


def end(folder: Path) -> str:
    """All after the last video of a resumed extraction, of which all are done now."""
    extraction = prepare_extraction(settings_of(folder, "known"), Problems(), dry_run=False)
    started = time.perf_counter()
    result = summarize(extraction)
    return f"{result.num_complete:,} videos, {time.perf_counter() - started:.1f} s for the end alone"


def worker(folder: Path) -> str:
    """The start of a worker, without loading its networks: the store's profile and weights, and its first shard."""
    settings = settings_of(folder, "known").for_worker({}, "cpu", 1)
    provenance = open_features_writer(settings.dataset, "s3d").provenance()
    list(extract_into_stores(settings, {}, []))
    return f"profile {provenance and provenance.profile.hash}"


def second(folder: Path) -> str:
    """All before the first video is decoded for features that come later."""
    settings = replace(settings_of(folder, "known"), features="resnet152", weights={"resnet152": "random"})
    extraction = prepare_extraction(settings, Problems(), dry_run=False)
    return f"{sum(task.thumbnails is not None for task in extraction.tasks):,} videos have thumbnails"


def info(folder: Path) -> str:
    """``vlalign-store info``."""
    about = describe(FeatureStore(DatasetFolder(folder / "root", "known").features("s3d")))
    return f"{about.videos:,} videos in {about.shards:,} shards"


PARTS = {
    "listing": listing,
    "plan": plan,
    "resume": resume,
    "end": end,
    "second": second,
    "worker": worker,
    "info": info,
}


def settings_of(folder: Path, name: str) -> ExtractionSettings:
    return ExtractionSettings(dataset=folder / "root" / name, videos=folder / "videos", features="s3d")


def run_part(folder: Path, name: str) -> None:
    """Run a part in this process, and print a row of the table."""
    calls = getattr(ctypes.CDLL(None), "slow_calls", lambda: 0)
    before, used, started = calls(), time.process_time(), time.perf_counter()
    with messages_on_terminal(Level.QUIET):
        answer = PARTS[name](folder)
    seconds, cpu = time.perf_counter() - started, time.process_time() - used
    status = Path("/proc/self/status").read_text()  # ru_maxrss would be that of the process that started this one
    memory = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) >> 10
    print(f"| {name} | {answer} | {calls() - before:,} | {seconds:.1f} | {cpu:.1f} | {memory:,} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--videos", type=int, default=NUM_VIDEOS)
    parser.add_argument("--milliseconds", type=float, default=2.0, help="wait of each call")
    parser.add_argument("--part", choices=PARTS, help="run this part only, in this process")
    args = parser.parse_args()
    folder = args.folder.absolute()
    if args.part:
        return run_part(folder, args.part)
    if not folder.exists():
        make_files(folder / "videos", args.videos)
        known = DatasetFolder(folder / "root", "known")
        make_store(known.features("s3d"), args.videos - NUM_LEFT)
        make_thumbnails(known.thumbnails, args.videos - NUM_LEFT)
    library = folder / "slow_disk.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, SHIM, "-ldl"], check=True)
    slow = {"SLOW_FOLDER": f"{folder}/", "SLOW_MICROSECONDS": f"{1000 * args.milliseconds:.0f}"}
    environment = os.environ | slow | {"LD_PRELOAD": str(library), "XDG_STATE_HOME": str(folder / "state")}
    print("| what | answer | calls that waited | s | processor s | peak MB |\n|---|---|---|---|---|---|", flush=True)
    for part in PARTS:
        subprocess.run([sys.executable, __file__, str(folder), "--part", part], env=environment, check=True)


if __name__ == "__main__":
    main()

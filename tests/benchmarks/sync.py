"""Seconds of vlalign-sync: ``python tests/benchmarks/sync.py FOLDER``, where FOLDER is new.

First 12 videos of 4 s, a day's changes in them, and what a sync without changes costs; then 10,000 files whose features
are there already, so that only the look at them is measured.
"""

import argparse
import os
import resource
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

import numpy as np
from helpers.videos import scene
from vlalign.extract.videos.demo import render_video
from vlalign.storage import VideoFeatures, Weights, write_shard
from vlalign.storage.common.files import file_identity
from vlalign.storage.common.terminal import Level, messages_on_terminal
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES
from vlalign.train import SyncSettings, sync_videos

SHAPES, VERBS = ("circle", "square", "triangle", "star", "cross"), ("fall", "rise", "spin", "grow")
FEATURES = "resnet152"
NUM_FILES = 10_000


def draw(path: Path, number: int) -> None:
    render_video(scene(4.0, shape=SHAPES[number % 5], verb=VERBS[number % 4], noise_seed=number), path)


def measure(what: str, settings: SyncSettings) -> None:
    """Sync, and print a row of the table."""
    started, used = time.perf_counter(), time.process_time()
    result = sync_videos(settings)
    seconds, cpu = time.perf_counter() - started, time.process_time() - used
    counts = len(result.extracted), len(result.renamed), len(result.removed), result.num_unchanged
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"| {what} | {' | '.join(map(str, counts))} | {seconds:.1f} | {cpu:.1f} | {memory:,} |", flush=True)


def a_days_changes(folder: Path) -> None:
    """Twelve videos, and what somebody does to them in a day."""
    videos = folder / "Videos"
    videos.mkdir(parents=True)
    for number in range(12):
        draw(videos / f"{number:02}.mp4", number)
    settings = SyncSettings(
        dataset=folder / "root" / "mine", folders=[videos], features=FEATURES, weights=["random"], device="cpu"
    )
    measure("12 new videos", settings)
    measure("nothing", settings)
    for number in range(3):
        draw(videos / f"added {number}.mp4", 12 + number)
        (videos / f"{number:02}.mp4").rename(videos / f"renamed {number}.mp4")
        (videos / f"{3 + number:02}.mp4").unlink()
    draw(videos / "06.mp4", 15)
    (videos / "07.mp4").touch()
    measure("3 added, 3 renamed, 3 deleted, 1 changed, 1 touched", settings)
    measure("nothing", settings)
    for path in videos.iterdir():
        path.touch()
    measure("all 12 touched", settings)


def many_files(folder: Path) -> None:
    """Files of 200 kB whose features are there."""
    videos, dataset = folder / "Many", DatasetFolder(folder / "root", "many")
    rng, made = np.random.default_rng(0), []
    for number in range(NUM_FILES):
        path = videos / f"{number % 100:02}" / f"{number:05}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.bytes(200_000))
        os.utime(path, (1e9, 1e9))
        row = rng.random((1, PROFILES["s3d"].dimension), dtype=np.float32)
        times = {"start_seconds": np.zeros(1), "end_seconds": np.ones(1), "valid_frames": np.ones(1, np.int32)}
        video_id = path.relative_to(videos).with_suffix("").as_posix()
        source = file_identity(path)
        made.append(VideoFeatures(video_id=video_id, features=row, duration_seconds=1.0, source=source, **times))
    write_shard(dataset.features("s3d"), PROFILES["s3d"], Weights(name="made", sha256="0" * 64), made, made_with={})
    settings = SyncSettings(dataset=dataset.path, folders=[videos], features="s3d", device="cpu")
    measure(f"{NUM_FILES:,} files, seen for the first time; features are there", settings)
    measure(f"{NUM_FILES:,} files, nothing", settings)
    first, *_ = sorted(videos.iterdir())
    first.rename(videos / "renamed")
    measure(f"{NUM_FILES:,} files, a folder of 100 renamed", settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir()
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    print("| what happened | extracted | renamed | removed | unchanged | s | processor s | peak MB |")
    print("|---|---|---|---|---|---|---|---|")
    with messages_on_terminal(Level.QUIET):
        a_days_changes(folder)
        many_files(folder)


if __name__ == "__main__":
    main()

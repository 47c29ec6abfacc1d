"""Feature stores against plain files, each pair in one run: ``python tests/benchmarks/stores.py FOLDER``, where FOLDER
is on the disk to be measured and has 4 GB free. ``python tests/benchmarks/stores.py FOLDER index`` runs one part: rows,
writing, index."""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
from vlalign.storage import FeatureStore, VideoFeatures, Weights, write_shard
from vlalign.storage.profiles import PROFILES

PROFILE, WEIGHTS = PROFILES["s3d"], Weights(name="none", sha256="0" * 64)
NUM_VIDEOS, NUM_ROWS, WINDOW, BATCH = 5000, 60, 48, 128
SHARD_VIDEOS = 64
TURNS = 7


def make_video(number: int, rng: np.random.Generator) -> VideoFeatures:
    starts = np.arange(NUM_ROWS) / 1.5
    return VideoFeatures(
        video_id=f"video{number:06d}",
        features=rng.random((NUM_ROWS, PROFILE.dimension), dtype=np.float32).astype(np.float16),
        start_seconds=starts,
        end_seconds=starts + 1 / 1.5,
        valid_frames=np.full(NUM_ROWS, 16, np.int32),
        duration_seconds=NUM_ROWS / 1.5,
        source="1234567-0123456789abcdef01234567",
        decoder="PyAV 18.1.0",
    )


def make_layouts(folder: Path) -> None:
    """The same rows four times: a store, one .npy, a .npy a video, an HDF5 file with a data set a video and one
    contiguous."""
    rng = np.random.default_rng(0)
    (folder / "npy").mkdir(parents=True)
    every = np.lib.format.open_memmap(
        folder / "all.npy", mode="w+", dtype=np.float16, shape=(NUM_VIDEOS * NUM_ROWS, PROFILE.dimension)
    )
    with h5py.File(folder / "videos.hdf5", "w") as by_video, h5py.File(folder / "flat.hdf5", "w") as flat:
        one = flat.create_dataset("features", shape=every.shape, dtype=np.float16)
        for first in range(0, NUM_VIDEOS, SHARD_VIDEOS):
            videos = [make_video(number, rng) for number in range(first, min(first + SHARD_VIDEOS, NUM_VIDEOS))]
            write_shard(folder / "store", PROFILE, WEIGHTS, videos, made_with={})
            for number, video in enumerate(videos, start=first):
                rows = slice(number * NUM_ROWS, (number + 1) * NUM_ROWS)
                every[rows] = one[rows] = by_video[video.video_id] = video.features
                np.save(folder / "npy" / f"{video.video_id}.npy", video.features)
    every.flush()


def readers(folder: Path) -> Iterator[tuple[str, Callable[[list[tuple[int, int]], np.ndarray], None]]]:
    """(name, what fills a batch [B, 48, D] with windows given as (video, first row))."""
    store = FeatureStore(folder / "store")
    every = np.load(folder / "all.npy", mmap_mode="r")
    by_video, flat = h5py.File(folder / "videos.hdf5", "r"), h5py.File(folder / "flat.hdf5", "r")
    one = flat["features"]

    def from_store(windows: list[tuple[int, int]], batch: np.ndarray) -> None:
        for place, rows in enumerate(
            store.get_rows([(f"video{v:06d}", first, first + WINDOW) for v, first in windows])
        ):
            batch[place] = rows

    def from_clips(windows: list[tuple[int, int]], batch: np.ndarray) -> None:
        clips = [(f"video{v:06d}", (first + 0.1) / 1.5, (first + WINDOW - 0.9) / 1.5) for v, first in windows]
        for place, clip in enumerate(store.get_clips(clips, dtype=None)):
            batch[place] = clip.features

    def from_map(windows: list[tuple[int, int]], batch: np.ndarray) -> None:
        for place, (v, first) in enumerate(windows):
            batch[place] = every[v * NUM_ROWS + first : v * NUM_ROWS + first + WINDOW]

    def from_npy(windows: list[tuple[int, int]], batch: np.ndarray) -> None:
        for place, (v, first) in enumerate(windows):
            batch[place] = np.load(folder / "npy" / f"video{v:06d}.npy")[first : first + WINDOW]

    def from_data_sets(windows: list[tuple[int, int]], batch: np.ndarray) -> None:
        for place, (v, first) in enumerate(windows):
            batch[place] = by_video[f"video{v:06d}"][first : first + WINDOW]

    def from_flat(windows: list[tuple[int, int]], batch: np.ndarray) -> None:
        for place, (v, first) in enumerate(windows):
            batch[place] = one[v * NUM_ROWS + first : v * NUM_ROWS + first + WINDOW]

    yield "store, by rows", from_store
    yield "store, by seconds", from_clips
    yield "one .npy, mapped", from_map
    yield "a .npy a video", from_npy
    yield "a data set a video (h5py)", from_data_sets
    yield "one contiguous data set (h5py)", from_flat


def evict(folder: Path) -> None:
    """Out of the page cache."""
    os.sync()
    for path in (p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def random_batches(rng: np.random.Generator, num_batches: int) -> list[list[tuple[int, int]]]:
    return [
        list(
            zip(
                rng.integers(NUM_VIDEOS, size=BATCH).tolist(),
                rng.integers(NUM_ROWS - WINDOW + 1, size=BATCH).tolist(),
                strict=True,
            )
        )
        for _ in range(num_batches)
    ]


def rows(folder: Path) -> None:
    """Windows a second, in random batches; by turns, so that a machine that changes its speed does so for all."""
    if not (folder / "all.npy").exists():
        make_layouts(folder)
    rng = np.random.default_rng(1)
    batch = np.empty((BATCH, WINDOW, PROFILE.dimension), np.float16)
    for path in (p for p in folder.rglob("*") if p.is_file()):
        path.read_bytes()
    seconds: dict[tuple[str, str], list[float]] = {}
    opened = dict(readers(folder))
    check = random_batches(rng, 1)[0]
    opened["one .npy, mapped"](check, batch)
    expected = batch.copy()
    for name, read in opened.items():
        read(check, batch)
        assert np.array_equal(batch, expected), name
        for windows in random_batches(rng, 80):  # all of it was read once, as after the first epoch
            read(windows, batch)
    for _ in range(TURNS):
        for windows in random_batches(rng, 16):
            for name in rng.permutation(
                list(opened)
            ).tolist():  # whoever reads first has the others find it in the processor's cache
                read = opened[name]
                seconds.setdefault(("warm", name), []).append(
                    seconds_of(lambda read=read, windows=windows: read(windows, batch))
                )
    del opened, read  # what is mapped cannot be evicted
    for _ in range(TURNS):
        for name in [name for name, _ in readers(folder)]:
            evict(folder)
            read = dict(readers(folder))[name]
            for windows in random_batches(rng, 3):
                seconds.setdefault(("cold", name), []).append(
                    seconds_of(lambda read=read, windows=windows: read(windows, batch))
                )
    for state in ("warm", "cold"):
        rate = {name: BATCH / float(np.median(values)) for (when, name), values in seconds.items() if when == state}
        for name, value in rate.items():
            print(
                f"{state}  {name:<32}{value:>9,.0f} windows/s"
                f"{value / rate['one .npy, mapped']:>8.2f} of the "
                f"map{value / rate['one contiguous data set (h5py)']:>8.2f} of plain h5py",
                flush=True,
            )


def seconds_of(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def writing(folder: Path) -> None:
    """MB a second, until the bytes are on disk: write_shard, which checks and reads back, and plain HDF5 calls with the
    same arrays."""
    rng = np.random.default_rng(0)
    videos = [make_video(number, rng) for number in range(16 * SHARD_VIDEOS)]
    features = np.concatenate([video.features for video in videos])
    times = np.concatenate([video.start_seconds for video in videos])
    megabytes = features.nbytes / 1e6

    def plain() -> None:
        with h5py.File(folder / "plain.h5", "w") as file:
            file["features"], file["start_seconds"], file["end_seconds"] = features, times, times
            file["valid_frames"] = times.astype(np.int32)
            file.flush()
        with (folder / "plain.h5").open("rb") as file:
            os.fsync(file.fileno())

    seconds: dict[str, list[float]] = {"plain HDF5 calls": [], "write_shard": []}
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(3 * TURNS):  # disks vary
        for name, call in (
            ("plain HDF5 calls", plain),
            ("write_shard", lambda: write_shard(folder, PROFILE, WEIGHTS, videos, made_with={})),
        ):
            seconds[name].append(seconds_of(call))
            for path in folder.glob("*.h5"):
                path.unlink()
            os.sync()
    rate = {name: megabytes / float(np.median(values)) for name, values in seconds.items()}
    for name, value in rate.items():
        print(f"{name:<20}{value:>8,.0f} MB/s{value / rate['plain HDF5 calls']:>8.2f}", flush=True)


def index(folder: Path, num_videos: int = 1_200_000) -> None:
    """Seconds and memory to open a store of 1.2 million videos with a row each, in a process of its own, cold and
    warm."""
    if not folder.exists():
        profile, row = replace(PROFILE, dimension=4), np.zeros((1, 4), np.float16)
        times = {
            "start_seconds": np.zeros(1),
            "end_seconds": np.ones(1),
            "valid_frames": np.full(1, 16),
            "duration_seconds": 402.0,
        }
        about = times | {"source": "1234567-0123456789abcdef01234567", "decoder": "PyAV 18.1.0"}
        flush, os.fsync = os.fsync, lambda _: None  # of shards that nobody needs tomorrow
        for shard in range(num_videos // SHARD_VIDEOS):
            videos = [
                VideoFeatures(video_id=f"v{shard:06d}x{n:04d}", features=row, **about) for n in range(SHARD_VIDEOS)
            ]
            write_shard(folder, profile, WEIGHTS, videos, made_with={"vlalign": "0.1.0", "torch": "2.15.0"})
        os.fsync = flush
    evict(folder)
    for state in ("cold", "warm"):
        ran = subprocess.run(
            [sys.executable, __file__, str(folder), "open"], check=True, capture_output=True, text=True
        )
        print(state, ran.stdout.strip(), flush=True)


def open_store(folder: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    store = FeatureStore(folder)
    took = time.perf_counter() - start
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
    start = time.perf_counter()
    known = sum(store.source(video_id) != "" for video_id in store.video_ids())
    asked = time.perf_counter() - start
    print(
        f"{len(store):,} videos, {len(store.shards):,} shards: {took:.1f} s, {megabytes:,.0f} MB; {known:,} sources: "
        f"{asked:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("part", nargs="?", choices=["rows", "writing", "index", "open"])
    args = parser.parse_args()
    if args.part == "open":
        return open_store(args.folder)
    folder = args.folder / "vlalign_benchmark"
    for name, part in (("rows", rows), ("writing", writing), ("index", index)):
        if args.part in (None, name):
            part(folder / name)
    if args.part is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

"""Stores of frames: the memory that extracting a long video takes, and what reading a few frames of a clip costs.

    python tests/benchmarks/stored_frames.py FOLDER [--minutes 60]

FOLDER should lie on a disk, not in memory. A made video of that length is extracted as ``clip_vit_b32_frames``, and 12
frames of clips of 300 s are read after the shard was dropped from memory: all rows of a clip, its array over the file,
and the 12 rows by name.
"""

import argparse
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from vlalign.storage import FeatureStore

NAME, RATE = "clip_vit_b32_frames", 2
NUM_CHOSEN, CLIP_SECONDS, NUM_CLIPS = 12, 300, 10


def make_video(path: Path, seconds: int) -> None:
    """Write a video of noise that moves, 320x240."""
    noise = np.random.default_rng(0).integers(0, 256, (240, 320 + 64, 3), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE, options={"preset": "ultrafast", "g": "8"})
        stream.width, stream.height = 320, 240
        for number in range(seconds * RATE):
            pixels = np.ascontiguousarray(noise[:, number % 64 : number % 64 + 320])
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def own_memory(process: int) -> Iterator[int]:
    """Yield bytes that only this process has, which are no pages of files."""
    while True:
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return
        yield next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)
        time.sleep(0.05)


def extract(folder: Path) -> None:
    """Extract in a process of its own, and print what it took."""
    program = str(Path(sys.executable).with_name("vlalign-extract"))
    command = [program, "--root", str(folder / "root"), "--dataset", "mine"]
    command += ["--videos", str(folder / "videos"), "--features", NAME, "--device", "cpu"]
    started, peak = time.monotonic(), [0]
    child = subprocess.Popen(command)

    def watch() -> None:
        for num_bytes in own_memory(child.pid):
            peak[0] = max(peak[0], num_bytes)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    assert child.wait() == 0
    seconds = time.monotonic() - started
    most = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(
        f"extracted in {seconds:.1f} s; memory of its own {peak[0] / 1e6:,.0f} MB at most, with files {most / 1e6:,.0f}"
    )


def bytes_read() -> int:
    """Return how much this process had the disks read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def read_clips(folder: Path) -> None:
    """Read 12 frames of clips in three ways, and print bytes and seconds of each."""
    place = folder / "root" / "mine" / "features" / NAME
    store = FeatureStore(place)
    [video_id] = store.video_ids()
    num_rows = store.about(video_id).num_rows
    firsts = np.linspace(0, num_rows - CLIP_SECONDS, NUM_CLIPS).astype(int).tolist()
    chosen = np.linspace(0, CLIP_SECONDS - 1, NUM_CHOSEN).astype(int)

    def all_rows(store: FeatureStore, first: int) -> np.ndarray:
        return store.get_rows([(video_id, first, first + CLIP_SECONDS)])[0].copy()[chosen]

    def over_the_file(store: FeatureStore, first: int) -> np.ndarray:
        return store.get(video_id, start_seconds=first, end_seconds=first + CLIP_SECONDS - 0.5, dtype=None).features[
            chosen
        ]

    def by_name(store: FeatureStore, first: int) -> np.ndarray:
        rows = store.get_rows([(video_id, first + row, first + row + 1) for row in chosen.tolist()])
        return np.concatenate(rows)

    del store  # a file that is mapped stays in memory
    for read in (all_rows, over_the_file, by_name):
        for path in place.glob("*.h5"):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before, started, store = bytes_read(), time.monotonic(), FeatureStore(place)
        for first in firsts:
            assert read(store, first).shape == (NUM_CHOSEN, store.profile.dimension)
        seconds, num_bytes = (time.monotonic() - started) / NUM_CLIPS, (bytes_read() - before) / NUM_CLIPS
        print(f"{read.__name__:<16}{1000 * seconds:8.1f} ms{num_bytes / 1e6:8.2f} MB a clip")
        del store


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=int, default=60)
    args = parser.parse_args()
    (args.folder / "videos").mkdir(parents=True, exist_ok=True)
    make_video(args.folder / "videos" / "long.mp4", 60 * args.minutes)
    extract(args.folder)
    read_clips(args.folder)


if __name__ == "__main__":
    main()

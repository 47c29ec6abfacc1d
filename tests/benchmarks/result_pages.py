"""Pages of results far down a list: ``python tests/benchmarks/result_pages.py [--videos 2000]``.

Makes videos of 50 scenes in a temporary folder, searches for one kind of scene, and asks for one page after the other,
as a person does who scrolls through the search page.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parents[1])]

import numpy as np
from helpers.planted_search import open_planted, plant
from vlalign.train.search import window_encoding
from vlalign.train.search.query_checks import MAX_OFFSET

THINGS = ["beach", "dog", "forest", "car", "snow"]
NUM_SCENES, SCENE_SECONDS, NUM_RESULTS = 50, 4, 48


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--videos", type=int, default=2000)
    args = parser.parse_args()
    window_encoding.MAX_WINDOWS_ADDED_BY_SEARCH = 10**9
    rng = np.random.default_rng(0)
    scenes = {
        f"v{number:06d}": [(SCENE_SECONDS, THINGS[thing]) for thing in rng.integers(len(THINGS), size=NUM_SCENES)]
        for number in range(args.videos)
    }
    with tempfile.TemporaryDirectory() as folder:
        search = open_planted(plant(Path(folder), scenes))
        for fold in (False, True):
            seconds, count, has_more = [], 0, True
            while has_more and count < MAX_OFFSET:
                start = time.perf_counter()
                found, has_more = search.part("dog", num_results=NUM_RESULTS, offset=count, by="video", fold=fold)
                seconds.append(time.perf_counter() - start)
                count += len(found)
            first, p50, p95, last = np.array([seconds[0], *np.percentile(seconds, [50, 95]), seconds[-1]]) * 1e3
            print(f"{search.index.num_windows:,} windows, fold {fold}: {count:,} results in {len(seconds):,} pages")
            print(f"first {first:.0f} ms, p50 {p50:.1f} ms, p95 {p95:.1f} ms, last {last:.1f} ms")


if __name__ == "__main__":
    main()

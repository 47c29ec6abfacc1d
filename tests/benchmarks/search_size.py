"""vlalign's own index at a size: ``python tests/benchmarks/search_size.py FOLDER [--windows 1000000]``.

Makes the index in FOLDER once, of the vectors of ``search.py``; then opens it as a search does, and measures queries by
all vectors and by codes: time, recall@10, resident memory. ``--exact 0`` leaves the scans of all vectors out.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parents[1])]

import numpy as np
from search import Planted
from vlalign.train.search.codes import CodedIndex, CodeFolder
from vlalign.train.search.index import WindowIndex, part_files, read_part, write_part
from vlalign.train.search.scan import Scan

PART_WINDOWS = 1 << 16
WINDOWS_OF_VIDEO = 16
NUM_RESULTS = 10


def make_parts(planted: Planted, folder: Path) -> None:
    """Write the parts of an index that are not there yet."""
    for number in range(len(part_files(folder)), -(-planted.num_windows // PART_WINDOWS)):
        first = number * PART_WINDOWS
        chunks = [planted.chunk(low) for low in range(first, min(first + PART_WINDOWS, planted.num_windows), 1 << 15)]
        vectors = np.concatenate(chunks)
        borders = list(range(0, len(vectors), WINDOWS_OF_VIDEO))
        seconds = np.arange(WINDOWS_OF_VIDEO, dtype=float)
        spans = [np.stack([seconds, seconds + 1], axis=1)[: len(vectors) - low] for low in borders]
        videos = {f"v{first + low:010d}": 0 for low in borders}
        write_part(folder, "{}", videos, spans, [vectors[low : low + WINDOWS_OF_VIDEO] for low in borders])


def memory() -> str:
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    own, mapped, most = (int(fields[name].split()[0]) / 2**20 for name in ("RssAnon", "RssFile", "VmHWM"))
    return f"own memory {own:.2f} GiB, mapped files {mapped:.2f} GiB, most so far {most:.2f} GiB"


def truth(index: WindowIndex, queries: np.ndarray) -> np.ndarray:
    """Return the best windows of every query [Q, 10], by all vectors and numpy."""
    rows, scores = np.zeros((len(queries), 0), int), np.zeros((len(queries), 0), np.float32)
    for first, block in index.blocks(1 << 14):
        scores = np.concatenate([scores, queries @ block.astype(np.float32).T], axis=1)
        rows = np.concatenate([rows, np.tile(np.arange(first, first + len(block)), (len(queries), 1))], axis=1)
        top = np.argpartition(-scores, NUM_RESULTS, axis=1)[:, :NUM_RESULTS]
        rows, scores = np.take_along_axis(rows, top, axis=1), np.take_along_axis(scores, top, axis=1)
    return rows


def measure(name: str, find, queries: np.ndarray, best: np.ndarray) -> None:
    find(queries[0])
    seconds, recall = [], []
    for query, right in zip(queries, best, strict=True):
        started = time.perf_counter()
        rows = find(query)[:NUM_RESULTS]
        seconds.append(time.perf_counter() - started)
        recall.append(len(set(rows.tolist()) & set(right.tolist())) / NUM_RESULTS)
    p50, p95 = np.percentile(seconds, [50, 95]) * 1e3
    print(f"{name}: p50 {p50:.2f} ms, p95 {p95:.2f} ms, recall@10 {np.mean(recall):.3f}; {memory()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--windows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--exact", type=int, default=10, help="queries by all vectors")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    planted = Planted(args.dim, args.windows)

    def timed(what: str, make):
        started = time.perf_counter()
        made = make()
        print(f"{what}: {time.perf_counter() - started:.1f} s; {memory()}", flush=True)
        return made

    timed("vectors", lambda: make_parts(planted, args.folder))
    parts = [read_part(path) for path in part_files(args.folder)]
    checksums = {video_id: 0 for part in parts for video_id in part.video_ids}
    index = timed("opening of windows", lambda: WindowIndex(parts, "{}", checksums))
    folder = CodeFolder(args.folder)
    timed("codes", lambda: folder.update(index))
    codebook = folder.codebook()
    assert codebook is not None
    coded = timed(
        "opening of codes", lambda: CodedIndex(index, codebook, [folder.read(part, codebook) for part in index.parts])
    )
    queries = planted.queries(args.queries)
    best = timed("best windows by numpy", lambda: truth(index, queries))
    measure("codes", lambda query: coded.scan(query).best(256, None)[0], queries, best)
    if args.exact:
        measure("all vectors", lambda q: Scan(index, q).best(256, None)[0], queries[: args.exact], best[: args.exact])


if __name__ == "__main__":
    main()

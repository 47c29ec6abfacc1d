"""Search among a million windows: time, recall and memory of exact scans and of approximate indexes.

    python tests/benchmarks/search.py [--windows 1000000] [--dim 512] [--queries 100] [--folder FOLDER] [--only KIND]

FAISS and USearch are not among vlalign's dependencies: ``pip install faiss-cpu usearch``.

Every figure is of one thread. Times are also given as ratios to a scan of a float32 matrix by numpy in the same run.
The vectors imitate those of videos: clusters of unequal size, windows of a video close to each other; queries lie
beside the clusters, as texts do.
"""

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parents[1])]

import faiss
import numpy as np
import torch

NUM_RESULTS = 10
CHUNK = 1 << 15
Find = Callable[[np.ndarray], np.ndarray]
"""Returns the indices of the best windows [10] of a query [D]."""


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


class Planted:
    """Vectors of windows, made in chunks: a topic, a video in it, and windows of the video."""

    def __init__(self, dim: int, num_windows: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.dim, self.num_windows = dim, num_windows
        self.basis = rng.normal(size=(96, dim)).astype(np.float32)  # real vectors fill few of their dimensions
        self.topics = rng.normal(size=(max(num_windows // 500, 10), 96)).astype(np.float32)

    def chunk(self, first: int) -> np.ndarray:
        rng = np.random.default_rng([1, first])
        size = min(CHUNK, self.num_windows - first)
        num_videos = size // 16 + 1
        topic = (rng.random(num_videos) ** 2 * len(self.topics)).astype(int)
        videos = self.topics[topic] + rng.normal(size=(num_videos, 96)).astype(np.float32) * 0.7
        windows = videos[np.arange(size) // 16] + rng.normal(size=(size, 96)).astype(np.float32) * 0.4
        return unit(windows @ self.basis + rng.normal(size=(size, self.dim)).astype(np.float32) * 2)

    def queries(self, count: int) -> np.ndarray:
        rng = np.random.default_rng(2)
        topics = self.topics[rng.integers(0, len(self.topics), count)]
        shifted = topics + rng.normal(size=(count, 96)).astype(np.float32) * 0.8 + rng.normal(size=96) * 0.5
        return unit(shifted @ self.basis)


def write(planted: Planted, path: Path) -> np.memmap:
    """Write all vectors as float16; return them mapped."""
    matrix = np.memmap(path, np.float16, "w+", shape=(planted.num_windows, planted.dim))
    for first in range(0, planted.num_windows, CHUNK):
        matrix[first : first + CHUNK] = planted.chunk(first)
    matrix.flush()
    return np.memmap(path, np.float16, "r", shape=matrix.shape)


def best(scores: np.ndarray) -> np.ndarray:
    top = np.argpartition(-scores, NUM_RESULTS - 1)[:NUM_RESULTS]
    return top[np.argsort(-scores[top], kind="stable")]


def measure(name: str, find: Find, queries: np.ndarray, truth: np.ndarray | None, baseline: float | None) -> tuple:
    """Print the median and 95th percentile of a query, its ratio to the baseline, and the recall."""
    find(queries[0])
    seconds, found = [], []
    for query in queries:
        start = time.perf_counter()
        found.append(find(query))
        seconds.append(time.perf_counter() - start)
    p50, p95 = np.percentile(seconds, [50, 95])
    recall = (
        1.0
        if truth is None
        else np.mean([len(set(a) & set(b)) / NUM_RESULTS for a, b in zip(found, truth, strict=True)])
    )
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    ratio = f"{p50 / baseline:7.3f}" if baseline else "  1.000"
    print(
        f"{name:38} p50 {p50 * 1e3:8.2f} ms  p95 {p95 * 1e3:8.2f} ms  ratio {ratio}  recall@10 {recall:.3f}", end="  "
    )
    print(f"peak {memory:.1f} GiB", flush=True)
    return np.array(found), p50


def timed(name: str, make: Callable):
    start = time.perf_counter()
    made = make()
    print(f"{name:38} built in {time.perf_counter() - start:.0f} s", flush=True)
    return made


def scan_memory(matrix: np.ndarray) -> Find:
    return lambda query: best(matrix @ query)


def measure_faiss_flat(matrix: np.ndarray, queries: np.ndarray, truth: np.ndarray, baseline: float) -> None:
    index = faiss.IndexFlatIP(matrix.shape[1])
    index.add(matrix)
    measure("FAISS flat, float32", lambda q: index.search(q[None], NUM_RESULTS)[1][0], queries, truth, baseline)


def scan_numpy(matrix: np.ndarray) -> Find:
    def find(query: np.ndarray) -> np.ndarray:
        return best(
            np.concatenate([matrix[i : i + CHUNK].astype(np.float32) @ query for i in range(0, len(matrix), CHUNK)])
        )

    return find


def scan_torch(matrix: np.ndarray, rows: int) -> Find:
    tensor = torch.from_numpy(matrix)

    def find(query: np.ndarray) -> np.ndarray:
        q = torch.from_numpy(query)
        return best(torch.cat([block.float() @ q for block in tensor.split(rows)]).numpy())

    return find


def scan_torch_half(matrix: np.ndarray) -> Find:
    tensor = torch.from_numpy(matrix)
    return lambda query: best((tensor @ torch.from_numpy(query).half()).float().numpy())


def reranked(search: Callable, matrix: np.ndarray, count: int) -> Find:
    def find(query: np.ndarray) -> np.ndarray:
        rows = search(query, count)
        rows = rows[rows >= 0]
        rows.sort()
        return rows[best(matrix[rows].astype(np.float32) @ query)]

    return find


def blocks_of(matrix: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first window, vectors) of some windows at a time."""
    return ((first, matrix[first : first + CHUNK]) for first in range(0, len(matrix), CHUNK))


def exact(blocks: Iterable[tuple[int, np.ndarray]], queries: np.ndarray) -> np.ndarray:
    """Return the best windows of every query [Q, 10], by all vectors."""
    found = [np.zeros((len(queries), 0), int), np.zeros((len(queries), 0), np.float32)]
    for first, block in blocks:
        scores = np.concatenate([found[1], queries @ block.astype(np.float32).T], axis=1)
        rows = np.concatenate([found[0], np.tile(np.arange(first, first + len(block)), (len(queries), 1))], axis=1)
        top = np.argpartition(-scores, NUM_RESULTS, axis=1)[:, :NUM_RESULTS]
        found = [np.take_along_axis(rows, top, axis=1), np.take_along_axis(scores, top, axis=1)]
    return found[0]


def resident() -> float:
    """Return this process's own memory in MiB, without mapped files."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) / 1024


def measure_ivf(matrix: np.ndarray, queries: np.ndarray, truth: np.ndarray, baseline: float, num_lists: int) -> None:
    """Measure inverted lists with vectors in 8 bits, or as product codes of 64 bytes. All share the lists."""
    dim = matrix.shape[1]
    coarse = faiss.IndexFlatIP(dim)
    rows = np.random.default_rng(3).choice(len(matrix), min(40 * num_lists, len(matrix)), replace=False)
    sample = matrix[np.sort(rows)].astype(np.float32)

    def lists() -> None:
        clustering = faiss.Clustering(dim, num_lists)
        clustering.niter, clustering.spherical, clustering.max_points_per_centroid = 8, True, 64
        clustering.train(sample, coarse)

    timed(f"{num_lists} lists from {len(sample):,} windows", lists)
    kinds = {
        "IVF, 8 bits a value": lambda: faiss.IndexIVFScalarQuantizer(
            coarse, dim, num_lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT, False
        ),
        "IVF, 128 codes of 4 bits": lambda: faiss.IndexIVFPQFastScan(
            coarse, dim, num_lists, 128, 4, faiss.METRIC_INNER_PRODUCT
        ),
    }
    for name, new in kinds.items():
        index = new()
        index.own_fields = False
        if hasattr(index, "by_residual"):
            index.by_residual = False
        timed(f"{name}: codes", lambda index=index: index.train(sample))

        def add(index: faiss.Index = index) -> None:
            for first in range(0, len(matrix), CHUNK):
                index.add(matrix[first : first + CHUNK].astype(np.float32))

        timed(name, add)
        print(f"{name:38} {len(faiss.serialize_index(index)) / 2**20:.0f} MiB", flush=True)
        for num_probes, count in ((16, 100), (32, 200), (64, 200), (64, 1000), (128, 1000)):
            index.nprobe = num_probes
            find = reranked(lambda q, n, index=index: index.search(q[None], n)[1][0], matrix, count)
            measure(f"{name}, {num_probes} lists, {count}", find, queries, truth, baseline)
        del index


def measure_usearch(matrix: np.ndarray, queries: np.ndarray, truth: np.ndarray, baseline: float) -> None:
    """Measure USearch's graph of 8-bit vectors."""
    from usearch.index import Index

    before = resident()
    index = Index(ndim=matrix.shape[1], metric="ip", dtype="i8", connectivity=16, expansion_add=64)

    def add() -> None:
        for first in range(0, len(matrix), CHUNK):
            block = matrix[first : first + CHUNK].astype(np.float32)
            index.add(np.arange(first, first + len(block)), block, threads=1)

    timed("USearch, 8 bits a value", add)
    print(f"{'USearch, 8 bits a value':38} {resident() - before:.0f} MiB", flush=True)
    for expansion, count in ((64, 50), (128, 100), (256, 200)):
        index.expansion_search = expansion
        find = reranked(lambda q, n: index.search(q, n, threads=1).keys.astype(np.int64), matrix, count)
        measure(f"USearch, 8 bits, {expansion}, {count}", find, queries, truth, baseline)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--lists", type=int, help="of an approximate index (default: twice the root of the windows)")
    parser.add_argument("--only", choices=("exact", "ivf", "usearch"))
    args = parser.parse_args()
    faiss.omp_set_num_threads(1)
    torch.set_num_threads(1)
    folder = args.folder or Path(tempfile.mkdtemp())
    planted = Planted(args.dim, args.windows)
    matrix = timed("float16 file", lambda: write(planted, folder / "vectors"))
    queries = planted.queries(args.queries)
    few = queries[:20]

    flat = np.array(matrix[: min(args.windows, 1_000_000)], dtype=np.float32)
    found, baseline = measure("numpy, float32 in memory", scan_memory(flat), few, None, None)
    if args.only in (None, "exact"):
        measure_faiss_flat(flat, few, found, baseline)
    del flat
    if args.only in (None, "exact"):
        measure("numpy, float16 mapped, in blocks", scan_numpy(matrix), few, found, baseline)
        for rows in (64, 512, 4096):
            measure(f"torch, float16 mapped, blocks of {rows}", scan_torch(matrix, rows), few, found, baseline)
        measure("torch, float16 matmul", scan_torch_half(matrix), few, found, baseline)
    truth = timed("best windows by all vectors", lambda: exact(blocks_of(matrix), queries))
    if args.only in (None, "ivf"):
        measure_ivf(matrix, queries, truth, baseline, args.lists or 2 * int(args.windows**0.5))
    if args.only in (None, "usearch"):
        measure_usearch(matrix, queries, truth, baseline)


if __name__ == "__main__":
    main()

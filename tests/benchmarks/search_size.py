"""vlalign's own index at a size: ``python tests/benchmarks/search_size.py FOLDER [--windows 1000000]``.

Makes the index in FOLDER once, of the vectors of ``search.py``; then opens it as a search does, and measures queries by
all vectors and by codes: time, recall@10, resident memory. ``--exact 0`` leaves the scans of all vectors out.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parents[1])]

import numpy as np
from search import CHUNK, NUM_RESULTS, Planted, exact, measure, timed
from vlalign.train.search.coded_search import CodedIndex, CodeFolder
from vlalign.train.search.exact_search import ExactSearch
from vlalign.train.search.index import WindowIndex, read_index_shard, shard_files, write_index_shard
from vlalign.train.search.window_encoding import WINDOWS_PER_SHARD

WINDOWS_OF_VIDEO = 16


def make_shards(planted: Planted, folder: Path) -> None:
    """Write the shards of an index that are not there yet."""
    for number in range(len(shard_files(folder)), -(-planted.num_windows // WINDOWS_PER_SHARD)):
        first = number * WINDOWS_PER_SHARD
        chunks = [
            planted.chunk(low) for low in range(first, min(first + WINDOWS_PER_SHARD, planted.num_windows), CHUNK)
        ]
        vectors = np.concatenate(chunks)
        borders = list(range(0, len(vectors), WINDOWS_OF_VIDEO))
        seconds = np.arange(WINDOWS_OF_VIDEO, dtype=float)
        spans = [np.stack([seconds, seconds + 1], axis=1)[: len(vectors) - low] for low in borders]
        videos = {f"v{first + low:010d}": 0 for low in borders}
        write_index_shard(folder, "{}", videos, spans, [vectors[low : low + WINDOWS_OF_VIDEO] for low in borders])


def memory() -> str:
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    own, mapped, most = (int(fields[name].split()[0]) / 2**20 for name in ("RssAnon", "RssFile", "VmHWM"))
    return f"own memory {own:.2f} GiB, mapped files {mapped:.2f} GiB, most so far {most:.2f} GiB"


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

    timed("vectors", lambda: make_shards(planted, args.folder))
    shards = [read_index_shard(path) for path in shard_files(args.folder)]
    checksums = {video_id: 0 for shard in shards for video_id in shard.video_ids}
    index = timed("opening of windows", lambda: WindowIndex(shards, "{}", checksums))
    folder = CodeFolder(args.folder)
    timed("codes", lambda: folder.update(index))
    quantizer = folder.quantizer()
    assert quantizer is not None
    coded = timed(
        "opening of codes",
        lambda: CodedIndex(index, quantizer, [folder.read(shard, quantizer) for shard in index.shards]),
    )
    queries = planted.queries(args.queries)
    print(memory(), flush=True)
    for query in queries:
        coded.search(query).best(NUM_RESULTS, None)
    print("after queries by codes alone:", memory(), flush=True)
    best = timed("best windows by numpy", lambda: exact(index.blocks(CHUNK), queries))
    baseline = None
    if args.exact:
        few, right = queries[: args.exact], best[: args.exact]
        _, baseline = measure(
            "all vectors", lambda q: ExactSearch(index, q).best(NUM_RESULTS, None)[0], few, right, None
        )
    measure("codes", lambda query: coded.search(query).best(NUM_RESULTS, None)[0], queries, best, baseline)
    print(memory(), flush=True)


if __name__ == "__main__":
    main()

"""What is solved before the default recipe trains, at a million captions: seconds and memory.
``python tests/benchmarks/solving.py FOLDER [--captions 1000000] [--width 1024]``; FOLDER needs 6 GB.

Captions are those of ``captions.py``, each of a clip of its own: 4 s of a video of 100 clips, with two or three rows.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import captions as made
import torch
from captions import memory_mb
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.data.clip_features import ClipFeatures
from vlalign.train.data.pairs import read_pairs
from vlalign.train.data.stores import open_stores
from vlalign.train.data.text_inputs import WordIdInputs
from vlalign.train.loop.solving import Solver
from vlalign.train.loop.trainer import set_feature_statistics
from vlalign.train.models.words import WordPair

CLIPS_OF_VIDEO = 100


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--captions", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=1024)
    args = parser.parse_args()
    dataset = DatasetFolder(args.folder, "made")
    made.NUM_VIDEOS, made.NUM_ROWS, made.SECONDS_OF_ROW = args.captions // CLIPS_OF_VIDEO, 2 * CLIPS_OF_VIDEO, 2.0
    made.SHARD_VIDEOS = 200
    made.PROFILE = replace(made.PROFILE, dimension=args.width)
    if not dataset.captions.exists():
        made.make_features(dataset.features("s3d"))
        made.make_captions(dataset, args.captions)
    features = ClipFeatures(open_stores(dataset, "s3d", recordings=False).features)
    with Problems(quiet=True) as problems:
        pairs = read_pairs(dataset, features, problems)
    figures: dict[str, float] = {"captions": len(pairs["train"].captions), "clips": len(pairs["train"].clips)}
    start = time.perf_counter()
    texts = WordIdInputs.learn(pairs["train"].captions.texts(), 128)
    figures |= {"words": len(texts.words), "counting": time.perf_counter() - start}
    model = WordPair(features.dim, len(texts.words), idf=texts.idf, is_solved=True)
    set_feature_statistics(model, features, pairs["train"].clips, max_rows=64, seed=0)
    before, start = memory_mb()["private"], time.perf_counter()
    solver = Solver(model, features, texts, max_rows=64, seed=0)
    with torch.no_grad():
        sums = solver._sums(pairs["train"])
    figures |= {"pass": time.perf_counter() - start, "sums_mb": memory_mb()["private"] - before}
    del sums
    start = time.perf_counter()
    solver.solve(pairs)
    figures |= {"pass_and_solving": time.perf_counter() - start, "private_mb": memory_mb()["private"]}
    peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    print(json.dumps({name: round(value, 1) for name, value in figures.items()} | {"peak_mb": int(peak) // 1000}))


if __name__ == "__main__":
    main()

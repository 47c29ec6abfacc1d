"""Training on many captions: time from the command to the first step, and memory of each process.

python tests/benchmarks/captions.py FOLDER --millions 2,10,20      FOLDER needs 12 GB; about 25 minutes

Captions are like HowTo100M's, of 180,000 videos with small features. The file that is mapped is written first, as
preprocessing does it at its end. Each number of captions is trained on in processes of its own: one that writes the
clips, one that finds them, and two together; the first number of captions also with other batches and with the default
recipe.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from vlalign.preprocess.prepare import PART_CAPTIONS
from vlalign.storage import IdfEntry, VideoFeatures, Weights, write_idf, write_shard
from vlalign.storage.captions.files import (
    CACHE_NAME,
    CAPTION_SCHEMA,
    part_path,
    read_captions,
    read_captions_about,
    write_captions_about,
)
from vlalign.storage.captions.word_vectors import WordVectors, write_word_vectors
from vlalign.storage.common.process_pool import map_in_processes
from vlalign.storage.common.system import available_cores
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES

NUM_VIDEOS, SHARD_VIDEOS, NUM_ROWS, SECONDS_OF_ROW = 180_000, 1000, 24, 20.0
PROFILE, WEIGHTS = replace(PROFILES["s3d"], dimension=8), Weights(name="none", sha256="0" * 64)
VOCABULARY, KINDS = 20_000, 50_000
"""Different words, and different captions."""
STEPS = 20
GATED = ["--objective", "ssml", "--encoder", "gated", "--embedding-size", "64"]
SMALL = [*GATED, "--batch-size", "256", "--num-steps", "1000000", "--validate-every", "1000000"]
FIRST_STEP = "first step"


def make_features(folder: Path) -> None:
    starts, rng = np.arange(NUM_ROWS) * SECONDS_OF_ROW, np.random.default_rng(0)
    times = {"start_seconds": starts, "end_seconds": starts + SECONDS_OF_ROW, "valid_frames": np.full(NUM_ROWS, 16)}
    flush, os.fsync = os.fsync, lambda _: None  # of shards that nobody needs tomorrow
    for first in range(0, NUM_VIDEOS, SHARD_VIDEOS):
        rows = rng.random((SHARD_VIDEOS, NUM_ROWS, PROFILE.dimension), dtype=np.float32).astype(np.float16)
        about = {**times, "duration_seconds": NUM_ROWS * SECONDS_OF_ROW, "source": "1-0", "decoder": "PyAV 18.1.0"}
        videos = [VideoFeatures(video_id=name_of(first + n), features=rows[n], **about) for n in range(SHARD_VIDEOS)]
        write_shard(folder, PROFILE, WEIGHTS, videos, made_with={})
    os.fsync = flush


def name_of(video: int) -> str:
    return f"v{video:010d}"


def make_captions(dataset: DatasetFolder, num_captions: int) -> None:
    """Write parts as preprocessing does, of captions that are drawn from some different ones."""
    rng, folder = np.random.default_rng(1), dataset.captions
    vocabulary = np.array([f"word{n}" for n in range(VOCABULARY)])
    words = [vocabulary[rng.zipf(1.3, size=rng.integers(2, 14)) % VOCABULARY].tolist() for _ in range(KINDS)]
    kinds = pa.table(
        {
            "caption": [" ".join(of) for of in words],
            "words": words,
            "word_starts": [np.cumsum([0, *(len(word) + 1 for word in of[:-1])]).tolist() for of in words],
            "pos_tags": [rng.choice(["NOUN", "VERB", "DET", "ADP"], len(of)).tolist() for of in words],
        }
    )
    per_video = -(-num_captions // NUM_VIDEOS)
    folder.mkdir(parents=True, exist_ok=True)
    for part, first in enumerate(range(0, num_captions, PART_CAPTIONS)):
        numbers = np.arange(first, min(first + PART_CAPTIONS, num_captions))
        starts = 4.0 * (numbers % per_video)
        table = kinds.take(rng.integers(KINDS, size=len(numbers)))
        ids = [name_of(video) for video in (numbers // per_video).tolist()]
        columns = {"video_id": ids, "start_seconds": starts, "end_seconds": starts + 4.0}
        columns |= {"clip_id": ids, "split": ["train"] * len(ids)} | {n: table[n] for n in table.column_names}
        nothing = {name: pa.nulls(len(ids)) for name in CAPTION_SCHEMA.names if name not in columns}
        whole = pa.table({name: (columns | nothing)[name] for name in CAPTION_SCHEMA.names}).cast(CAPTION_SCHEMA)
        pq.write_table(whole, part_path(folder, part))
    write_captions_about(folder, {"captions": num_captions})
    tags = ("NOUN", "VERB", "DET", "ADP")
    entries = [IdfEntry(word=w, part_of_speech=t, document_count=9, idf=3.0) for w in vocabulary for t in tags]
    write_idf(dataset.idf, entries)
    vectors = rng.standard_normal((VOCABULARY, 20)).astype(np.float32)
    write_word_vectors(dataset.word_vectors, WordVectors(vocabulary.tolist(), vectors, {"file": "made"}))


def memory_mb() -> dict[str, float]:
    """Return megabytes of this process: its own, and those of files, which processes share in the page cache."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    kb = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return {"private": kb["Anonymous"] / 1e3, "files": (kb["Rss"] - kb["Anonymous"]) / 1e3}


def train_until_first_steps(call: list[str], began: float) -> None:
    """Train some steps; print when the first was done, and the memory after the last."""
    from vlalign.train.cli.train import main as train_main
    from vlalign.train.loop.trainer import Trainer

    peak, do_step, seconds, processor = [0.0], Trainer._do_step, [], []

    def watch() -> None:
        while True:
            peak[0] = max(peak[0], memory_mb()["private"])
            time.sleep(0.5)

    def timed(self, *args):
        do_step(self, *args)
        seconds.append(time.time() - began)
        processor.append(time.process_time())
        if len(seconds) == STEPS:
            figures = {FIRST_STEP: seconds[0], "processor": processor[0]}
            figures["step"] = (processor[-1] - processor[0]) / (STEPS - 1)
            print(json.dumps({**figures, **memory_mb(), "peak": peak[0]}), flush=True)
            os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    Trainer._do_step = timed
    sys.exit(train_main(call))


def trained(dataset: DatasetFolder, settings: list[str], num_processes: int = 1) -> list[dict[str, float]]:
    """Return the figures of each of some processes that train together."""
    shutil.rmtree(dataset.runs, ignore_errors=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    call = ["--root", str(dataset.root), "--dataset", dataset.name, "--features", "s3d", *settings]
    shared = {"WORLD_SIZE": str(num_processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(time.time()), "--train", json.dumps(call)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(num_processes)
    ]
    outputs = [process.communicate()[0] for process in processes]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def measure(folder: Path, millions: float, has_all: bool) -> None:
    """Show the figures of so many captions; with ``has_all``, also of other batches."""
    num_captions = round(1e6 * millions)
    dataset = DatasetFolder(folder, f"captions{num_captions}")
    if not dataset.features("s3d").exists():
        dataset.features("s3d").parent.mkdir(parents=True, exist_ok=True)
        dataset.features("s3d").symlink_to(folder / "features")
    if read_captions_about(dataset.captions) is None:
        make_captions(dataset, num_captions)

    def show(what: str, figures: list[dict[str, float]]) -> None:
        shown = "; ".join(
            f"{f[FIRST_STEP]:.1f} s to the first step ({f['processor']:.1f} s of the processor), "
            f"{1e3 * f['step']:.0f} ms a step, {f['private']:,.0f} MB private (at most {f['peak']:,.0f}), "
            f"{f['files']:,.0f} MB of files"
            for f in figures
        )
        print(f"{millions:g} million captions, {what}: {shown}", flush=True)

    began = time.time()
    read_captions(dataset.captions, partial(map_in_processes, num_processes=available_cores()))
    print(f"{millions:g} million captions are written to be mapped: {time.time() - began:.1f} s", flush=True)
    show("clips are written", trained(dataset, SMALL))
    sizes = [path.stat().st_size for path in (dataset.captions / CACHE_NAME, *dataset.pairs.iterdir())]
    print(f"{' + '.join(f'{size / num_captions:.0f}' for size in sizes if size)} bytes a caption in files", flush=True)
    show("clips are there", trained(dataset, SMALL))
    show("two processes", trained(dataset, SMALL, 2))
    show("a vocabulary and held-out videos, written", trained(dataset, ["--batch-size", "256"]))
    show("a vocabulary and held-out videos", trained(dataset, ["--batch-size", "256"]))
    if has_all:
        show("clips of the same videos", trained(dataset, [*SMALL, "--clips-per-video", "8"]))
        show("neighbours in time", trained(dataset, ["--objective", "mil-nce", *SMALL[2:]]))
    shutil.rmtree(dataset.path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--millions", default="2,10,20", help="numbers of captions")
    parser.add_argument("--train", help="(of a process of the benchmark)")
    args = parser.parse_args()
    if args.train:
        return train_until_first_steps(json.loads(args.train), float(args.folder))
    folder = Path(args.folder).absolute() / "vlalign_benchmark"
    if not (folder / "features").exists():
        make_features(folder / "features")
    for number, millions in enumerate(args.millions.split(",")):
        measure(folder, float(millions), has_all=number == 0)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()

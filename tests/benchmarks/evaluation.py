"""Evaluation of many captions and clips: ``python tests/benchmarks/evaluation.py FOLDER [--clips 100000]``.

FOLDER gets a data set of made captions and features, once, and a run of the gated encoder. The run is asked about all
captions and clips in a process of its own, whose memory is measured; before that, about 3,000 with their scores in
memory and in tiles, with every policy for ties, which must give equal figures.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from vlalign.storage import Caption, IdfEntry, VideoFeatures, Weights, write_shard
from vlalign.storage.captions.files import write_captions_about, write_part
from vlalign.storage.captions.idf import write_idf
from vlalign.storage.captions.word_vectors import WordVectors, write_word_vectors
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES
from vlalign.train import evaluate, train
from vlalign.train.evaluation import retrieval
from vlalign.train.evaluation.evaluate import EvaluationSettings
from vlalign.train.evaluation.retrieval import RetrievalSettings
from vlalign.train.metrics import TIES

WORDS = [f"word{number}" for number in range(3000)]
WORDS_OF_CAPTION = 8
NUM_TRAIN = 2000
SHARD_VIDEOS = 5000
SETTINGS = {
    "features": "s3d",
    "objective": "mil-nce",
    "encoder": "gated",
    "embedding_size": 256,
    "batch_size": 256,
    "num_steps": 100,
    "validate_every": 100,
}
ASK = """
import json, resource, sys, time
from vlalign.train import evaluate
started = time.monotonic()
done = evaluate(sys.argv[1])
print(json.dumps([time.monotonic() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                  done.metrics["metrics"]["text_to_video"]["R@10"], done.metrics["num_captions"]]))
"""


def make_set(root: Path, name: str, num_clips: int, captions_of_a_clip: int = 1) -> DatasetFolder:
    """Clips of one row each, the mean of their captions' words and noise."""
    dataset, rng = DatasetFolder(root, name), np.random.default_rng(0)
    if dataset.captions.exists():
        return dataset
    vectors = rng.standard_normal((len(WORDS), PROFILES["s3d"].dimension)).astype(np.float32)
    times = {"start_seconds": np.zeros(1), "end_seconds": np.ones(1), "valid_frames": np.ones(1, int)}
    captions: list[Caption] = []
    for first in range(0, NUM_TRAIN + num_clips, SHARD_VIDEOS):
        videos = []
        for number in range(first, min(first + SHARD_VIDEOS, NUM_TRAIN + num_clips)):
            split, video_id = "train" if number < NUM_TRAIN else "test", f"v{number:07d}"
            rows = 2 * rng.standard_normal((1, vectors.shape[1]))
            for _ in range(captions_of_a_clip):
                chosen = rng.integers(0, len(WORDS), WORDS_OF_CAPTION)
                words = [WORDS[word] for word in chosen]
                starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])]).tolist()
                tags = {"words": words, "word_starts": starts, "pos_tags": ["NOUN"] * len(words)}
                captions.append(Caption(video_id=video_id, caption=" ".join(words), split=split, **tags))
                rows += vectors[chosen].mean(axis=0)
            videos.append(VideoFeatures(video_id=video_id, features=rows, duration_seconds=1.0, **times))
        made_by = Weights(name="made", sha256="0" * 64)
        write_shard(dataset.features("s3d"), PROFILES["s3d"], made_by, videos, made_with={}, dtype="float16")
    write_idf(dataset.idf, [IdfEntry(word=w, part_of_speech="NOUN", document_count=2, idf=2.0) for w in WORDS])
    write_word_vectors(dataset.word_vectors, WordVectors(WORDS, vectors[:, :100].copy(), {"file": "made"}))
    write_part(dataset.captions, 0, captions, {})
    write_captions_about(dataset.captions, {"protocol": "made"})
    return dataset


def trained(dataset: DatasetFolder) -> Path:
    folder = dataset.runs / "gated"
    if not (folder / "run.json").exists():
        train(dataset.path, run_name="gated", settings=SETTINGS)
    return folder


def figures_of(run: Path, ties: str, most_bytes: int) -> object:
    retrieval.MAX_BYTES = most_bytes
    for path in run.rglob("metrics.json"):
        path.unlink()
    done = evaluate(run, settings=EvaluationSettings(task_settings=RetrievalSettings(ties=ties)))
    return done.metrics, (done.folder / "queries.jsonl").read_text(encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clips", type=int, default=100_000)
    args = parser.parse_args()
    for captions_of_a_clip in (1, 3):
        num_clips = 3000 // captions_of_a_clip
        run = trained(
            make_set(args.folder, f"some{captions_of_a_clip}", 3000 // captions_of_a_clip, captions_of_a_clip)
        )
        for ties in TIES:
            if ties == "coot" and captions_of_a_clip > 1:
                continue
            seconds, results = [], []
            for most_bytes in (1 << 40, 0):
                started = time.monotonic()
                results.append(figures_of(run, ties, most_bytes))
                seconds.append(time.monotonic() - started)
            same = "equal" if results[0] == results[1] else "DIFFERENT"
            print(
                f"3,000 captions, {num_clips:,} clips, ties {ties}: figures and queries {same}; in "
                f"tiles {seconds[1]:.1f} s, in memory {seconds[0]:.1f} s",
                flush=True,
            )
    run = trained(make_set(args.folder, f"many{args.clips}", args.clips))
    (run / "metrics.json").unlink(missing_ok=True)
    command = [sys.executable, "-c", ASK, str(run)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=dict(os.environ)).stdout
    seconds, gib, recall, num_captions = json.loads(answer.splitlines()[-1])
    print(
        f"{num_captions:,} captions x {args.clips:,} clips: {seconds:.0f} s, peak {gib:.2f} GiB, R@10 {recall:.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()

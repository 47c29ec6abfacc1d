"""TACo's Tables 3 and 4 on planted alignments: ``python tests/benchmarks/planted.py FOLDER --annotations DIR``, where
DIR has YouCook2's official files. FOLDER may hold the data set already, from ``vlalign-preprocess --root FOLDER
--dataset youcook2``.

Captions and clips are YouCook2's own; the features are made. A word that can be seen (noun, proper noun, verb,
adjective, as the captions are tagged) is a fixed random direction, present in a third of its clip's rows, in each clip
with a strength of its own; over all words lie a few directions of the video, shared by all its clips, and white noise.
Words that cannot be seen are nowhere.

Sizes and strengths were chosen for the time that a run takes and for a middling R@1 of L1 + L2, before any two settings
were compared.

Each run (a setting with a seed) is ``vlalign-train`` and then ``vlalign-evaluate``, in processes of their own. What is
in ``FOLDER/results.jsonl`` is not run again; the same call, started twice, shares the work.
"""

import argparse
import fcntl
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from transformers import BertConfig, BertModel
from vlalign.storage import Caption, VideoFeatures, Weights, read_captions, write_shard
from vlalign.storage.captions.files import read_captions_about
from vlalign.storage.common.files import read_json, read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES
from vlalign.train.data.text_encoders import small_tokenizer

NAME = "planted"
PROFILE = replace(
    PROFILES["s3d"], name=NAME, model="none", weights=NAME, fps=1, window=1, stride=1, layer="none", dimension=128
)
WEIGHTS = Weights(name=NAME, sha256="0" * 64)
DATA_SEED = 0
SHARD_VIDEOS = 128
NUM_TEST_CLIPS = 500
VISIBLE = {"NOUN", "PROPN", "VERB", "ADJ"}
WORD_STRENGTH, WORD_PART = 10.0, 1 / 3
NUISANCES, NUISANCE_STRENGTH = 4, 6.0
NOISE = 1.0

OPTIONS = (
    f"--recipe taco-small --features {NAME} --num-video-layers 1 --max-video-tokens 8 "
    "--max-text-tokens 20 "
    "--num-steps 1000 --batch-size 32 --learning-rate 2e-3 --warmup-steps 100 --dropout 0.1 --validate-every 1000"
).split()
"""With ``make_text_encoder``'s."""
CASCADE = ["--negatives", "cascade", "--num-negatives", "8"]
RANDOM = ["--negatives", "random", "--num-negatives", "8"]
ALL_LOSSES = ["--losses", "sentence+token+fusion", *CASCADE, "--tokens-of-interest"]
SETTINGS = {
    "L1": ["--losses", "sentence"],
    "L3": ["--losses", "fusion", *RANDOM],
    "L1+L3-random": ["--losses", "sentence+fusion", *RANDOM],
    "L1+L3-cascade": ["--losses", "sentence+fusion", *CASCADE],
    "L1+L2+L3-cascade": [*ALL_LOSSES, "noun+verb"],
    "det+adp": [*ALL_LOSSES, "det+adp"],
    "noun": [*ALL_LOSSES, "noun"],
    "verb": [*ALL_LOSSES, "verb"],
}
SAME = {"none": "L1+L3-cascade", "noun+verb": "L1+L2+L3-cascade"}
"""Rows of Table 4 that are rows of Table 3."""
TABLES = {
    "Table 3": ["L1", "L3", "L1+L3-random", "L1+L3-cascade", "L1+L2+L3-cascade"],
    "Table 4": ["none", "det+adp", "noun", "verb", "noun+verb"],
}
BETTER = [
    ("L1+L2+L3-cascade", "L1+L3-cascade"),
    ("L1+L3-cascade", "L1+L3-random"),
    ("L1+L3-random", "L3"),
    ("noun+verb", "noun"),
    ("noun+verb", "verb"),
    ("noun+verb", "none"),
]
NOT_BETTER = [("det+adp", "none")]
Results = dict[tuple[str, int], dict[str, Any]]


def visible_words(caption: Caption) -> list[str]:
    return [word.lower() for word, tag in zip(caption.words, caption.pos_tags, strict=True) if tag in VISIBLE]


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def direction(word: str) -> np.ndarray:
    return unit(np.random.default_rng([DATA_SEED, crc32(word.encode())]).standard_normal(PROFILE.dimension))


def make_video(
    video_id: str, captions: Sequence[Caption], directions: dict[str, np.ndarray], overlay: float = 1.0
) -> VideoFeatures:
    """A row a second, to the end of the last clip; ``overlay`` scales what lies over the words."""
    rng = np.random.default_rng([DATA_SEED, crc32(video_id.encode())])
    num_rows = int(np.ceil(max(caption.end_seconds for caption in captions))) + 1
    features = overlay * NOISE * rng.standard_normal((num_rows, PROFILE.dimension))
    seconds, turns = np.arange(num_rows)[:, None], rng.uniform(0, 2 * np.pi, NUISANCES)
    waves = 1 + 0.5 * np.sin(
        2 * np.pi * seconds / rng.uniform(20, 200, NUISANCES) + turns
    )  # slow: much the same for a whole clip
    strengths = overlay * NUISANCE_STRENGTH * rng.standard_normal(NUISANCES)
    features += (strengths * waves) @ unit(rng.standard_normal((NUISANCES, PROFILE.dimension)))
    for caption in captions:
        first, last = int(caption.start_seconds), int(caption.end_seconds) + 1
        length = max(round(WORD_PART * (last - first)), 1)
        for word in visible_words(caption):
            start = rng.integers(first, last - length + 1)
            features[start : start + length] += rng.gamma(2, WORD_STRENGTH / 2) * directions[word]
    return VideoFeatures(
        video_id=video_id,
        features=features.astype(np.float16),
        start_seconds=np.arange(num_rows, dtype=np.float64),
        end_seconds=np.arange(1, num_rows + 1, dtype=np.float64),
        valid_frames=np.ones(num_rows, np.int32),
        duration_seconds=float(num_rows),
        source=NAME,
        decoder=NAME,
    )


def choose_videos(captions: Sequence[Caption]) -> dict[str, list[Caption]]:
    """All training videos and, of the test videos, as many as give ``NUM_TEST_CLIPS``."""
    of_video: dict[str, list[Caption]] = {}
    for caption in captions:
        of_video.setdefault(caption.video_id, []).append(caption)
    chosen = {video_id: its for video_id, its in of_video.items() if its[0].split == "train"}
    tests = sorted(of_video.keys() - chosen.keys())
    num_clips = 0
    for number in np.random.default_rng(DATA_SEED).permutation(len(tests)):
        if num_clips < NUM_TEST_CLIPS:
            chosen[tests[number]] = of_video[tests[number]]
            num_clips += len({caption.clip_id for caption in of_video[tests[number]]})
    return chosen


def make_data(dataset: DatasetFolder, annotations: Path | None, overlay: float = 1.0) -> None:
    if read_captions_about(dataset.captions) is None:
        given = [] if annotations is None else ["--annotations", str(annotations)]
        call("preprocess.cli", at(dataset) + given, dataset.root / "preprocess.log")
    store = dataset.features(NAME)
    partial = store.with_name(f"{NAME}.partial")
    if store.exists():
        return
    make_text_encoder(dataset.root / "text_encoder", read_captions(dataset.captions))
    shutil.rmtree(partial, ignore_errors=True)  # of a call that was stopped
    videos = list(choose_videos(read_captions(dataset.captions)).items())
    directions = {
        word: direction(word) for _, captions in videos for caption in captions for word in visible_words(caption)
    }
    for first in range(0, len(videos), SHARD_VIDEOS):
        some = videos[first : first + SHARD_VIDEOS]
        made = [make_video(video_id, captions, directions, overlay) for video_id, captions in some]
        write_shard(partial, PROFILE, WEIGHTS, made, made_with={"seed": str(DATA_SEED)})
    partial.rename(store)


def make_text_encoder(folder: Path, captions: Sequence[Caption]) -> None:
    """A BERT of two layers, 64 wide, with random weights and the training captions' words."""
    tokenizer = small_tokenizer(caption.caption for caption in captions if caption.split == "train")
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    torch.manual_seed(DATA_SEED)
    BertModel(BertConfig(vocab_size=len(tokenizer), pad_token_id=0, **sizes), add_pooling_layer=False).save_pretrained(
        folder
    )
    tokenizer.save_pretrained(folder)


def at(dataset: DatasetFolder) -> list[str]:
    return ["--root", str(dataset.root), "--dataset", dataset.name]


def call(module: str, arguments: list[str], log: Path) -> None:
    """A command in a process of its own. Exit code 1 is no mistake: it says that inputs were left out, here the other
    test videos."""
    code = f"import sys; from vlalign.{module} import main; sys.exit(main(sys.argv[1:]))"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        exit_code = subprocess.run([sys.executable, "-c", code, *arguments], stdout=file, stderr=file).returncode
    if exit_code not in (0, 1):
        raise SystemExit(f"{module} {' '.join(arguments)}: exit code {exit_code}; see {log}")


@contextmanager
def lock(path: Path, *, wait: bool) -> Iterator[bool]:
    """Whether it was free; the system frees it when the process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def train_and_evaluate(dataset: DatasetFolder, setting: str, seed: int) -> dict[str, Any]:
    name = f"{setting}-seed{seed}"
    folder, log = dataset.runs / name, dataset.root / "logs" / f"{name}.log"
    start = time.perf_counter()
    encoder = ["--text-encoder", str(dataset.root / "text_encoder")]
    call(
        "train.cli.train",
        [*at(dataset), *OPTIONS, *encoder, *SETTINGS[setting], "--seed", str(seed), "--run-name", name],
        log,
    )
    call("train.cli.evaluate", [*at(dataset), name], log)
    metrics = read_json(folder / "metrics.json")["metrics"]["text_to_video"]
    kept = {key: metrics[key] for key in ("R@1", "R@5", "R@10", "median_rank", "mean_rank")}
    return {"setting": setting, "seed": seed, **kept, "seconds": round(time.perf_counter() - start, 1)}


def read_results(folder: Path) -> Results:
    path = folder / "results.jsonl"
    return {(row["setting"], row["seed"]): row for row in read_jsonl(path)} if path.exists() else {}


def run(dataset: DatasetFolder, settings: Sequence[str], seeds: Sequence[int]) -> None:
    for seed in seeds:  # a seed at a time: differences are within one
        for setting in settings:
            with lock(dataset.root / "logs" / f"{setting}-seed{seed}.lock", wait=False) as free:
                if not free or (setting, seed) in read_results(dataset.root):
                    continue
                row = train_and_evaluate(dataset, setting, seed)
                with (dataset.root / "results.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                recalls = "".join(f"{key} {row[key]:>5.1f}  " for key in ("R@1", "R@5", "R@10"))
                print(
                    f"{setting:<18}seed {seed}  {recalls}median {row['median_rank']:>5.1f}{row['seconds']:>8,.0f} s",
                    flush=True,
                )


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    return (
        f"{np.mean(values):>7.2f} ± {np.std(values, ddof=1):<5.2f}"
        if len(values) > 1
        else f"{np.mean(values):>7.2f}{'':<8}"
    )


def print_tables(results: Results) -> None:
    seeds = sorted({seed for _, seed in results})

    def values(row: str, key: str, at_seeds: Sequence[int]) -> list[float]:
        return [results[SAME.get(row, row), seed][key] for seed in at_seeds]

    def seeds_of(*rows: str) -> list[int]:
        return [seed for seed in seeds if all((SAME.get(row, row), seed) in results for row in rows)]

    for title, rows in TABLES.items():
        print(f"\n{title:<36}seeds  {'R@1':<16}{'R@5':<16}{'R@10':<16}{'mean rank':<16}")
        for row in rows:
            if there := seeds_of(row):
                columns = "  ".join(spread(values(row, key, there)) for key in ("R@1", "R@5", "R@10", "mean_rank"))
                print(f"{row:<36}{len(there):>5}{columns}")
    print(f"\n{'differences, seed by seed':<36}seeds  {'R@1':<16}{'mean rank':<16}by R@1")
    for first, relation, second in [(a, ">", b) for a, b in BETTER] + [(a, "not >", b) for a, b in NOT_BETTER]:
        if there := seeds_of(first, second):
            recall, rank = (
                np.subtract(values(first, key, there), values(second, key, there)) for key in ("R@1", "mean_rank")
            )
            verdict = holds(recall if relation == ">" else -recall, strict=relation == ">")
            print(f"{f'{first} {relation} {second}':<36}{len(there):>5}{spread(recall)}  {spread(rank)}  {verdict}")


def holds(differences: np.ndarray, *, strict: bool) -> str:
    agree = differences > 0 if strict else differences >= 0
    if agree.all():
        return "holds for every seed"
    right = "holds" if (differences.mean() > 0 if strict else differences.mean() >= 0) else "does not hold"
    return f"{right} on average, {agree.sum()} of {len(agree)} seeds" if agree.any() else "does not hold for any seed"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--annotations", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default=",".join(SETTINGS), help=f"of {', '.join([*SETTINGS, *SAME])}")
    parser.add_argument("--table", action="store_true", help="of what has been run; run nothing")
    parser.add_argument("--overlay", type=float, default=1.0, help="scales noise and what a video's clips share")
    args = parser.parse_args()
    settings = list(dict.fromkeys(SAME.get(name, name) for name in args.only.split(",")))
    if unknown := [name for name in settings if name not in SETTINGS]:
        parser.error(f"--only {','.join(unknown)}: expected some of {', '.join([*SETTINGS, *SAME])}")
    if not args.table:
        dataset = DatasetFolder(args.folder, "youcook2")
        with lock(args.folder / "logs" / "data.lock", wait=True):
            make_data(dataset, args.annotations, args.overlay)
        run(dataset, settings, [int(seed) for seed in args.seeds.split(",")])
    print_tables(read_results(args.folder))


if __name__ == "__main__":
    main()

"""SSML, NCL and CMCM, each held against what its paper shows.

    python tests/benchmarks/objectives.py FOLDER [cost|shuffled|parts|million] --annotations DIR

FOLDER: empty or from an earlier call, for "parts" and "million" with captions.txt, a caption a line. DIR has YouCook2's
official files, and its words' vectors in youcook2_vocab_glove.npz. Results that were kept stand in README.md beside
this file.
"""

import argparse
import resource
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from helpers.training import make_trainer
from planted import (
    DATA_SEED,
    NAME,
    PROFILE,
    SHARD_VIDEOS,
    WEIGHTS,
    at,
    call,
    choose_videos,
    direction,
    make_data,
    make_video,
    unit,
    visible_words,
)
from safetensors.numpy import load_file
from vlalign.storage import read_captions, write_shard
from vlalign.storage.captions.word_vectors import read_word_vectors, split_words
from vlalign.storage.common.files import read_json
from vlalign.storage.common.progress import progress
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.data.text_inputs import average_word_vectors
from vlalign.train.density import nearest_pairs
from vlalign.train.distributed import Workers
from vlalign.train.recipes.train_config import train_config

COST_BATCH, COST_STEPS = 256, 120


def cost(folder: Path, annotations: Path | None) -> None:
    """A training step of NCL against the same without its biases: turns of one step each, either first in every
    second."""
    dataset = DatasetFolder(folder, "youcook2")
    make_data(dataset, annotations)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    trainers = {}
    for normalized in seconds:
        run = folder / "cost" / str(normalized)
        shutil.rmtree(run, ignore_errors=True)
        settings = {
            "objective": "ncl",
            "temperature": 0.05,
            "num_video_layers": 0,
            "normalized_loss": normalized,
            "batch_size": COST_BATCH,
        }
        config = train_config(dataset=dataset.name, features=NAME, **settings)
        trainers[normalized] = make_trainer(dataset, config, run, Workers(), torch.device("cpu"))
    for step in range(COST_STEPS):
        inputs = trainers[True].make_inputs(step)
        for normalized in (True, False) if step % 2 else (False, True):
            start = time.perf_counter()
            trainers[normalized].train_step(inputs)
            seconds[normalized].append(time.perf_counter() - start)
    with_biases, without = (float(np.median(seconds[normalized])) for normalized in (True, False))
    print(
        f"cost    batch {COST_BATCH}: {with_biases:.3f} s a step with biases, {without:.3f} s without: "
        f"{np.median(np.divide(seconds[True], seconds[False])):.4f}, the median of turns"
    )


SHUFFLED_NAME = "shuffled"
CONCEPTS, CONCEPT_STRENGTH, SHUFFLED = 200, 20.0, 0.5
SEEDS = (0, 1, 2)
TRAIN_SHUFFLED = (
    "--objective ssml --encoder gated --embedding-size 512 --num-steps 1500 --batch-size 128 --learning-rate 1e-3 "
    f"--validate-every 1500 --features {SHUFFLED_NAME}"
)


def shuffled(folder: Path, annotations: Path | None) -> None:
    """SSML on YouCook2's captions with planted features, half of whose training clips show what another caption
    says."""
    dataset = DatasetFolder(folder, "youcook2")
    make_data(dataset, annotations)
    if not dataset.word_vectors.exists():
        vectors = ["--word-vectors", str(annotations / "youcook2_vocab_glove.npz")]
        call("preprocess.cli", [*at(dataset), "--annotations", str(annotations), *vectors], folder / "preprocess.log")
    right = make_shuffled(dataset)
    shutil.rmtree(dataset.path / "pair_weights", ignore_errors=True)  # perhaps made by another version
    (folder / "logs").mkdir(exist_ok=True)
    found: dict[str, list[float]] = {"density": [], "none": []}
    for seed in SEEDS:
        for weights, recalls in found.items():
            name = f"shuffled-{weights}-seed{seed}"
            options = f"{TRAIN_SHUFFLED} --pair-weights {weights} --seed {seed} --run-name {name}".split()
            log = folder / "logs" / f"{name}.log"
            shutil.rmtree(dataset.runs / name, ignore_errors=True)
            call("train.cli.train", [*at(dataset), *options], log)
            call("train.cli.evaluate", [*at(dataset), name], log)
            recalls.append(read_json(dataset.runs / name / "metrics.json")["metrics"]["text_to_video"]["R@10"])
            print(f"shuffled  seed {seed}, pair weights {weights:<8} R@10 {recalls[-1]:5.2f}", flush=True)
    (kept,) = (dataset.path / "pair_weights").glob(f"{SHUFFLED_NAME}-*.safetensors")
    probability = load_file(kept)["probability"]
    print(f"shuffled  AUC of right against shuffled {auc(probability, right):.3f}")
    soft, plain = (np.array(found[weights]) for weights in found)
    more = soft - plain
    print(
        f"shuffled  soft margin {soft.mean():.2f}, plain {plain.mean():.2f}: {more.mean():+.2f} ± "
        f"{more.std(ddof=1):.2f}"
    )


def make_shuffled(dataset: DatasetFolder) -> np.ndarray:
    """Writes the store where it is not there, and gives, for each training caption, whether its clip shows what it
    says."""
    captions = read_captions(dataset.captions)
    rng = np.random.default_rng(DATA_SEED)
    training = [number for number, caption in enumerate(captions) if caption.split == "train"]
    wrong = [number for number in training if rng.random() < SHUFFLED]
    shows = dict(zip(wrong, rng.permutation(wrong).tolist(), strict=True))
    right = np.array([shows.get(number, number) == number for number in training])
    store = dataset.features(SHUFFLED_NAME)
    if store.exists():
        return right
    concepts = concepts_of(
        average_word_vectors(read_word_vectors(dataset.word_vectors), [caption.caption for caption in captions]), rng
    )
    of_video: dict[str, list[int]] = {}
    chosen = choose_videos(captions)
    for number, caption in enumerate(captions):
        if caption.video_id in chosen:
            of_video.setdefault(caption.video_id, []).append(number)
    directions = {word: direction(word) for caption in captions for word in visible_words(caption)}
    of_concept = [direction(f"concept {number}") for number in range(CONCEPTS)]
    made = []
    for video_id, numbers in of_video.items():
        own = [captions[number] for number in numbers]
        said = [
            replace(
                captions[shows.get(number, number)],
                video_id=video_id,
                start_seconds=its.start_seconds,
                end_seconds=its.end_seconds,
            )
            for number, its in zip(numbers, own, strict=True)
        ]
        video = make_video(video_id, said, directions)
        for number in numbers:
            rows = slice(int(captions[number].start_seconds), int(captions[number].end_seconds) + 1)
            video.features[rows] += (CONCEPT_STRENGTH * of_concept[concepts[shows.get(number, number)]]).astype(
                np.float16
            )
        made.append(video)
    partial = store.with_name(f"{SHUFFLED_NAME}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    profile = replace(PROFILE, name=SHUFFLED_NAME)
    for first in range(0, len(made), SHARD_VIDEOS):
        write_shard(partial, profile, WEIGHTS, made[first : first + SHARD_VIDEOS], made_with={"seed": str(DATA_SEED)})
    partial.rename(store)
    return right


def concepts_of(vectors: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Captions that say much the same are of one concept: k-means of their vectors' directions."""
    vectors = unit(vectors - vectors.mean(axis=0))
    middles = vectors[rng.choice(len(vectors), CONCEPTS, replace=False)]
    for _ in range(20):
        nearest = (vectors @ middles.T).argmax(axis=1)
        middles = unit(np.stack([vectors[nearest == number].sum(axis=0) + 1e-6 for number in range(CONCEPTS)]))
    return (vectors @ middles.T).argmax(axis=1)


def auc(values: np.ndarray, positive: np.ndarray) -> float:
    ranks = values.argsort().argsort() + 1
    number = positive.sum()
    return (ranks[positive].sum() - number * (number + 1) / 2) / (number * (len(values) - number))


MILLION, EXACT_SAMPLE, NEIGHBORS = 1_000_000, 300, 16
"""Pairs, those of them whose neighbours are looked for everywhere, and neighbours."""
NUISANCE, WHITE = 0.35, 0.7


def million(folder: Path, annotations: Path | None) -> None:
    """Density of so many pairs as HowTo100M's captions would give them: spoken bits of 3 to 8 words out of captions,
    averaged word vectors, and clips that show what a third of them do not say."""
    clips, texts, _ = spoken_pairs(folder, annotations, MILLION)
    start = time.perf_counter()
    found = nearest_pairs(
        clips,
        texts,
        NEIGHBORS,
        progress=lambda parts: progress(parts, total=MILLION, what="density", unit="pairs", size=lambda n: n),
    )
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    rng = np.random.default_rng(1)
    rows = np.sort(rng.choice(len(clips), EXACT_SAMPLE, replace=False))
    recall = exact_recall(clips, texts, rows, found.index_NK[rows])
    print(
        f"million  {len(clips):,} pairs: {seconds:.0f} s, peak {peak:.1f} GB, recall {recall:.3f} against exact on "
        f"{EXACT_SAMPLE}"
    )


PART_OF, PART = 200_000, 20_000


def parts(folder: Path, annotations: Path | None) -> None:
    """What is lost where neighbours are looked for in drawn parts of the pairs, as where all would not fit in
    memory."""
    clips, texts, right = spoken_pairs(folder, annotations, PART_OF)
    densities, order = {}, np.random.default_rng(3).permutation(PART_OF)
    for size in (PART_OF, PART):
        start, density = time.perf_counter(), np.empty(PART_OF)
        for part in order.reshape(-1, size):
            density[part] = nearest_pairs(clips[part], texts[part], NEIGHBORS).similarity_NK.mean(axis=1)
        densities[size] = density
        seconds, found = time.perf_counter() - start, auc(density, right)
        print(
            f"parts    neighbours among {size:,} of {PART_OF:,}: {seconds:.0f} s, AUC of right pairs against wrong "
            f"{found:.3f}"
        )
    print(f"parts    correlation of the two densities {np.corrcoef(*densities.values())[0, 1]:.3f}")


def spoken_pairs(folder: Path, annotations: Path, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Clips [N, 512], their captions [N, 300], and which clips show what their captions say [N]."""
    with np.load(annotations / "youcook2_vocab_glove.npz") as arrays:
        vectors = arrays["vectors"].astype(np.float32)
        rows = {word: row for row, word in enumerate(arrays["words"].tolist())}
    lines = [split_words(line.lower()) for line in (folder / "captions.txt").read_text(encoding="utf-8").splitlines()]
    known = [found for words in lines if len(found := [rows[word] for word in words if word in rows]) >= 3]
    rng = np.random.default_rng(DATA_SEED)
    texts = np.empty((size, vectors.shape[1]), np.float32)
    for number, line in enumerate(rng.integers(len(known), size=size)):
        words = known[line]
        length = min(len(words), rng.integers(3, 9))
        start = rng.integers(len(words) - length + 1)
        texts[number] = vectors[words[start : start + length]].mean(axis=0)
    texts -= texts.mean(axis=0)
    wrong = np.flatnonzero(rng.random(size) < 1 / 3)
    shows = np.arange(size)
    shows[wrong] = rng.permutation(wrong)
    to_clips = (
        rng.standard_normal((vectors.shape[1], 512), dtype=np.float32) / texts[:1000].std() / vectors.shape[1] ** 0.5
    )
    nuisances = NUISANCE * rng.standard_normal((8, 512), dtype=np.float32)
    clips = np.empty((size, 512), np.float32)
    for first in range(0, size, 10_000):
        part = slice(first, first + 10_000)
        clips[part] = texts[shows[part]] @ to_clips + rng.standard_normal((10_000, 8), dtype=np.float32) @ nuisances
        clips[part] += WHITE * rng.standard_normal((10_000, 512), dtype=np.float32)
    return clips, texts, shows == np.arange(size)


def exact_recall(clips: np.ndarray, texts: np.ndarray, rows: np.ndarray, found_RK: np.ndarray) -> float:
    """The share of the neighbours that were found that are as near as the farthest of the nearest, by comparing
    ``rows`` with all: of equal captions several are equally near."""
    sides = []
    for vectors in (clips, texts):
        lengths, second, total = np.linalg.norm(vectors, axis=1), 0.0, 0.0
        for part in np.array_split(vectors, 50):
            of_part = unit(part).astype(np.float64)
            second, total = second + of_part.T @ of_part, total + of_part.sum(axis=0)
        others = len(vectors) * (len(vectors) - 1)
        mean = (total @ total - len(vectors)) / others
        std = ((np.square(second).sum() - len(vectors)) / others - mean**2) ** 0.5
        sides.append((unit(vectors[rows]) @ vectors.T / lengths - mean) / std)
    similarity = np.minimum(*sides)
    similarity[np.arange(len(rows)), rows] = -np.inf
    farthest = np.partition(similarity, -NEIGHBORS, axis=1)[:, -NEIGHBORS, None]
    return (np.take_along_axis(similarity, found_RK, axis=1) >= farthest - 1e-5).mean()


PARTS = {"cost": cost, "shuffled": shuffled, "parts": parts, "million": million}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("part", nargs="?", choices=PARTS)
    parser.add_argument("--annotations", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in [args.part] if args.part else PARTS:
        PARTS[name](args.folder, args.annotations)


if __name__ == "__main__":
    main()

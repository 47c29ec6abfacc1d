"""Video questions on planted features: ``python tests/benchmarks/questions.py FOLDER --annotations DIR``, where DIR has
``msvd_qa`` with the official questions and, for ``msrvtt_qa``, ``val.jsonl`` and ``hqga_test.csv`` (its training
questions are in no public repository of a size to fetch; here two thirds of the test videos are for training).

The questions and answers are real, the features are made: each row of a video shows some of the answers to its
questions, a fixed random direction each, under noise. Trained once on them and once on the same features of other
videos, each with three seeds, the model is to beat what one gets right without looking (the question alone, the usual
answer), and not to beat it.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
from planted import WEIGHTS, call, spread, unit
from vlalign.storage import Caption, VideoFeatures, write_shard
from vlalign.storage.captions.files import read_captions, read_captions_about, write_captions_about, write_part
from vlalign.storage.captions.word_vectors import split_words
from vlalign.storage.common.files import read_json
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES

WIDTH, ROWS, NOISE, STRENGTH = 512, 8, 1.0, 8.0
PROFILE = replace(
    PROFILES["s3d"],
    name="planted",
    model="none",
    weights="planted",
    fps=1,
    window=1,
    stride=1,
    layer="none",
    dimension=WIDTH,
)
OPTIONS = (
    "--objective vqa --recipe vqa-small --features FEATURES --embedding-size 128 --num-steps 1200 --batch-size 256 "
    "--learning-rate 2e-3 --validate-every 1200"
)
SEEDS = (0, 1, 2)


def direction(word: str, width: int = WIDTH) -> np.ndarray:
    return unit(np.random.default_rng(crc32(word.encode())).standard_normal(width))


def make_video(video_id: str, shows: str, answers: dict[str, list[str]]) -> VideoFeatures:
    """``shows``: the video whose answers are to be seen."""
    rng = np.random.default_rng(crc32(video_id.encode()))
    features = NOISE * rng.standard_normal((ROWS, WIDTH))
    for word in sorted(set(answers[shows])):
        features[rng.random(ROWS) < 0.5] += STRENGTH * direction(word)
    starts = np.arange(ROWS, dtype=float)
    times = {
        "start_seconds": starts,
        "end_seconds": starts + 1,
        "valid_frames": np.ones(ROWS, np.int32),
        "duration_seconds": float(ROWS),
    }
    return VideoFeatures(video_id=video_id, features=features.astype(np.float16), **times)


def make_data(dataset: DatasetFolder, annotations: Path) -> None:
    vectors, given = dataset.root / "vectors.txt", [*at(dataset), "--annotations", str(annotations)]
    if not dataset.word_vectors.exists():
        call("preprocess.cli", given, dataset.root / "preprocess.log")
        texts = [text for c in read_captions(dataset.captions) for text in (c.caption, c.answer)]
        words = sorted({form for text in texts for word in split_words(text) for form in (word, word.lower())})
        lines = (f"{word} {' '.join(f'{x:.4f}' for x in direction(f'word {word.lower()}'))}\n" for word in words)
        vectors.write_text("".join(lines), encoding="utf-8")
        call("preprocess.cli", [*given, "--word-vectors", str(vectors)], dataset.root / "vectors.log")
    captions = read_captions(dataset.captions)
    if not any(c.split == "train" for c in captions):
        captions, about = split_anew(captions), read_captions_about(dataset.captions)
        for path in dataset.captions.glob("part-*.parquet"):
            path.unlink()
        write_part(dataset.captions, 0, captions, {})
        write_captions_about(dataset.captions, about)
    answers: dict[str, list[str]] = {}
    for c in captions:
        answers.setdefault(c.video_id, []).append(c.answer)
    ids = sorted(answers)
    others = dict(zip(ids, np.random.default_rng(0).permutation(ids).tolist(), strict=True))
    for name, shows in (("planted", {i: i for i in ids}), ("shuffled", others)):
        if not dataset.features(name).exists():
            videos = [make_video(i, shows[i], answers) for i in ids]
            write_shard(dataset.features(name), replace(PROFILE, name=name), WEIGHTS, videos, made_with={"seed": "0"})


def split_anew(captions: list[Caption]) -> list[Caption]:
    videos = sorted({c.video_id for c in captions if c.split == "test"})
    drawn = np.random.default_rng(0).permutation(videos)
    train = set(drawn[: len(drawn) * 2 // 3].tolist())
    return [replace(c, split="train") if c.video_id in train else c for c in captions]


def at(dataset: DatasetFolder) -> list[str]:
    return ["--root", str(dataset.root), "--dataset", dataset.name]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--annotations", type=Path, required=True)
    args = parser.parse_args()
    for name in ("msvd_qa", "msrvtt_qa"):
        dataset = DatasetFolder(args.folder / name, name)
        make_data(dataset, args.annotations / name)
        for features in ("planted", "shuffled"):
            found: dict[str, list[float]] = {"accuracy": [], "question_only": [], "most_frequent_answer": []}
            for seed in SEEDS:
                run, log = f"{features}-seed{seed}", dataset.root / f"{features}-seed{seed}.log"
                call(
                    "train.cli.train",
                    [
                        *at(dataset),
                        *OPTIONS.replace("FEATURES", features).split(),
                        "--seed",
                        str(seed),
                        "--run-name",
                        run,
                    ],
                    log,
                )
                call("train.cli.evaluate", [*at(dataset), run], log)
                result = read_json(dataset.runs / run / "metrics.json")
                for key, values in found.items():
                    values.append(result[key]["all"])
            print(
                f"{name:<10} {features:<9}" + "".join(f"  {key} {spread(values)}" for key, values in found.items()),
                flush=True,
            )
            with (args.folder / "results.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"dataset": name, "features": features} | found) + "\n")


if __name__ == "__main__":
    main()

"""CMCM's codebook on planted pairs: ``python tests/benchmarks/codebook.py FOLDER text|spoken``.

A clip shows two of forty actions, one after the other, under a direction of its own and noise; its caption names both.
``text``: in words. ``spoken``: there are twenty actions, each a fixed sound of 0.24 s, between noise. Trained with code
matching (alpha of section 2.3) of different weight, without it, without a codebook (the baseline), and from the
baseline ("warm start"); what is counted is on clips and captions held out.

Each run is ``vlalign-train`` and ``vlalign-evaluate`` in processes of their own; those in FOLDER/TEXT_OR_SPOKEN.jsonl
are not run again.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from planted import WEIGHTS, call, make_text_encoder, spread
from vlalign.storage import Caption, IdfEntry, VideoFeatures, write_shard
from vlalign.storage.captions.files import write_captions_about, write_part
from vlalign.storage.captions.idf import write_idf
from vlalign.storage.common.files import read_json, read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import LOGMEL, PROFILES

ACTIONS = {kind: [f"action{number}" for number in range(size)] for kind, size in (("text", 40), ("spoken", 20))}
CLIPS = {"train": 900, "validation": 100, "test": 200}
WIDTH, NOISE, OWN = 128, 0.5, 1.0
BANDS, SOUND_ROWS, SOUND_DB = 40, 24, 12.0
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

COMMON = "--recipe cmcm-small --features planted --warmup-steps 50 --codebook-size 64 --validate-every 500"
KINDS = {
    "text": "--text-encoder ENCODER --batch-size 64 --num-steps 1500 --learning-rate 1e-3",
    "spoken": "--encoder spoken --codebook-size 16 --batch-size 32 --num-steps 240",
}
SETTINGS = {
    "text": {
        "alpha 1": "--code-loss-weight 1",
        "alpha 0.1": "--code-loss-weight 0.1",
        "alpha 0": "--code-loss-weight 0",
        "baseline": "--codebook-size 0",
        "warm, alpha 1": "--code-loss-weight 1 --init INIT",
        "warm, alpha 0": "--code-loss-weight 0 --init INIT",
        "cold, a third": "--code-loss-weight 1 --num-steps 500",
        "warm, a third": "--code-loss-weight 1 --num-steps 500 --init INIT",
    },
    "spoken": {  # from warm starts alone, and with the learning rates of appendix B
        "baseline": "--codebook-size 0 --num-steps 160 --learning-rate 1e-3",
        "warm, alpha 1": "--code-loss-weight 1 --init INIT --learning-rate 1e-4",
        "warm, alpha 0": "--code-loss-weight 0 --init INIT --learning-rate 1e-4",
    },
}
""""a third": of the steps, with which the paper makes do from a warm start (appendix B)."""


def make_data(dataset: DatasetFolder) -> None:
    if dataset.idf.exists():
        return
    actions = ACTIONS[dataset.name]
    rng = np.random.default_rng(0)
    seen, heard = rng.normal(size=(len(actions), WIDTH)), SOUND_DB * rng.normal(size=(len(actions), SOUND_ROWS, BANDS))
    captions, clips, recordings = [], [], []
    splits = [split for split, number in CLIPS.items() for _ in range(number)]
    for number, split in enumerate(splits):
        both = rng.choice(len(actions), 2, replace=False)
        words = [actions[both[0]], "and", actions[both[1]]]
        starts, video_id, recording = [0, len(words[0]) + 1, len(words[0]) + 5], f"v{number:04d}", f"r{number:04d}"
        texts = {"words": words, "word_starts": starts, "pos_tags": ["VERB", "CCONJ", "VERB"]}
        captions.append(Caption(video_id=video_id, caption=" ".join(words), split=split, recording=recording, **texts))
        rows = np.concatenate([np.repeat(seen[one][None], rng.integers(2, 6), axis=0) for one in both])
        clips.append(record(video_id, rows + NOISE * rng.normal(size=rows.shape) + OWN * rng.normal(size=WIDTH), 1.0))
        noise = [rng.normal(size=(rng.integers(2, 10), BANDS)) for _ in range(3)]
        sounds = [heard[one] + 2 * rng.normal(size=(SOUND_ROWS, BANDS)) for one in both]
        recordings.append(
            record(recording, np.concatenate([noise[0], sounds[0], noise[1], sounds[1], noise[2]]) - 40, 0.01)
        )
    write_shard(dataset.features(PROFILE.name), PROFILE, WEIGHTS, clips, made_with={"seed": "0"})
    write_shard(dataset.features(LOGMEL), PROFILES[LOGMEL], WEIGHTS, recordings, made_with={"seed": "0"})
    write_part(dataset.captions, 0, captions, {})
    write_captions_about(dataset.captions, {"protocol": ""})
    make_text_encoder(dataset.path / "encoder", captions)
    write_idf(dataset.idf, [IdfEntry(word=word, part_of_speech="VERB", document_count=45, idf=3.0) for word in actions])


def record(video_id: str, rows: np.ndarray, seconds: float) -> VideoFeatures:
    starts = seconds * np.arange(len(rows))
    times = {"start_seconds": starts, "end_seconds": starts + seconds, "duration_seconds": seconds * len(rows)}
    return VideoFeatures(
        video_id=video_id, features=rows.astype(np.float16), valid_frames=np.ones(len(rows), np.int32), **times
    )


def run(dataset: DatasetFolder, setting: str, seed: int) -> dict[str, Any]:
    kind = dataset.name
    name = f"{setting.replace(', ', '-').replace(' ', '')}-seed{seed}"
    options = f"{COMMON} {KINDS[kind]} {SETTINGS[kind][setting]} --seed {seed} --run-name {name}"
    options = options.replace("ENCODER", str(dataset.path / "encoder")).replace(
        "INIT", f"{dataset.runs}/baseline-seed{seed}"
    )
    at = ["--root", str(dataset.root), "--dataset", dataset.name]
    log = dataset.path / f"{name}.log"
    call("train.cli.train", [*at, *options.split()], log)
    call("train.cli.evaluate", [*at, name], log)
    result = read_json(dataset.runs / name / "metrics.json")
    both = result["metrics"]["text_to_video"], result["metrics"]["video_to_text"]
    found = {"R@1": np.mean([way["R@1"] for way in both]), "mean_rank": np.mean([way["mean_rank"] for way in both])}
    if codebook := result.get("codebook"):
        best = [row["labels"][0][1] for row in codebook["table"] if row["labels"]]
        words = [row["words"][0][1] for row in codebook["table"] if row["words"]]
        found |= {"live": codebook["live"], "joint": 100 * codebook["joint"], "top_precision": np.mean(best)}
        found |= {"top_word_f1": np.mean(words) if words else 0.0} if kind == "text" else {}
    return {"setting": setting, "seed": seed} | {name: float(value) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", help='settings, without their commas: "alpha 1,warm alpha 1"')
    args = parser.parse_args()
    dataset, results = DatasetFolder(args.folder, args.kind), args.folder / f"{args.kind}.jsonl"
    args.folder.mkdir(parents=True, exist_ok=True)
    make_data(dataset)
    wanted = [
        setting
        for setting in SETTINGS[args.kind]
        if not args.only or setting.replace(", ", " ") in args.only.split(",")
    ]
    known = {(row["setting"], row["seed"]): row for row in read_jsonl(results)} if results.exists() else {}
    for seed in map(int, args.seeds.split(",")):
        for setting in wanted:
            if (setting, seed) not in known:
                known[setting, seed] = run(dataset, setting, seed)
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(known[setting, seed]) + "\n")
    names = ("live", "joint", "top_precision", "top_word_f1", "R@1", "mean_rank")
    print(f"{args.kind:<16}seeds  " + "".join(f"{name:<18}" for name in names))
    for setting in SETTINGS[args.kind]:
        rows = [row for (own, _), row in sorted(known.items()) if own == setting]
        if rows:
            columns = "".join(
                f"{spread([row[name] for row in rows]):<18}" if name in rows[0] else f"{'':<18}" for name in names
            )
            print(f"{setting:<16}{len(rows):>5}  {columns}")


if __name__ == "__main__":
    main()

"""SSML's pair weights and NCL's biases combined with the terms of all objectives.

    python tests/benchmarks/together.py FOLDER --annotations DIR

Runs on the planted YouCook2 set of ``planted.py``; DIR has YouCook2's official files and youcook2_vocab_glove.npz.
With ``--features shuffled`` it runs on the set of ``objectives.py``, where half of the training clips show what
another caption says. TACo has no fusion layers here, because they take most of the time and early scores choose their
pairs. Several processes with the same command share the work.
"""

import argparse
import json
import shutil
import time
from pathlib import Path

from objectives import SHUFFLED_NAME, make_shuffled
from planted import NAME, at, call, lock, make_data, spread
from vlalign.storage.common.files import read_json, read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder

OPTIONS = (
    "--recipe taco-small --num-video-layers 1 --max-video-tokens 8 --max-text-tokens 20 --num-steps 1000 --batch-size "
    "64 --learning-rate 2e-3 --warmup-steps 100 --validate-every 1000"
)
OBJECTIVES = {
    "margin": "--objective ssml --margin 0.1",
    "contrast": "--objective ncl --temperature 0.05",
    "taco": "--objective taco --losses sentence+token",
    "cmcm": "--objective cmcm --codebook-size 128 --margin 1e-3",
}
WITH = {
    "": "",
    "weights": "--pair-weights density",
    "biases": "--normalized-loss --query-queue 4096",
    "both": "--pair-weights density --normalized-loss --query-queue 4096",
}
IMPOSSIBLE = {("margin", "biases"), ("margin", "both")}
"""A ranking loss has no retrieval probabilities."""
SETTINGS = [(objective, more) for objective in OBJECTIVES for more in WITH if (objective, more) not in IMPOSSIBLE]
SEEDS = (0, 1, 2)
COLUMNS = ("R@1", "R@10", "mean_rank")
NORMALIZED = "R@1, --normalize ncl"
"""Only for runs with biases, which keep the training queries that normalization needs."""


def run(dataset: DatasetFolder, features: str, objective: str, more: str, seed: int) -> dict[str, float | str | int]:
    name, start = f"{features}-{objective}-{more or 'alone'}-seed{seed}", time.perf_counter()
    options = (
        f"{OPTIONS} --features {features} {OBJECTIVES[objective]} {WITH[more]} --seed {seed} --run-name {name}".split()
    )
    encoder, log = ["--text-encoder", str(dataset.root / "text_encoder")], dataset.root / "logs" / f"{name}.log"
    shutil.rmtree(dataset.runs / name, ignore_errors=True)
    call("train.cli.train", [*at(dataset), *options, *encoder], log)
    found = evaluate(dataset, name, log, normalized="--normalized-loss" in WITH[more])
    return (
        {"objective": objective, "with": more, "seed": seed}
        | found
        | {"seconds": round(time.perf_counter() - start, 1)}
    )


def evaluate(dataset: DatasetFolder, name: str, log: Path, normalized: bool) -> dict[str, float]:
    def text_to_video(*options: str) -> dict[str, float]:
        call("train.cli.evaluate", [*at(dataset), name, *options], log)
        newest = max((dataset.runs / name).rglob("metrics.json"), key=lambda path: path.stat().st_mtime_ns)
        return read_json(newest)["metrics"]["text_to_video"]

    metrics = text_to_video("--normalize", "none")
    found = {key: metrics[key] for key in COLUMNS}
    return found | ({NORMALIZED: text_to_video("--normalize", "ncl")["R@1"]} if normalized else {})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--annotations", type=Path, required=True)
    parser.add_argument("--features", default=NAME, choices=[NAME, SHUFFLED_NAME])
    parser.add_argument("--table", action="store_true", help="of what has been run; run nothing")
    args = parser.parse_args()
    dataset, results = DatasetFolder(args.folder, "youcook2"), args.folder / f"together-{args.features}.jsonl"

    def known() -> dict[tuple[str, str, int], dict]:
        return (
            {(row["objective"], row["with"], row["seed"]): row for row in read_jsonl(results)}
            if results.exists()
            else {}
        )

    if not args.table:
        with lock(args.folder / "logs" / "data.lock", wait=True):
            make_data(dataset, args.annotations)
            if not dataset.word_vectors.exists():
                vectors = ["--word-vectors", str(args.annotations / "youcook2_vocab_glove.npz")]
                call(
                    "preprocess.cli",
                    [*at(dataset), "--annotations", str(args.annotations), *vectors],
                    args.folder / "vectors.log",
                )
            if args.features == SHUFFLED_NAME:
                make_shuffled(dataset)
        for seed in SEEDS:
            for objective, more in SETTINGS:
                with lock(args.folder / "logs" / f"{args.features}-{objective}-{more}-{seed}.lock", wait=False) as free:
                    if free and (objective, more, seed) not in known():
                        row = run(dataset, args.features, objective, more, seed)
                        with results.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(row) + "\n")
                        print(
                            f"{objective:<10}{more:<10}seed {seed}  R@1 {row['R@1']:5.2f}  {row['seconds']:6.0f} s",
                            flush=True,
                        )
    rows = known()
    print(f"\n{args.features:<20}seeds  " + "".join(f"{name:<18}" for name in (*COLUMNS, NORMALIZED)))
    for objective, more in SETTINGS:
        own = [rows[objective, more, seed] for seed in SEEDS if (objective, more, seed) in rows]
        if own:
            shown = [name for name in (*COLUMNS, NORMALIZED) if name in own[0]]
            columns = "".join(f"{spread([row[name] for row in own]):<18}" for name in shown)
            print(f"{f'{objective} {more}':<20}{len(own):>5}  {columns}")


if __name__ == "__main__":
    main()

"""The default recipe, whole and with one ingredient taken out:
``python tests/benchmarks/default_recipe.py FOLDER --sets SET:FEATURES,... --without nothing,bag,...``, where FOLDER has
prepared data sets (``planted_sets.py``, or the demo's). Prints R@1 of text to video on the test split.
"""

import argparse
import itertools
import statistics
from pathlib import Path
from typing import Any

from vlalign.storage.common.files import read_json
from vlalign.train import evaluate, train

TAKEN_OUT: dict[str, dict[str, Any]] = {
    "nothing": {},
    "bag": {"losses": "word"},
    "solving": {"bag": "trained"},
    "ema_decay": {"ema_decay": 0.0},
    "dropout": {"dropout": 0.0},
    "chosen-weights": {"stage_weights": "set"},
    "weight-decay": {"weight_decay": 0.0},
    "steps": {"num_steps": 150},
}
"""{ingredient: settings without it}"""


def recall(root: Path, name: str, features: str, without: str, seed: int) -> tuple[float, dict[str, float], float]:
    """Return R@1, that of each stage alone, and the seconds of training."""
    settings = {"features": features, "seed": seed, **TAKEN_OUT[without]}
    run = train(root / name, recipe="default", run_name=f"without-{without}-{features}-{seed}", settings=settings)
    figures = read_json(evaluate(run.folder).folder / "metrics.json")
    stages = {stage: of["text_to_video"]["R@1"] for stage, of in figures["stages"].items()}
    seconds = read_json(run.folder / "run.json")["result"]["seconds"]
    return figures["metrics"]["text_to_video"]["R@1"], stages, seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", required=True, help="such as demo:s3d,planted-msrvtt:planted")
    parser.add_argument("--without", default="nothing", help=f"some of {', '.join(TAKEN_OUT)}")
    parser.add_argument("--seeds", default="0,1,2")
    args = parser.parse_args()
    sets = [of.split(":") for of in args.sets.split(",")]
    for without, (name, features) in itertools.product(args.without.split(","), sets):
        found = [recall(args.folder, name, features, without, int(seed)) for seed in args.seeds.split(",")]
        values = [value for value, _, _ in found]
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        losses = [value - max(of.values()) for value, of, _ in found]
        stages = {stage: round(statistics.mean(of[stage] for _, of, _ in found), 1) for stage in found[0][1]}
        seconds = statistics.mean(seconds for _, _, seconds in found)
        print(
            f"{name}:{features} without {without}: {statistics.mean(values):.1f} +- {deviation:.1f} "
            f"({', '.join(f'{value:.1f}' for value in values)}); stages {stages}; less the best stage of each run "
            f"{statistics.mean(losses):+.2f} ({min(losses):+.1f} to {max(losses):+.1f}); {seconds:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()

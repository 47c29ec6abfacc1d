"""SSML, NCL and CMCM, each held against what its paper shows.

    python tests/benchmarks/objectives.py FOLDER [bound|cost] --annotations DIR

FOLDER: empty or from an earlier call; DIR has YouCook2's official files. Results that were kept stand in README.md beside this file.
"""

import argparse
import shutil
import time
from pathlib import Path

import numpy as np
import torch
from planted import NAME, make_data
from vlalign.storage.console import Problems
from vlalign.storage.layout import DatasetFolder
from vlalign.train.config import TrainConfig
from vlalign.train.density_bound import error_bound
from vlalign.train.trainer import Trainer
from vlalign.train.workers import Workers

SWEEPS = {
    "K": [1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24],
    "eta": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
    "M": [150, 250, 400, 600, 800, 1000, 1250, 1600],
    "T": [20, 30, 40, 50, 70, 100, 150, 200, 300],
}
AT = {"K": 4, "M": 1250, "T": 50, "eta": 0.5}


def bound(folder: Path, _: Path | None) -> None:
    """Figure 2 of SSML: one of the four is changed, the others stay; a red line where K T = M (1 - eta)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3), layout="constrained")
    for axes, (name, values) in zip(figure.subplots(1, 4), SWEEPS.items(), strict=True):
        found = []
        for value in values:
            setting = AT | {name: value}
            found.append(error_bound(setting["K"], setting["M"], setting["T"], setting["eta"]))
        limit = {
            "K": AT["M"] / AT["T"] * (1 - AT["eta"]),
            "eta": 1 - AT["K"] * AT["T"] / AT["M"],
            "M": AT["K"] * AT["T"] / (1 - AT["eta"]),
            "T": AT["M"] * (1 - AT["eta"]) / AT["K"],
        }[name]
        axes.plot(values, found, ".-")
        axes.axvline(limit, color="red", linestyle="--")
        axes.set(xlabel=name, ylabel="bound", ylim=(0, 1))
        print(
            f"{name:<4}" + "  ".join(f"{v:g}: {b:.3f}" for v, b in zip(values, found, strict=True)) + f"   K T = M (1 - eta) at {limit:g}"
        )
    figure.savefig(folder / "figure2.png", dpi=120)


COST_BATCH, COST_STEPS = 256, 20


def cost(folder: Path, annotations: Path | None) -> None:
    """A training step of NCL against the same without its biases: turns of one step each, medians."""
    dataset = DatasetFolder(folder, "youcook2")
    make_data(dataset, annotations)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    trainers = {}
    for normalized in seconds:
        run = folder / "cost" / str(normalized)
        shutil.rmtree(run, ignore_errors=True)
        settings = {"objective": "ncl", "temperature": 0.05, "num_video_layers": 0, "normalized_loss": normalized, "batch_size": COST_BATCH}
        config = TrainConfig(dataset=dataset.name, features=NAME, **settings)
        trainers[normalized] = Trainer(dataset, config, run, Workers(), torch.device("cpu"), None, Problems(quiet=True))
    for step in range(COST_STEPS):
        inputs = trainers[True].make_inputs(step)
        for normalized, trainer in trainers.items():
            start = time.perf_counter()
            trainer.train_step(inputs)
            seconds[normalized].append(time.perf_counter() - start)
    with_biases, without = (float(np.median(seconds[normalized])) for normalized in (True, False))
    print(f"cost    batch {COST_BATCH}: {with_biases:.3f} s a step with biases, {without:.3f} s without: {with_biases / without:.4f}")


PARTS = {"bound": bound, "cost": cost}


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

"""Why NCL's biases help or cost recall: ``python tests/benchmarks/biases.py FOLDER --sets planted-youcook2:planted``.

Trains NCL with and without its biases and asks each run without biases, with those of training queries, and with those
of the test queries themselves (the oracle). Prints R@1 of text to video and the normalisation error, which is how
unevenly clips are found (NCL, Eq. 5).
"""

import argparse
import itertools
import statistics
from pathlib import Path
from typing import Any

from vlalign.storage.common.files import read_json
from vlalign.train import evaluate, train
from vlalign.train.evaluation.evaluate import EvaluationSettings
from vlalign.train.evaluation.retrieval import RetrievalSettings

WAYS = ("none", "ncl", "ncl-tuned", "ncl-oracle")


def asked(root: Path, name: str, features: str, seed: int, settings: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return {way to normalise: R@1 and the error} of a run, text to video."""
    kind = "biases" if settings["normalized_loss"] else "plain"
    queue = {"query_queue": 2048} if settings["normalized_loss"] else {}
    settings = {"features": features, "seed": seed, **queue, **settings}
    run = train(root / name, recipe="ncl-small", run_name=f"{kind}-{features}-{seed}", settings=settings)
    found: dict[str, tuple[float, float]] = {}
    for way in WAYS if settings["normalized_loss"] else ("none", "ncl-oracle"):
        question = EvaluationSettings(task_settings=RetrievalSettings(normalize=way))
        figures = read_json(evaluate(run.folder, settings=question).folder / "metrics.json")
        error = figures["normalization"]["error"]["text_to_video"]
        found[way] = figures["metrics"]["text_to_video"]["R@1"], error
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", required=True, help="such as demo:s3d,planted-youcook2:planted")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--num-steps", type=int, default=600)
    parser.add_argument("--temperature", type=float, default=0.1)
    args = parser.parse_args()
    sets = [of.split(":") for of in args.sets.split(",")]
    for (name, features), with_biases in itertools.product(sets, (False, True)):
        settings = {
            "normalized_loss": with_biases,
            "num_steps": args.num_steps,
            "temperature": args.temperature,
        }
        found = [asked(args.folder, name, features, int(seed), settings) for seed in args.seeds.split(",")]
        for way in found[0]:
            recalls, errors = [of[way][0] for of in found], [of[way][1] for of in found]
            deviation = statistics.stdev(recalls) if len(recalls) > 1 else 0.0
            print(
                f"{name}:{features} {'with' if with_biases else 'without'} biases in the loss, asked with {way}: "
                f"R@1 {statistics.mean(recalls):.1f} +- {deviation:.1f}, error {statistics.mean(errors):.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()

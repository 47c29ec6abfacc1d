"""The default recipe beside strong models:
``python tests/benchmarks/default_table.py FOLDER [--text-encoder ENCODER]``.

Makes the sets of ``made_sets.py`` in FOLDER, asks the models of ``baselines.py``, trains the default with three seeds,
and prints a table. What is there already is not done again. ``--sets demo:s3d`` takes a set that is prepared.

R@1 of text to video on the test split, in percent; the default's is the mean of its seeds. The interval is that of its
difference from the best of the others, whose test captions are the same, with videos drawn again (95 %).
"""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
from made_sets import SETS, make_set, oracle_recall
from vlalign.train import evaluate, train
from vlalign.train.evaluation.evaluate import EvaluationSettings
from vlalign.train.intervals import paired_bootstrap
from vlalign.train.metrics import right_ranks

SEEDS = (0, 1, 2)
NAME = "planted"


def default_ranks(
    root: Path, name: str, features: str, seed: int, encoder: str | None
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks of the right clip for each test caption, and the index of its video."""
    settings = {"features": features, "seed": seed} | ({"text_encoder": encoder} if encoder else {})
    of = "with-sentences" if encoder else "default"
    run = train(root / name, recipe="default", run_name=f"{of}-{features}-{seed}", settings=settings)
    found = np.load(evaluate(run.folder, settings=EvaluationSettings(save_scores=True)).folder / "scores.npz")
    scores, right = found["similarity"], found["text_to_video"]
    return right_ranks(scores, right), found["video_of_clip"][right]


def baseline_ranks(root: Path, name: str, features: str, encoder: str | None) -> dict[str, np.ndarray]:
    path = root / name / "baselines" / f"{features}.npz"
    if not path.exists():
        call = [
            sys.executable,
            str(Path(__file__).with_name("baselines.py")),
            str(root),
            "--sets",
            f"{name}:{features}",
        ]
        subprocess.run([*call, *(["--text-encoder", encoder] if encoder else [])], check=True)
    return dict(np.load(path))


def recall(ranks: np.ndarray) -> str:
    return f"{100 * (ranks < 2).mean():.1f}"


def row(root: Path, name: str, features: str, encoder: str | None) -> str:
    others = baseline_ranks(root, name, features, encoder)
    cells = [f"{name}, `{features}`", oracle_recall(name) if name in SETS else ""]
    cells += [recall(ranks) for ranks in others.values()]
    plain = {model: ranks for model, ranks in others.items() if model != "ridge+sentences"}
    for with_encoder, rivals in [(None, plain), *([(encoder, others)] if encoder else [])]:
        best = max(rivals.values(), key=lambda ranks: (ranks < 2).mean())
        found = [default_ranks(root, name, features, seed, with_encoder) for seed in SEEDS]
        of_seeds = np.stack([ranks for ranks, _ in found]) < 2
        gain = paired_bootstrap(best < 2, of_seeds.mean(axis=0), found[0][1])
        cells.append(f"{100 * of_seeds.mean():.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text-encoder", help="folder of a model of sentence-transformers")
    parser.add_argument("--sets", default=",".join(f"{name}:{NAME}" for name in SETS))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, features in [of.split(":") for of in args.sets.split(",")]:
        if name in SETS:
            make_set(args.folder, name, args.text_encoder)
        if (args.folder / name).exists():
            rows.append(row(args.folder, name, features, args.text_encoder))
            print(rows[-1], flush=True)
    print("\n".join(rows))


if __name__ == "__main__":
    main()

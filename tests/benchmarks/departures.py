"""What each departure from a paper that was removed is worth: ``python tests/benchmarks/departures.py FOLDER
--dataset demo:s3d [--only TACo,NCL]``, where FOLDER has a prepared data set (``make demo``). Prints R@1 of both
directions on the test split, before and after, with the settings of the paper's small recipe.

SSML's rows need word vectors; those of the demo are ``random_vectors`` below. CMCM's last row needs the feature maps
``resnet50_map``.
"""

import argparse
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from vlalign.storage import read_captions
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train import EvaluationSettings, evaluate, train
from vlalign.train.evaluation.retrieval import RetrievalSettings


@dataclass(frozen=True)
class Row:
    """A departure that can be turned on and off."""

    paper: str
    what: str
    recipe: str
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    common: Mapping[str, Any] = field(default_factory=dict)
    asked_before: Mapping[str, Any] = field(default_factory=dict)
    """Settings of retrieval."""
    asked_after: Mapping[str, Any] = field(default_factory=dict)


STEPS = {"num_steps": 300, "warmup_steps": 30, "validate_every": 300}
MAPS = {"features": "resnet50_map", "video_grid": "2x2x2"}
DENSITY = {"pair_weights": "density"}
ROWS = [
    Row("TACo", "IDF by tag -> by token (Eq. 7)", "taco-small", {"idf": "tag"}, {"idf": "token"}),
    Row("TACo", "four additions -> none (section 3.1)", "taco-small", {}, {"additions": "none"}),
    Row("TACo", "AdamW -> Adam (section 4.3)", "taco-small", {}, {"optimizer": "adam"}),
    Row("TACo", "mean -> sum of the losses (Eq. 3 to 5)", "taco-small", {}, {"loss_sum": True}),
    Row("ToCo", "1 -> 2 video layers with S3D (Table 2)", "toco-small", {}, {"num_video_layers": 2}),
    Row("ToCo", "IDF by tag -> TF-IDF (section 3.3)", "toco-small", {"idf": "tag"}, {"idf": "tf-idf"}),
    Row("ToCo", "four additions -> none (section 3.2)", "toco-small", {}, {"additions": "none"}),
    Row("SSML", "centred -> as printed (Eq. 1)", "ssml-small", {"density_vectors": "centered"}, {}, DENSITY),
    Row("SSML", "mean -> sum of the loss (Eq. 4)", "ssml-small", {}, {"loss_sum": True}, DENSITY),
    Row("SSML", "gated -> HowTo100M's model (HTM rows)", "ssml-small", {}, {"encoder": "htm"}),
    Row("SSML", "AdamW -> Adam (section 5.1)", "ssml-small", {}, {"optimizer": "adam"}, DENSITY),
    Row(
        "NCL",
        "tuned on the test queries -> section 3.4",
        "ncl-small",
        asked_before={"normalize": "ncl-tuned"},
        asked_after={"normalize": "ncl"},
    ),
    Row(
        "NCL",
        "no biases at the test -> section 3.4",
        "ncl-small",
        asked_before={"normalize": "none"},
        asked_after={"normalize": "ncl"},
    ),
    Row("NCL", "AdamW -> Adam (Appendix B)", "ncl-small", {}, {"optimizer": "adam"}),
    Row("CMCM", "AdamW -> Adam (Appendix B)", "cmcm-small", {}, {"optimizer": "adam"}),
    Row("CMCM", "linear layer behind the summary -> none (Table 3)", "cmcm-small", {}, {"summary_layer": "none"}),
    Row(
        "CMCM",
        "linear f_code -> convolutions and BiLSTM (section 4.1)",
        "cmcm-small",
        {},
        {"code_layers": "conv-lstm"},
        MAPS,
    ),
]


def random_vectors(dataset: DatasetFolder, path: Path) -> None:
    """Write a random vector of 300 numbers for each word of the captions, in the text form of word2vec."""
    words = sorted({word.lower() for caption in read_captions(dataset.captions) for word in caption.words})
    vectors = np.random.default_rng(0).standard_normal((len(words), 300))
    lines = [f"{word} {' '.join(f'{x:.4f}' for x in vector)}" for word, vector in zip(words, vectors, strict=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def recalls(
    dataset: DatasetFolder, row: Row, settings: dict[str, Any], asked: Mapping[str, Any]
) -> tuple[float, float]:
    """Train and evaluate; return R@1 from text to video and from video to text."""
    name = f"{row.recipe}-" + "-".join(f"{n}={v}" for n, v in sorted(settings.items()) if n not in STEPS)
    run = train(dataset.path, recipe=row.recipe, run_name=name.replace("+", "_"), settings=settings)
    found = evaluate(run.folder, settings=EvaluationSettings(task_settings=RetrievalSettings(**asked)))
    figures = found.metrics["metrics"]
    return figures["text_to_video"]["R@1"], figures["video_to_text"]["R@1"]


def shown(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} ± {deviation:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dataset", default="demo:s3d")
    parser.add_argument("--only", default="TACo,ToCo,SSML,NCL,CMCM")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--word-vectors", type=Path, help="write random vectors of the captions' words, and end")
    args = parser.parse_args()
    name, features = args.dataset.split(":")
    dataset = DatasetFolder(args.folder, name)
    if args.word_vectors:
        random_vectors(dataset, args.word_vectors)
        return
    for row in (row for row in ROWS if row.paper in args.only.split(",")):
        found: dict[str, list[tuple[float, float]]] = {"before": [], "after": []}
        for seed in map(int, args.seeds.split(",")):
            base = {"features": features, **STEPS, **row.common, "seed": seed}
            found["before"].append(recalls(dataset, row, {**base, **row.before}, row.asked_before))
            found["after"].append(recalls(dataset, row, {**base, **row.after}, row.asked_after))
        cells = [shown([value[way] for value in found[when]]) for way in (0, 1) for when in ("before", "after")]
        print(f"| {row.paper}: {row.what} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

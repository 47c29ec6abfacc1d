"""Each objective's small recipe beside the default:
``python tests/benchmarks/small_recipes.py FOLDER --sets SET:FEATURES,...``, where FOLDER has prepared data sets
(``made_sets.py``, or the demo's).

R@1 of text to video on the test split, mean and deviation of three seeds, and the seconds of a training. The gated
encoders need word vectors: those of the data set, or random ones, which tell words apart and say nothing about them.
"""

import argparse
import statistics
from pathlib import Path

import numpy as np
from vlalign.storage.captions.files import read_captions
from vlalign.storage.captions.word_vectors import WordVectors, split_words, write_word_vectors
from vlalign.storage.common.files import read_json
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train import evaluate, train

RECIPES = (
    "default",
    "taco-small",
    "toco-small",
    "toco-mlm-small",
    "ncl-small",
    "cmcm-small",
    "ssml-small",
    "mil-nce-small",
)
VECTOR_WIDTH = 300


def make_word_vectors(dataset: DatasetFolder) -> None:
    if dataset.word_vectors.exists():
        return
    words = sorted({word.lower() for c in read_captions(dataset.captions) for word in split_words(c.caption)})
    vectors = np.random.default_rng(0).standard_normal((len(words), VECTOR_WIDTH)) / VECTOR_WIDTH**0.5
    write_word_vectors(dataset.word_vectors, WordVectors(words, vectors.astype(np.float32), {"file": "random"}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", required=True, help="such as demo:s3d,made-one:planted")
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--seeds", default="0,1,2")
    args = parser.parse_args()
    for name, features in [of.split(":") for of in args.sets.split(",")]:
        make_word_vectors(DatasetFolder(args.folder, name))
        for recipe in args.recipes.split(","):
            recalls, seconds = [], []
            for seed in map(int, args.seeds.split(",")):
                settings = {"features": features, "seed": seed}
                run = train(
                    args.folder / name, recipe=recipe, run_name=f"{recipe}-{features}-{seed}", settings=settings
                )
                recalls.append(evaluate(run.folder).metrics["metrics"]["text_to_video"]["R@1"])
                seconds.append(read_json(run.folder / "run.json")["result"]["seconds"])
            deviation = statistics.stdev(recalls) if len(recalls) > 1 else 0.0
            found = f"{statistics.mean(recalls):.1f} +- {deviation:.1f}"
            print(f"{name}:{features} {recipe}: {found}; {statistics.mean(seconds):.0f} s", flush=True)


if __name__ == "__main__":
    main()

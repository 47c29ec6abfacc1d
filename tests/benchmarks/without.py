"""What ``without`` removes and keeps: ``python tests/benchmarks/without.py FOLDER --runs SET:RUN,...``, where FOLDER
has trained runs of prepared data sets.

For pairs of words of the captions, the first is searched for without the second among the videos of the test split. A
video is right if a caption has the first word and none has the second, and named if captions have both. The share of
each is counted among as many videos as are right, and among the first five.
"""

import argparse
import random
from collections import defaultdict
from pathlib import Path

import numpy as np
from vlalign.storage.captions.files import read_captions
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.search import search as search_module
from vlalign.train.search.search import open_search

NUM_PAIRS = 60
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
TAGS = {"NOUN", "VERB", "ADJ"}
MIN_VIDEOS = 3


def pairs_of(videos_of: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return pairs of words of which videos have both, and others only the first."""
    found = [
        (first, second)
        for first in sorted(videos_of)
        for second in sorted(videos_of)
        if len(videos_of[first] & videos_of[second]) >= MIN_VIDEOS
        and len(videos_of[first] - videos_of[second]) >= MIN_VIDEOS
    ]
    return random.Random(0).sample(found, min(NUM_PAIRS, len(found)))


def measure(root: Path, name: str, run: str) -> None:
    """Print the shares of a run for each weight."""
    dataset = DatasetFolder(root, name)
    search = open_search(dataset.path, run=run)
    videos_of: dict[str, set[str]] = defaultdict(set)
    for caption in read_captions(dataset.captions):
        if caption.split == "test":
            for word, tag in zip(caption.words or (), caption.pos_tags or (), strict=True):
                if tag in TAGS:
                    videos_of[word.lower()].add(caption.video_id)
    videos, pairs = set().union(*videos_of.values()), pairs_of(videos_of)
    for weight in WEIGHTS:
        search_module.WITHOUT_WEIGHT = weight
        shares = []
        for first, second in pairs:
            right, named = videos_of[first] - videos_of[second], videos_of[first] & videos_of[second]
            moments = search(first, without=second, by="video", num_results=len(right) * 20, videos=videos)
            found = list(dict.fromkeys(moment.video_id for moment in moments))
            tops = (found[: len(right)], found[:5])
            shares.append([100 * len(kind.intersection(top)) / len(top) for top in tops for kind in (right, named)])
        all_right, all_named, five_right, five_named = np.mean(shares, axis=0)
        print(
            f"{name} {run}, {len(pairs)} pairs, weight {weight}: right {all_right:.0f} %, named {all_named:.0f} %; "
            f"of the first five: right {five_right:.0f} %, named {five_named:.0f} %",
            flush=True,
        )


def main() -> None:
    """Print the figures of all runs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", required=True, help="such as demo:words-s3d-seed0,made-one:default-planted-0")
    args = parser.parse_args()
    for name, run in [of.split(":") for of in args.runs.split(",")]:
        measure(args.folder, name, run)


if __name__ == "__main__":
    main()

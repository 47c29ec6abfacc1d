"""What ``without`` removes and keeps: ``python tests/benchmarks/without.py FOLDER --runs SET:RUN,...``, where FOLDER
has trained runs of prepared data sets.

For pairs of words of the captions, the first is searched for without the second among the videos of the test split. A
video is right if a caption has the first word and none has the second, and named if captions have both. The share of
each is counted among as many videos as are right, and among the first five.
"""

import random
from collections import defaultdict

import numpy as np
from named_runs import searches
from vlalign.storage.captions.files import read_captions
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.search import search as search_module
from vlalign.train.search.search import Search

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


def measure(run: str, dataset: DatasetFolder, search: Search) -> None:
    """Print the shares of a run for each weight."""
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
            f"{run}, {len(pairs)} pairs, weight {weight}: right {all_right:.0f} %, named {all_named:.0f} %; "
            f"of the first five: right {five_right:.0f} %, named {five_named:.0f} %",
            flush=True,
        )


if __name__ == "__main__":
    for run, dataset, search in searches():
        measure(run, dataset, search)

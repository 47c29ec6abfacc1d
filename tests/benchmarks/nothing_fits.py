"""How often "nothing fits" is right: ``python tests/benchmarks/nothing_fits.py FOLDER --runs SET:RUN,...``, where
FOLDER has trained runs of prepared data sets whose index was made.

Captions of the validation split set the limit, and those of the test split are asked: the share of them that are lost
though their video is there, and the share of three kinds of queries that get "nothing fits": a caption whose own video
is taken out (other videos may fit it too); as many known words, drawn at random; and words that nobody uses.
"""

import random
from collections.abc import Sequence

import numpy as np
from named_runs import searches
from vlalign.storage.captions.files import read_captions
from vlalign.storage.captions.word_vectors import split_words
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import Caption
from vlalign.train.search.caption_scores import search_for_captions
from vlalign.train.search.search import Search

NUM_QUERIES = 100
LOST_PERCENTS = (1, 2, 5, 10, 20)


def best_score(search: Search, query: str, videos: set[str]) -> float:
    """Return the best score of a text; minus infinity if no word of it is known."""
    if not search.encoder.knows(query):
        return -np.inf
    found = search(query, num_results=1, videos=videos, by="video")
    return max((moment.score for moment in found), default=-np.inf)


def some(captions: Sequence[Caption], split: str, rng: random.Random) -> list[Caption]:
    """Return some captions of a split."""
    of_split = [caption for caption in captions if caption.split == split]
    return rng.sample(of_split, min(NUM_QUERIES, len(of_split)))


def curves(run: str, dataset: DatasetFolder, search: Search) -> None:
    """Print the curve of a run."""
    rng = random.Random(0)
    captions = list(read_captions(dataset.captions))
    everything = set(search.index.video_ids)
    limits = search_for_captions(search.best_score, [c.caption for c in some(captions, "validation", rng)])
    asked = some(captions, "test", rng)
    tested = search_for_captions(search.best_score, [c.caption for c in asked])
    assert limits is not None and tested is not None, "there are too few captions"
    texts = {caption.caption.lower() for caption in captions}
    words = sorted({word.lower() for caption in captions for word in split_words(caption.caption)})
    drawn: list[str] = []
    while len(drawn) < NUM_QUERIES:
        text = " ".join(rng.choice(words) for _ in split_words(rng.choice(asked).caption))
        if text not in texts:
            drawn.append(text)
    letters = "bcdfghjklmnpqrstvwxz"
    nonsense = [" ".join("".join(rng.choices(letters, k=6)) for _ in range(3)) for _ in range(NUM_QUERIES)]
    absent = {
        "own video taken out": [best_score(search, c.caption, everything - {c.video_id}) for c in asked],
        "words at random": [best_score(search, text, everything) for text in drawn],
        "nonsense": [best_score(search, text, everything) for text in nonsense],
    }
    for percent in LOST_PERCENTS:
        limit = float(np.quantile(limits.scores, percent / 100))
        shares = ", ".join(f"{what} {100 * np.mean(np.array(of) < limit):.0f}" for what, of in absent.items())
        lost = 100 * np.mean(tested.scores < limit)
        print(f"{run}: limit at {percent} %: captions lost {lost:.1f}; {shares}", flush=True)


if __name__ == "__main__":
    for run, dataset, search in searches():
        curves(run, dataset, search)

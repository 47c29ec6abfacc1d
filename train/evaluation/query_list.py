"""The report's list of queries: the results of each, and the words that fit each second of its clip."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import TypedDict

import numpy as np

from ..data.clips import evenly
from ..data.pairs import Pairs
from ..runs.load import Run
from ..scoring.word_similarities import WordSimilarities, word_similarities

NUM_FOUND = 10
"""Number of candidates stored for each query."""
SHOWN_RESULTS = 5
"""Clips that are shown for each query."""
MAX_QUERIES = 5000
MAX_BYTES = 2_800_000
"""Upper limit of the list, in bytes of JSON without images. If queries do not fit, as many as fit are chosen evenly."""
MAX_COLUMNS, MAX_WORDS = 24, 40
"""Limits of a map of words and seconds: neighbouring columns are joined by their maximum, further words are dropped."""
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
"""A value of a map is one digit, from the lowest value of the map to the highest."""


class WordMap(TypedDict):
    """The scores of the words of a query over the seconds of its right clip."""

    starts: list[float]
    """Start of each column, in seconds of the video."""
    words: list[tuple[str, str]]
    """Each word with a digit for each column."""


class ListedQuery(TypedDict):
    """A query of the list. Clips are indices into ``QueryList.clips``."""

    text: str
    tags: list[tuple[str, str]]
    """The words in lower case, with their parts of speech."""
    clip: int
    """The right clip."""
    rank: float
    """Rank of the right clip; a tie counts half."""
    stages: list[float]
    """Rank of the right clip by each stage alone, in the order of ``QueryList.stages``."""
    found: list[tuple[int, float]]
    """The best clips and their scores."""
    map: WordMap | None


class ListedClip(TypedDict):
    """A clip that the list shows."""

    video_id: str
    start_seconds: float | None
    end_seconds: float | None


class QueryList(TypedDict):
    """The queries of a split."""

    stages: list[str]
    num_queries: int
    """Number of queries of the split; ``queries`` may be fewer."""
    queries: list[ListedQuery]
    clips: list[ListedClip]


class Found:
    """The best candidates of each query, at most ten."""

    def __init__(self, num_queries: int, num_candidates: int) -> None:
        shape = num_queries, min(NUM_FOUND, num_candidates)
        self.candidates = np.empty(shape, np.int32)
        """[num_queries, at most 10], the best first."""
        self.scores = np.empty(shape, np.float32)
        """The scores of ``candidates``."""

    def add(self, first: int, scores: np.ndarray) -> None:
        """Record the results of queries ``first`` to ``first + R - 1``.

        Args:
            first: Index of the first query.
            scores: [R, num_candidates], by which candidates are ranked.
        """
        for query, row in enumerate(scores, first):
            self.candidates[query] = best_of(row, NUM_FOUND)
            self.scores[query] = row[self.candidates[query]]


def best_of(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the ``count`` highest scores [N], the highest first, equal ones in order of index."""
    lowest = np.partition(scores, -count)[-count] if count < len(scores) else -np.inf
    candidates = np.flatnonzero(scores >= lowest)
    return candidates[np.argsort(-scores[candidates], kind="stable")][:count]


def list_queries(
    run: Run, pairs: Pairs, ranks: np.ndarray, stage_ranks: Mapping[str, np.ndarray], found: Found
) -> QueryList:
    """Return the queries of a split, as many as fit into ``MAX_BYTES``, with their results.

    Args:
        run: The run that was evaluated.
        pairs: Captions and clips of the split.
        ranks: [num_captions], rank of each right clip.
        stage_ranks: {stage: [num_captions], rank of each right clip by the stage's score alone}
        found: The best clips of each caption.
    """
    chosen = evenly(len(pairs.captions), MAX_QUERIES)
    maps = word_maps(run, pairs, chosen)
    listed: list[ListedQuery] = []
    for index, caption in zip(chosen.tolist(), pairs.captions.take(chosen), strict=True):
        clips, scores = (of_best[index, :SHOWN_RESULTS].tolist() for of_best in (found.candidates, found.scores))
        listed.append(
            {
                "text": caption.caption,
                "tags": [(word.lower(), tag) for word, tag in zip(caption.words, caption.pos_tags, strict=True)],
                "clip": int(pairs.clip_of_caption[index]),
                "rank": float(ranks[index]),
                "stages": [float(of_stage[index]) for of_stage in stage_ranks.values()],
                "found": [(clip, round(score, 3)) for clip, score in zip(clips, scores, strict=True)],
                "map": next(maps, None),
            }
        )
    shown = _fit_size_limit(listed)
    used = sorted({clip for query in shown for clip in (query["clip"], *(found for found, _ in query["found"]))})
    number = {clip: index for index, clip in enumerate(used)}
    for query in shown:
        query["clip"] = number[query["clip"]]
        query["found"] = [(number[clip], score) for clip, score in query["found"]]
    return {
        "stages": list(stage_ranks),
        "num_queries": len(pairs.captions),
        "queries": shown,
        "clips": [_listed_clip(pairs, clip) for clip in used],
    }


def _fit_size_limit(queries: list[ListedQuery]) -> list[ListedQuery]:
    sizes = [len(json.dumps(query)) for query in queries]
    share = MAX_BYTES / max(sum(sizes), 1)
    return queries if share >= 1 else [queries[i] for i in evenly(len(queries), max(int(share * len(queries)), 1))]


def _listed_clip(pairs: Pairs, index: int) -> ListedClip:
    clip = pairs.clips[index]
    return {"video_id": clip.video_id, "start_seconds": clip.start_seconds, "end_seconds": clip.end_seconds}


def word_maps(run: Run, pairs: Pairs, chosen: np.ndarray) -> Iterator[WordMap | None]:
    """Yield how well each word of captions fits each second of their clips; nothing if the model has no such scores.

    Args:
        run: The run.
        pairs: Captions and clips of the split.
        chosen: Indices of captions.
    """
    captions = list(pairs.captions.take(chosen))
    clips = [pairs.clips[index] for index in pairs.clip_of_caption[chosen]]
    for similarities in word_similarities(run.scorer, captions, clips):
        yield None if similarities is None else _word_map(similarities)


def _word_map(similarities: WordSimilarities) -> WordMap:
    shown = list(similarities.words)[:MAX_WORDS]
    columns = np.arange(0, len(similarities.start_seconds), math.ceil(len(similarities.start_seconds) / MAX_COLUMNS))
    values = np.maximum.reduceat(np.stack([similarities.words[word] for word in shown]), columns, axis=1)
    lowest, highest = values.min(), values.max()
    levels = np.rint((values - lowest) / max(highest - lowest, 1e-9) * (len(DIGITS) - 1)).astype(int)
    digits = ["".join(DIGITS[level] for level in row) for row in levels.tolist()]
    starts = [round(float(start), 2) for start in similarities.start_seconds[columns]]
    return {"starts": starts, "words": list(zip(shown, digits, strict=True))}

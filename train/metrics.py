"""Retrieval metrics: recall and ranks of the right candidates among all, and the average metrics of random scores.

``retrieval_metrics`` takes scores that are in memory. For scores that come in parts, ``Ranking`` counts the candidates
before each right one, and ``text_metrics`` and ``video_metrics`` turn the counts into metrics.

Several candidates may have the same score as the right one (two clips with the same caption always tie). How such ties
are counted moves published metrics by half a point. ``TIES`` names the ways: three policies, and three published
evaluators. In nDCG@10 and mAP a tie always counts half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypedDict

import numpy as np

from .intervals import Difference, Interval, mean_interval, median_interval, paired_bootstrap, share_interval

RECALL_AT = (1, 5, 10, 50)
NDCG_AT = 10
MEASURES = (*(f"R@{k}" for k in RECALL_AT), f"nDCG@{NDCG_AT}", "mAP", "median_rank", "mean_rank")
"""The metrics of a direction, in the order of tables. Files of earlier versions lack nDCG@10 and mAP."""
TIES = {
    "average": "a tied candidate counts half: the right one has its mean rank over all orders; R@K also counts K + 0.5",
    "optimistic": "the right candidate comes first among the tied ones",
    "pessimistic": "the right candidate comes last among the tied ones",
    "ce": "as CE, MMT and Frozen: a tie counts half, but R@1 requires that nothing ties; from video to text, a video's "
    "other captions are wrong candidates",
    "clip4clip": "as CLIP4Clip, HowTo100M, MIL-NCE and UniVL: one query for each tied rank; with several captions for "
    "a video: ties in order of index, the lower median, and video to text among videos, each by its best caption",
    "coot": "as COOT: ties in the order that numpy.argsort leaves, the median rounded down; one caption for each video "
    "only",
}
"""Ways to count ties: {name: description}."""
DIRECTIONS = ("text_to_video", "video_to_text")
QUERY_CHUNK = 256
"""Number of queries that are compared with all candidates at once."""


_Chance = TypedDict(
    "_Chance",
    {
        "R@1": float,
        "R@5": float,
        "R@10": float,
        "R@50": float,
        "nDCG@10": float,
        "mAP": float,
        "median_rank": float,
        "mean_rank": float,
    },
)


class Chance(_Chance):
    """The average metrics of random scores. All but ranks are in percent, rank 1 is the best.

    Example:
        >>> import numpy as np
        >>> from vlalign.train.metrics import Chance, chance
        >>> expected: Chance = chance(100, np.array([1]))
        >>> expected["median_rank"]
        50.5
    """


class DirectionMetrics(Chance):
    """Metrics of one direction.

    R@k is the percentage of queries whose right candidate is among the first k. nDCG@10 and mAP, also in percent, count
    all captions of a video as right, with equal weight. Rank 1 is the best.

    Example:
        >>> import numpy as np
        >>> from vlalign.train.metrics import retrieval_metrics
        >>> metrics = retrieval_metrics(np.array([[0.9, 0.1], [0.8, 0.2]]))["text_to_video"]
        >>> metrics["R@1"], metrics["num_queries"], metrics["num_candidates"]
        (50.0, 2, 2)
    """

    num_queries: int
    """Number of queries."""
    num_candidates: int
    """Number of candidates of each query."""
    num_tied: int
    """Queries where another candidate ties with the right one."""
    chance: Chance
    """The average metrics of random scores."""


class RetrievalMetrics(TypedDict):
    """Metrics of both directions.

    Example:
        >>> import numpy as np
        >>> from vlalign.train.metrics import retrieval_metrics
        >>> sorted(retrieval_metrics(np.eye(3)))
        ['text_to_video', 'video_to_text']
    """

    text_to_video: DirectionMetrics
    """Texts are queries, videos are candidates."""
    video_to_text: DirectionMetrics
    """Videos are queries, texts are candidates."""


def retrieval_metrics(
    similarity: np.ndarray, text_to_video: Sequence[int] | np.ndarray | None = None, ties: str = "average"
) -> RetrievalMetrics:
    """Rank the right candidate of each query in both directions.

    From text to video, every text is a query. From video to text, every video that has a text is a query; its rank is
    the rank of its best text among the texts of other videos.

    Args:
        similarity: [num_texts, num_videos]; higher is more similar.
        text_to_video: [num_texts], index of the right video of each text. By default text i belongs to video i.
        ties: How tied scores are counted; a key of ``TIES``.

    Returns:
        Recalls, ranks and counts of "text_to_video" and "video_to_text", with the average metrics of random scores.

    Raises:
        ValueError: The similarities contain NaN, shapes do not fit, or ``ties`` is unknown or cannot be used here.

    Example:
        >>> import numpy as np
        >>> from vlalign.train.metrics import retrieval_metrics
        >>> similarity = np.array([[0.9, 0.1, 0.3], [0.2, 0.4, 0.8], [0.1, 0.2, 0.7]])  # text 1 finds video 2 first
        >>> metrics = retrieval_metrics(similarity)["text_to_video"]
        >>> round(metrics["R@1"], 1), metrics["R@5"], metrics["median_rank"]
        (66.7, 100.0, 1.0)
    """
    ranking, of_texts, of_videos = _ranked(similarity, text_to_video, ties)
    return {
        "text_to_video": text_metrics(ranking, of_texts),
        "video_to_text": video_metrics(ranking, of_videos),
    }


def compare_similarities(
    first: np.ndarray,
    second: np.ndarray,
    text_to_video: Sequence[int] | np.ndarray | None = None,
    ties: str = "average",
    *,
    video_of_clip: Sequence[int] | np.ndarray | None = None,
    seed: int = 0,
) -> dict[str, dict[str, Difference]]:
    """Compare two models by their scores of the same texts and videos: second minus first, with 95 % intervals.

    The intervals are from a paired bootstrap over videos, each with all its texts. A metric whose interval contains 0
    (``has_zero``) shows no difference between the models on these videos.

    Args:
        first: [num_texts, num_videos], of one model; higher is more similar.
        second: The same of another model.
        text_to_video: [num_texts], index of the right video of each text. By default text i belongs to video i.
        ties: How tied scores are counted; a key of ``TIES`` other than "clip4clip", which gives a tie several ranks.
        video_of_clip: [num_videos], index of the video of each column's clip, as in ``scores.npz``: clips of a video
            are drawn together. By default each column is a video of its own.
        seed: Seed of the bootstrap's draws.

    Returns:
        {direction: {metric: difference}}, for all metrics of ``retrieval_metrics`` except the median rank. For the
        mean rank, a negative difference is better.

    Raises:
        ValueError: As for ``retrieval_metrics``, or the matrices have different shapes.

    Example:
        >>> import numpy as np
        >>> from vlalign.train import compare_similarities
        >>> old, new = np.array([[0.9, 0.1], [0.8, 0.2]]), np.eye(2)
        >>> change = compare_similarities(old, new)["text_to_video"]["R@1"]
        >>> change.difference, change.has_zero  # two videos are too few to tell
        (50.0, True)
    """
    if not any(isinstance(side, Mapping) for side in (first, second)) and np.shape(first) != np.shape(second):
        raise ValueError(f"similarities of shapes {np.shape(first)} and {np.shape(second)}: expected the same shape")
    if ties == "clip4clip":
        raise ValueError("ties 'clip4clip': gives a tied query several ranks; pass another policy, such as 'average'")
    (ranking, *before), (_, *after) = (_ranked(similarity, text_to_video, ties) for similarity in (first, second))
    clips = np.arange(ranking.num_videos) if video_of_clip is None else np.asarray(video_of_clip)
    if clips.shape != (ranking.num_videos,) or clips.dtype.kind not in "iu":
        raise ValueError(f"video_of_clip: expected {ranking.num_videos} integers, a video for each column")
    videos_of_queries = clips[ranking.video_of_text], clips[ranking.num_captions > 0]
    found: dict[str, dict[str, Difference]] = {}
    for direction, videos, *counts in zip(DIRECTIONS, videos_of_queries, before, after, strict=True):
        old, new = (_query_values(side, ties) for side in counts)
        found[direction] = {name: paired_bootstrap(old[name], new[name], videos, seed=seed) for name in old}
    return found


def _query_values(counts: RankCounts, ties: str) -> dict[str, np.ndarray]:
    """Return {metric: one value per query}; the mean of the values is the metric."""
    ranks = _ranks(counts, ties, ragged=False)
    hits = {f"R@{k}": 100.0 * _hits(ranks, k, ties) for k in RECALL_AT}
    return {**hits, f"nDCG@{NDCG_AT}": 100 * counts.gain, "mAP": 100 * counts.precision, "mean_rank": ranks}


def _ranked(
    similarity: np.ndarray, text_to_video: Sequence[int] | np.ndarray | None, ties: str
) -> tuple[Ranking, RankCounts, RankCounts]:
    similarity, video_of_text = _checked(similarity, text_to_video, ties)
    ranking = Ranking(video_of_text, similarity.shape[1], ties)
    if ties == "coot" and ranking.is_ragged:
        raise ValueError(
            "ties 'coot': needs exactly one caption for each video; pass another policy, such as 'average'"
        )
    return ranking, ranking.of_texts(0, similarity), ranking.of_videos(0, similarity)


def _checked(
    similarity: np.ndarray, text_to_video: Sequence[int] | np.ndarray | None, ties: str
) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(similarity, Mapping):
        raise ValueError(f'similarity: got a file of arrays, {", ".join(similarity)}; pass one of them: ["similarity"]')
    similarity = np.asarray(similarity, dtype=np.float32)
    if ties not in TIES:
        raise ValueError(f"ties {ties!r}: expected one of {', '.join(TIES)}")
    if similarity.ndim != 2 or similarity.size == 0:
        raise ValueError(f"similarity: expected [num_texts, num_videos], not empty; got shape {similarity.shape}")
    num_texts, num_videos = similarity.shape
    if text_to_video is None and num_texts != num_videos:
        raise ValueError(
            f"{num_texts} texts and {num_videos} videos: pass text_to_video, the index of each text's video"
        )
    video_of_text = np.arange(num_texts) if text_to_video is None else np.asarray(text_to_video)
    is_index = video_of_text.shape == (num_texts,) and video_of_text.dtype.kind in "iu"
    if not is_index or video_of_text.min() < 0 or video_of_text.max() >= num_videos:
        raise ValueError(f"text_to_video: expected {num_texts} integers in 0..{num_videos - 1}")
    return similarity, video_of_text


def text_metrics(ranking: Ranking, counts: RankCounts) -> DirectionMetrics:
    """Return the metrics from text to video.

    Args:
        ranking: Right videos of the texts, and the way to count ties.
        counts: Counts of all texts.

    Returns:
        The metrics, and the average metrics of random scores.

    Example:
        >>> import numpy as np
        >>> from vlalign.train.metrics import Ranking, text_metrics
        >>> scores = np.array([[0.75, 0.125], [0.5, 0.25]], dtype=np.float32)  # text 1 finds video 0 first
        >>> ranking = Ranking(np.array([0, 1]), num_videos=2, ties="average")
        >>> text_metrics(ranking, ranking.of_texts(0, scores))["R@1"]
        50.0
    """
    num_right = np.ones(len(ranking.video_of_text), dtype=int)
    return _direction_metrics(counts, ranking.ties, ranking.num_videos, num_right, ragged=ranking.is_ragged)


def video_metrics(ranking: Ranking, counts: RankCounts) -> DirectionMetrics:
    """Return the metrics from video to text.

    Args:
        ranking: Right videos of the texts, and the way to count ties.
        counts: Counts of all videos that have a text.

    Returns:
        The metrics, and the average metrics of random scores.

    Example:
        >>> import numpy as np
        >>> from vlalign.train.metrics import Ranking, video_metrics
        >>> scores = np.array([[0.75, 0.125], [0.5, 0.25]], dtype=np.float32)  # text 1 finds video 0 first
        >>> ranking = Ranking(np.array([0, 1]), num_videos=2, ties="average")
        >>> video_metrics(ranking, ranking.of_videos(0, scores))["R@1"]
        100.0
    """
    num_captions = ranking.num_captions[ranking.num_captions > 0]
    if ranking.ranks_by_best_caption:
        return _direction_metrics(counts, ranking.ties, len(num_captions), np.ones_like(num_captions), ragged=False)
    return _direction_metrics(counts, ranking.ties, len(ranking.video_of_text), num_captions, ragged=False)


def _direction_metrics(
    counts: RankCounts, ties: str, num_candidates: int, num_right: np.ndarray, *, ragged: bool
) -> DirectionMetrics:
    ranks = _ranks(counts, ties, ragged=ragged)
    median = float(np.median(ranks))
    if ties == "coot":
        median = float(math.floor(median))
    elif ties == "clip4clip" and ragged:
        median = float(np.sort(ranks)[(len(ranks) - 1) // 2])

    def percent(k: int) -> float:
        return float(100 * np.mean(_hits(ranks, k, ties)))

    return {
        "R@1": percent(1),
        "R@5": percent(5),
        "R@10": percent(10),
        "R@50": percent(50),
        "nDCG@10": float(100 * counts.gain.mean()),
        "mAP": float(100 * counts.precision.mean()),
        "median_rank": median,
        "mean_rank": float(ranks.mean()),
        "num_queries": len(counts.above),
        "num_candidates": num_candidates,
        "num_tied": int((counts.tied > 0).sum()),
        "chance": chance(num_candidates, num_right),
    }


def _hits(ranks: np.ndarray, k: int, ties: str) -> np.ndarray:
    """Return whether each right candidate is among the first ``k``."""
    return ranks == 1 if ties == "ce" and k == 1 else ranks < k + 1


def text_intervals(ranking: Ranking, counts: RankCounts, video_of_clip: np.ndarray) -> dict[str, Interval]:
    """Return the 95 % interval of each metric from text to video.

    Args:
        ranking: Right videos of the texts, and the way to count ties.
        counts: Counts of all texts.
        video_of_clip: [num_videos], index of the video of each clip; clips of a video are drawn together.

    Returns:
        {metric: interval}, in percent except for ranks.

    Example:
        >>> import numpy as np
        >>> from vlalign.train.metrics import Ranking, text_intervals
        >>> scores = np.array([[0.75, 0.125], [0.5, 0.25]], dtype=np.float32)  # text 1 finds video 0 first
        >>> ranking = Ranking(np.array([0, 1]), num_videos=2, ties="average")
        >>> interval = text_intervals(ranking, ranking.of_texts(0, scores), np.arange(2))["R@1"]
        >>> print(interval.low < 50 < interval.high)
        True
    """
    videos = video_of_clip[ranking.video_of_text]
    return _intervals(counts, ranking.ties, videos, ranking.num_videos, ragged=ranking.is_ragged)


def video_intervals(ranking: Ranking, counts: RankCounts, video_of_clip: np.ndarray) -> dict[str, Interval]:
    """Return the 95 % interval of each metric from video to text.

    Args:
        ranking: Right videos of the texts, and the way to count ties.
        counts: Counts of all videos that have a text.
        video_of_clip: [num_videos], index of the video of each clip; clips of a video are drawn together.

    Returns:
        As for ``text_intervals``.

    Example:
        >>> import numpy as np
        >>> from vlalign.train.metrics import Ranking, video_intervals
        >>> scores = np.array([[0.75, 0.125], [0.5, 0.25]], dtype=np.float32)  # text 1 finds video 0 first
        >>> ranking = Ranking(np.array([0, 1]), num_videos=2, ties="average")
        >>> interval = video_intervals(ranking, ranking.of_videos(0, scores), np.arange(2))["R@1"]
        >>> print(interval.low < interval.high)
        True
    """
    videos = video_of_clip[ranking.num_captions > 0]
    return _intervals(counts, ranking.ties, videos, len(ranking.video_of_text), ragged=False)


def _intervals(
    counts: RankCounts, ties: str, video_of_Q: np.ndarray, last_rank: int, *, ragged: bool
) -> dict[str, Interval]:
    ranks = _ranks(counts, ties, ragged=ragged)
    of_ranks = video_of_Q
    if len(ranks) != len(video_of_Q):  # "clip4clip" has several ranks of a tied query
        of_ranks = np.repeat(video_of_Q, counts.tied + 1)

    def percent(interval: Interval) -> Interval:
        return Interval(100 * max(interval.low, 0.0), 100 * min(interval.high, 1.0))

    mean_rank = mean_interval(ranks, of_ranks)  # infinite if all queries are about one video
    recalls = {f"R@{k}": percent(share_interval(_hits(ranks, k, ties), of_ranks)) for k in RECALL_AT}
    return {
        **recalls,
        f"nDCG@{NDCG_AT}": percent(mean_interval(counts.gain, video_of_Q)),
        "mAP": percent(mean_interval(counts.precision, video_of_Q)),
        "median_rank": median_interval(ranks, of_ranks),
        "mean_rank": Interval(max(mean_rank.low, 1.0), min(mean_rank.high, float(last_rank))),
    }


def chance(num_candidates: int, num_right: np.ndarray) -> Chance:
    """Return the metrics of random scores, on average.

    The best of m right candidates among n is within the first k with probability 1 - C(n-m, k) / C(n, k). With 100
    candidates and one right one: R@1 is 1.0, R@10 10.0 and the median rank 50.5. mAP: Bestgen 2015, "Exact expected
    average precision of the random baseline".

    Args:
        num_candidates: Number of candidates of each query.
        num_right: [Q], number of right candidates of each query.

    Returns:
        The average metrics. All but ranks are in percent.

    Example:
        >>> import numpy as np
        >>> from vlalign.train.metrics import chance
        >>> expected = chance(100, np.array([1]))
        >>> round(expected["R@10"], 6), expected["median_rank"]
        (10.0, 50.5)
    """
    distinct, num_queries = np.unique(num_right, return_counts=True)

    def within(k: int) -> float:
        n, k = num_candidates, min(k, num_candidates)
        misses = [math.comb(n - int(m), k) / math.comb(n, k) for m in distinct]
        return 1 - float(np.average(misses, weights=num_queries))

    harmonic = float((1 / np.arange(1, num_candidates + 1)).sum())
    gained = float(_discounts(min(NDCG_AT, num_candidates)).sum()) / num_candidates

    def precision(m: int) -> float:
        return (harmonic + (m - 1) * (num_candidates - harmonic) / max(num_candidates - 1, 1)) / num_candidates

    def gain(m: int) -> float:
        return m * gained / float(_discounts(min(NDCG_AT, m)).sum())

    low, high = 0, num_candidates  # find the first rank that at least half of the queries reach
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if within(middle) >= 0.5 else (middle, high)
    return {
        "R@1": 100 * within(1),
        "R@5": 100 * within(5),
        "R@10": 100 * within(10),
        "R@50": 100 * within(50),
        "nDCG@10": 100 * float(np.average([gain(int(m)) for m in distinct], weights=num_queries)),
        "mAP": 100 * float(np.average([precision(int(m)) for m in distinct], weights=num_queries)),
        "median_rank": high + 0.5 if math.isclose(within(high), 0.5) else float(high),
        "mean_rank": float(np.average((num_candidates + 1) / (distinct + 1), weights=num_queries)),
    }


def _discounts(number: int) -> np.ndarray:
    """Return the discounted gain of right candidates at ranks 1 to ``number``."""
    return 1 / np.log2(np.arange(2, number + 2))


def _gains(ranks: np.ndarray) -> np.ndarray:
    """Return what right candidates at ``ranks`` add to the discounted gain of the first ten."""
    return np.where(ranks < NDCG_AT + 1, 1 / np.log2(1 + ranks), 0.0)


class RankCounts(NamedTuple):
    """Numbers of wrong candidates before the right one of each query, or tied with it. Each array is [Q].

    Example:
        >>> import numpy as np
        >>> from vlalign.train.metrics import Ranking, RankCounts
        >>> scores = np.array([[0.75, 0.125], [0.5, 0.25]], dtype=np.float32)  # text 1 finds video 0 first
        >>> ranking = Ranking(np.array([0, 1]), num_videos=2, ties="average")
        >>> counts = ranking.of_texts(0, scores)
        >>> counts.above.tolist(), counts.tied.tolist()
        ([0, 1], [0, 0])
    """

    above: np.ndarray
    """Candidates with a higher score."""
    tied_before: np.ndarray
    """Tied candidates with a lower index; for the policy "coot", those before it in the reversed numpy.argsort."""
    tied_after: np.ndarray
    """All other tied candidates."""
    gain: np.ndarray
    """nDCG@10, from 0 to 1, of all right candidates of the query."""
    precision: np.ndarray
    """Average precision, from 0 to 1, of all right candidates of the query."""

    @property
    def tied(self) -> np.ndarray:
        """Number of tied candidates [Q]."""
        return self.tied_before + self.tied_after

    @classmethod
    def join(cls, parts: Iterable[RankCounts]) -> RankCounts:
        """Return the counts of all queries, from the counts of consecutive parts.

        Args:
            parts: Counts of consecutive queries.
        """
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))


class Ranking:
    """Counts the candidates before each right one, in parts.

    From text to video, every text is a query. From video to text, every video that has a text is a query; its right
    candidate is its best text, and its other texts are not counted.

    Example:
        >>> import numpy as np
        >>> from vlalign.train.metrics import Ranking
        >>> ranking = Ranking(np.array([0, 0, 1]), num_videos=2, ties="average")  # texts 0 and 1 are of video 0
        >>> ranking.num_captions.tolist(), ranking.is_ragged
        ([2, 1], True)
    """

    def __init__(self, video_of_text: np.ndarray, num_videos: int, ties: str) -> None:
        """Prepare a ranking.

        Args:
            video_of_text: [num_texts], index of the right video of each text.
            num_videos: Number of videos.
            ties: A key of ``TIES``.
        """
        self.video_of_text, self.num_videos, self.ties = video_of_text, num_videos, ties
        self.num_captions = np.bincount(video_of_text, minlength=num_videos)
        """[num_videos]"""
        self._texts_by_video = np.argsort(video_of_text, kind="stable")
        self._starts = np.concatenate([[0], np.cumsum(self.num_captions)])

    @property
    def is_ragged(self) -> bool:
        """True if some video has no text, or several."""
        return bool((self.num_captions != 1).any())

    @property
    def ranks_by_best_caption(self) -> bool:
        """True if videos rank videos, each by its best caption, instead of texts (CLIP4Clip with several captions)."""
        return self.ties == "clip4clip" and self.is_ragged

    def of_texts(self, first: int, scores: np.ndarray) -> RankCounts:
        """Count the videos before the right one of consecutive texts.

        Args:
            first: Index of the first text.
            scores: [R, num_videos], of texts ``first`` to ``first + R - 1`` with all videos.

        Raises:
            ValueError: A score is NaN.
        """
        _check_numbers(scores)
        right = self.video_of_text[first : first + len(scores)]
        own = scores[np.arange(len(scores)), right]
        return count_ranks(lambda rows: scores[rows], own, right, self.ties)

    def of_videos(self, first: int, scores: np.ndarray) -> RankCounts:
        """Count the texts before the right one of consecutive videos. Videos without a text are skipped.

        Args:
            first: Index of the first video.
            scores: [num_texts, C], of all texts with videos ``first`` to ``first + C - 1``.

        Raises:
            ValueError: A score is NaN.
        """
        _check_numbers(scores)
        last = first + scores.shape[1]
        texts = np.sort(self._texts_by_video[self._starts[first] : self._starts[last]])
        videos = self.video_of_text[texts] - first
        own = scores[texts, videos]
        best = np.full(scores.shape[1], -np.inf, dtype=np.float32)
        np.maximum.at(best, videos, own)
        queries = np.flatnonzero(self.num_captions[first:last])
        if self.ranks_by_best_caption:
            of_videos = np.full((self.num_videos, scores.shape[1]), -np.inf, dtype=np.float32)
            np.maximum.at(of_videos, self.video_of_text, scores)
            return count_ranks(lambda rows: of_videos[:, queries[rows]].T, best[queries], first + queries, self.ties)
        is_best = own == best[videos]
        best_text = np.zeros(scores.shape[1], dtype=int)
        best_text[videos[is_best][::-1]] = texts[is_best][::-1]  # of tied texts, the one with the lowest index
        counts = count_ranks(lambda rows: scores[:, queries[rows]].T, best[queries], best_text[queries], self.ties)
        for query in np.flatnonzero(self.num_captions[first:last][queries] > 1):
            gain, precision = _of_several(scores[:, queries[query]], own[videos == queries[query]])
            counts.gain[query], counts.precision[query] = gain, precision
        if self.ties == "ce":
            return counts
        # A video's other captions are not counted: they do not score higher than the best, and tied ones come after it.
        tied_captions = np.bincount(videos[is_best], minlength=scores.shape[1])[queries] - 1
        return counts._replace(tied_after=counts.tied_after - tied_captions)


def _of_several(scores: np.ndarray, own: np.ndarray) -> tuple[float, float]:
    """Return nDCG@10 and average precision of a query with several right candidates.

    Args:
        scores: Scores of all candidates.
        own: Scores of the right candidates.
    """
    ordered, own = np.sort(scores), np.sort(own)[::-1]
    above = len(ordered) - np.searchsorted(ordered, own, side="right")
    tied = len(ordered) - above - np.searchsorted(ordered, own, side="left") - 1
    ranks, number = 1 + above + tied / 2, len(own)
    gain = _gains(ranks).sum() / _discounts(min(NDCG_AT, number)).sum()
    return min(float(gain), 1.0), float((np.arange(1, number + 1) / ranks).mean())


def _check_numbers(scores: np.ndarray) -> None:
    if scores.size and np.isnan(scores.min()):
        raise ValueError(f"similarity: {int(np.isnan(scores).sum())} values are NaN; expected numbers")


def count_ranks(
    scores_of: Callable[[slice], np.ndarray], right_scores: np.ndarray, right_index: np.ndarray, ties: str
) -> RankCounts:
    """Count the candidates that come before the right one, or tie with it.

    Args:
        scores_of: Returns the scores [q, num_candidates] of a slice of the queries.
        right_scores: [Q], score of each query's right candidate.
        right_index: [Q], index of each query's right candidate.
        ties: A key of ``TIES``; "coot" orders tied candidates in its own way.

    Returns:
        The counts of each query.

    Example:
        >>> import numpy as np
        >>> from vlalign.train.metrics import count_ranks
        >>> scores = np.array([[0.75, 0.25, 0.75]])  # candidate 0 is right, candidate 2 ties with it
        >>> counts = count_ranks(lambda rows: scores[rows], np.array([0.75]), np.array([0]), "average")
        >>> counts.above.tolist(), counts.tied.tolist()
        ([0], [1])
    """
    parts = [RankCounts(*np.zeros((3, 0), dtype=int), *np.zeros((2, 0)))]
    for first in range(0, len(right_scores), QUERY_CHUNK):
        rows = slice(first, first + QUERY_CHUNK)
        scores, right, index = scores_of(rows), right_scores[rows, None], right_index[rows, None]
        above, equal = (scores > right).sum(axis=1), scores == right
        if ties == "coot":
            before = np.argmax(np.argsort(scores, axis=1)[:, ::-1] == index, axis=1) - above
        else:
            before = (equal & (np.arange(scores.shape[1]) < index)).sum(axis=1)
        tied = equal.sum(axis=1) - 1
        ranks = 1 + above + tied / 2
        parts.append(RankCounts(above, before, tied - before, _gains(ranks), 1 / ranks))
    return RankCounts.join(parts)


def _ranks(counts: RankCounts, ties: str, *, ragged: bool) -> np.ndarray:
    """Return the rank of each query, from 1. "clip4clip" returns several for a query with ties."""
    first = 1 + counts.above
    if ties in ("average", "ce"):
        return mean_ranks(counts)
    if ties == "pessimistic":
        return first + counts.tied
    if ties == "coot" or (ties == "clip4clip" and ragged):
        return first + counts.tied_before
    if ties == "clip4clip":
        num_ranks = counts.tied + 1
        starts = np.cumsum(num_ranks) - num_ranks
        return np.repeat(first, num_ranks) + np.arange(num_ranks.sum()) - np.repeat(starts, num_ranks)
    return first


def mean_ranks(counts: RankCounts) -> np.ndarray:
    """Return the rank of each right candidate; a tie counts half.

    Args:
        counts: Counts of Q queries.

    Returns:
        Ranks [Q], from 1.

    Example:
        >>> import numpy as np
        >>> from vlalign.train.metrics import count_ranks, mean_ranks
        >>> scores = np.array([[0.75, 0.25, 0.75]])  # candidate 0 is right, candidate 2 ties with it
        >>> mean_ranks(count_ranks(lambda rows: scores[rows], np.array([0.75]), np.array([0]), "average")).tolist()
        [1.5]
    """
    return 1 + counts.above + counts.tied / 2


def right_ranks(scores: np.ndarray, right_index: np.ndarray) -> np.ndarray:
    """Return the rank of each query's right candidate; a tie counts half.

    Args:
        scores: [Q, num_candidates]
        right_index: [Q]

    Returns:
        Ranks [Q], from 1.

    Example:
        >>> import numpy as np
        >>> from vlalign.train.metrics import right_ranks
        >>> scores = np.array([[0.75, 0.25, 0.75]])  # candidate 0 is right, candidate 2 ties with it
        >>> right_ranks(scores, np.array([0])).tolist()
        [1.5]
    """
    own = scores[np.arange(len(right_index)), right_index]
    return mean_ranks(count_ranks(lambda rows: scores[rows], own, right_index, "average"))

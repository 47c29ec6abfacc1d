"""Retrieval metrics, and what chance would give.

A score level with the right one's is a tie, and what becomes of it moves published numbers by half a point (two captions that are
the same are always level). ``TIES`` names what can be made of them: three policies, and the ways of three published evaluators.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .config import NORMALIZATIONS

RECALL_AT = (1, 5, 10, 50)
CHUNK = 256
SHOWN = ("R@1", "R@5", "R@10", "R@50", "median_rank", "mean_rank")
TIES = {
    "average": "a tied one counts half (the mean rank over all orders of what is tied)",
    "optimistic": "the right one comes first",
    "pessimistic": "the right one comes last",
    "ce": "as CE, MMT and Frozen: half, but R@1 asks for nothing tied; video to text also among the video's own captions",
    "clip4clip": "as CLIP4Clip, HowTo100M, MIL-NCE and UniVL: a query for each tied place; with several captions a video, by index, "
    "the lower median, and video to text among videos, each by its best caption",
    "coot": "as COOT: in the order in which numpy.argsort happens to leave them; the median is rounded down. One caption a video only",
}
"""{what is made of ties: in words}"""


class Counts(NamedTuple):
    """Of each query: candidates above the right one, and others level with it, before and behind it: by index, or, for COOT, as sorted."""

    above: np.ndarray
    before: np.ndarray
    behind: np.ndarray

    @property
    def tied(self) -> np.ndarray:
        return self.before + self.behind


def retrieval_metrics(
    similarity: np.ndarray, text_to_video: Sequence[int] | None = None, ties: str = "average"
) -> dict[str, dict[str, Any]]:
    """Ranks of the right answers in ``similarity`` [num_texts, num_videos], both ways.

    ``text_to_video``: the right video of each text; by default text i belongs to video i. Text to video, every text is a query.
    Video to text, every video is one, and the rank is that of its best caption among the captions of other videos; a video without
    a caption is no query. ``ties``: one of ``TIES``. Returns, for "text_to_video" and "video_to_text":
    R@1, R@5, R@10, R@50 in percent, median_rank and mean_rank (1 is best), num_queries, num_candidates, num_tied (queries) and, under
    "chance", what scores drawn at random give on average. Raises ``ValueError`` for NaN and for shapes that do not fit.
    """
    similarity = np.asarray(similarity, dtype=np.float32)
    if ties not in TIES:
        raise ValueError(f"ties {ties!r}: expected one of {', '.join(TIES)}")
    if similarity.ndim != 2 or similarity.size == 0:
        raise ValueError(f"similarity must be [num_texts, num_videos] and not empty, got {similarity.shape}")
    num_texts, num_videos = similarity.shape
    if text_to_video is None and num_texts != num_videos:
        raise ValueError(
            f"{num_texts} texts and {num_videos} videos: text_to_video must say which video each text belongs to"
        )
    right = np.arange(num_texts) if text_to_video is None else np.asarray(text_to_video)
    if right.shape != (num_texts,) or right.min() < 0 or right.max() >= num_videos:
        raise ValueError(f"text_to_video must hold {num_texts} numbers in 0..{num_videos - 1}")
    if np.isnan(similarity.min()):
        raise ValueError(f"{int(np.isnan(similarity).sum())} of the similarities are NaN")
    num_captions = np.bincount(right, minlength=num_videos)
    one_each = bool((num_captions == 1).all())
    if ties == "coot" and not one_each:
        raise ValueError("ties 'coot' is for one caption a video; expected another, such as 'average'")

    own = similarity[np.arange(num_texts), right]
    texts = count(lambda rows: similarity[rows], own, right, ties)
    best_own = np.full(num_videos, -np.inf, dtype=np.float32)
    np.maximum.at(best_own, right, own)
    is_best = np.flatnonzero(own == best_own[right])
    best_caption = np.zeros(num_videos, dtype=int)
    best_caption[right[is_best[::-1]]] = is_best[::-1]  # the first of them
    queries = np.flatnonzero(num_captions)
    if ties == "clip4clip" and not one_each:
        by_video = np.full(
            (num_videos, num_videos), -np.inf, dtype=np.float32
        )  # [video of the captions, video that is asked]
        np.maximum.at(by_video, right, similarity)
        videos = count(lambda rows: by_video[:, queries[rows]].T, best_own[queries], queries, ties)
        num_candidates, num_right = len(queries), np.ones(len(queries), dtype=int)
    else:
        videos = count(lambda rows: similarity[:, queries[rows]].T, best_own[queries], best_caption[queries], ties)
        num_candidates, num_right = num_texts, num_captions[queries]
        if ties != "ce":
            # A video's other captions score no higher than its best one; those that tie with it are no rivals.
            own_ties = np.bincount(right[is_best], minlength=num_videos)[queries] - 1
            videos = videos._replace(behind=videos.behind - own_ties)  # the best is the first of them
    return {
        "text_to_video": _summary(texts, ties, num_videos, np.ones(num_texts, dtype=int), ragged=not one_each),
        "video_to_text": _summary(videos, ties, num_candidates, num_right, ragged=False),
    }


def count(scores_of: Callable[[slice], np.ndarray], own: np.ndarray, own_index: np.ndarray, ties: str) -> Counts:
    """``scores_of`` gives the [q, num_candidates] scores of some of the queries; ``own`` [Q] and ``own_index`` [Q] are the right one's."""
    counts = []
    for first in range(0, len(own), CHUNK):
        rows = slice(first, first + CHUNK)
        scores, level, index = scores_of(rows), own[rows, None], own_index[rows, None]
        above, equal = (scores > level).sum(axis=1), scores == level
        if ties == "coot":
            before = np.argmax(np.argsort(scores, axis=1)[:, ::-1] == index, axis=1) - above
        else:
            before = (equal & (np.arange(scores.shape[1]) < index)).sum(axis=1)
        counts.append((above, before, equal.sum(axis=1) - before - 1))
    return Counts(*map(np.concatenate, zip(*counts, strict=True)))


def _ranks(counts: Counts, ties: str, *, ragged: bool) -> np.ndarray:
    """From 1; one for each query, but for CLIP4Clip's, which are more where there are ties."""
    first = 1 + counts.above
    if ties in ("average", "ce"):
        return first + counts.tied / 2
    if ties == "pessimistic":
        return first + counts.tied
    if ties == "coot" or (ties == "clip4clip" and ragged):
        return first + counts.before
    if ties == "clip4clip":
        places = counts.tied + 1
        return np.repeat(first, places) + np.arange(places.sum()) - np.repeat(np.cumsum(places) - places, places)
    return first


def _summary(counts: Counts, ties: str, num_candidates: int, num_right: np.ndarray, *, ragged: bool) -> dict[str, Any]:
    ranks = _ranks(counts, ties, ragged=ragged)
    median = float(np.median(ranks))
    if ties == "coot":
        median = float(math.floor(median))
    elif ties == "clip4clip" and ragged:
        median = float(np.sort(ranks)[(len(ranks) - 1) // 2])
    recall = {f"R@{k}": float(100 * np.mean(ranks < k + 1)) for k in RECALL_AT}
    if ties == "ce":
        recall["R@1"] = float(100 * np.mean(ranks == 1))
    return {
        **recall,
        "median_rank": median,
        "mean_rank": float(ranks.mean()),
        "num_queries": len(counts.above),
        "num_candidates": num_candidates,
        "num_tied": int((counts.tied > 0).sum()),
        "chance": chance(num_candidates, num_right),
    }


def chance(num_candidates: int, num_right: np.ndarray) -> dict[str, float]:
    """Metrics of scores drawn at random, where query i has ``num_right[i]`` right answers among the candidates.

    The best of m right ones among n is within the first k with probability 1 - C(n-m, k) / C(n, k).

    n 100, m 1  ->  R@1 1.0, R@10 10.0, median rank 50.5
    """
    kinds, counts = np.unique(num_right, return_counts=True)

    def within(k: int) -> float:
        n, k = num_candidates, min(k, num_candidates)
        misses = [math.comb(n - int(m), k) / math.comb(n, k) for m in kinds]
        return 1 - float(np.average(misses, weights=counts))

    low, high = 0, num_candidates  # the first rank that at least half of the queries reach
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if within(middle) >= 0.5 else (middle, high)
    median = high + 0.5 if math.isclose(within(high), 0.5) else float(high)
    mean = float(np.average((num_candidates + 1) / (kinds + 1), weights=counts))
    return {**{f"R@{k}": 100 * within(k) for k in RECALL_AT}, "median_rank": median, "mean_rank": mean}


def format_metrics(metrics: dict[str, dict]) -> str:
    """A table for people: each direction, with chance under it."""
    lines = [f"{'':<16}" + "".join(f"{name.replace('_', ' '):>13}" for name in SHOWN) + f"{'tied':>13}"]
    for direction in ("text_to_video", "video_to_text"):
        row = metrics[direction]
        lines.append(
            f"{direction.replace('_', ' '):<16}"
            + "".join(f"{row[name]:>13.1f}" for name in SHOWN)
            + f"{row['num_tied']:>13,}"
        )
        lines.append(f"{'  chance':<16}" + "".join(f"{row['chance'][name]:>13.1f}" for name in SHOWN))
    return "\n".join(lines)


def format_stages(stages: dict[str, dict], weights: dict[str, float], rerank: int | None) -> str:
    """A table for people: text to video by each stage of the score alone (TACo's Table 11)."""
    lines = [f"{'alone':<16}" + "".join(f"{name.replace('_', ' '):>13}" for name in SHOWN) + f"{'weight':>13}"]
    for stage, metrics in stages.items():
        row = metrics["text_to_video"]
        name = stage.replace("_", " ") + (f" of {rerank}" if rerank and stage.startswith("fusion") else "")
        lines.append(
            f"{name:<16}" + "".join(f"{row[shown]:>13.1f}" for shown in SHOWN) + f"{weights.get(stage, 0):>13g}"
        )
    return "\n".join(lines)


def format_normalization(about: dict) -> str:
    """Lines for people: the normalisation error of both directions (NCL Eq. 5), and what was done to the scores."""
    name, errors = about["name"], about["error"]
    line = f"normalisation error at temperature {about['temperature']:g}: {errors['text_to_video']:.4f} text to video, "
    line += f"{errors['video_to_text']:.4f} video to text"
    done = [] if name == "none" else [f"normalised by {name}, {NORMALIZATIONS[name]}"]
    return "\n".join([*done, *(f"note: {note}" for note in about["notes"]), line])


def format_steps(steps: dict[str, Any]) -> str:
    """A table of ``steps.localize_steps``'s metrics, a line a task and one for their mean."""
    names = {"recall": "recall", "recall_spans": "with spans", "chance": "chance", "ceiling": "in order"}
    lines = [f"{'recall, percent':<32}" + "".join(f"{name:>12}" for name in names.values()) + f"{'videos':>9}"]
    for title, row in [*steps["tasks"].items(), ("mean over tasks", steps)]:
        lines.append(
            f"{title[:31]:<32}" + "".join(f"{row[name]:>12.1f}" for name in names) + f"{row['num_videos']:>9,}"
        )
    lines.append(
        "with spans: a step may last, its hits are the part of its seconds that is right; in order: the most that the order allows"
    )
    return "\n".join(lines)


def format_answers(result: dict[str, Any]) -> str:
    """A table of ``vqa.answer``'s accuracies."""
    types = ["all", *result["num_of_type"]]
    rows = {
        "accuracy": "accuracy",
        "question_only": "question alone",
        "most_frequent_answer": "usual answer",
        "answerable": "answerable",
    }
    lines = [f"{'percent':<16}" + "".join(f"{name:>9}" for name in types)]
    lines += [f"{label:<16}" + "".join(f"{result[name][kind]:>9.2f}" for kind in types) for name, label in rows.items()]
    lines.append(
        f"{'questions':<16}{result['num_questions']:>9,}"
        + "".join(f"{number:>9,}" for number in result["num_of_type"].values())
    )
    usual = result["most_frequent_answer"]["answer"]
    lines.append(
        f"question alone: the same model without the video; usual answer: always {usual!r}; answerable: among those to choose from"
    )
    return "\n".join(lines)


def format_segmentation(result: dict[str, Any]) -> str:
    """A table of ``segmentation.segmentation_metrics``, and of what calling everything background would give."""
    names = ("accuracy", "steps_accuracy", "macro_accuracy", "edit", "F1@10", "F1@25", "F1@50")
    lines = [f"{'percent':<16}" + "".join(f"{name.replace('_accuracy', ''):>10}" for name in names)]
    for label, row in (("segmentation", result["segmentation"]), ("all background", result["all_background"])):
        lines.append(f"{label:<16}" + "".join(f"{row[name]:>10.2f}" for name in names))
    lines.append(
        "accuracy: of all seconds, background included, as published; steps: of those that show one; macro: the mean over labels"
    )
    return "\n".join(lines)

"""How often the clips of a split are retrieved, and the errors that result: NCL's Figures 2, 3, 5 and 6.

The sum of a clip's retrieval probabilities over the test captions is given as a multiple of the ideal sum: 1 for a clip
that is retrieved as often as it should be.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from ..data.pairs import Pairs
from ..metrics import RankCounts, mean_ranks, right_ranks
from ..scoring.query_biases import fit_biases
from ..scoring.scores import QueryRows, QuerySimilarities
from .normalization import SummedProbabilities

NUM_BINS = 10
"""Bins of Figure 3; each has about as many clips."""
SMALLEST_QUEUE = 64
"""Figure 5 has this many queries, four times as many, and so on."""
MAX_PAIRS = 1 << 25
"""Figure 5 is not drawn for splits with more pairs: it ranks all of them for each size."""
SHOWN_EXAMPLES = 3
"""Examples of each kind in Figure 6."""


@dataclass(frozen=True)
class Retrieved:
    """The clips that a split's captions retrieved: how often each, which first, and the ranks of the right ones."""

    sums: np.ndarray
    """[num_clips]: the sum of each clip's retrieval probabilities, as a multiple of the ideal sum."""
    first: np.ndarray
    """[num_captions]: the clip that is first for each caption."""
    ranks: np.ndarray
    """[num_captions]: rank of each right clip; a tie counts half."""


class RetrievedCounts:
    """Counts the clips that captions retrieve, from scores that are added in parts."""

    def __init__(self, clip_of_caption: np.ndarray, num_captions: np.ndarray, temperature: float) -> None:
        """Begin with no caption.

        Args:
            clip_of_caption: [num_captions of the split], index of each right clip.
            num_captions: [num_clips], number of captions of each clip.
            temperature: Turns scores into probabilities.
        """
        self._num_captions = num_captions
        self.probabilities = SummedProbabilities(temperature, num_captions)
        self._first, self._ranks = np.empty_like(clip_of_caption), np.empty(len(clip_of_caption))

    def add(self, captions: slice, scores: np.ndarray, counts: RankCounts) -> None:
        """Count the clips that some captions retrieve.

        Args:
            captions: Range of the captions.
            scores: [R, num_clips], of these captions.
            counts: Clips before the right ones.
        """
        self.probabilities.add(scores)
        self._first[captions] = scores.argmax(axis=1)
        self._ranks[captions] = mean_ranks(counts)

    def retrieved(self) -> Retrieved:
        """Return the counts of all captions."""
        return Retrieved(self.probabilities.multiples(), self._first, self._ranks)


class FalseRates(TypedDict):
    """Figure 3: clips with similar sums of retrieval probabilities."""

    num_clips: int
    sum: float
    """Mean of their sums."""
    false_negative: float
    """Percentage of their captions that rank another clip first."""
    false_positive: float
    """Percentage of the other captions that rank one of them first, on average over the clips."""


class QueueSize(TypedDict):
    """Figure 5: a number of training queries, and R@1 from text to video with their biases."""

    num_queries: int
    recall: float


class Example(TypedDict):
    """Figure 6: a caption whose first clip the biases change."""

    caption: str
    rank_before: float
    rank: float
    right: "ExampleClip"
    first_before: "ExampleClip"
    """The clip that is first without the biases."""
    first: "ExampleClip"


class ExampleClip(TypedDict):
    """A clip with its sums of retrieval probabilities."""

    video_id: str
    start_seconds: float | None
    end_seconds: float | None
    sum_before: float
    sum: float


def false_rates(retrieved: Retrieved, pairs: Pairs) -> list[FalseRates]:
    """Return the rates of clips with similar sums of retrieval probabilities, lowest sums first.

    The first clip of a caption counts as retrieved. A clip that is not first for its own caption is a false negative;
    one that is first for another caption is a false positive.

    Args:
        retrieved: What the captions retrieved.
        pairs: Captions and clips.

    Source: NCL, Figure 3 and section 3.2.
    """
    num_clips, num_captions = len(pairs.clips), np.bincount(pairs.clip_of_caption, minlength=len(pairs.clips))
    is_right = retrieved.first == pairs.clip_of_caption
    times_missed = np.bincount(pairs.clip_of_caption[~is_right], minlength=num_clips)
    times_wrong = np.bincount(retrieved.first[~is_right], minlength=num_clips)
    asked = np.flatnonzero(num_captions)
    rates: list[FalseRates] = []
    for part in np.array_split(asked[np.argsort(retrieved.sums[asked], kind="stable")], NUM_BINS):
        if len(part):
            others = np.maximum(len(pairs.captions) - num_captions[part], 1)
            rates.append(
                {
                    "num_clips": len(part),
                    "sum": float(retrieved.sums[part].mean()),
                    "false_negative": float(100 * times_missed[part].sum() / num_captions[part].sum()),
                    "false_positive": float(100 * (times_wrong[part] / others).mean()),
                }
            )
    return rates


def queue_sizes(
    scores: np.ndarray, queries: QuerySimilarities, temperature: float, clip_of_caption: np.ndarray
) -> list[QueueSize]:
    """Return R@1 from text to video with the biases of the last training queries, for several numbers of them.

    Args:
        scores: [num_captions, num_clips], without biases.
        queries: The training queries, the newest last.
        temperature: Divides the similarities.
        clip_of_caption: [num_captions], index of each right clip.

    Returns:
        R@1 with no queries, with 64, 256 and so on, and with all; empty if there are too many pairs.

    Source: NCL, Figure 5.
    """
    if scores.size > MAX_PAIRS:
        return []
    sizes = [0]
    while (size := SMALLEST_QUEUE * 4 ** (len(sizes) - 1)) < queries.num_queries:
        sizes.append(size)
    found: list[QueueSize] = []
    for size in (*sizes, queries.num_queries):
        biases = fit_biases(_Last(queries.texts, size), temperature).bias_N if size else np.zeros(scores.shape[1])
        ranks = right_ranks((scores + biases).astype(np.float32), clip_of_caption)
        found.append({"num_queries": size, "recall": float(100 * (ranks < 2).mean())})
    return found


@dataclass(frozen=True)
class _Last:
    """The last ``count`` queries."""

    known: QueryRows
    count: int

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of queries and of candidates."""
        return self.count, self.known.shape[1]

    def __getitem__(self, queries: slice) -> np.ndarray:
        """Return the similarities of some of these queries."""
        first, last, _ = queries.indices(self.count)
        offset = self.known.shape[0] - self.count
        return self.known[offset + first : offset + last]


def examples(before: Retrieved, after: Retrieved, pairs: Pairs) -> list[Example]:
    """Return captions whose right clip is first with the biases only, then some for which it no longer is.

    Of the former, those whose right clip was retrieved least; of the latter, those whose first clip was retrieved most.

    Args:
        before: What the captions retrieved without biases.
        after: The same with biases.
        pairs: Captions and clips.

    Source: NCL, Figure 6.
    """
    right = pairs.clip_of_caption
    was_right, is_right = before.first == right, after.first == right
    gained = np.flatnonzero(~was_right & is_right)
    gained = gained[np.argsort(before.sums[right[gained]], kind="stable")]
    lost = np.flatnonzero(was_right & ~is_right)
    lost = lost[np.argsort(-before.sums[right[lost]], kind="stable")]

    def clip(index: int) -> ExampleClip:
        about = pairs.clips[index]
        return {
            "video_id": about.video_id,
            "start_seconds": about.start_seconds,
            "end_seconds": about.end_seconds,
            "sum_before": float(before.sums[index]),
            "sum": float(after.sums[index]),
        }

    def shown() -> Iterator[Example]:
        for caption in [*gained[:SHOWN_EXAMPLES].tolist(), *lost[:SHOWN_EXAMPLES].tolist()]:
            yield {
                "caption": pairs.captions[caption].caption,
                "rank_before": float(before.ranks[caption]),
                "rank": float(after.ranks[caption]),
                "right": clip(int(right[caption])),
                "first_before": clip(int(before.first[caption])),
                "first": clip(int(after.first[caption])),
            }

    return list(shown())

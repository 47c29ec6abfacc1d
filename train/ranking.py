"""Ranks of right candidates among all, from scores that come in parts: rows for texts, columns for videos."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

CHUNK = 256
"""Number of queries that are compared with all candidates at once."""


class Rivals(NamedTuple):
    """For each query, the number of wrong candidates before the right one, or tied with it. Each array is [Q]."""

    above: np.ndarray
    """Candidates with a higher score."""
    before: np.ndarray
    """Tied candidates with a lower index. For the policy "coot": those that numpy.argsort puts first."""
    behind: np.ndarray
    """All other tied candidates."""

    @property
    def tied(self) -> np.ndarray:
        """Number of tied candidates [Q]."""
        return self.before + self.behind

    @classmethod
    def join(cls, parts: Iterable["Rivals"]) -> "Rivals":
        """Return the rivals of all queries, from those of consecutive ones."""
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))


class Ranking:
    """Counts the rivals of right candidates, in parts.

    From text to video, every text is a query. From video to text, every video that has a text is a query; its right
    candidate is its best text, and its other texts are no rivals.
    """

    def __init__(self, video_of_text: np.ndarray, num_videos: int, ties: str) -> None:
        """Prepare a ranking.

        Args:
            video_of_text: [num_texts], index of the right video of each text.
            num_videos: Number of videos.
            ties: A key of ``metrics.TIES``.
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

    def of_texts(self, first: int, scores: np.ndarray) -> Rivals:
        """Count the rivals of consecutive texts.

        Args:
            first: Index of the first text.
            scores: [R, num_videos], of texts ``first`` to ``first + R - 1`` with all videos.

        Raises:
            ValueError: A score is NaN.
        """
        _check_numbers(scores)
        right = self.video_of_text[first : first + len(scores)]
        own = scores[np.arange(len(scores)), right]
        return count_rivals(lambda rows: scores[rows], own, right, self.ties)

    def of_videos(self, first: int, scores: np.ndarray) -> Rivals:
        """Count the rivals of consecutive videos, those without a text left out.

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
            return count_rivals(lambda rows: of_videos[:, queries[rows]].T, best[queries], first + queries, self.ties)
        is_best = own == best[videos]
        best_text = np.zeros(scores.shape[1], dtype=int)
        best_text[videos[is_best][::-1]] = texts[is_best][::-1]  # of tied texts, the one with the lowest index
        rivals = count_rivals(lambda rows: scores[:, queries[rows]].T, best[queries], best_text[queries], self.ties)
        if self.ties == "ce":
            return rivals
        # A video's other captions are no rivals. None has a higher score than the best; those that tie come behind it.
        tied_captions = np.bincount(videos[is_best], minlength=scores.shape[1])[queries] - 1
        return rivals._replace(behind=rivals.behind - tied_captions)


def _check_numbers(scores: np.ndarray) -> None:
    if scores.size and np.isnan(scores.min()):
        raise ValueError(f"similarity: {int(np.isnan(scores).sum())} values are NaN")


def count_rivals(
    scores_of: Callable[[slice], np.ndarray], right_scores: np.ndarray, right_index: np.ndarray, ties: str
) -> Rivals:
    """Count the candidates that come before the right one, or tie with it.

    Args:
        scores_of: Returns the scores [q, num_candidates] of a slice of the queries.
        right_scores: [Q], score of each query's right candidate.
        right_index: [Q], index of each query's right candidate.
        ties: A key of ``metrics.TIES``; "coot" orders tied candidates in its own way.
    """
    counts = [Rivals(*np.zeros((3, 0), dtype=int))]
    for first in range(0, len(right_scores), CHUNK):
        rows = slice(first, first + CHUNK)
        scores, right, index = scores_of(rows), right_scores[rows, None], right_index[rows, None]
        above, equal = (scores > right).sum(axis=1), scores == right
        if ties == "coot":
            before = np.argmax(np.argsort(scores, axis=1)[:, ::-1] == index, axis=1) - above
        else:
            before = (equal & (np.arange(scores.shape[1]) < index)).sum(axis=1)
        counts.append(Rivals(above, before, equal.sum(axis=1) - before - 1))
    return Rivals.join(counts)


def right_ranks(scores: np.ndarray, right_index: np.ndarray) -> np.ndarray:
    """Return the rank [Q] of each query's right candidate, from 1; a tie counts half.

    Args:
        scores: [Q, num_candidates]
        right_index: [Q]
    """
    own = scores[np.arange(len(right_index)), right_index]
    return mean_ranks(count_rivals(lambda rows: scores[rows], own, right_index, "average"))


def mean_ranks(rivals: Rivals) -> np.ndarray:
    """Return the rank [Q] of each right candidate, from 1; a tie counts half."""
    return 1 + rivals.above + rivals.tied / 2

"""Search: find the moments of a data set that fit a text. ``vlalign-search`` wraps ``open_search``."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...storage.common.errors import SettingError, UserError
from ...storage.dataset.folder import DatasetFolder
from ..data.clips import Clip
from .build import open_index, open_index_codes
from .caption_index import SaidIndex, found_said, open_said
from .codes import AnyScan, CodedIndex
from .encoder import Encoder, unit
from .exact_search import Scan
from .example_queries import Example, VideoPart
from .index import WindowIndex
from .limits import SearchBy, check_by, check_count, check_query
from .moments import Hit, Moment, ScoreCurve, fuse, merge_hits, span_lines
from .open_encoder import open_encoder

CANDIDATES_PER_RESULT, MIN_CANDIDATES = 16, 256
"""Windows that are looked at for each moment: overlapping ones become one."""


class Search:
    """A data set, ready to be searched. Call it with a text."""

    def __init__(
        self, encoder: Encoder, index: WindowIndex, said: SaidIndex | None = None, coded: CodedIndex | None = None
    ) -> None:
        self.encoder, self.index, self.said, self.coded = encoder, index, said, coded
        self._video_ids = frozenset(index.video_ids)

    @property
    def dataset(self) -> DatasetFolder:
        """The data set that is searched."""
        return self.encoder.dataset

    @property
    def name(self) -> str:
        """Name of the features, or of the run."""
        return self.encoder.name

    @property
    def note(self) -> str | None:
        """Sentence to show beside every result, such as that features come from random weights."""
        return self.encoder.note

    @property
    def described(self) -> str:
        """The data set's name, and whose run it is if that is another one's."""
        return self.encoder.described

    @property
    def num_windows(self) -> int:
        """Number of windows that are searched."""
        return self.index.num_windows

    def __call__(
        self,
        query: str = "",
        *,
        like: Example | None = None,
        like_weight: float = 0.5,
        num_results: int = 5,
        rerank: int = 50,
        videos: Collection[str] | None = None,
        by: SearchBy = "both",
    ) -> list[Moment]:
        """Find the moments that fit a text best, the best first.

        Args:
            query: What to look for; may be empty with ``like``.
            like: A part of a video, or a picture, that moments should look like. The part itself is left out.
            like_weight: Share of ``like`` beside a text, 0 to 1: both vectors have length 1 and are added.
            num_results: Number of moments to return.
            rerank: Number of candidates that a run's fusion layers score, for a text alone.
            videos: Ids of the videos to search; None for all.
            by: What a text is compared with: "picture" for what is seen, "words" for captions and subtitles, or "both",
                whose places are fused. With ``like``, only what is seen counts.

        Raises:
            UserError: There is no query, it is too long, ``like`` cannot be read, a number is impossible, or there are
                no captions and only they are asked for.
        """
        if like is None or query.strip():
            check_query(query)
        check_count("num_results", num_results)
        check_count("rerank", rerank)
        if not 0 <= like_weight <= 1:
            raise SettingError("like_weight", like_weight, "expected 0 to 1")
        check_by(by)
        if like is None:
            return self._by_text(query, num_results, rerank, videos, by)
        if by == "words":
            raise SettingError("by", by, "an example has no words; leave it out, or pass a text alone")
        query_D = self._vector_like(like)
        if query.strip():
            text_D = self.encoder.text_vector(query)
            query_D = like_weight * unit(query_D) + (1 - like_weight) * unit(text_D)
        hits = self._hits(self._scan(query_D), num_results, videos)
        if isinstance(like, VideoPart):
            start, end = self._span(like)
            hits = [h for h in hits if h.video_id != like.video_id or h.start_seconds >= end or h.end_seconds <= start]
        return self._moments(hits, query_D, num_results)

    def like(
        self, video_id: str, start_seconds: float | None = None, end_seconds: float | None = None, **options: Any
    ) -> list[Moment]:
        """Find moments that look like a part of a video.

        Args:
            video_id: The video.
            start_seconds: Where the part begins; None for the start of the video.
            end_seconds: Where it ends; None for the end of the video.
            options: Those of ``__call__``, such as ``num_results``.

        Raises:
            UserError: The video has no features, or the part is empty or outside of the video.
        """
        return self(like=VideoPart(video_id, start_seconds, end_seconds), **options)

    def score_curve(self, query: str, video_id: str) -> ScoreCurve:
        """Return how well a text fits a video over its time.

        Raises:
            UserError: The query is empty, or the video has no features.
        """
        self._check_asked(query, video_id)
        return self._curve(self.encoder.text_vector(query), video_id)

    def word_curves(self, query: str, video_id: str) -> dict[str, ScoreCurve]:
        """Return how well each word of a text fits a video over its time; nothing if the run has no such scores.

        Words that the run does not know are left out. Compare scores of one word with each other only.

        Args:
            query: What to look for.
            video_id: A video of the data set.

        Raises:
            UserError: The query is empty, or the video has no features.
        """
        self._check_asked(query, video_id)
        return self.encoder.word_curves(query, video_id)

    def lines(self, moments: Sequence[Moment]) -> list[str]:
        """Return a table of moments for the terminal."""
        return list(span_lines(moments))

    def remarks(self, query: str, by: SearchBy = "both") -> list[str]:
        """Return what should be said about a text: words that the model does not know, or what was not searched."""
        if by == "words":
            return []
        if self.said is not None and not self.encoder.reads_texts:
            return ["only captions were searched: the model of these features reads no texts"]
        remarks = self.encoder.remarks(query)
        if by == "both" and self.said is None:
            remarks.append("there are no captions or subtitles; only what is seen was searched")
        return remarks

    def _span(self, part: VideoPart) -> tuple[float, float]:
        """Return start and end of a part of a video, in seconds."""
        self._check_video(part.video_id)
        duration = self.encoder.duration_seconds(part.video_id)
        start, end = part.start_seconds or 0.0, duration if part.end_seconds is None else part.end_seconds
        if not 0 <= start < min(end, duration):
            raise UserError(
                f"{part.video_id}@{start:g}-{end:g}: no part of this video, which has {duration:.2f} s; "
                "expected 0 <= start < end"
            )
        return start, end

    def _vector_like(self, like: Example) -> np.ndarray:
        """Return the vector of a part of a video, or of a picture."""
        if isinstance(like, Path):
            return self.encoder.picture_vector(like)
        start, end = self._span(like)
        whole = start == 0 and end >= self.encoder.duration_seconds(like.video_id)
        clip = Clip(like.video_id, None, None) if whole else Clip(like.video_id, start, end)
        vector = self.encoder.clip_vectors([clip])[0]
        if not np.isfinite(vector).all():
            raise UserError(f"{like.video_id}@{start:g}-{end:g}: this part has no feature rows; pass another part")
        return vector

    def _by_text(
        self, query: str, num_results: int, rerank: int, videos: Collection[str] | None, by: SearchBy
    ) -> list[Moment]:
        """Return the best moments for a text: by what is seen, by what is said, or by both."""
        said = None if by == "picture" else self.said
        if by == "words" and said is None:
            problem = f"{self.dataset.name} has no captions; run vlalign-preprocess with captions or subtitles"
            raise SettingError("by", by, problem)
        if by == "words" or (said is not None and not self.encoder.reads_texts):
            assert said is not None
            return found_said(said.find(query, num_results, self._searched(videos)), self.encoder, query)[:num_results]
        query_D = self.encoder.text_vector(query)
        scan = self._scan(query_D)
        # Of each list twice as many, so that what is low in both can be high in their fusion.
        num_seen = num_results if said is None else 2 * num_results
        hits = self._hits(scan, num_seen, videos)
        seen = self._moments(self._scored(query, hits, max(rerank, num_results)), query_D, num_seen)
        if said is None:
            return seen
        captions = said.find(query, 2 * num_results, self._searched(videos))
        return fuse(seen, found_said(captions, self.encoder, query, self._curve, scan), num_results)

    def _searched(self, videos: Collection[str] | None) -> Collection[str]:
        return self._video_ids if videos is None else self._video_ids & frozenset(videos)

    def _scan(self, query_D: np.ndarray) -> AnyScan:
        return Scan(self.index, query_D) if self.coded is None else self.coded.scan(query_D)

    def _hits(self, scan: AnyScan, num_results: int, videos: Collection[str] | None) -> list[Hit]:
        """Return the best windows, the best first."""
        rows, scores = scan.best(max(CANDIDATES_PER_RESULT * num_results, MIN_CANDIDATES), videos)
        below = scan.percent_below(scores).tolist()
        spans = self.index.spans_of(rows).tolist()
        return [
            Hit(self.index.video_ids[self.index.video[row]], start, end, score, under)
            for row, (start, end), score, under in zip(rows.tolist(), spans, scores.tolist(), below, strict=True)
            if math.isfinite(score)  # a window without rows has no vector
        ]

    def _scored(self, query: str, hits: list[Hit], rerank: int) -> list[Hit]:
        """Return hits in the order of all stages."""
        clips = [self._clip(hit) for hit in hits]
        scores = self.encoder.score(query, clips, rerank) if clips else None
        if scores is None:
            return hits
        order = np.argsort(-scores.total, kind="stable").tolist()
        return [
            replace(
                hits[i],
                score=float(scores.total[i]),
                stages={stage: float(values[i]) for stage, values in scores.stages.items()},
            )
            for i in order
        ]

    def _clip(self, hit: Hit) -> Clip:
        duration = self.encoder.duration_seconds(hit.video_id)
        if hit.start_seconds == 0 and hit.end_seconds >= duration:
            return Clip(hit.video_id, None, None)
        return Clip(hit.video_id, hit.start_seconds, hit.end_seconds)

    def _moments(self, hits: list[Hit], query_D: np.ndarray, num_results: int) -> list[Moment]:
        return merge_hits(hits, num_results, lambda video_id: self._curve(query_D, video_id))

    def _curve(self, query_D: np.ndarray, video_id: str) -> ScoreCurve:
        """Return the encoder's own curve, else the scores of the video's shortest windows."""
        curve = self.encoder.curve(query_D, video_id)
        if curve is not None:
            return curve
        rows = self.index.rows_of(video_id)
        spans = self.index.spans_of(rows)
        lengths = (spans[:, 1] - spans[:, 0]).round(3)
        shortest = np.flatnonzero(lengths == lengths.min(initial=np.inf))
        shortest = shortest[np.argsort(spans[shortest, 0], kind="stable")]
        scores = self.index.vectors_of(rows[shortest]) @ query_D
        return ScoreCurve(spans[shortest, 0], spans[shortest, 1], scores)

    def _check_asked(self, query: str, video_id: str) -> None:
        check_query(query)
        self._check_video(video_id)

    def _check_video(self, video_id: str) -> None:
        if not len(self.index.rows_of(video_id)):
            raise UserError(f"video {video_id!r}: not in the index of {self.dataset.name}; expected one of its ids")


def open_search(
    folder: Path | str | None = None,
    *,
    features: str | None = None,
    run: Path | str | None = None,
    weights: Path | str | None = None,
    root: Path | str = "vlalign_data",
    device: str = "auto",
) -> Search:
    """Open a data set for search, without training (``features``) or with a trained ``run``.

    Args:
        folder: The data set's folder, ``<root>/<dataset>``. None: that of the run.
        features: Name of a store whose model also reads texts, such as "clip_vit_b32".
        run: Folder of a run, or its name; its features are searched.
        weights: With ``features``: file or folder of the weights that made the store. None: where the extraction found
            them.
        root: Where a run is looked up if ``folder`` is None.
        device: What a run computes on; see ``find_device``.

    Raises:
        UserError: Neither or both of ``features`` and ``run`` are given, one cannot be used, or the index is missing
            and too large to be made now.
    """
    encoder = open_encoder(folder, features=features, run=run, weights=weights, root=root, device=device)
    index = open_index(encoder)
    return Search(encoder, index, open_said(encoder.dataset), open_index_codes(encoder, index))

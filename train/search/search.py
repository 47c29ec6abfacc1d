"""Search: find the moments of a data set that fit a text, a part of a video, or an image.

A query goes from top to bottom: it is checked (``query_checks``), becomes a vector (``Search.encode_query``), is
compared with the vectors of the search windows (``exact_search``, or ``coded_search`` among millions), the best windows
are scored with all stages (``SearchEncoder.score``) and merged into moments (``moments``), and a text also finds
captions (``caption_index``). ``caption_scores`` tell whether anything fits. ``window_encoding`` and ``build`` make the
index that is searched. ``vlalign-search`` wraps ``open_search``.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from ...storage.common.errors import SettingError, UserError
from ...storage.common.plugins import trusted_modules
from ...storage.stores.opening import StoreSource
from ..data.clips import Clip
from .caption_index import CaptionIndex, caption_moments, open_caption_index
from .caption_scores import MAX_WINDOWS_BY_SEARCH as MAX_WINDOWS_OF_SCORES
from .caption_scores import CaptionScores, open_caption_scores
from .coded_search import CandidateSearch, CodedIndex
from .encoder import SearchEncoder, l2_normalize
from .exact_search import ExactSearch
from .index import IndexFolder, WindowIndex
from .moments import Hit, Moment, ScoreCurve, fuse_rankings, merge_hits
from .query_checks import RERANK, ExampleQuery, SearchBy, VideoSpan, check_by, check_count, check_query
from .search_source import SearchSource
from .window_biases import MAX_WINDOWS_BY_SEARCH, WindowBiases, open_window_biases
from .window_encoding import open_coded_index, open_index

HITS_AT_ONCE = 256
"""Windows that are looked at together: overlapping ones become one moment. The next windows come behind these, so that
the first moments do not depend on how many are asked for."""
ONLY_STOP_WORDS = "no captions were searched: the text has only stop words, such as 'the'; add what is said or seen"


class Search:
    """A data set, ready to be searched. Call it with a text."""

    def __init__(
        self,
        encoder: SearchEncoder,
        index: WindowIndex,
        caption_index: CaptionIndex | None = None,
        coded_index: CodedIndex | None = None,
        biases: WindowBiases | None = None,
    ) -> None:
        self.encoder, self.index = encoder, index
        self.caption_index, self.coded_index = caption_index, coded_index
        self.biases = biases
        """NCL's biases, which are added to the scores of a text; not to those of an example, which is no text."""
        self.caption_scores: CaptionScores | None = None
        """How well held-out captions fit their best moments; None if that is not known (``judge``)."""
        self._video_ids = frozenset(index.video_ids)

    @classmethod
    def open(cls, source: SearchSource) -> "Search":
        """Open the encoder and the indexes of a source."""
        encoder = source.open_encoder()
        folder = IndexFolder.of(encoder)
        index = open_index(folder)
        biases = open_window_biases(folder, index, MAX_WINDOWS_BY_SEARCH)
        captions, coded = open_caption_index(encoder.dataset), open_coded_index(folder, index)
        return cls(encoder, index, captions, coded, biases).judge(folder, MAX_WINDOWS_OF_SCORES)

    def __call__(
        self,
        query: str = "",
        *,
        like: ExampleQuery | None = None,
        like_weight: float = 0.5,
        num_results: int = 5,
        rerank: int = RERANK,
        videos: Collection[str] | None = None,
        by: SearchBy = "both",
    ) -> list[Moment]:
        """Find the moments that fit a text best, the best first.

        Args:
            query: What to look for; may be empty with ``like``.
            like: A part of a video, or an image, that moments should look like. The part itself is not returned.
            like_weight: Share of ``like`` beside a text, 0 to 1: both vectors have length 1 and are added.
            num_results: Number of moments to return.
            rerank: Number of candidates that a run's fusion layers score, for a text alone.
            videos: Ids of the videos to search; None for all.
            by: What a text is compared with: "video" for vectors of the videos, "text" for captions and subtitles, or
                "both", whose rankings are fused. With ``like``, only the videos count.

        Raises:
            UserError: There is no query, it is too long, ``like`` cannot be read, a number is impossible, or there are
                no captions and only they are to be searched.
        """
        if like is None or query.strip():
            check_query(query)
        check_count("num_results", num_results)
        check_count("rerank", rerank)
        if not 0 <= like_weight <= 1:
            raise SettingError("like_weight", like_weight, "expected 0 to 1")
        check_by(by)
        if like is None:
            return [self._judged(moment) for moment in self._find_text(query, num_results, rerank, videos, by)]
        if by == "text":
            raise SettingError("by", by, "an example (like) has no text to search by; omit by, or omit like")
        query_D = self.encode_query(query, like, like_weight)
        hits = chain.from_iterable(self._hits(self._find_candidates(query_D, None), HITS_AT_ONCE, videos))
        if isinstance(like, VideoSpan):
            start, end = self._span(like)
            hits = (h for h in hits if h.video_id != like.video_id or h.start_seconds >= end or h.end_seconds <= start)
        return list(islice(merge_hits(hits, lambda video_id: self._curve(query_D, video_id)), num_results))

    def judge(self, folder: IndexFolder, max_windows: int | None = None) -> "Search":
        """Learn from held-out captions which scores say that nothing fits; return this search.

        Args:
            folder: Of the index that is searched.
            max_windows: Search for captions only among up to so many windows; None: among any number.
        """
        is_normalised = self.biases is not None
        self.caption_scores = open_caption_scores(
            folder, self.index, self.best_score, is_normalised=is_normalised, max_windows=max_windows
        )
        return self

    def best_score(self, query: str) -> float | None:
        """Return the score of the best moment of the videos for a text; None if no window has a vector."""
        candidates = self._find_candidates(self.encode_query(query), self.biases)
        hits = next(self._hits(candidates, HITS_AT_ONCE, None), [])
        return max((hit.score for hit in self._rescored(query, hits, RERANK)), default=None)

    def why_nothing_fits(self, query: str, moments: Sequence[Moment]) -> str | None:
        """Return why none of the moments that a text found fits it; None if one fits, or if that is not known.

        A moment fits if words of a caption found it, or if it scores as high as the best moments for captions of these
        videos do: as all but the lowest 5 % of them (``caption_scores.py``).

        Args:
            query: The text.
            moments: What the search for it returned.
        """
        if any(moment.found_by != "video" for moment in moments):
            return None
        if not moments:
            return "no video has a vector, and no caption has these words"
        if not self.encoder.knows(query):
            return "no word of the text is known to the model"
        known, best = self.caption_scores, max(moment.score for moment in moments)
        if known is None or known.fits(best):
            return None
        share = 100 - known.percent_below(best)
        return f"{share:.0f} % of {len(known.scores):,} captions of these videos, which were held out, fit better"

    def _judged(self, moment: Moment) -> Moment:
        """Return a moment with the percent of held-out captions that fit less well."""
        if self.caption_scores is None or moment.percentile is None:
            return moment
        return replace(moment, percent_of_captions=self.caption_scores.percent_below(moment.score))

    def encode_query(self, query: str, like: ExampleQuery | None = None, like_weight: float = 0.5) -> np.ndarray:
        """Return the vector of a query, float32 [D]: of a text, of an example, or of both together.

        Args:
            query: A text; may be empty with ``like``.
            like: A part of a video, or an image.
            like_weight: Share of ``like`` beside a text, 0 to 1.
        """
        if like is None:
            return self.encoder.encode_text(query)
        example_D = self.encoder.encode_image(like) if isinstance(like, Path) else self._encode_span(like)
        if not query.strip():
            return example_D
        return like_weight * l2_normalize(example_D) + (1 - like_weight) * l2_normalize(self.encoder.encode_text(query))

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
        return self(like=VideoSpan(video_id, start_seconds, end_seconds), **options)

    def score_curve(self, query: str, video_id: str) -> ScoreCurve:
        """Return how well a text fits a video over its time.

        Raises:
            UserError: The query is empty, or the video has no features.
        """
        check_query(query)
        self._check_video(video_id)
        return self._text_curve(self.encode_query(query), video_id)

    def word_curves(self, query: str, video_id: str) -> dict[str, ScoreCurve]:
        """Return how well each word of a text fits a video over its time; nothing if the run has no such scores.

        Words that the run does not know are skipped. Compare scores of one word with each other only.

        Args:
            query: What to look for.
            video_id: A video of the data set.

        Raises:
            UserError: The query is empty, or the video has no features.
        """
        check_query(query)
        self._check_video(video_id)
        return self.encoder.word_curves(query, video_id)

    def warnings(self, query: str, by: SearchBy = "both") -> list[str]:
        """Return what was not searched, and which words of a text the model does not know: a sentence each."""
        captions = None if by == "video" else self.caption_index
        only_stop_words = [ONLY_STOP_WORDS] if captions is not None and not captions.has_content_words(query) else []
        if by == "text":
            return only_stop_words
        if self.caption_index is not None and not self.encoder.reads_texts:
            return ["only captions were searched: the model of these features reads no texts", *only_stop_words]
        warnings = [*only_stop_words, *self.encoder.warnings(query)]
        if self.biases is not None:
            count = len(self.biases.log_weights_K)
            warnings.append(f"scores are normalised by ncl: with the windows' biases of {count:,} training texts")
        if by == "both" and self.caption_index is None:
            warnings.append("there are no captions or subtitles; only the videos were searched")
        return warnings

    def _find_text(
        self, query: str, num_results: int, rerank: int, videos: Collection[str] | None, by: SearchBy
    ) -> list[Moment]:
        """Return the best moments for a text: by the videos, by captions, or by both."""
        captions = None if by == "video" else self.caption_index
        if by == "text" and captions is None:
            problem = f"{self.encoder.dataset.name} has no captions; run vlalign-preprocess with captions or subtitles"
            raise SettingError("by", by, problem)
        searched = self._video_ids if videos is None else self._video_ids & frozenset(videos)
        if captions is not None and (by == "text" or not self.encoder.reads_texts):
            return list(islice(caption_moments(captions.matches(query, searched), self.encoder, query), num_results))
        query_D = self.encode_query(query)
        candidates = self._find_candidates(query_D, self.biases)
        blocks = self._hits(candidates, max(HITS_AT_ONCE, rerank), videos)
        hits = chain.from_iterable(self._rescored(query, block, rerank) for block in blocks)
        by_video = merge_hits(hits, lambda video_id: self._text_curve(query_D, video_id))
        if captions is None:
            return list(islice(by_video, num_results))
        matches = captions.matches(query, searched)
        by_text = caption_moments(matches, self.encoder, query, self._text_curve, candidates)
        return list(islice(fuse_rankings(by_video, by_text), num_results))

    def _find_candidates(self, query_D: np.ndarray, biases: WindowBiases | None) -> CandidateSearch:
        if self.coded_index is None:
            return ExactSearch(self.index, query_D, biases)
        return self.coded_index.search(query_D)  # there are too many windows for biases

    def _hits(
        self, candidates: CandidateSearch, hits_at_once: int, videos: Collection[str] | None
    ) -> Iterator[list[Hit]]:
        """Yield blocks of windows, the best first."""
        seen = np.zeros(0, np.int64)
        while True:
            rows, scores = candidates.best(len(seen) + hits_at_once, videos)
            is_new = ~np.isin(rows, seen) & np.isfinite(scores)  # a window without rows has no vector
            rows, scores = rows[is_new], scores[is_new]
            if not len(rows):
                return
            seen = np.concatenate([seen, rows])
            percentiles = candidates.percentiles(scores).tolist()
            spans = self.index.spans_of(rows).tolist()
            biases = (np.zeros(len(rows)) if candidates.biases is None else candidates.biases.bias_W[rows]).tolist()
            yield [
                Hit(self.index.video_ids[self.index.video[row]], start, end, score, percentile, bias=bias)
                for row, (start, end), score, percentile, bias in zip(
                    rows.tolist(), spans, scores.tolist(), percentiles, biases, strict=True
                )
            ]

    def _rescored(self, query: str, hits: list[Hit], rerank: int) -> list[Hit]:
        """Return hits, re-ranked by the weighted sum of all stages; unchanged if the encoder has no stages."""
        clips = [self._clip(hit) for hit in hits]
        scores = self.encoder.score(query, clips, rerank) if clips else None
        if scores is None:
            return hits
        total = scores.total + np.array([hit.bias for hit in hits])
        order = np.argsort(-total, kind="stable").tolist()
        return [
            replace(
                hits[i],
                score=float(total[i]),
                stages={stage: float(values[i]) for stage, values in scores.stages.items()},
            )
            for i in order
        ]

    def _clip(self, hit: Hit) -> Clip:
        duration = self.encoder.duration_seconds(hit.video_id)
        if hit.start_seconds == 0 and hit.end_seconds >= duration:
            return Clip(hit.video_id, None, None)
        return Clip(hit.video_id, hit.start_seconds, hit.end_seconds)

    def _text_curve(self, query_D: np.ndarray, video_id: str) -> ScoreCurve:
        """Return the curve of a text: with the windows' biases."""
        return self._curve(query_D, video_id, self.biases)

    def _curve(self, query_D: np.ndarray, video_id: str, biases: WindowBiases | None = None) -> ScoreCurve:
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
        if biases is not None:
            scores = (scores + biases.bias_W[rows[shortest]]).astype(np.float32)
        return ScoreCurve(spans[shortest, 0], spans[shortest, 1], scores)

    def _encode_span(self, like: VideoSpan) -> np.ndarray:
        """Return the vector of a part of a video."""
        start, end = self._span(like)
        whole = start == 0 and end >= self.encoder.duration_seconds(like.video_id)
        clip = Clip(like.video_id, None, None) if whole else Clip(like.video_id, start, end)
        vector = self.encoder.encode_clips([clip])[0]
        if not np.isfinite(vector).all():
            raise UserError(f"{like.video_id}@{start:g}-{end:g}: this part has no feature rows; pass another part")
        return vector

    def _span(self, like: VideoSpan) -> tuple[float, float]:
        """Return start and end of a part of a video, in seconds."""
        self._check_video(like.video_id)
        duration = self.encoder.duration_seconds(like.video_id)
        start, end = like.start_seconds or 0.0, duration if like.end_seconds is None else like.end_seconds
        if not 0 <= start < min(end, duration):
            raise UserError(
                f"{like.video_id}@{start:g}-{end:g}: empty, or outside the video of {duration:.2f} s; "
                "expected 0 <= start < end, and start before the end of the video"
            )
        return start, end

    def _check_video(self, video_id: str) -> None:
        if not len(self.index.rows_of(video_id)):
            name = self.encoder.dataset.name
            raise UserError(f"video {video_id!r}: not in the index of {name}; expected one of its ids")


def open_search(
    dataset: Path | str | None = None,
    *,
    features: str | None = None,
    run: Path | str | None = None,
    weights: Path | str | None = None,
    device: str = "auto",
    stores: StoreSource | None = None,
    trust: Collection[str] = (),
    normalize: str | None = None,
) -> Search:
    """Open a data set for search, without training (``features``) or with a trained ``run``.

    Args:
        dataset: The data set's folder, ``<root>/<data set>``. None: that of the run.
        features: Name of a store whose model also reads texts, such as "clip_vit_b32".
        run: Folder of a run, or its name in ``dataset`` or in a data set beside it; its features are searched.
        weights: With ``features``: file or folder of the weights that made the store. None: where the extraction found
            them.
        device: What a run computes on; see ``find_device``.
        stores: Stores of one's own with the data set's features, as for ``train``.
        trust: Modules of your own that may be imported if the run names them.
        normalize: "ncl" or "none": with or without NCL's biases of the windows. None: with them for a run of NCL.

    Raises:
        UserError: Neither or both of ``features`` and ``run`` are given, one cannot be used, or the index is missing
            and too large to be made now.
    """
    return Search.open(SearchSource(dataset, features, run, weights, device, stores, trusted_modules(trust), normalize))

"""Search: find the moments of a data set that fit a text, a part of a video, or an image.

A query goes from top to bottom: it is checked (``query_checks``), becomes a vector (``Search.encode_query``), is
compared with the vectors of the search windows (``exact_search``, or ``coded_search`` among millions), the best windows
are scored with all stages (``SearchEncoder.score``) and merged into moments (``moments``), and a text also finds
captions (``caption_index``). ``caption_scores`` tell whether anything fits. ``window_encoding`` and ``build`` make the
index that is searched. ``vlalign-search`` wraps ``open_search``.
"""

import unicodedata
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ...storage.common.errors import SettingError, UserError
from ...storage.common.plugins import trusted_modules
from ...storage.common.terminal import say
from ...storage.stores.opening import StoreSource
from ..data.clips import Clip
from .caption_index import (
    MIN_SCORE_SHARE,
    NO_CURVE,
    NO_SPANS,
    CaptionIndex,
    CaptionMatch,
    CaptionSpans,
    caption_moments,
    open_caption_index,
)
from .caption_scores import MAX_WINDOWS_BY_SEARCH as MAX_WINDOWS_OF_SCORES
from .caption_scores import CaptionScores, open_caption_scores
from .caption_terms import has_words
from .coded_search import CandidateSearch, CodedIndex
from .encoder import ClipScores, SearchEncoder, l2_normalize
from .exact_search import ExactSearch
from .grouping import fold_similar, one_of_each_video
from .index import IndexFolder, WindowIndex
from .listings import Listings
from .moments import Hit, Moment, ScoreCurve, fuse_rankings, merge_hits, share_time
from .query_checks import (
    NUM_RESULTS,
    RERANK,
    ExampleQuery,
    SearchBy,
    SearchGroup,
    UnknownVideo,
    VideoSpan,
    check_by,
    check_count,
    check_group,
    check_offset,
    check_query,
    check_text,
    check_time,
)
from .search_source import SearchSource
from .window_biases import MAX_WINDOWS_BY_SEARCH, WindowBiases, open_window_biases
from .window_encoding import open_coded_index, open_index

T = TypeVar("T")
HITS_AT_ONCE = 256
"""Number of windows that are merged together: overlapping ones become one moment. Later windows are ranked after these:
the first moments do not depend on the number of results.
"""
WITHOUT_WEIGHT = 0.75
"""Share of the score of ``without`` that is subtracted from the query's score (``tests/benchmarks/README.md``)."""
MAX_OCCURRENCES = 20
"""Maximum number of moments of each video in a search that is grouped by video."""
MAX_ALL = 1000
"""Maximum number of moments or videos if all are requested and there is no threshold for scores."""
NO_CAPTION_WORDS = "captions were not searched: the text has {}; add words that captions may have"


@dataclass(frozen=True, kw_only=True)
class _Request:
    """One call of a search; the fields are the arguments of ``Search.__call__``."""

    query: str = ""
    like: ExampleQuery | Sequence[ExampleQuery] | None = None
    like_weight: float = 0.5
    without: str = ""
    num_results: int | None = NUM_RESULTS
    offset: int = 0
    rerank: int = RERANK
    videos: Collection[str] | None = None
    by: SearchBy = "both"
    group: SearchGroup | None = None
    fold: bool = False

    @property
    def examples(self) -> tuple[ExampleQuery, ...]:
        """The examples of ``like``."""
        return _examples_of(self.like)

    @property
    def listing(self) -> Hashable:
        """Key of the whole list of moments: the request without ``offset`` and ``num_results``."""
        shown = tuple(_content_of(each) for each in self.examples)
        chosen = None if self.videos is None else frozenset(self.videos)
        return self.query, shown, self.like_weight, self.without, self.rerank, chosen, self.by, self.group, self.fold

    def check(self) -> None:
        """Raise ``UserError`` for invalid requests."""
        if self.without.strip() and not self.examples and not self.query.strip():
            raise SettingError("without", self.without, "needs a text or an example (like)")
        if not self.examples or self.query.strip():
            check_query(self.query)
        check_text("without", self.without)
        if self.num_results is not None:
            check_count("num_results", self.num_results)
        check_offset("offset", self.offset)
        check_count("rerank", self.rerank)
        if not 0 <= self.like_weight <= 1:
            raise SettingError("like_weight", self.like_weight, "expected 0 to 1")
        check_by(self.by)
        check_group(self.group)
        if self.examples and self.by == "text":
            problem = "an example (like) has no text to compare; omit by, or omit like"
            raise SettingError("by", self.by, problem)


@dataclass(frozen=True)
class _Query:
    """A query that was checked, and the scores of its vector."""

    text: str
    without: str
    by: SearchBy
    rerank: int
    examples: tuple[ExampleQuery, ...]
    candidates: CandidateSearch | None
    """None if only captions are searched."""
    excluded: CaptionSpans = NO_SPANS
    """Parts of videos whose captions have a word of ``without``."""
    videos: Collection[str] | None = None
    """Ids of the videos to search; None for all."""
    min_caption_score: float | None = None
    """For a grouped search: lowest score of a caption that fits; None if no caption fits."""
    only_fitting: bool = False
    """True to leave out windows that score too low to fit (``CaptionScores.fits``), if that is known."""

    @property
    def has_known_scale(self) -> bool:
        """True if scores can be compared with captions' scores: for a text alone, without examples or ``without``."""
        return self.candidates is not None and not self.examples and not self.without


class Search:
    """A data set, ready to be searched. Call it with a text.

    Example:
        >>> from vlalign.train import open_search
        >>> search = open_search("vlalign_data/demo", run="words-s3d-seed0", device="cpu")
        >>> len(search("cut the onion", num_results=3))
        3
        >>> {moment.video_id for moment in search("cut the onion", videos=["demo0000"])}
        {'demo0000'}
        >>> len(search.score_curve("cut the onion", "demo0000").scores) > 0
        True
    """

    def __init__(
        self,
        encoder: SearchEncoder,
        index: WindowIndex,
        caption_index: CaptionIndex | None = None,
        coded_index: CodedIndex | None = None,
        biases: WindowBiases | None = None,
    ) -> None:
        """Store the parts of a search; ``open`` and ``open_search`` open them.

        Args:
            encoder: Turns queries and clips into vectors.
            index: The windows of all videos.
            caption_index: The captions and subtitles; None: only videos are searched.
            coded_index: Codes of the windows, where there are too many to compare all; None: all are compared.
            biases: NCL's biases of the windows; None: none are added.
        """
        self.encoder, self.index = encoder, index
        self.caption_index, self.coded_index = caption_index, coded_index
        self.biases = biases
        """NCL's biases, which are added to the scores of a text, but not of an example."""
        self.caption_scores: CaptionScores | None = None
        """How well held-out captions fit their best moments; None if that is not known (``judge``)."""
        self.why_not_judged = ""
        """Why ``caption_scores`` is None, set by ``judge``."""
        self._video_ids = frozenset(index.video_ids)
        """Ids of the indexed videos, without videos that the store lost meanwhile."""
        self._listings: Listings[_Query] = Listings()
        """The latest searches, kept open since their next moments may be requested."""

    @classmethod
    def open(cls, source: SearchSource) -> "Search":
        """Open the encoder and the indexes of a source.

        Args:
            source: The data set and the model.

        Raises:
            UserError: As for ``open_search``.
        """
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
        like: ExampleQuery | Sequence[ExampleQuery] | None = None,
        like_weight: float = 0.5,
        without: str = "",
        num_results: int | None = NUM_RESULTS,
        offset: int = 0,
        rerank: int = RERANK,
        videos: Collection[str] | None = None,
        by: SearchBy = "both",
        group: SearchGroup | None = None,
        fold: bool = False,
    ) -> list[Moment]:
        """Find the moments that fit a text best, the best first.

        Args:
            query: What to look for; may be empty with ``like``.
            like: A part of a video or an image that moments should look like; the vectors of several are averaged.
                The parts themselves are not returned.
            like_weight: Share of ``like`` beside a text, 0 to 1: both vectors have length 1 and are added.
            without: A text about things that moments should not show, beside ``query`` or ``like``: its score times
                ``WITHOUT_WEIGHT`` is subtracted, and captions with one of its words find no moments, nor raise the
                rank of moments that overlap them.
            num_results: Number of moments to return; None for all that fit. If none fits, the nearest ``NUM_RESULTS``
                are returned; if it is not known which fit, the best ``MAX_ALL``, with a note.
            offset: Number of best moments to skip.
            rerank: Number of candidates that a run's fusion layers score, for a text alone.
            videos: Ids of the videos to search; None for all.
            by: What a text is compared with: "video" for vectors of the videos, "text" for captions and subtitles, or
                "both", whose rankings are fused. With ``like``, only the videos count.
            group: "video" for the best moment of each video, with up to ``MAX_OCCURRENCES`` moments of it that fit
                (``Moment.occurrences``); ``num_results`` and ``offset`` count videos then.
            fold: Return moments that look nearly the same as a better moment of another video only as a part of that
                moment (``Moment.similar``).

        Raises:
            UserError: There is no query, it is too long, ``like`` cannot be read, a number is impossible, or there are
                no captions and only they are to be searched.
        """
        request = _Request(
            query=query,
            like=like,
            like_weight=like_weight,
            without=without,
            num_results=num_results,
            offset=offset,
            rerank=rerank,
            videos=videos,
            by=by,
            group=group,
            fold=fold,
        )
        return self._find(request)[0]

    def part(self, query: str = "", *, num_results: int = NUM_RESULTS, **options: Any) -> tuple[list[Moment], bool]:
        """Return the moments of a call, and whether more follow.

        Args:
            query: What to look for.
            num_results: Number of moments to return.
            options: Other arguments of ``__call__``, such as ``offset``.

        Raises:
            UserError: As for ``__call__``.
        """
        return self._find(_Request(query=query, num_results=num_results, **options), num_behind=1)

    def _find(self, request: _Request, num_behind: int = 0) -> tuple[list[Moment], bool]:
        """Return the requested moments, and whether there are more; for that, ``num_behind`` more are computed."""
        request.check()

        def find() -> tuple[list[Moment], bool]:
            count = request.num_results
            if count is None:
                asked = self._prepare(request)
                found, later = self._all_that_fit(asked, request), []
            else:
                asked, both = self._listings.part(
                    request.listing,
                    lambda: self._prepare(request),
                    lambda asked: self._listed(asked, request),
                    request.offset,
                    count + num_behind,
                )
                found, later = both[:count], both[count:]
            for moment in found:
                for shown in (moment, *moment.similar):  # raises KeyError for a kept moment of a lost video
                    self.encoder.duration_seconds(shown.video_id)
            if request.group is not None:
                found = self._with_occurrences(asked, found)
            return [self._judged(moment) for moment in found] if asked.has_known_scale else found, bool(later)

        return self._without_pruned(find)

    def _without_pruned(self, find: Callable[[], T]) -> T:
        """Return a function's result; call it again if the store lost videos since this search was opened."""
        try:
            return find()
        except KeyError:
            there = self._video_ids & frozenset(self.encoder.video_ids())
            if there == self._video_ids:
                raise
            self._video_ids = there
            self._listings.close()
            return find()

    def _listed(self, asked: _Query, request: _Request) -> Iterator[Moment]:
        """Yield moments as they are shown: each video once, or without near-duplicates, if requested."""
        moments = self._ranked(asked)
        if request.group is not None:
            moments = one_of_each_video(moments, self._most_videos(asked))
        return fold_similar(moments, self._vector_of) if request.fold else moments

    def _most_videos(self, asked: _Query) -> int:
        """Return the number of videos that can be found at most."""
        searched = self._video_ids if asked.videos is None else self._video_ids & frozenset(asked.videos)
        if asked.by == "video" or self.caption_index is None:
            searched = searched - frozenset(self.index.state.missing)
        return len(searched)

    def _all_that_fit(self, asked: _Query, request: _Request) -> list[Moment]:
        """Return all moments that fit, after an offset; the nearest moments if none fits."""
        is_known = asked.candidates is None or (self.caption_scores is not None and asked.has_known_scale)
        moments, offset = self._listed(replace(asked, only_fitting=is_known), request), request.offset
        found = list(islice(moments, offset, None if is_known else offset + MAX_ALL))
        if not is_known and next(moments, None) is not None:
            say(f"note: no score limit for a match is known; only the best {MAX_ALL:,} moments are shown")
        if found or offset:
            return found
        return list(islice(self._listed(asked, request), NUM_RESULTS))

    def judge(self, folder: IndexFolder, max_windows: int | None = None) -> "Search":
        """Set, by held-out captions, the scores below which nothing fits; return this search.

        Args:
            folder: Folder of the index that is searched.
            max_windows: Maximum number of windows for which held-out captions are searched for; None: no limit.
        """
        is_normalised = self.biases is not None
        found = open_caption_scores(
            folder, self.index, self.best_score, is_normalised=is_normalised, max_windows=max_windows
        )
        self.caption_scores, self.why_not_judged = (None, found) if isinstance(found, str) else (found, "")
        return self

    def best_score(self, query: str) -> float | None:
        """Return the score of the best moment of the videos for a text; None if no window has a vector.

        Args:
            query: The text.
        """
        asked = self._prepare(_Request(query=query, by="video"))
        return max((hit.score for hit in next(self._blocks(asked), [])), default=None)

    def why_nothing_fits(
        self, query: str, moments: Sequence[Moment], videos: Collection[str] | None = None
    ) -> str | None:
        """Return why none of the moments that a text found fits it; None if one fits, or if that is not known.

        A moment fits if words of a caption found it, or if it scores higher than the best moments for at least 5 % of
        held-out captions of these videos (``caption_scores.py``).

        Args:
            query: The text.
            moments: Result of the search for the text.
            videos: Ids of the videos that were searched; None for all.
        """
        if videos is not None and not videos:
            return "no video passes the filters"
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
        return f"{share:.0f} % of {len(known.scores):,} held-out captions of these videos fit better"

    def _judged(self, moment: Moment) -> Moment:
        """Return a moment with the percent of held-out captions that fit less well."""
        if self.caption_scores is None or moment.percentile is None:
            return moment
        return replace(moment, percent_of_captions=self.caption_scores.percent_below(moment.score))

    def encode_query(
        self, query: str, like: ExampleQuery | Sequence[ExampleQuery] | None = None, like_weight: float = 0.5
    ) -> np.ndarray:
        """Return the vector of a query, float32 [D]: of a text, of examples, or of both together.

        Args:
            query: A text; may be empty with ``like``.
            like: A part of a video or an image; or several, whose vectors are averaged after scaling to length 1.
            like_weight: Share of ``like`` beside a text, 0 to 1.
        """
        examples = _examples_of(like)
        if not examples:
            return self.encoder.encode_text(query)
        vectors = [self.encoder.encode_image(e) if isinstance(e, Path) else self._encode_span(e) for e in examples]
        example_D = vectors[0] if len(vectors) == 1 else l2_normalize(np.stack(vectors)).mean(axis=0)
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
            options: Other arguments of ``__call__``, such as ``num_results``.

        Raises:
            UserError: The video has no features, or the part is empty or outside of the video.
        """
        return self(like=VideoSpan(video_id, start_seconds, end_seconds), **options)

    def score_curve(self, query: str, video_id: str) -> ScoreCurve:
        """Return how well a text fits a video over its time.

        Args:
            query: The text.
            video_id: A video of the data set.

        Raises:
            UserError: The query is empty, or the video has no features.
        """
        check_query(query)

        def find() -> ScoreCurve:
            return self._text_curve(self.encode_query(query), self._known_id(video_id))

        return self._without_pruned(find)

    def word_curves(self, query: str, video_id: str) -> dict[str, ScoreCurve]:
        """Return how well each word of a text fits a video over its time; empty if the run has no such scores.

        Words that the run does not know are skipped. Compare scores of one word with each other only.

        Args:
            query: What to look for.
            video_id: A video of the data set.

        Raises:
            UserError: The query is empty, or the video has no features.
        """
        check_query(query)

        def find() -> dict[str, ScoreCurve]:
            return self.encoder.word_curves(query, self._known_id(video_id))

        return self._without_pruned(find)

    def warnings(self, query: str, by: SearchBy = "both", without: str = "", has_example: bool = False) -> list[str]:
        """Return a sentence for each part that was not searched, and one for words that the model does not know.

        Args:
            query: The text; may be empty with an example.
            by: What it was compared with.
            without: The text about things that moments should not show.
            has_example: There was an example, too; then only the videos are compared.
        """
        side: SearchBy = "video" if has_example else by
        minus = self._unread(without, side) if without.strip() else []
        warnings = [f"without {without.strip()!r}: {line}" for line in minus]
        if has_example:
            return [*(self._unread(query, side) if query.strip() else ()), *warnings]
        can_be_judged = by != "text" and not without.strip() and self.encoder.knows(query)
        not_judged = [self.why_not_judged] if can_be_judged and self.why_not_judged else []
        return [*self._warnings(query, by), *warnings, *not_judged]

    def _warnings(self, query: str, by: SearchBy) -> list[str]:
        warnings = self._unread(query, by)
        if by == "text":
            return warnings
        if self.caption_index is not None and not self.encoder.reads_texts:
            return ["only captions were searched: the model of these features reads no texts", *warnings]
        if self.biases is not None:
            count = len(self.biases.log_weights_K)
            warnings.append(f"scores are normalised by ncl: by biases of the windows from {count:,} training texts")
        if by == "both" and self.caption_index is None:
            warnings.append("there are no captions or subtitles; only the videos were searched")
        return warnings

    def _unread(self, text: str, by: SearchBy) -> list[str]:
        """Return the unused words of a text: stop words for captions, unknown words for videos."""
        captions = None if by == "video" else self.caption_index
        lines = []
        if captions is not None and not captions.has_content_words(text):
            what = "only stop words, such as 'the'" if has_words(text) else "no words"
            lines.append(NO_CAPTION_WORDS.format(what))
        by_video = by != "text" and (captions is None or self.encoder.reads_texts)
        return [*lines, *(self.encoder.warnings(text) if by_video else ())]

    def _prepare(self, request: _Request) -> _Query:
        """Return a query with its vector's scores. If the search is grouped, it also has the minimum caption score."""
        asked = replace(self._scored(request, request.without.strip()), videos=request.videos)
        return asked if request.group is None else replace(asked, min_caption_score=self._min_caption_score(asked))

    def _scored(self, request: _Request, without: str) -> _Query:
        query, by, rerank = request.query, request.by, request.rerank
        if request.examples:
            query_D = self._less(self.encode_query(query, request.examples, request.like_weight), without)
            return _Query(query, without, "video", rerank, request.examples, self._find_candidates(query_D, None))
        if by == "text" and self.caption_index is None:
            problem = f"{self.encoder.dataset.name} has no captions; run vlalign-preprocess with captions or subtitles"
            raise SettingError("by", by, problem)
        captions = None if by == "video" else self.caption_index
        excluded = captions.spans_with(without) if captions is not None and without else NO_SPANS
        if captions is not None and (by == "text" or not self.encoder.reads_texts):
            return _Query(query, without, "text", rerank, (), None, excluded)
        query_D = self._less(self.encode_query(query), without)
        return _Query(query, without, by, rerank, (), self._find_candidates(query_D, self.biases), excluded)

    def _less(self, query_D: np.ndarray, without: str) -> np.ndarray:
        """Return a query's vector minus ``WITHOUT_WEIGHT`` times the vector of ``without`` at the same length."""
        if not without:
            return query_D
        minus_D = l2_normalize(self.encoder.encode_text(without))
        return query_D - WITHOUT_WEIGHT * np.linalg.norm(query_D) * minus_D

    def _ranked(
        self, asked: _Query, num_blocks: int | None = None, matches: Iterable[CaptionMatch] | None = None
    ) -> Iterator[Moment]:
        """Yield the moments that fit a query, the best first: by the videos, by captions, or by both.

        Args:
            asked: The query.
            num_blocks: Blocks of ``HITS_AT_ONCE`` windows to look at; None for all.
            matches: The captions that fit, the best first; None to look for them.
        """
        captions = None if asked.by == "video" else self.caption_index
        if matches is None:
            matches = iter(()) if captions is None else self._matches(captions, asked)
        if asked.candidates is None:
            return caption_moments(matches, self.encoder)
        blocks = islice(self._blocks(asked), num_blocks)
        by_video = merge_hits(
            chain.from_iterable(blocks),
            lambda video_id: self._curve_of(asked, video_id),
            are_shots=self.index.has_shots,
        )
        if captions is None:
            return by_video
        score = partial(self._score, asked)
        by_text = caption_moments(matches, self.encoder, score, self._text_curve, asked.candidates)
        return fuse_rankings(by_video, by_text, asked.excluded.overlap_moment)

    def _matches(self, captions: CaptionIndex, asked: _Query, min_score: float | None = None) -> Iterator[CaptionMatch]:
        """Yield the captions that fit a text, the best first, except captions that overlap one with a word
        of ``without``."""
        searched = self._video_ids if asked.videos is None else self._video_ids & frozenset(asked.videos)
        return captions.matches(asked.text, searched, min_score, asked.excluded)

    def _blocks(self, asked: _Query) -> Iterator[list[Hit]]:
        """Yield blocks of windows with scores of all stages, the best first, except those that overlap examples."""
        assert asked.candidates is not None
        spans = [self._span(e) for e in asked.examples if isinstance(e, VideoSpan)]
        if asked.examples:
            for block in self._hits(asked.candidates, HITS_AT_ONCE, asked.videos):
                yield [hit for hit in block if not any(_shares_time(hit, *span) for span in spans)]
            return
        for block in self._hits(asked.candidates, max(HITS_AT_ONCE, asked.rerank), asked.videos):
            hits = self._rescored(asked, block)
            if asked.only_fitting and self.caption_scores is not None:
                hits = [hit for hit in hits if self.caption_scores.fits(hit.score)]
                if not hits:
                    return
            yield hits

    def _curve_of(self, asked: _Query, video_id: str) -> ScoreCurve:
        """Return the curve of a query's vector; without one, an empty curve."""
        if asked.candidates is None:
            return NO_CURVE
        query_D = asked.candidates.query_D
        return self._curve(query_D, video_id) if asked.examples else self._text_curve(query_D, video_id)

    def _min_caption_score(self, asked: _Query) -> float | None:
        """Return the least score of a caption that fits a text; None if no caption does."""
        if asked.by == "video" or self.caption_index is None:
            return None
        best = next(self._matches(self.caption_index, asked), None)
        return None if best is None else MIN_SCORE_SHARE * best.score

    def _with_occurrences(self, asked: _Query, found: Sequence[Moment]) -> list[Moment]:
        """Return the best moments of some videos, each with the other fitting moments of its video."""
        matches: dict[str, list[CaptionMatch]] = {moment.video_id: [] for moment in found}
        if self.caption_index is not None and asked.min_caption_score is not None:
            shown = replace(asked, videos=matches.keys())
            for match in self._matches(self.caption_index, shown, asked.min_caption_score):
                matches[match.video_id].append(match)
        return [self._with_others(asked, moment, matches[moment.video_id]) for moment in found]

    def _with_others(self, asked: _Query, best: Moment, matches: Sequence[CaptionMatch]) -> Moment:
        """Return the best moment of a video with its other fitting moments, among its ``HITS_AT_ONCE`` best windows.

        A moment fits if a caption found it, or if it scores high enough (``CaptionScores.fits``). If captions' scores
        are not known, or even the best moment scores too low, a moment fits if the maximum of its curve is at least
        midway between the median and the maximum of the video's curve.

        Args:
            asked: The query.
            best: The moment.
            matches: The captions of the video that fit, the best first.
        """
        scores, limit = self._curve_of(asked, best.video_id).scores, float("inf")
        if len(scores):
            limit = (scores.max() + np.median(scores)) / 2
        known = self.caption_scores if asked.has_known_scale else None
        if known is not None and not known.fits(best.score):
            known = None

        def fits(moment: Moment) -> bool:
            if moment.found_by != "video":
                return True
            return moment.curve.scores.max(initial=-np.inf) >= limit if known is None else known.fits(moment.score)

        found = [best]
        for moment in self._ranked(replace(asked, videos={best.video_id}), 1, matches):
            if len(found) == MAX_OCCURRENCES:
                break
            if fits(moment) and not any(share_time(moment, other) for other in found):
                found.append(moment)
        return replace(best, occurrences=tuple(sorted(found, key=lambda moment: moment.start_seconds)))

    def _vector_of(self, moment: Moment) -> np.ndarray:
        """Return the vector of the search window that shares most time with a moment's window, float32 [D].

        For a video that a caption found, but that is not in the index yet, return zeros, which are similar to nothing.
        """
        spans, vectors = self.index.of_video(moment.video_id)
        if not len(vectors):
            return np.zeros(self.index.dim, np.float32)
        start, end = moment.window
        shared = np.minimum(spans[:, 1], end) - np.maximum(spans[:, 0], start)
        either = np.maximum(spans[:, 1], end) - np.minimum(spans[:, 0], start)
        return vectors[int((shared / np.maximum(either, 1e-9)).argmax())].astype(np.float32)

    def _find_candidates(self, query_D: np.ndarray, biases: WindowBiases | None) -> CandidateSearch:
        if self.coded_index is None:
            return ExactSearch(self.index, query_D, biases)
        return self.coded_index.search(query_D)  # there are too many windows for biases

    def _hits(
        self, candidates: CandidateSearch, hits_at_once: int, videos: Collection[str] | None
    ) -> Iterator[list[Hit]]:
        """Yield blocks of windows, the best first.

        Each round requests twice as many candidates as the last one, since each looks at all windows.
        """
        seen, count = np.zeros(0, np.int64), hits_at_once
        while True:
            check_time()
            rows, scores = candidates.best(count, videos)
            is_end = len(rows) < count
            is_new = ~np.isin(rows, seen) & np.isfinite(scores)  # a window without rows has no vector
            rows, scores = rows[is_new], scores[is_new]
            seen = np.concatenate([seen, rows])
            for low in range(0, len(rows), hits_at_once):
                check_time()
                block = slice(low, low + hits_at_once)
                yield self._block(candidates, rows[block], scores[block])
            if is_end or not len(rows):
                return
            count *= 2

    def _block(self, candidates: CandidateSearch, rows: np.ndarray, scores: np.ndarray) -> list[Hit]:
        """Return windows with their scores; skip windows of videos that the store lost."""
        percentiles = candidates.percentiles(scores).tolist()
        spans = self.index.spans_of(rows).tolist()
        biases = (np.zeros(len(rows)) if candidates.biases is None else candidates.biases.bias_W[rows]).tolist()
        hits = [
            Hit(self.index.video_ids[self.index.video[row]], start, end, score, percentile, bias=bias)
            for row, (start, end), score, percentile, bias in zip(
                rows.tolist(), spans, scores.tolist(), percentiles, biases, strict=True
            )
        ]
        return [hit for hit in hits if hit.video_id in self._video_ids]

    def _rescored(self, asked: _Query, hits: list[Hit]) -> list[Hit]:
        """Return hits, re-ranked by the weighted sum of all stages; unchanged if the encoder has no stages."""
        scores = self._score(asked, [self._clip(hit) for hit in hits]) if hits else None
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

    def _score(self, asked: _Query, clips: Sequence[Clip]) -> ClipScores | None:
        """Score clips with all stages; None if the encoder has no stages. With ``without``, all clips are reranked."""
        if not asked.without:
            return self.encoder.score(asked.text, clips, asked.rerank)
        scores, minus = (self.encoder.score(text, clips, len(clips)) for text in (asked.text, asked.without))
        if scores is None or minus is None:
            return None
        stages = {name: values - WITHOUT_WEIGHT * minus.stages[name] for name, values in scores.stages.items()}
        return ClipScores(scores.total - WITHOUT_WEIGHT * minus.total, stages)

    def _clip(self, hit: Hit) -> Clip:
        duration = self.encoder.duration_seconds(hit.video_id)
        if hit.start_seconds == 0 and hit.end_seconds >= duration:
            return Clip(hit.video_id, None, None)
        return Clip(hit.video_id, hit.start_seconds, hit.end_seconds)

    def _text_curve(self, query_D: np.ndarray, video_id: str) -> ScoreCurve:
        """Return the curve of a text: with the windows' biases."""
        return self._curve(query_D, video_id, self.biases)

    def _curve(self, query_D: np.ndarray, video_id: str, biases: WindowBiases | None = None) -> ScoreCurve:
        """Return the encoder's own curve, else the scores of the video's shortest windows, or of all its shots."""
        curve = self.encoder.curve(query_D, video_id)
        if curve is not None:
            return curve
        rows = self.index.rows_of(video_id)
        spans = self.index.spans_of(rows)
        lengths = (spans[:, 1] - spans[:, 0]).round(3)
        shortest = np.flatnonzero(lengths == lengths.min(initial=np.inf))
        if self.index.has_shots and len(rows) > 1:
            shortest = np.arange(1, len(rows))  # all but the whole video
        shortest = shortest[np.argsort(spans[shortest, 0], kind="stable")]
        scores = self.index.vectors_of(rows[shortest]) @ query_D
        if biases is not None:
            scores = (scores + biases.bias_W[rows[shortest]]).astype(np.float32)
        return ScoreCurve(spans[shortest, 0], spans[shortest, 1], scores)

    def _encode_span(self, like: VideoSpan) -> np.ndarray:
        """Return the vector of a part of a video."""
        video_id, start, end = self._span(like)
        whole = start == 0 and end >= self.encoder.duration_seconds(video_id)
        clip = Clip(video_id, None, None) if whole else Clip(video_id, start, end)
        vector = self.encoder.encode_clips([clip])[0]
        if not np.isfinite(vector).all():
            raise UserError(f"{video_id}@{start:g}-{end:g}: this part has no features; pass another part")
        return vector

    def _span(self, like: VideoSpan) -> tuple[str, float, float]:
        """Return the id of a part's video, and its start and end in seconds."""
        video_id = self._known_id(like.video_id)
        duration = self.encoder.duration_seconds(video_id)
        start, end = like.start_seconds or 0.0, duration if like.end_seconds is None else like.end_seconds
        if not 0 <= start < min(end, duration):
            raise UserError(
                f"{video_id}@{start:g}-{end:g}: empty, or outside the video of {duration:.2f} s; "
                "expected 0 <= start < end, and start before the end of the video"
            )
        return video_id, start, end

    def id_of(self, video_id: str) -> str:
        """Return the id of a video as the index has it: unchanged if it is known, else with composed accents (NFC).

        Args:
            video_id: Id as somebody typed it; the video need not exist.
        """
        return video_id if video_id in self._video_ids else unicodedata.normalize("NFC", video_id)

    def has_video(self, video_id: str) -> bool:
        """Return whether a text is the id of a video, however its accents are written.

        Args:
            video_id: The text.
        """
        return self.id_of(video_id) in self._video_ids

    def _known_id(self, video_id: str) -> str:
        """Return the id of a video that can be an example; raise ``UserError`` for another one."""
        video_id = self.id_of(video_id)
        if video_id not in self._video_ids or not len(self.index.rows_of(video_id)):
            expected = ", such as ".join(["one of its ids", *map(repr, sorted(self._video_ids)[:1])])
            if "@" in video_id:
                expected += ", or VIDEO@START-END with times in seconds"
            raise UnknownVideo(
                f"video {video_id!r}: not in the index of {self.encoder.dataset.name}; expected {expected}"
            )
        return video_id


def _examples_of(like: ExampleQuery | Sequence[ExampleQuery] | None) -> tuple[ExampleQuery, ...]:
    if like is None:
        return ()
    return (like,) if isinstance(like, VideoSpan | Path) else tuple(like)


def _content_of(example: ExampleQuery) -> Hashable:
    """Return a key of an example: a changed image file is another image."""
    if isinstance(example, VideoSpan):
        return example
    try:
        about = example.stat()
    except OSError:  # encoding it reports the problem
        return example, None
    return example, about.st_mtime_ns, about.st_size


def _shares_time(hit: Hit, video_id: str, start_seconds: float, end_seconds: float) -> bool:
    return hit.video_id == video_id and hit.start_seconds < end_seconds and hit.end_seconds > start_seconds


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
        dataset: The data set's folder, ``<root>/<data set>``. None: the run's data set.
        features: Name of a store whose model also reads texts, such as "clip_vit_b32".
        run: Folder of a run, or its name in ``dataset`` or in a data set beside it; its features are searched.
        weights: With ``features``: file or folder of the weights that made the store. None: where the extraction found
            them.
        device: What a run computes on; see ``find_device``.
        stores: Stores of one's own with the data set's features, as for ``train``.
        trust: Modules of your own that may be imported if the run names them.
        normalize: "ncl" or "none": with or without NCL's biases of the windows. None: with them for a run of NCL.

    Returns:
        The search. Call it with a text.

    Raises:
        UserError: Neither or both of ``features`` and ``run`` are given, one cannot be used, or the index is missing
            and too large to be made now.

    Example:
        >>> from vlalign.train import open_search
        >>> search = open_search("vlalign_data/demo", run="words-s3d-seed0", device="cpu")
        >>> moments = search("cut the onion", num_results=3)
        >>> len(moments), search.has_video(moments[0].video_id)
        (3, True)
    """
    return Search.open(SearchSource(dataset, features, run, weights, device, stores, trusted_modules(trust), normalize))
